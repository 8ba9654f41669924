//! Random operations on one file, compared with memory after each (`nacre bench fsx`): with direct I/O, and through two mounts
//! of two processes that take turns; and mappings beside writes from elsewhere.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre, nacre_ok};

/// Runs the exerciser on a striped file through these mounts, with this many seeds.
fn fsx(mounts: &[&Path], seeds: std::ops::Range<u32>, options: &[&str]) {
    let files: Vec<String> = mounts
        .iter()
        .map(|m| text(&m.join(format!("exercised{}", seeds.start))).to_owned())
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
    fsx(&[&fs.mount()], 1..3, &["--direct", "--ops", "50000"]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    fsx(&[&fs.mount(), &other], 11..13, &["--ops", "50000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn two_mounts_that_take_turns_with_direct_io_and_mappings_read_what_both_wrote() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    let mounts = [&*fs.mount(), &*other];
    fsx(&mounts, 21..22, &["--direct", "--ops", "20000"]);
    fsx(&mounts, 31..32, &["--mmap", "--ops", "20000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

/// The kernel has a page of a mapping that is changed for itself: without a lock to write, it was written back whole after the
/// other mount's write, which was lost.
#[test]
fn what_another_mount_writes_beside_a_change_of_a_mapping_is_kept() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.attach("other", 5);
    let (here, there) = (fs.mount().join("f"), other.join("f"));
    fs::write(&here, [b'.'; 8192]).unwrap();
    let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (mapped, file) = (open(&here), open(&there));
    let region = MmapRegion::<()>::from_file(FileOffset::new(mapped.try_clone().unwrap(), 0), 8192).unwrap();
    for round in 0..5u8 {
        let at = usize::from(round);
        region.get_slice(at, 1).unwrap().copy_from(b"m");
        file.write_all_at(b"w", 100 + at as u64).unwrap();
        let mut seen = [0; 8192];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!((seen[at], seen[100 + at]), (b'm', b'w'), "round {round}, there");
        mapped.sync_data().unwrap();
        let mut seen = [0; 8192];
        region.get_slice(0, 8192).unwrap().copy_to(&mut seen);
        assert_eq!((seen[at], seen[100 + at]), (b'm', b'w'), "round {round}, mapped");
        assert!(fs::read(&there).unwrap() == seen);
    }
    drop((region, mapped, file));
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}
