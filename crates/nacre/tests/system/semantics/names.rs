//! Limits of names, paths and links: length, bytes, number.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, stat, symlinkat};
use rustix::io::Errno;

use crate::semantics::two_mounts::{TwoMounts, errno_of};

#[test]
fn names_have_up_to_255_bytes_except_slash_and_nul() {
    let env = TwoMounts::new();
    let all: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    fs::write(env.a.join(OsStr::from_bytes(&all)), "all").unwrap();
    fs::write(env.a.join("n".repeat(255)), "long").unwrap();
    for byte in &all {
        fs::write(env.a.join(OsStr::from_bytes(&[*byte, b'x'])), "").unwrap();
    }
    let mut found: Vec<Vec<u8>> = fs::read_dir(&env.b)
        .unwrap()
        .map(|e| e.unwrap().file_name().as_bytes().to_vec())
        .collect();
    found.sort();
    let mut expected: Vec<Vec<u8>> = all.iter().map(|b| vec![*b, b'x']).collect();
    expected.extend([all.clone(), vec![b'n'; 255]]);
    expected.sort();
    assert!(found == expected, "{} names of {}", found.len(), expected.len());
    assert_eq!(fs::read(env.b.join(OsStr::from_bytes(&all))).unwrap(), b"all");
    let long = env.a.join("n".repeat(256));
    assert_eq!(errno_of(stat(&long)), Errno::NAMETOOLONG);
    assert_eq!(errno_of(mkdirat(CWD, &long, Mode::RWXU)), Errno::NAMETOOLONG);
    assert_eq!(errno_of(symlinkat("x", CWD, &long)), Errno::NAMETOOLONG);
    let make = OFlags::CREATE | OFlags::WRONLY;
    assert_eq!(errno_of(openat(CWD, &long, make, Mode::RWXU)), Errno::NAMETOOLONG);
}

/// The tree is deeper than any path can name. The test creates, uses and removes it step by step.
#[test]
fn trees_have_any_depth_and_paths_4095_bytes() {
    let env = TwoMounts::new();
    let name = "d".repeat(20);
    let mut dir = openat(CWD, &env.a, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..400 {
        mkdirat(&dir, &name, Mode::RWXU).unwrap();
        dir = openat(&dir, &name, OFlags::PATH, Mode::empty()).unwrap();
    }
    openat(&dir, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
    drop(dir);
    // The same directory through paths of 4094 and 4096 bytes.
    let top = env.b.to_str().unwrap();
    let dots = "/.".repeat(2048);
    assert!(stat(format!("{top}{}", &dots[..4094 - top.len()])).is_ok());
    assert_eq!(
        errno_of(stat(format!("{top}{}", &dots[..4096 - top.len()]))),
        Errno::NAMETOOLONG
    );
    env.sh("test \"$(find . -name bottom | wc -l)\" = 1; rm -r d*; test -z \"$(ls)\"");
}

#[test]
fn symlink_targets_have_up_to_4095_arbitrary_bytes() {
    let env = TwoMounts::new();
    for target in ["x".repeat(4095), "/nowhere//./".to_owned(), "..".to_owned()] {
        symlink(&target, env.a.join("link")).unwrap();
        assert_eq!(
            fs::read_link(env.b.join("link")).unwrap().to_str(),
            Some(&target[..])
        );
        assert_eq!(
            fs::symlink_metadata(env.b.join("link")).unwrap().len(),
            target.len() as u64
        );
        fs::remove_file(env.b.join("link")).unwrap();
    }
    let link = env.a.join("link");
    assert_eq!(
        errno_of(symlinkat("x".repeat(4096), CWD, &link)),
        Errno::NAMETOOLONG
    );
    symlink("link", &link).unwrap();
    assert_eq!(errno_of(stat(&link)), Errno::LOOP);
}

#[test]
fn link_counts_are_equal_on_every_mount() {
    const LINKS: u64 = 1000;
    let env = TwoMounts::new();
    fs::write(env.a.join("f"), "").unwrap();
    for i in 1..LINKS {
        fs::hard_link(env.a.join("f"), env.a.join(format!("f{i}"))).unwrap();
    }
    assert_eq!(fs::metadata(env.b.join("f999")).unwrap().nlink(), LINKS);
    fs::remove_file(env.b.join("f")).unwrap();
    assert_eq!(fs::metadata(env.a.join("f1")).unwrap().nlink(), LINKS - 1);
    // The link count of a directory: its name, its `.`, and the `..` of each subdirectory. It
    // cannot have a second name.
    for i in 0..10 {
        fs::create_dir_all(env.a.join(format!("d/{i}"))).unwrap();
    }
    assert_eq!(fs::metadata(env.b.join("d")).unwrap().nlink(), 12);
    fs::remove_dir(env.b.join("d/0")).unwrap();
    assert_eq!(fs::metadata(env.a.join("d")).unwrap().nlink(), 11);
    let result = rustix::fs::link(env.a.join("d"), env.a.join("e"));
    assert_eq!(errno_of(result), Errno::PERM);
    // Other kinds of files can have several names.
    env.sh("mkfifo p; ln p p2; ln -s x s; ln -P s s2; test $(stat -c %h p) = 2; test $(stat -c %h s) = 2");
}
