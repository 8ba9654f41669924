//! Reading directories: stable positions, each entry exactly once during concurrent changes,
//! removal while reading.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Dir, Mode, OFlags};

use crate::semantics::two_mounts::TwoMounts;

/// Number of entries of the directories; `NACRE_DIR_ENTRIES=2000000` for a large one.
fn entry_count() -> usize {
    let count = std::env::var("NACRE_DIR_ENTRIES").ok();
    count.map_or(4000, |n| n.parse().unwrap())
}

/// Creates a directory with `count` permanent files, from four threads.
fn create_files(dir: &Path, count: usize) {
    fs::create_dir(dir).unwrap();
    thread::scope(|s| {
        for part in 0..4 {
            s.spawn(move || {
                (part..count)
                    .step_by(4)
                    .for_each(|i| drop(File::create(dir.join(format!("stays{i}"))).unwrap()))
            });
        }
    });
}

fn open(dir: &Path) -> Dir {
    Dir::new(File::open(dir).unwrap()).unwrap()
}

/// The number of times that each name is read.
fn count_names(dir: &mut Dir) -> HashMap<Vec<u8>, usize> {
    let mut counts = HashMap::new();
    while let Some(entry) = dir.read() {
        *counts
            .entry(entry.unwrap().file_name().to_bytes().to_vec())
            .or_default() += 1;
    }
    counts
}

#[test]
fn permanent_entries_are_read_once_during_changes() {
    let env = TwoMounts::new();
    let (dir_on_a, dir_on_b) = (env.a.join("d"), env.b.join("d"));
    create_files(&dir_on_a, entry_count());
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for dir in [&dir_on_a, &dir_on_b] {
            let stop = &stop;
            s.spawn(move || {
                let id = dir.as_os_str().len();
                for i in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let name = |i: i32| dir.join(format!("passes{id}.{i}"));
                    File::create(name(i)).unwrap();
                    if i >= 50 {
                        fs::remove_file(name(i - 50)).unwrap();
                    }
                }
            });
        }
        for _ in 0..3 {
            for dir in [&dir_on_a, &dir_on_b] {
                let counts = count_names(&mut open(dir));
                let permanent = counts.iter().filter(|(name, _)| name.starts_with(b"stays"));
                assert_eq!(permanent.count(), entry_count());
                let twice = counts.iter().find(|(_, times)| **times > 1);
                assert_eq!(twice, None, "seen more than once");
                assert!(counts.contains_key(&b"."[..]) && counts.contains_key(&b".."[..]));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn directory_positions_are_stable() {
    let env = TwoMounts::new();
    create_files(&env.a.join("d"), 1000);
    let mut dir = open(&env.b.join("d"));
    let mut positions = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        positions.push((entry.file_name().to_owned(), entry.offset()));
    }
    assert_eq!(positions.len(), 1002);
    // The offset of an entry is the position after it. Seek in arbitrary order.
    for i in (0..1000).map(|i| i * 389 % 1001) {
        dir.seek(positions[i].1).unwrap();
        assert_eq!(dir.read().unwrap().unwrap().file_name(), &positions[i + 1].0[..]);
    }
    // After a rewind, new entries are visible.
    File::create(env.a.join("d/new")).unwrap();
    dir.rewind();
    assert_eq!(count_names(&mut dir).get(&b"new"[..]), Some(&1));
}

#[test]
fn directory_can_be_emptied_while_reading() {
    let env = TwoMounts::new();
    let path = env.a.join("d");
    create_files(&path, entry_count());
    let mut dir = open(&path);
    let mut removed = 0;
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        if name.starts_with("stays") {
            fs::remove_file(path.join(name)).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, entry_count());
    fs::remove_dir(&path).unwrap();
    create_files(&path, entry_count());
    env.sh("rm -rf d");
    assert_eq!(fs::metadata(&env.b).unwrap().nlink(), 2);
}

#[test]
fn o_noatime_keeps_the_access_time_of_a_directory() {
    let env = TwoMounts::new();
    let dir = env.a.join("d");
    fs::create_dir(&dir).unwrap();
    File::create(dir.join("f")).unwrap();
    let atime = || {
        let m = fs::metadata(&dir).unwrap();
        (m.atime(), m.atime_nsec())
    };
    let before = atime();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
    let noatime_dir = rustix::fs::open(&dir, flags, Mode::empty()).unwrap();
    assert_eq!(count_names(&mut Dir::new(noatime_dir).unwrap()).len(), 3);
    assert_eq!(atime(), before);
    assert_eq!(count_names(&mut open(&dir)).len(), 3);
    assert!(atime() > before);
}
