//! Open files and directories that have been removed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, XattrFlags, fchmod, fsetxattr, openat};
use rustix::io::Errno;

use crate::fixture::sh;
use crate::semantics::two_mounts::{TwoMounts, errno_of, run_script_in};

#[test]
fn unlinked_open_file_is_fully_usable() {
    let env = TwoMounts::new();
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(env.a.join("f"))
        .unwrap();
    f.write_all_at(&[1; 100_000], 0).unwrap();
    fs::remove_file(env.b.join("f")).unwrap();
    assert_eq!(
        (f.metadata().unwrap().nlink(), f.metadata().unwrap().len()),
        (0, 100_000)
    );
    f.set_len(50).unwrap();
    f.write_all_at(b"more", 60).unwrap();
    f.sync_all().unwrap();
    fchmod(&f, Mode::RUSR | Mode::WUSR).unwrap();
    fsetxattr(&f, "user.a", b"1", XattrFlags::empty()).unwrap();
    let mut read = [9; 64];
    assert_eq!(f.read_at(&mut read, 0).unwrap(), 64);
    assert_eq!((&read[..50], &read[60..]), (&[1; 50][..], &b"more"[..]));
    assert_eq!(
        (f.metadata().unwrap().mode() & 0o777, f.metadata().unwrap().len()),
        (0o600, 64)
    );
    // A file without a name can be opened only through its descriptor.
    let reopened = OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&f)));
    reopened.unwrap().write_all_at(b"again", 0).unwrap();
    assert!(File::open(env.b.join("f")).is_err());
}

#[test]
fn o_tmpfile_returns_eopnotsupp() {
    let env = TwoMounts::new();
    let result = openat(
        rustix::fs::CWD,
        &env.a,
        OFlags::TMPFILE | OFlags::RDWR,
        Mode::RUSR,
    );
    assert_eq!(errno_of(result), Errno::OPNOTSUPP);
}

/// Bytes of large objects in the directories of the OSTs.
pub(crate) fn stored_bytes(env: &TwoMounts) -> u64 {
    let bytes = sh(&format!(
        "find {}/ost* -type f -size +1000k -printf '%s\\n' | awk '{{ n += $1 }} END {{ print n + 0 }}'",
        env.fs.site.path_str("d")
    ));
    bytes.trim().parse().unwrap()
}

pub(crate) fn wait_until_nothing_is_stored(env: &TwoMounts) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while stored_bytes(env) > 0 {
        assert!(
            Instant::now() < deadline,
            "{} bytes are still stored",
            stored_bytes(env)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn last_close_releases_the_space_of_a_removed_file() {
    const BYTES: u64 = 20 << 20;
    let env = TwoMounts::new();
    let f = File::create(env.a.join("f")).unwrap();
    f.write_all_at(&vec![7; BYTES as usize], 0).unwrap();
    f.sync_all().unwrap();
    let reader = File::open(env.b.join("f")).unwrap();
    fs::remove_file(env.a.join("f")).unwrap();
    drop(f);
    // The other mount can still read it.
    let mut read = [0; 4096];
    assert_eq!(reader.read_at(&mut read, BYTES - 4096).unwrap(), 4096);
    assert!(read.iter().all(|b| *b == 7));
    assert!(stored_bytes(&env) >= BYTES);
    drop(reader);
    wait_until_nothing_is_stored(&env);
}

/// Nacre differs from a local disk here, on which `ls` would show an empty directory.
#[test]
fn removed_working_directory_is_unusable() {
    let env = TwoMounts::new();
    env.sh("mkdir d; cd d; rmdir ../d; ls . 2> /dev/null && exit 1; touch x 2> /dev/null && exit 2; true");
}

#[test]
fn removed_open_directory_keeps_its_attributes() {
    let env = TwoMounts::new();
    for (dir, command) in [
        ("gone", "rmdir gone"),
        ("replaced", "mkdir other; mv -T other replaced"),
    ] {
        for (mount, other) in [(&env.a, &env.a), (&env.a, &env.b)] {
            fs::create_dir(mount.join(dir)).unwrap();
            let open = File::open(mount.join(dir)).unwrap();
            let before = open.metadata().unwrap();
            run_script_in(other, command);
            let after = open.metadata().unwrap();
            assert_eq!((after.nlink(), after.ino()), (0, before.ino()), "{command}");
            // If the kernel knows about the removal, the listing fails without a request.
            let entry = rustix::fs::Dir::new(open).unwrap().next();
            assert!(
                entry.is_none_or(|e| e.is_err_and(|e| e == Errno::NOENT)),
                "{command}"
            );
            let _ = fs::remove_dir(other.join(dir));
        }
    }
}
