//! Another client may use a new inode as soon as it is visible, before the create returns. It may
//! also change a name or use a FID between a request's lookup and its locks.

use std::sync::Arc;
use testbase::Wait;

use super::{Fixture, ROOT, check};
use crate::namespace::{NewInode, Resolved, create_resolved};
use crate::store::{S_IFREG, Store, keys};
use testbase::InstrumentedIndex;
use wire::Errno;

#[test]
fn new_directory_takes_an_entry_before_its_creator_continues() {
    let index = Arc::new(InstrumentedIndex::default());
    let mut f = Fixture::with_store(Store::new(index.clone()));
    let mut other = f.another_user(1 << 16);
    // The FID that `f` will give to its first directory.
    let dir = f.another_user(0).new_fid();
    index.when_visible(keys::inode(dir), move || {
        other.dir(dir, "inner");
    });
    assert_eq!(f.dir(ROOT, "new"), dir);
    let before = f.inode(dir);
    assert_eq!(before.nlink, 3);
    f.file(dir, "file");
    let after = f.inode(dir);
    assert!(after.nlink == 3 && after.version > before.version);
    check::assert_consistent(&f.store);
    f.store.inode_cache().clear();
    assert_eq!(f.inode(dir), after);
}

#[test]
fn name_that_was_added_after_the_lookup_is_found_under_the_lock() {
    let mut f = Fixture::new();
    f.file(ROOT, "other");
    let read = |f: &Fixture| Resolved::read(&f.store, &f.cred, ROOT, b"name").wait().unwrap();
    let refresh = |f: &Fixture, r: Resolved| r.refresh(&f.store, &f.cred, ROOT, b"name").wait().unwrap();
    let before = read(&f);
    assert_eq!(before.entry, None);
    let file = f.file(ROOT, "name");
    let found = refresh(&f, before);
    assert_eq!(found.entry.map(|entry| entry.fid), Some(file));
    f.unlink(ROOT, "name").unwrap();
    assert_eq!(refresh(&f, found).entry, None);
}

#[test]
fn create_fails_if_its_fid_is_used_after_the_lookup() {
    let mut f = Fixture::new();
    let node = NewInode {
        fid: f.another_user(0).new_fid(),
        mode: S_IFREG | 0o644,
        ..NewInode::default()
    };
    let create = |f: &Fixture, unused| {
        let resolved = Resolved::read(&f.store, &f.cred, ROOT, b"name").wait().unwrap();
        create_resolved(
            (&f.store).into(),
            &f.cred,
            (ROOT, b"name"),
            resolved,
            unused,
            &node,
        )
        .wait()
    };
    let unused = f.store.unused_fid(node.fid).wait().unwrap();
    assert!(unused.is_some());
    assert_eq!(f.dir(ROOT, "other"), node.fid);
    assert_eq!(create(&f, unused.clone()).map(drop), Err(Errno::EEXIST));
    assert!(f.store.unused_fid(node.fid).wait().unwrap().is_none());
    f.rmdir(ROOT, "other").unwrap();
    // The lookup is old, but the FID is not in use.
    assert_eq!(create(&f, unused).unwrap().fid, node.fid);
    check::assert_consistent(&f.store);
}
