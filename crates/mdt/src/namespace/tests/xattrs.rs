//! Tests of extended attributes.

use bytes::Bytes;
use testbase::Wait;
use wire::{Errno, MDS_FMODE_READ, XATTR_NAME_LINK, XATTR_NAME_LMA};

use super::{
    super::xattr::{cacheable_xattrs, getxattr, listxattr},
    Fixture, ROOT,
};

/// `XATTR_CREATE` of Linux.
const CREATE: u32 = 1;
/// `XATTR_REPLACE` of Linux.
const REPLACE: u32 = 2;

#[test]
fn xattrs_are_set_listed_and_removed() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "x");
    assert_eq!(
        getxattr(&f.store, &f.cred, file, b"user.a").wait().unwrap_err(),
        Errno::ENODATA
    );
    f.setxattr(file, b"user.a", Some(b"1"), 0).unwrap();
    f.setxattr(file, b"user.empty", Some(b""), 0).unwrap();
    assert_eq!(
        f.setxattr(file, b"user.a", Some(b"2"), CREATE).unwrap_err(),
        Errno::EEXIST
    );
    assert_eq!(
        f.setxattr(file, b"user.b", Some(b"2"), REPLACE).unwrap_err(),
        Errno::ENODATA
    );
    assert_eq!(getxattr(&f.store, &f.cred, file, b"user.a").wait().unwrap(), "1");
    assert_eq!(
        getxattr(&f.store, &f.cred, file, b"user.empty").wait().unwrap(),
        ""
    );
    assert!(
        !getxattr(&f.store, &f.cred, file, b"trusted.link")
            .wait()
            .unwrap()
            .is_empty()
    );
    assert_eq!(listxattr(&f.store, file).wait().unwrap().len(), 2);
    f.setxattr(file, b"user.a", None, 0).unwrap();
    assert_eq!(f.setxattr(file, b"user.a", None, 0).unwrap_err(), Errno::ENODATA);
    assert_eq!(
        f.setxattr(file, b"unknown.a", Some(b"1"), 0).unwrap_err(),
        Errno::EOPNOTSUPP
    );
    // More than one scan returns.
    for n in 0..600 {
        f.setxattr(file, format!("user.{n}").as_bytes(), Some(b"1"), 0)
            .unwrap();
    }
    assert_eq!(f.store.xattrs(file).wait().unwrap().len(), 601);
    f.unlink(ROOT, "x").unwrap();
    assert!(f.store.xattrs(file).wait().unwrap().is_empty());
    f.become_user(9);
    assert_eq!(
        f.setxattr(ROOT, b"trusted.a", Some(b"1"), 0).unwrap_err(),
        Errno::EPERM
    );
}

/// The case of Lustre's test `sanity` 102q.
#[test]
fn orphan_has_no_link_attribute() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "x");
    let names = |f: &Fixture| {
        let all = cacheable_xattrs(&f.store, file).wait().unwrap();
        all.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(&f), [XATTR_NAME_LINK, XATTR_NAME_LMA]);
    f.open(file, MDS_FMODE_READ).unwrap();
    f.unlink(ROOT, "x").unwrap();
    assert_eq!(names(&f), [XATTR_NAME_LMA]);
    let link = getxattr(&f.store, &f.cred, file, XATTR_NAME_LINK.as_bytes()).wait();
    assert_eq!(link.unwrap_err(), Errno::ENODATA);
}

#[test]
fn acls_are_listed_with_the_other_xattrs() {
    let mut f = Fixture::new();
    let dir = f.make(ROOT, "d", 0o040755).unwrap();
    // Tag, permissions and id of each entry.
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 5, 1234),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 5, u32::MAX),
    ];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let names = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
    for name in names {
        f.setxattr(dir, name, Some(&acl), 0).unwrap();
    }
    let listed = listxattr(&f.store, dir).wait().unwrap();
    assert_eq!(listed, names.map(|n| (Bytes::from_static(n), acl.clone().into())));
    f.setxattr(dir, names[1], None, 0).unwrap();
    assert_eq!(listxattr(&f.store, dir).wait().unwrap().len(), 1);
}
