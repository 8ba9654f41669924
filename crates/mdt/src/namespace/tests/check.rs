//! Checks a store with the same code as `nacre fsck`.

use testbase::Wait;

use crate::{check::examine, store::Store};

pub(super) fn assert_consistent(store: &Store) {
    let found = examine(store, 0, None, &Default::default()).wait().unwrap();
    assert_eq!(found.problems, []);
}
