//! Checks of the stores of several MDTs.

use std::sync::Arc;

use osd::{MemoryIndex, check::Progress};
use testbase::Wait;
use wire::{Fid, LU_SEQ_RANGE_MDT, LuSeqRange, WireStruct};

use super::{Tree, examine};
use crate::{
    check::Problem,
    store::{Change, S_IFDIR, S_IFREG, Store, keys, links},
};

#[tokio::test]
async fn names_and_inodes_of_other_mdts_are_not_missed() {
    let remote = |oid| Fid::new(0x2_4000_0400, oid, 0);
    let t = Tree::new();
    t.put_entry(t.a, "dir", remote(1), S_IFDIR);
    t.put_entry(t.a, "file", remote(2), S_IFREG);
    // The names of a file and of a directory moved to another MDT.
    t.change(t.g, |i| i.links = links::add(b"", remote(1), b"g", 0));
    t.change(t.b, |i| i.links = links::add(b"", remote(1), b"b", 0));
    let mut change = Change::new();
    change.remove_entry(t.a, b"g");
    change.remove_entry(t.a, b"b");
    t.f.store.apply(change).wait().unwrap();
    assert_eq!(
        t.kinds().await,
        [
            "dangling name",
            "dangling name",
            "no name",
            "no name",
            "wrong link count"
        ]
    );
    let range = LuSeqRange {
        lsr_start: 0x2_4000_0400,
        lsr_end: 0x2_8000_0400,
        lsr_index: 1,
        lsr_flags: LU_SEQ_RANGE_MDT,
    };
    t.damage(|b| {
        b.put(keys::location(range.lsr_start), range.to_bytes());
    });
    assert_eq!(t.findings().await, []);
    // A removed file without a record is a problem also if its last name was on another MDT.
    t.change(t.g, |i| i.nlink = 0);
    assert_eq!(t.kinds().await.len(), 1);
}

#[tokio::test]
async fn another_mdt_than_the_first_needs_no_root_and_the_fldb_of_the_first() {
    let t = Tree::new();
    let store = Store::new(Arc::new(MemoryIndex::default()));
    let progress = Progress::default();
    assert_eq!(examine(&store, 1, None, &progress).await.unwrap().problems, []);
    assert_eq!(
        examine(&store, 0, None, &progress).await.unwrap().problems,
        [Problem::NoRoot]
    );
    let inode = t.f.store.inode(t.g).await.unwrap();
    let of_mdt1 = Fid::new(0x2_4000_0400, 7, 0);
    let mut change = Change::new();
    change.change_inode(of_mdt1, &inode);
    store.apply(change).await.unwrap();
    let owner = |index| LuSeqRange {
        lsr_start: 0x2_4000_0400,
        lsr_end: 0x2_8000_0400,
        lsr_index: index,
        lsr_flags: LU_SEQ_RANGE_MDT,
    };
    for (index, problems) in [(1, 0), (2, 1)] {
        let fldb = [owner(index)];
        let found = examine(&store, 1, Some(&fldb), &progress).await.unwrap();
        let of_sequence = |p: &&Problem| matches!(p, Problem::UnknownSequence { .. });
        assert_eq!(found.problems.iter().filter(of_sequence).count(), problems);
    }
}
