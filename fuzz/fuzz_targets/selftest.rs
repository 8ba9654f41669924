#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_fuzz::selftest::serve(bytes));
