//! Common load generators complete on a mount: fio with verification, also through a second mount;
//! the file system stressors of stress-ng; dbench; bonnie++. `cargo xtask setup` installs them from
//! Debian.
//!
//! Runs are short by default. `NACRE_SUITES_SECONDS=600` sets the duration of each run. Runs with a
//! fixed amount of data repeat instead, once for every 10 s.

#![allow(clippy::unwrap_used)]

use std::fs;

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{Site, sh};

/// stress-ng's stressors of the class `filesystem`, run concurrently.
const STRESSORS: &str = "access chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fcntl file-ioctl \
                         filename flock fpunch fsize fstat getdent handle hdd inotify iomix lease link locka lockf lockofd mknod \
                         open rename symlink sync-file touch utime xattr";

/// Other stressors of the class, with the reason for skipping them.
const SKIPPED_STRESSORS: &[(&str, &str)] = &[
    (
        "bind-mount",
        "mounts over directories of the machine, outside the file system",
    ),
    ("binderfs", "tests another file system"),
    ("chattr", "sets inode flags that are not supported (EOPNOTSUPP)"),
    ("eventfd", "does not use files"),
    (
        "fanotify",
        "watches every mount of the machine, and can block them",
    ),
    (
        "fiemap",
        "FUSE has no FIEMAP (EOPNOTSUPP); SEEK_DATA and SEEK_HOLE are supported",
    ),
    ("inode-flags", "like chattr"),
    ("io", "calls sync(2) for every mount of the machine"),
    ("ioprio", "tests scheduling"),
    ("procfs", "reads /proc"),
    ("verity", "neither FUSE nor Lustre has fs-verity (ENOTTY)"),
];

/// Duration of each load.
fn seconds() -> u64 {
    let longer = std::env::var("NACRE_SUITES_SECONDS").ok();
    longer.map_or(10, |s| s.parse().unwrap())
}

#[test]
fn fio_verifies_cached_direct_and_mapped_io_on_two_mounts() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let (a, b) = (fs.mount_point(), fs.add_mount("second", 9));
    let job = fs.site.path_str("verify.fio");
    fs::write(
        &job,
        "[global]\ndirectory=${AT}\nsize=12m\nverify=crc32c\nverify_fatal=1\nverify_state_save=0\nfallocate=none\nend_fsync=1\nbs=4k-64k\n\
         rw=randwrite\nioengine=psync\ngroup_reporting\n\
         [buffered]\nnumjobs=2\n[direct]\ndirect=1\nnumjobs=2\n[deep]\nioengine=libaio\ndirect=1\niodepth=8\n\
         [mapped]\nioengine=mmap\nbs=4k\n[mixed]\nrw=randrw\n",
    )
    .unwrap();
    for seed in 0..seconds().div_ceil(10) {
        // Each job verifies its own data, then the second mount verifies it.
        sh(&format!(
            "AT={} fio --randseed={seed} --output={job}.out {job} || (cat {job}.out; exit 1)",
            text(&a)
        ));
        sh(&format!(
            "cd /; AT={} fio --randseed={seed} --verify_only --section=buffered --section=direct --section=deep --section=mapped \
             --output={job}.out {job} || (cat {job}.out; exit 1)",
            text(&b)
        ));
        sh(&format!("rm {}/*", text(&a)));
    }
}

#[test]
fn stress_ng_file_stressors_pass() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let all = sh("stress-ng --class filesystem? 2>&1 | sed 's/.*stressors: *//'");
    for stressor in all.split_whitespace() {
        let run = STRESSORS.split_whitespace().any(|s| s == stressor);
        let skipped = SKIPPED_STRESSORS.iter().any(|(s, _)| *s == stressor);
        assert!(
            run != skipped,
            "{stressor} must be in exactly one of STRESSORS and SKIPPED_STRESSORS"
        );
    }
    let options: Vec<String> = STRESSORS.split_whitespace().map(|s| format!("--{s} 1")).collect();
    let output = sh(&format!(
        "mkdir {mount}/s; stress-ng {} --chdir-dirs 256 --verify --timeout {} --temp-path {mount}/s 2>&1",
        options.join(" "),
        seconds()
    ));
    assert!(output.contains("successful run completed"), "{output}");
    let remaining = sh(&format!("find {mount}/s -mindepth 1 | head"));
    assert_eq!(remaining, "", "stress-ng did not remove all its files");
}

#[test]
fn dbench_completes() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let (a, b) = (fs.mount_point(), fs.add_mount("second", 9));
    let dbench = |at: &std::path::Path, name: &str| {
        sh(&format!(
            "mkdir {at}/{name}; dbench -D {at}/{name} -t {} -c /usr/share/dbench/client.txt 4 2>&1; rm -r {at}/{name}",
            seconds().div_ceil(2),
            at = text(at)
        ))
    };
    std::thread::scope(|s| {
        let loads = [s.spawn(|| dbench(&a, "a")), s.spawn(|| dbench(&b, "b"))];
        for output in loads.map(|load| load.join().unwrap()) {
            assert!(
                output.contains("Throughput") && !output.contains("ERROR"),
                "{output}"
            );
        }
    });
}

/// `-f` omits the tests of single bytes, which would make 48 million calls.
#[test]
fn bonnie_completes() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    for _ in 0..seconds().div_ceil(10) {
        let output = sh(&format!(
            "bonnie++ -d {mount} -s 48M -r 24M -f -n 1 -u root -q 2>&1"
        ));
        assert!(output.lines().last().unwrap().starts_with("1."), "{output}");
    }
}
