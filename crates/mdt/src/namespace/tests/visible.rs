//! Other clients use a new inode as soon as it is visible, before its creator continues.

use std::sync::Arc;

use super::{Fixture, ROOT, check};
use crate::store::{Store, keys, watched::Watched};

#[test]
fn entry_created_in_a_just_visible_directory_counts() {
    let index = Arc::new(Watched::default());
    let mut f = Fixture::over(Store::new(index.clone()));
    let mut other = f.beside(1 << 16);
    let mut new = f.beside(0);
    let dir = new.fid();
    index.when_visible(keys::inode(dir), move || {
        other.dir(dir, "inner");
    });
    assert_eq!(f.dir(ROOT, "new"), dir);
    let was = f.inode(dir);
    assert_eq!(was.nlink, 3);
    f.file(dir, "file");
    let is = f.inode(dir);
    assert!(is.nlink == 3 && is.version > was.version);
    check::consistent(&f.store);
    f.store.inodes().forget();
    assert_eq!(f.inode(dir), is);
}
