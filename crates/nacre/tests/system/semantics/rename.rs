//! rename(2) and renameat2(2).

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, RenameFlags, rename, renameat_with};
use rustix::io::Errno;

use crate::fixture::{run, sh};
use crate::semantics::two_mounts::{TwoMounts, errno_of};

#[test]
fn rename_follows_posix() {
    let env = TwoMounts::new();
    let (a, b) = (&env.a, &env.b);
    env.sh("echo one > f1; echo two > f2; mkdir d1 d2 full; touch full/x; ln f1 link; ln -s f1 soft");
    let mv = |from: &str, to: &str| rename(a.join(from), a.join(to));
    // Renames over a file, an empty directory and a symbolic link. A rename to another name of the
    // same file has no effect.
    mv("f2", "f1").unwrap();
    assert_eq!(fs::read_to_string(b.join("f1")).unwrap(), "two\n");
    assert_eq!(fs::read_to_string(b.join("link")).unwrap(), "one\n");
    assert_eq!(fs::metadata(b.join("link")).unwrap().nlink(), 1);
    fs::hard_link(b.join("link"), b.join("link2")).unwrap();
    mv("link", "link2").unwrap();
    assert_eq!(fs::metadata(b.join("link")).unwrap().nlink(), 2);
    assert!(b.join("link2").exists());
    mv("full", "d1").unwrap();
    assert!(b.join("d1/x").exists() && !b.join("full").exists());
    mv("link2", "soft").unwrap();
    assert!(fs::symlink_metadata(b.join("soft")).unwrap().is_file());
    mv("f1", "f1").unwrap();
    // Moving a directory changes its `..` and the link counts of both parents.
    mv("d2", "d1/d2").unwrap();
    assert_eq!(fs::metadata(b.join("d1")).unwrap().nlink(), 3);
    assert_eq!(
        fs::metadata(b.join("d1/d2/..")).unwrap().ino(),
        fs::metadata(b.join("d1")).unwrap().ino()
    );
    // Rejected renames.
    env.sh("mkdir empty");
    assert_eq!(errno_of(mv("empty", "d1")), Errno::NOTEMPTY);
    assert_eq!(errno_of(mv("empty", "f1")), Errno::NOTDIR);
    assert_eq!(errno_of(mv("f1", "empty")), Errno::ISDIR);
    assert_eq!(errno_of(mv("d1", "d1/d2/below")), Errno::INVAL);
    assert_eq!(errno_of(mv("d1/d2", "d1")), Errno::NOTEMPTY);
    assert_eq!(errno_of(mv("absent", "new")), Errno::NOENT);
    assert_eq!(errno_of(mv("d1/.", "new")), Errno::BUSY);
    assert_eq!(errno_of(mv("f1", "new/")), Errno::NOTDIR);
    assert_eq!(errno_of(mv("f1", &"n".repeat(256))), Errno::NAMETOOLONG);
}

