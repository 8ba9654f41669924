//! `nacre bench fsx` applies random operations to one file and compares the file with a copy in
//! memory after each operation. The tests use direct I/O, mounts of two processes in turn, and
//! mappings while the other mount writes. The tests of two mounts check only the clients, so their
//! servers use stores in memory: thousands of syncs of a slow disk take minutes.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre, nacre_ok};

/// Runs fsx on a striped file through these mounts, once for each seed.
fn fsx(mounts: &[&Path], seeds: std::ops::Range<u32>, options: &[&str]) {
    fsx_on(&["-c", "2", "-S", "64K"], mounts, seeds, options);
}

/// Runs fsx on a file with this layout through these mounts, once for each seed.
fn fsx_on(layout: &[&str], mounts: &[&Path], seeds: std::ops::Range<u32>, options: &[&str]) {
    let files: Vec<String> = mounts
        .iter()
        .map(|m| text(&m.join(format!("exercised{}", seeds.start))).to_owned())
        .collect();
    nacre_ok(&[&["lfs", "setstripe"], layout, &[&files[0]]].concat());
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    for seed in seeds {
        let result = nacre(&[&["bench", "fsx", "--seed", &seed.to_string()], options, &files].concat());
        assert!(result.ok, "{}{}", result.out, result.err);
    }
}

#[test]
fn fsx_with_direct_io_finds_no_difference() {
    let fs = FileSystem::new(Shape::OneProcess);
    fsx(&[&fs.mount_point()], 1..3, &["--direct", "--ops", "50000"]);
    fs.stop();
}

#[test]
fn fsx_on_two_mounts_finds_no_difference() {
    let mut fs = FileSystem::in_memory();
    let other = fs.add_mount("other", 5);
    fsx(&[&fs.mount_point(), &other], 11..13, &["--ops", "50000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn fsx_on_two_mounts_with_direct_io_and_mappings_finds_no_difference() {
    let mut fs = FileSystem::in_memory();
    let other = fs.add_mount("other", 5);
    let mounts = [&*fs.mount_point(), &*other];
    fsx(&mounts, 21..22, &["--direct", "--ops", "20000"]);
    fsx(&mounts, 31..32, &["--mmap", "--ops", "20000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn fsx_on_two_mounts_with_data_on_the_mdt_finds_no_difference() {
    let mut fs = FileSystem::in_memory();
    let other = fs.add_mount("other", 5);
    let mounts = [&*fs.mount_point(), &*other];
    let layout = ["-E", "128K", "-L", "mdt", "-E", "-1", "-S", "64K"];
    fsx_on(&layout, &mounts, 41..43, &["--ops", "10000"]);
    fsx_on(&layout, &mounts, 51..52, &["--direct", "--ops", "5000"]);
    fsx_on(&layout, &mounts, 61..62, &["--mmap", "--ops", "10000"]);
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

/// A program changes a mapped page without a request to the client. Without a write lock, the
/// client would write the whole page back over the other mount's write.
#[test]
fn write_beside_a_mapped_change_is_kept() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.add_mount("other", 5);
    let (mapped_path, other_path) = (fs.mount_point().join("f"), other.join("f"));
    fs::write(&mapped_path, [b'.'; 8192]).unwrap();
    let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (mapped, file) = (open(&mapped_path), open(&other_path));
    let region = MmapRegion::<()>::from_file(FileOffset::new(mapped.try_clone().unwrap(), 0), 8192).unwrap();
    for round in 0..5u8 {
        let at = usize::from(round);
        region.get_slice(at, 1).unwrap().copy_from(b"m");
        file.write_all_at(b"w", 100 + at as u64).unwrap();
        let mut content = [0; 8192];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(
            (content[at], content[100 + at]),
            (b'm', b'w'),
            "round {round}, through the other mount"
        );
        mapped.sync_data().unwrap();
        let mut content = [0; 8192];
        region.get_slice(0, 8192).unwrap().copy_to(&mut content);
        assert_eq!(
            (content[at], content[100 + at]),
            (b'm', b'w'),
            "round {round}, in the mapping"
        );
        assert!(fs::read(&other_path).unwrap() == content);
    }
    drop((region, mapped, file));
    nacre_ok(&["umount", text(&other)]);
    fs.stop();
}
