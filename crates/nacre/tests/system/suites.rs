//! The field's loads on a mount, each to its end: fio that verifies what it wrote, also through another mount; stress-ng's
//! file-system stressors; dbench; bonnie++. `cargo xtask setup` installs them from Debian.
//!
//! They are short here. `NACRE_SUITES_SECONDS=600` has each of them run for so long (those that count bytes: for as many
//! times 10 s as that is).

#![allow(clippy::unwrap_used)]

use std::fs;

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{Site, sh};

/// stress-ng's stressors of the class `filesystem`, all at once.
const STRESSORS: &str = "access chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fcntl file-ioctl \
                         filename flock fpunch fsize fstat getdent handle hdd inotify iomix lease link locka lockf lockofd mknod \
                         open rename symlink sync-file touch utime xattr";

/// The others of the class, and why they are not run.
const NOT_RUN: &[(&str, &str)] = &[
    (
        "bind-mount",
        "mounts over directories of the machine, not of the file system",
    ),
    ("binderfs", "a file system of its own"),
    (
        "chattr",
        "asks by ioctl for inode flags; the mount has none to set (ENOTTY)",
    ),
    ("eventfd", "no file"),
    ("fanotify", "watches, and can hold up, every mount of the machine"),
    (
        "fiemap",
        "FUSE has no FIEMAP (EOPNOTSUPP); SEEK_DATA and SEEK_HOLE tell where data is",
    ),
    ("inode-flags", "as chattr"),
    ("io", "calls sync(2) for every mount of the machine"),
    ("ioprio", "about scheduling"),
    ("procfs", "reads /proc"),
    ("verity", "FUSE has no fs-verity (ENOTTY); neither has Lustre"),
];

/// How long each may take.
fn seconds() -> u64 {
    let longer = std::env::var("NACRE_SUITES_SECONDS").ok();
    longer.map_or(10, |s| s.parse().unwrap())
}

#[test]
fn fio_reads_what_it_wrote_through_the_cache_past_it_mapped_and_by_another_mount() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let (a, b) = (fs.mount(), fs.attach("second", 9));
    let job = fs.site.at("verify.fio");
    fs::write(
        &job,
        "[global]\ndirectory=${AT}\nsize=12m\nverify=crc32c\nverify_fatal=1\nverify_state_save=0\nfallocate=none\nend_fsync=1\nbs=4k-64k\n\
         rw=randwrite\nioengine=psync\ngroup_reporting\n\
         [buffered]\nnumjobs=2\n[direct]\ndirect=1\nnumjobs=2\n[deep]\nioengine=libaio\ndirect=1\niodepth=8\n\
         [mapped]\nioengine=mmap\nbs=4k\n[mixed]\nrw=randrw\n",
    )
    .unwrap();
    for seed in 0..seconds().div_ceil(10) {
        // Each verifies what it wrote itself; then the other mount does.
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
fn stress_ng_finds_no_fault_in_files() {
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    let all = sh("stress-ng --class filesystem? 2>&1 | sed 's/.*stressors: *//'");
    for stressor in all.split_whitespace() {
        let run = STRESSORS.split_whitespace().any(|s| s == stressor);
        let left_out = NOT_RUN.iter().any(|(s, _)| *s == stressor);
        assert!(
            run != left_out,
            "{stressor} is neither run nor left out for a reason"
        );
    }
    let options: Vec<String> = STRESSORS.split_whitespace().map(|s| format!("--{s} 1")).collect();
    let said = sh(&format!(
        "mkdir {at}/s; stress-ng {} --chdir-dirs 256 --verify --timeout {} --temp-path {at}/s 2>&1",
        options.join(" "),
        seconds()
    ));
    assert!(said.contains("successful run completed"), "{said}");
    let left = sh(&format!("find {at}/s -mindepth 1 | head"));
    assert_eq!(left, "", "stress-ng could not remove what it made");
}

#[test]
fn dbench_runs_to_its_end() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let (a, b) = (fs.mount(), fs.attach("second", 9));
    let dbench = |at: &std::path::Path, name: &str| {
        sh(&format!(
            "mkdir {at}/{name}; dbench -D {at}/{name} -t {} -c /usr/share/dbench/client.txt 4 2>&1; rm -r {at}/{name}",
            seconds().div_ceil(2),
            at = text(at)
        ))
    };
    std::thread::scope(|s| {
        let both = [s.spawn(|| dbench(&a, "a")), s.spawn(|| dbench(&b, "b"))];
        for said in both.map(|one| one.join().unwrap()) {
            assert!(said.contains("Throughput") && !said.contains("ERROR"), "{said}");
        }
    });
}

/// Without its test of one byte a call, which is 48 million calls.
#[test]
fn bonnie_runs_to_its_end() {
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    for _ in 0..seconds().div_ceil(10) {
        let said = sh(&format!("bonnie++ -d {at} -s 48M -r 24M -f -n 1 -u root -q 2>&1"));
        assert!(said.lines().last().unwrap().starts_with("1."), "{said}");
    }
}