#[test]
fn rename_with_flags_is_visible_on_both_mounts() {
    let env = TwoMounts::new();
    let (a, b) = (&env.a, &env.b);
    let rename_with = |mount: &Path, from: &str, to: &str, flags| {
        renameat_with(CWD, mount.join(from), CWD, mount.join(to), flags)
    };
    env.sh("echo f > f; mkdir -p d/sub e; echo x > d/sub/x");
    let read = |mount: &Path, name: &str| fs::read_to_string(mount.join(name)).unwrap();
    // Both mounts have all names in their kernels' caches.
    for mount in [a, b] {
        assert_eq!(
            (read(mount, "f"), read(mount, "d/sub/x")),
            ("f\n".into(), "x\n".into())
        );
    }
    rename_with(a, "f", "d/sub", RenameFlags::EXCHANGE).unwrap();
    for mount in [a, b] {
        assert_eq!(
            (read(mount, "d/sub"), read(mount, "f/x")),
            ("f\n".into(), "x\n".into())
        );
        let links = |name: &str| fs::metadata(mount.join(name)).unwrap().nlink();
        assert_eq!((links("d"), links("f"), links("")), (2, 2, 5));
        let ino = |name: &str| fs::metadata(mount.join(name)).unwrap().ino();
        assert_eq!(ino("f/.."), ino(""));
    }
    rename_with(b, "d/sub", "f", RenameFlags::EXCHANGE).unwrap();
    for mount in [a, b] {
        assert_eq!(
            (read(mount, "f"), read(mount, "d/sub/x")),
            ("f\n".into(), "x\n".into())
        );
    }
    assert_eq!(
        errno_of(rename_with(a, "d", "d/sub", RenameFlags::EXCHANGE)),
        Errno::INVAL
    );
    assert_eq!(
        errno_of(rename_with(a, "d/sub", "d", RenameFlags::EXCHANGE)),
        Errno::INVAL
    );
    assert_eq!(
        errno_of(rename_with(a, "f", "none", RenameFlags::EXCHANGE)),
        Errno::NOENT
    );
    let both_flags = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    assert_eq!(errno_of(rename_with(a, "f", "d", both_flags)), Errno::INVAL);

    assert_eq!(
        errno_of(rename_with(a, "f", "e", RenameFlags::NOREPLACE)),
        Errno::EXIST
    );
    rename_with(a, "f", "g", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(read(b, "g"), "f\n");
    rename_with(b, "g", "h", RenameFlags::WHITEOUT).unwrap();
    for mount in [a, b] {
        let whiteout = fs::symlink_metadata(mount.join("g")).unwrap();
        assert!(whiteout.file_type().is_char_device());
        assert_eq!((whiteout.rdev(), whiteout.mode() & 0o777), (0, 0));
        assert_eq!(read(mount, "h"), "f\n");
    }
    env.sh("echo to > to; mv -n h to; mv -n h new; test \"$(cat to new)\" = $'to\\nf'");
}

/// Four threads on two mounts rename to one free name at the same time.
#[test]
fn only_one_of_several_noreplace_renames_succeeds() {
    let env = TwoMounts::new();
    for round in 0..20 {
        let to = format!("to{round}");
        let successes: Vec<bool> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..4)
                .map(|n| {
                    let mount = if n % 2 == 0 { &env.a } else { &env.b };
                    let (from, to) = (mount.join(format!("from{round}-{n}")), mount.join(&to));
                    scope.spawn(move || {
                        fs::write(&from, "").unwrap();
                        renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE).is_ok()
                    })
                })
                .collect();
            racers.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert_eq!(successes.iter().filter(|d| **d).count(), 1);
    }
}

#[test]
fn overlay_keeps_its_upper_directory_in_a_mount() {
    let env = TwoMounts::new();
    let merged = env.fs.site.path_str("merged");
    fs::create_dir(&merged).unwrap();
    env.sh("mkdir lower upper work; mkdir lower/dir; echo l > lower/file; echo r > lower/gone; echo m > lower/dir/moved");
    let overlay = format!(
        "mount -t overlay overlay -o redirect_dir=off,lowerdir={a}/lower,upperdir={a}/upper,workdir={a}/work {}",
        merged,
        a = env.a.display()
    );
    sh(&overlay);
    let result = run(Command::new("bash").args(["-euo", "pipefail", "-c"]).arg(format!(
        "cd {merged}; echo more >> file; rm gone; mv dir/moved dir/here; echo new > dir/new; rm -r dir; mkdir dir; mv file renamed; ls . dir; cat renamed",
    )));
    sh(&format!("umount {merged}"));
    assert!(result.ok, "{}{}", result.out, result.err);
    assert_eq!(result.out, ".:\ndir\nrenamed\n\ndir:\nl\nmore\n");
    for name in ["file", "gone"] {
        let whiteout = fs::symlink_metadata(env.b.join("upper").join(name)).unwrap();
        assert!(whiteout.file_type().is_char_device());
    }
    let opaque = env.sh("getfattr --absolute-names -n trusted.overlay.opaque --only-values upper/dir");
    assert_eq!(opaque, "y");
    sh(&overlay);
    let output = sh(&format!("cd {merged}; ls . dir; cat renamed"));
    sh(&format!("umount {merged}"));
    assert_eq!(output, ".:\ndir\nrenamed\n\ndir:\nl\nmore\n");
}

#[test]
fn file_replaced_by_rename_stays_open() {
    let env = TwoMounts::new();
    env.sh("echo old > old; echo new > new");
    let open = fs::File::open(env.a.join("old")).unwrap();
    rename(env.b.join("new"), env.b.join("old")).unwrap();
    assert_eq!(std::io::read_to_string(&open).unwrap(), "old\n");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_to_string(env.a.join("old")).unwrap(), "new\n");
}
