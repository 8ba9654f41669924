//! Extended attributes: name spaces, limits, permissions, and removal by writes.

use std::fs;

use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::semantics::two_mounts::{TwoMounts, errno_of};

const NO_FLAGS: XattrFlags = XattrFlags::empty();

/// Length of the attribute's value, bytes.
fn value_len(path: &std::path::Path, name: &str) -> rustix::io::Result<usize> {
    getxattr(path, name, &mut vec![0u8; 65536][..])
}

#[test]
fn xattr_values_have_up_to_64_kib_and_names_255_bytes() {
    let env = TwoMounts::new();
    let (f, on_b) = (env.a.join("f"), env.b.join("f"));
    fs::write(&f, "").unwrap();
    for size in [0, 1, 4096, 16384, 65535, 65536] {
        setxattr(&f, "user.a", &vec![7; size], NO_FLAGS).unwrap();
        let mut value = vec![0; 65537];
        assert_eq!(getxattr(&on_b, "user.a", &mut value), Ok(size));
        assert!(value[..size].iter().all(|b| *b == 7));
    }
    assert_eq!(
        errno_of(setxattr(&f, "user.a", &[0; 65537], NO_FLAGS)),
        Errno::TOOBIG
    );
    let name = |n: usize| format!("user.{}", "n".repeat(n - 5));
    setxattr(&f, name(255), b"v", NO_FLAGS).unwrap();
    assert_eq!(errno_of(setxattr(&f, name(256), b"v", NO_FLAGS)), Errno::RANGE);
    // A buffer that is too small.
    assert_eq!(value_len(&on_b, "user.a"), Ok(65536));
    assert_eq!(
        errno_of(getxattr(&on_b, "user.a", &mut [0u8; 100][..])),
        Errno::RANGE
    );
    assert_eq!(errno_of(listxattr(&on_b, &mut [0u8; 5][..])), Errno::RANGE);
}

#[test]
fn file_has_thousands_of_xattrs() {
    let env = TwoMounts::new();
    fs::write(env.a.join("f"), "").unwrap();
    for i in 0..2000 {
        setxattr(env.a.join("f"), format!("user.number{i}"), b"a value", NO_FLAGS).unwrap();
    }
    for i in 0..8 {
        setxattr(
            env.a.join("f"),
            format!("user.large{i}"),
            &vec![i; 60000],
            NO_FLAGS,
        )
        .unwrap();
    }
    let mut list = vec![0; 65536];
    let size = listxattr(env.b.join("f"), &mut list).unwrap();
    assert_eq!(list[..size].iter().filter(|b| **b == 0).count(), 2008);
    assert_eq!(value_len(&env.b.join("f"), "user.number1999"), Ok(7));
    assert_eq!(value_len(&env.b.join("f"), "user.large7"), Ok(60000));
}

#[test]
fn xattr_flags_and_missing_names_return_errors() {
    let env = TwoMounts::new();
    let (f, on_b) = (env.a.join("f"), env.b.join("f"));
    fs::write(&f, "").unwrap();
    let create = |p| setxattr(p, "user.a", b"1", XattrFlags::CREATE);
    assert_eq!(
        errno_of(setxattr(&f, "user.a", b"1", XattrFlags::REPLACE)),
        Errno::NODATA
    );
    create(&f).unwrap();
    assert_eq!(errno_of(create(&on_b)), Errno::EXIST);
    setxattr(&on_b, "user.a", b"22", XattrFlags::REPLACE).unwrap();
    assert_eq!(value_len(&f, "user.a"), Ok(2));
    removexattr(&on_b, "user.a").unwrap();
    assert_eq!(errno_of(value_len(&f, "user.a")), Errno::NODATA);
    assert_eq!(errno_of(removexattr(&f, "user.a")), Errno::NODATA);
    for unknown in ["other.a", "system.a", "a"] {
        assert_eq!(errno_of(setxattr(&f, unknown, b"1", NO_FLAGS)), Errno::OPNOTSUPP);
    }
}

#[test]
fn xattr_name_spaces_restrict_users_and_file_types() {
    let env = TwoMounts::new();
    env.sh("touch f; chmod 666 f; mkfifo p; ln -s f l; mkdir -m 1777 t; setfattr -n user.a -v 1 f; setfattr -n trusted.a -v 1 f; chmod 644 f");
    env.sh_as_user(
        "",
        "test \"$(getfattr --only-values -n user.a f)\" = 1; test -z \"$(getfattr -m trusted f)\"",
    );
    for arguments in [
        "-n user.a -v 2 f",
        "-n trusted.b -v 1 f",
        "-n security.b -v 1 f",
        "-n user.a -v 1 t",
    ] {
        env.sh_as_user_fails("", &format!("setfattr {arguments}"));
    }
    env.sh_as_user_fails("", "getfattr --only-values -n trusted.a f");
    // User attributes are for files and directories, since the modes of links and devices do not
    // control access to attributes.
    for special in ["p", "l"] {
        let at = env.a.join(special);
        assert_eq!(errno_of(lsetxattr(&at, "user.a", b"1", NO_FLAGS)), Errno::PERM);
        lsetxattr(&at, "trusted.a", b"1", NO_FLAGS).unwrap();
        lsetxattr(&at, "security.a", b"1", NO_FLAGS).unwrap();
        assert_eq!(
            lgetxattr(env.b.join(special), "trusted.a", &mut [0u8; 9][..]),
            Ok(1)
        );
    }
}

#[test]
fn write_removes_file_capabilities() {
    let env = TwoMounts::new();
    let (f, on_b) = (env.a.join("f"), env.b.join("f"));
    fs::write(&f, "a program").unwrap();
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for change in [
        "echo x >> f",
        ": > f",
        "truncate -s 1 f",
        "chown 5 f",
        "fallocate -l 10 f",
    ] {
        setxattr(&f, "security.capability", capability, NO_FLAGS).unwrap();
        assert_eq!(value_len(&on_b, "security.capability"), Ok(capability.len()));
        env.sh(change);
        assert_eq!(
            errno_of(value_len(&on_b, "security.capability")),
            Errno::NODATA,
            "{change}"
        );
    }
    // A write by a user other than the owner also removes the capability.
    for change in ["echo x >> f", ": > f", "truncate -s 1 f", "fallocate -l 10 f"] {
        env.sh("rm -f f; touch f; chmod 666 f");
        setxattr(&f, "security.capability", capability, NO_FLAGS).unwrap();
        env.sh_as_user("", change);
        assert_eq!(
            errno_of(value_len(&on_b, "security.capability")),
            Errno::NODATA,
            "{change}"
        );
        setxattr(&f, "security.capability", capability, NO_FLAGS).unwrap();
        let error = env.sh_as_user_fails("", "setfattr -x security.capability f");
        assert!(error.contains("not permitted"), "{error}");
    }
}

#[test]
fn xattr_change_updates_ctime_only() {
    let env = TwoMounts::new();
    env.sh(
        "touch -d @5 f; old=$(stat -c %Z f); while test $(date +%s) = $old; do sleep 0.1; done
              setfattr -n user.a -v 1 f; test $(stat -c %Y f) = 5; test $(stat -c %Z f) -gt $old",
    );
}
