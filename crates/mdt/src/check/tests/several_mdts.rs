//! Checks of the stores of several MDTs.

use std::{collections::BTreeMap, sync::Arc};

use osd::{MemoryIndex, check::Progress};
use testbase::Wait;
use wire::{Fid, LU_SEQ_RANGE_MDT, LuSeqRange, WireStruct};

use super::{Tree, examine};
use crate::{
    check::{Problem, compare},
    namespace::Share,
    store::{Change, DIR_BLOCK, Inode, Mutation, S_IFDIR, S_IFREG, Store, keys, links},
    updates::{Batchid, UpdateRecord},
};

/// The range of MDT0001.
const RANGE: LuSeqRange = LuSeqRange {
    lsr_start: 0x2_4000_0400,
    lsr_end: 0x2_8000_0400,
    lsr_index: 1,
    lsr_flags: LU_SEQ_RANGE_MDT,
};

/// A directory of MDT0001.
const REMOTE: Fid = Fid::new(0x2_4000_0400, 7, 0);

/// The problems between MDT0000 (`t`) and MDT0001.
async fn differences(t: &Tree, mdt1: &Store) -> Vec<(u32, Problem)> {
    let progress = Progress::default();
    let mdt0 = examine(&t.f.store, 0, None, &progress).await.unwrap();
    let mdt1 = examine(mdt1, 1, Some(&mdt0.fldb), &progress).await.unwrap();
    assert_eq!((&mdt0.problems[..], &mdt1.problems[..]), (&[][..], &[][..]));
    compare(&BTreeMap::from([(0, mdt0), (1, mdt1)]))
}

#[tokio::test]
async fn a_name_without_its_remote_inode_and_the_reverse_are_found() {
    let t = Tree::new();
    let mdt1 = Store::new(Arc::new(MemoryIndex::default()));
    t.damage(|b| {
        b.put(keys::location(RANGE.lsr_start), RANGE.to_bytes());
    });
    let inode = Inode {
        mode: S_IFDIR | 0o755,
        nlink: 2,
        size: DIR_BLOCK,
        links: links::add(b"", t.a, b"dir", 0),
        ..Inode::default()
    };
    let mut change = Change::new();
    change.make_inode(REMOTE, &inode);
    mdt1.apply(change).await.unwrap();
    let unnamed = Problem::UnnamedInode {
        fid: REMOTE,
        kind: S_IFDIR,
        nlink: 2,
    };
    assert_eq!(differences(&t, &mdt1).await, [(1, unnamed)]);
    t.put_entry(t.a, "dir", REMOTE, S_IFDIR);
    t.change(t.a, |a| a.nlink += 1);
    assert_eq!(differences(&t, &mdt1).await, []);
    let mut change = Change::new();
    change.destroy_inode(REMOTE, &inode, Default::default()).unwrap();
    mdt1.apply(change).await.unwrap();
    let dangling = Problem::DanglingName {
        dir: t.a,
        name: "dir".into(),
        fid: REMOTE,
    };
    assert_eq!(differences(&t, &mdt1).await, [(0, dangling)]);
    // The next start of MDT0001 makes the inode: MDT0000 keeps its record.
    let share = Share {
        mutations: vec![Mutation::InodeMade {
            fid: REMOTE,
            inode: Box::new(inode),
        }],
        ..Share::default()
    };
    let record = UpdateRecord {
        batchid: Batchid {
            coordinator: 1,
            number: 5,
        },
        shares: BTreeMap::from([(1, share), (0, Share::default())]),
        reply: None,
    };
    t.damage(|b| {
        b.put(keys::update(1, 5), record.encode());
    });
    assert_eq!(differences(&t, &mdt1).await, []);
}

#[tokio::test]
async fn names_of_a_file_on_other_mdts_are_counted() {
    let t = Tree::new();
    let mdt1 = Store::new(Arc::new(MemoryIndex::default()));
    t.damage(|b| {
        b.put(keys::location(RANGE.lsr_start), RANGE.to_bytes());
    });
    let file = Inode {
        mode: S_IFREG | 0o644,
        nlink: 2,
        links: links::add(&links::add(b"", t.a, b"x", 0), t.a, b"y", 0),
        ..Inode::default()
    };
    let mut change = Change::new();
    change.make_inode(REMOTE, &file);
    mdt1.apply(change).await.unwrap();
    let unnamed = Problem::UnnamedInode {
        fid: REMOTE,
        kind: S_IFREG,
        nlink: 2,
    };
    assert_eq!(differences(&t, &mdt1).await, [(1, unnamed)]);
    t.put_entry(t.a, "x", REMOTE, S_IFREG);
    let count = Problem::WrongLinkCount {
        fid: REMOTE,
        stored: 2,
        expected: 1,
    };
    assert_eq!(differences(&t, &mdt1).await, [(1, count)]);
    t.put_entry(t.a, "y", REMOTE, S_IFREG);
    assert_eq!(differences(&t, &mdt1).await, []);
    // A name that the file does not record, and one that is not there.
    t.damage(|b| {
        b.delete(keys::entry(t.a, b"y"));
    });
    t.put_entry(t.a, "z", REMOTE, S_IFREG);
    let links = Problem::WrongLinks {
        fid: REMOTE,
        names: vec![(t.a, "x".into()), (t.a, "z".into())],
    };
    assert_eq!(differences(&t, &mdt1).await, [(1, links)]);
}

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
    t.damage(|b| {
        b.put(keys::location(RANGE.lsr_start), RANGE.to_bytes());
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
