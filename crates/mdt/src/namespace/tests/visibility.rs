//! Other clients may use a new inode as soon as it is visible, before its creator continues.

use std::sync::Arc;

use super::{Fixture, ROOT, check};
use crate::store::{Store, keys};
use testbase::InstrumentedIndex;

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
