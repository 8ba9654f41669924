//! Holes, allocation, and maximum file sizes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ftruncate, seek, statvfs};
use rustix::io::Errno;

use crate::crash_matrix::holds_within;
use crate::fixture::sh;
use crate::semantics::two_mounts::{TwoMounts, errno_of};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// Maximum size of an object on an OST, as on ext4.
const OBJECT_MAX: u64 = 16 * TIB - 4096;

fn open(env: &TwoMounts, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(env.a.join(name)).unwrap()
}

fn next_data(f: &File, from: u64) -> rustix::io::Result<u64> {
    seek(f, SeekFrom::Data(from))
}

fn next_hole(f: &File, from: u64) -> rustix::io::Result<u64> {
    seek(f, SeekFrom::Hole(from))
}

#[test]
fn seek_data_and_hole_work_on_every_mount() {
    let env = TwoMounts::new();
    env.create_striped("striped");
    for name in ["f", "striped"] {
        let f = open(&env, name);
        f.write_all_at(&[1; 4096], MIB).unwrap();
        f.write_all_at(&[2; 4096], 3 * MIB).unwrap();
        f.set_len(5 * MIB).unwrap();
        let on_b = File::open(env.b.join(name)).unwrap();
        for f in [&f, &on_b] {
            assert_eq!(next_data(f, 0), Ok(MIB), "{name}");
            assert_eq!(next_hole(f, 0), Ok(0));
            assert_eq!(next_hole(f, MIB), Ok(MIB + 4096));
            assert_eq!(next_data(f, MIB + 4096), Ok(3 * MIB));
            assert_eq!(next_hole(f, 3 * MIB + 1), Ok(3 * MIB + 4096));
            assert_eq!(errno_of(next_data(f, 3 * MIB + 4096)), Errno::NXIO);
            assert_eq!(errno_of(next_hole(f, 5 * MIB)), Errno::NXIO);
        }
        assert!(f.metadata().unwrap().blocks() < 200);
        fallocate(
            &f,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            MIB,
            4096,
        )
        .unwrap();
        assert_eq!(next_data(&on_b, 0), Ok(3 * MIB));
    }
}

#[test]
fn fallocate_allocates_and_punches() {
    let env = TwoMounts::new();
    let f = open(&env, "f");
    f.write_all_at(&[0xaa; 100_000], 0).unwrap();
    let size = || fs::metadata(env.b.join("f")).unwrap().len();
    let change = |flags, from, len| fallocate(&f, flags, from, len);
    let (none, keep) = (FallocateFlags::empty(), FallocateFlags::KEEP_SIZE);
    change(keep, 0, 150_000).unwrap();
    assert_eq!(size(), 100_000);
    change(none, 0, 200_000).unwrap();
    assert_eq!(size(), 200_000);
    change(FallocateFlags::PUNCH_HOLE | keep, 100, 5000).unwrap();
    change(FallocateFlags::ZERO_RANGE, 90_000, 5000).unwrap();
    let read = fs::read(env.b.join("f")).unwrap();
    let zero = |i: usize| (100..5100).contains(&i) || (90_000..95_000).contains(&i) || i >= 100_000;
    let expected: Vec<u8> = (0..200_000).map(|i| if zero(i) { 0 } else { 0xaa }).collect();
    assert!(read == expected);
    change(FallocateFlags::PUNCH_HOLE | keep, 0, MIB).unwrap();
    assert_eq!((size(), f.metadata().unwrap().blocks()), (200_000, 0));
    for flags in [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::PUNCH_HOLE,
    ] {
        assert_eq!(errno_of(change(flags, 0, 4096)), Errno::OPNOTSUPP);
    }
    assert_eq!(errno_of(change(none, 0, 0)), Errno::INVAL);
    let reader = File::open(env.a.join("f")).unwrap();
    assert_eq!(errno_of(fallocate(&reader, none, 0, 10)), Errno::BADF);
}

/// A cached write, setattr or fallocate beyond the limit fails at once, not during write-back.
#[test]
fn file_size_is_limited_by_its_objects() {
    let env = TwoMounts::new();
    env.create_striped("striped");
    for (name, max) in [("f", OBJECT_MAX), ("striped", 2 * OBJECT_MAX - MIB + 4096)] {
        let f = open(&env, name);
        for end in [2 * TIB + 5, 15 * TIB, max] {
            f.set_len(end).unwrap();
            f.write_all_at(b"hello", end - 5).unwrap();
            f.sync_all().unwrap();
            let mut read = [0; 10];
            let on_b = File::open(env.b.join(name)).unwrap();
            assert_eq!(on_b.read_at(&mut read, end - 5).unwrap(), 5, "{name} {end}");
            assert_eq!(&read[..5], b"hello");
            assert_eq!(on_b.metadata().unwrap().len(), end);
        }
        assert!(f.metadata().unwrap().blocks() < 200);
        for beyond in [max + 1, 64 * TIB, i64::MAX as u64] {
            assert_eq!(errno_of(ftruncate(&f, beyond)), Errno::FBIG, "{name} {beyond}");
            assert_eq!(
                errno_of(fallocate(&f, FallocateFlags::empty(), beyond - 1, 1)),
                Errno::FBIG
            );
        }
        assert_eq!(
            f.write_at(b"hello", max).unwrap_err().raw_os_error(),
            Some(Errno::FBIG.raw_os_error())
        );
        assert_eq!(f.write_at(b"hello", max - 2).unwrap(), 2);
        assert_eq!(f.metadata().unwrap().len(), max);
        f.sync_all().unwrap();
        f.set_len(0).unwrap();
    }
}

#[test]
fn statfs_reports_plausible_values() {
    let env = TwoMounts::new();
    for mount in [&env.a, &env.b] {
        let s = statvfs(mount).unwrap();
        assert_eq!(s.f_namemax, 255);
        assert!(s.f_blocks > 0 && s.f_bavail <= s.f_bfree && s.f_bfree <= s.f_blocks);
        assert!(s.f_files >= s.f_ffree && s.f_ffree > 0);
    }
    env.sh("df -h . ; df -i . ; test $(stat -f -c %T .) = fuseblk -o $(stat -f -c %T .) = fuse");
}

#[test]
fn statfs_counts_inodes() {
    let mut env = TwoMounts::new();
    let used = |mount: &Path| {
        let s = statvfs(mount).unwrap();
        s.f_files - s.f_ffree
    };
    // A mount caches the answer for a second.
    let wait_for_inodes = |mount: &Path, expected: u64| {
        let reached = holds_within(Duration::from_secs(20), || used(mount) == expected);
        assert!(reached, "{} inodes in use, not {expected}", used(mount));
    };
    // The root directory, `.lustre` and `.lustre/fid`.
    wait_for_inodes(&env.a, 3);
    env.sh("mkdir d; cd d; touch $(seq 999)");
    for mount in [&env.a, &env.b] {
        wait_for_inodes(mount, 1003);
    }
    env.fs.stop();
    env.fs.start();
    let mount = env.fs.mount_point();
    wait_for_inodes(&mount, 1003);
    sh(&format!("rm -r {}/d", mount.display()));
    wait_for_inodes(&mount, 3);
}
