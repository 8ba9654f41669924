//! Tests of the library with C programs: built against the header in C and C++, linked to
//! `libnacre.so`, and run against a file system in this process.

#![allow(clippy::unwrap_used)]

use crate::site::{TestSite, library_dir, package_dir};
use client::{Cred, OpenFlags, SetAttr};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// The compilers with their language options.
const C: &[&str] = &["cc", "-std=c99", "-D_GNU_SOURCE"];
const CXX: &[&str] = &["c++", "-x", "c++", "-std=c++11"];

/// Builds a program of `tests/c`, runs it, and checks that it passes.
async fn run_program(program: &str, compiler: &[&str]) {
    let site = TestSite::start(2).await;
    let binary = site.build(&package_dir().join("tests/c").join(program), compiler);
    let output = site.run(site.program(&binary)).await;
    assert_eq!(output, "passed\n");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_program_writes_and_reads_a_file() {
    run_program("first.c", C).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_compiles_as_cxx() {
    run_program("first.c", CXX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_and_reports_errors() {
    run_program("calls.c", C).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_report_errors_and_work_with_threads_signals_and_child_processes() {
    run_program("mounts.c", C).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_carry_the_name_of_the_job() {
    let site = TestSite::start(1).await;
    let binary = site.build(&package_dir().join("tests/c/first.c"), C);
    let [source, options] = site.mount_args();
    let mut program = Command::new(&binary);
    program.args([
        source,
        format!("{options},jobid_var=nodelocal,jobid_name=library-%g"),
    ]);
    assert_eq!(site.run(program).await, "passed\n");
    let name = format!("library-{}", std::fs::metadata("/proc/self").unwrap().gid());
    for target in ["mdt", "obdfilter"] {
        let jobs = site.cluster.params.get(&format!("{target}.*.job_stats"));
        assert!(jobs.iter().any(|(_, text)| text.contains(&name)), "{jobs:?}");
    }
    site.stop().await;
}

#[test]
fn library_exports_only_its_own_names() {
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

/// The user ID of an ordinary user. No such user need exist on this system.
const ORDINARY_UID: u32 = 54321;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_user_needs_permissions_and_clears_set_id_bits_by_a_write() {
    let mut site = if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        TestSite::start_with_another_host().await
    } else {
        // Root owns the file system, and an ordinary user runs this test.
        TestSite::start(1).await
    };
    let (client, root) = (site.cluster.mount().await, Cred::root());
    let writable_by_all = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    client
        .setattr(&root, client.root(), &writable_by_all, None)
        .await
        .unwrap();
    let files = [(&b"private"[..], 0o600), (b"public", 0o6777)];
    for (name, mode) in files {
        let flags = OpenFlags::READ_WRITE;
        let (found, file) = client
            .create(&root, client.root(), name, mode, flags)
            .await
            .unwrap();
        client.release(&file).await.unwrap();
        drop(found);
    }
    client
        .mkdir(&root, client.root(), b"private_dir", 0o700)
        .await
        .unwrap();
    site.make_readable_by_all();
    let binary = site.build(&package_dir().join("tests/c/user.c"), C);
    let program = site.program_as_user(&binary, ORDINARY_UID);
    assert_eq!(site.run(program).await, "passed\n");
    client.umount().await;
    site.stop().await;
}
