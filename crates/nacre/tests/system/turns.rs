//! Random operations on one file, compared with memory after each (`nacre bench fsx`): with direct I/O, and through two mounts
//! of two processes that take turns.

use std::path::Path;

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre, nacre_ok};

/// Runs the exerciser on a striped file through these mounts.
fn fsx(mounts: &[&Path], options: &[&str]) {
    let files: Vec<String> = mounts
        .iter()
        .map(|m| text(&m.join("exercised")).to_owned())
        .collect();
    nacre_ok(&["lfs", "setstripe", "-c", "2", "-S", "64K", &files[0]]);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let ran = nacre(&[&["bench", "fsx"], options, &files].concat());
    assert!(ran.ok, "{}{}", ran.out, ran.err);
}

#[test]
fn direct_io_reads_what_it_wrote() {
    let fs = FileSystem::new(Shape::OneProcess);
    fsx(&[&fs.mount()], &["--direct", "--ops", "100000", "--seed", "3"]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    fsx(&[&fs.mount(), &other], &["--ops", "100000", "--seed", "4"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_with_direct_io_and_mappings_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    let mounts = [&*fs.mount(), &*other];
    fsx(&mounts, &["--direct", "--ops", "5000", "--seed", "5"]);
    fsx(&mounts, &["--mmap", "--ops", "300", "--seed", "6"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}
