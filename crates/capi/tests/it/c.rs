//! The library as C programs meet it: they are built against the header, in C and in C++, linked to `libnacre.so`, and run
//! against a file system in this process.

#![allow(clippy::unwrap_used)]

use crate::site::{Site, here, library_dir};
use client::{Cred, OpenFlags, SetAttr};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

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

#[test]
fn the_library_has_no_names_but_its_own() {
    let names = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library_dir().join("libnacre.so"))
        .output()
        .unwrap();
    assert!(
        names.status.success(),
        "{}",
        String::from_utf8_lossy(&names.stderr)
    );
    let names = String::from_utf8(names.stdout).unwrap();
    let (own, others): (Vec<&str>, Vec<&str>) = names.lines().partition(|l| l.starts_with("nacre_"));
    assert!(!own.is_empty() && others.is_empty(), "{others:?}");
}

/// A user that need not be known to the system.
const USER: u32 = 54321;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_user_may_what_modes_allow_and_keeps_no_set_id_bits() {
    let mut site = if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        Site::start_with_another_host().await
    } else {
        // The file system is root's: the test's own user is an ordinary one.
        Site::start(1).await
    };
    let (client, root) = (site.cluster.mount().await, Cred::root());
    let open = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    client.setattr(&root, client.root(), &open, None).await.unwrap();
    let made = [(&b"private"[..], 0o600), (b"anybodys", 0o6777)];
    for (name, mode) in made {
        let flags = OpenFlags::READ_WRITE;
        let (found, file) = client
            .create(&root, client.root(), name, mode, flags)
            .await
            .unwrap();
        client.release(&file).await.unwrap();
        drop(found);
    }
    client.mkdir(&root, client.root(), b"shut", 0o700).await.unwrap();
    site.for_everybody();
    let built = site.build(&here().join("tests/c/user.c"), C);
    let program = site.program_of_a_user(&built, USER);
    assert_eq!(site.run(program).await, "passed\n");
    client.umount().await;
    site.stop().await;
}
