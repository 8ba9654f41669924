//! The library as C programs meet it: they are built against the header, in C and in C++, linked to `libnacre.so`, and run
//! against a file system in this process.

#![allow(clippy::unwrap_used)]

mod site;

use site::{Site, here};

/// Compilers, and the language that they are to take it for.
const C: &[&str] = &["cc", "-std=c99", "-D_GNU_SOURCE"];
const CXX: &[&str] = &["c++", "-x", "c++", "-std=c++11"];

/// Builds a program of `tests/c` and runs it.
async fn passes(program: &str, compiler: &[&str]) {
    let site = Site::start(2).await;
    let built = site.build(&here().join("tests/c").join(program), compiler);
    let said = site.run(site.program(&built)).await;
    assert_eq!(said, "passed\n");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_in_c_writes_a_file_and_reads_it() {
    passes("first.c", C).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_header_is_one_of_cxx_too() {
    passes("first.c", CXX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_and_says_what_does_not() {
    passes("calls.c", C).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_threads_and_children_keep_to_themselves() {
    passes("mounts.c", C).await;
}
