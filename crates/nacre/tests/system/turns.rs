//! Random operations on one file, compared with memory after each (`nacre bench fsx`): with direct I/O, and through two mounts
//! of two processes that take turns.

use std::path::Path;

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre, nacre_ok};

/// Runs the exerciser on a striped file through these mounts, with this many seeds.
fn fsx(mounts: &[&Path], seeds: std::ops::Range<u32>, options: &[&str]) {
    let files: Vec<String> = mounts
        .iter()
        .map(|m| text(&m.join("exercised")).to_owned())
        .collect();
    nacre_ok(&["lfs", "setstripe", "-c", "2", "-S", "64K", &files[0]]);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    for seed in seeds {
        let ran = nacre(&[&["bench", "fsx", "--seed", &seed.to_string()], options, &files].concat());
        assert!(ran.ok, "{}{}", ran.out, ran.err);
    }
}

#[test]
fn direct_io_reads_what_it_wrote() {
    let fs = FileSystem::new(Shape::OneProcess);
    fsx(&[&fs.mount()], 1..6, &["--direct", "--ops", "20000"]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    fsx(&[&fs.mount(), &other], 11..16, &["--ops", "20000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_with_direct_io_and_mappings_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    let mounts = [&*fs.mount(), &*other];
    fsx(&mounts, 21..22, &["--direct", "--ops", "5000"]);
    fsx(&mounts, 31..32, &["--mmap", "--ops", "300"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}
