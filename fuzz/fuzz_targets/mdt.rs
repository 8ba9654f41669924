#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_fuzz::server::serve(bytes));
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    nacre_fuzz::mutator::mutate(data, size, max_size, seed, libfuzzer_sys::fuzzer_mutate)
});
