//! Tests of the cached state.
#![allow(clippy::unwrap_used)]
use super::{Child, DirChunk, DirChunkFifo, Inodes};
use crate::attr::MdAttr;
use bytes::Bytes;
use ldlm::LockCookie;
use std::sync::Arc;
use wire::dirpage::DirEntry;
use wire::{Fid, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE, MdtBody, Precision};

const DIR: Fid = Fid::new(0x400, 1, 0);
const FILE: Fid = Fid::new(0x400, 2, 0);

/// A chunk with one entry for each hash in `start..next`.
fn chunk(start: u64, next: u64) -> Arc<DirChunk> {
    let entry = |hash| DirEntry::new(FILE, hash, Bytes::from_static(b"x"), 0o100_000);
    Arc::new(DirChunk {
        start,
        entries: (start..next).map(entry).collect(),
        next,
    })
}

/// Attributes of the directory.
fn md(mode: u32) -> MdAttr {
    let body = MdtBody {
        mbo_fid1: DIR,
        mbo_mode: mode,
        ..MdtBody::default()
    };
    let none = Bytes::new();
    MdAttr::from_reply(&body, &none, &none, Precision::Nanoseconds)
}

#[test]
fn loss_of_a_lookup_lock_drops_all_names_of_the_file() {
    let inodes = Inodes::new(DirChunkFifo::default());
    inodes.add_name(DIR, b"a", FILE);
    inodes.add_name(DIR, b"b", FILE);
    assert_eq!(inodes.child(DIR, b"a"), Some(Child::File(FILE)));
    assert!(inodes.mark_in_kernel(DIR, b"b", FILE, DIR) && !inodes.mark_in_kernel(DIR, b"c", FILE, DIR));
    let in_kernel = inodes.forget(FILE, MDS_INODELOCK_LOOKUP);
    assert_eq!(in_kernel.names, [(DIR, (*b"b").into())]);
    assert_eq!((inodes.child(DIR, b"a"), inodes.child(DIR, b"b")), (None, None));
    assert_eq!(inodes.len(), 0);
}

#[test]
fn loss_of_an_update_lock_drops_negative_entries_and_chunks_but_not_names() {
    let inodes = Inodes::new(DirChunkFifo::default());
    inodes.add_name(DIR, b"a", FILE);
    inodes.add_negative(DIR, b"x", LockCookie(7), inodes.change_stamp());
    inodes.add_chunk(DIR, chunk(0, 9), inodes.change_stamp());
    assert_eq!(inodes.child(DIR, b"x"), Some(Child::Absent(LockCookie(7))));
    assert!(inodes.forget(DIR, MDS_INODELOCK_UPDATE).names.is_empty());
    assert_eq!(inodes.child(DIR, b"x"), None);
    assert_eq!(inodes.child(DIR, b"a"), Some(Child::File(FILE)));
    assert!(inodes.get(DIR).unwrap().state.lock().chunk(0).is_none());
    assert_eq!(inodes.chunk_fifo.entries(), 0);
}

#[test]
fn permissions_outlive_the_update_lock_while_a_perm_lock_is_held() {
    let inodes = Inodes::new(DirChunkFifo::default());
    let md = || md(0o040_750);
    inodes.add_name(FILE, b"dir", DIR);
    inodes.entry(DIR).state.lock().md = Some(md());
    inodes.forget(DIR, MDS_INODELOCK_UPDATE);
    assert!(inodes.get(DIR).unwrap().state.lock().md.is_none());
    assert_eq!(inodes.permission_attr(DIR).unwrap().attr.mode, 0o040_750);
    inodes.forget(DIR, MDS_INODELOCK_PERM);
    assert!(inodes.permission_attr(DIR).is_none());
    assert!(
        inodes.last_known_attr(DIR).unwrap().attr.is_dir(),
        "the type never changes"
    );
    // The loss of one lock with both bits drops both.
    inodes.entry(DIR).state.lock().md = Some(md());
    inodes.forget(DIR, MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM);
    assert!(inodes.permission_attr(DIR).is_none());
}

#[test]
fn a_change_does_not_cache_permissions_from_under_a_lost_lock() {
    let inodes = Arc::new(Inodes::new(DirChunkFifo::default()));
    let state = || inodes.entry(DIR);
    let new_attr = || md(0o040_755).attr;
    // Between the old lock and the current one, other clients may have changed the permissions.
    state().state.lock().md = Some(md(0o040_750));
    inodes.forget(DIR, MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM);
    let change = inodes.begin_change((DIR, 1), Some(b"a"), Some(LockCookie(7)));
    assert!(change.is_under_lock(LockCookie(7)) && !change.finish_with_attr(new_attr()));
    assert!(state().state.lock().md.is_none());
    // Under an uninterrupted lock the new attributes are cached.
    state().state.lock().md = Some(md(0o040_750));
    assert!(
        !inodes
            .begin_change((DIR, 1), Some(b"b"), Some(LockCookie(8)))
            .finish_with_attr(new_attr())
    );
    assert_eq!(state().state.lock().md.as_ref().unwrap().attr.mode, 0o040_755);
}

#[test]
fn a_change_without_effect_keeps_the_cached_state() {
    let inodes = Arc::new(Inodes::new(DirChunkFifo::default()));
    // Whether attributes and entries are cached.
    let cached = || {
        let inode = inodes.entry(DIR);
        let state = inode.state.lock();
        (state.md.is_some(), state.chunk(0).is_some())
    };
    inodes.entry(DIR).state.lock().md = Some(md(0o040_750));
    inodes.add_chunk(DIR, chunk(0, 9), inodes.change_stamp());
    let one = inodes.begin_change((DIR, 1), Some(b"a"), Some(LockCookie(7)));
    assert_eq!(cached(), (false, false));
    one.finish_without_effect(true);
    assert_eq!(cached(), (true, true));
    // Another change is in progress: the state is dropped. The next change begins without
    // cached attributes, so it restores none.
    let (one, other) = (
        inodes.begin_change((DIR, 1), Some(b"a"), Some(LockCookie(7))),
        inodes.begin_change((DIR, 1), Some(b"b"), Some(LockCookie(7))),
    );
    assert!(!one.finish());
    other.finish_without_effect(true);
    assert_eq!(cached(), (false, false));
    inodes
        .begin_change((DIR, 1), Some(b"a"), Some(LockCookie(7)))
        .finish_without_effect(true);
    assert_eq!(
        cached(),
        (false, false),
        "no attributes were cached when the change began"
    );
    // The lock was lost meanwhile: the state is dropped too.
    inodes.entry(DIR).state.lock().md = Some(md(0o040_750));
    inodes
        .begin_change((DIR, 1), Some(b"a"), Some(LockCookie(7)))
        .finish_without_effect(false);
    assert_eq!(cached(), (false, false));
}

#[test]
fn a_name_that_moved_to_another_file_outlives_the_first_files_lock() {
    let inodes = Inodes::new(DirChunkFifo::default());
    let other = Fid::new(0x400, 3, 0);
    inodes.add_name(DIR, b"a", FILE);
    inodes.add_name(DIR, b"a", other);
    inodes.forget(FILE, MDS_INODELOCK_LOOKUP);
    assert_eq!(inodes.child(DIR, b"a"), Some(Child::File(other)));
}

#[test]
fn a_chunk_covers_only_the_hashes_that_it_spans() {
    let inodes = Inodes::new(DirChunkFifo::default());
    let inode = inodes.entry(DIR);
    inodes.add_chunk(DIR, chunk(10, 20), inodes.change_stamp());
    let state = inode.state.lock();
    assert!(state.chunk(9).is_none() && state.chunk(20).is_none());
    assert!(state.chunk(10).is_some() && state.chunk(19).is_some());
}

#[test]
fn entries_of_all_directories_are_bounded_and_the_oldest_are_evicted() {
    let inodes = Inodes::new(DirChunkFifo::new(1000));
    let dir = |i: u32| Fid::new(0x500, i, 0);
    let chunks = || (0..100).flat_map(|i| [(i, 0), (i, 50)]);
    for (i, start) in chunks() {
        inodes.add_chunk(dir(i), chunk(start, start + 50), inodes.change_stamp());
        assert!(inodes.chunk_fifo.entries() <= 1000);
    }
    let kept = |(i, start)| {
        let inode = inodes.get(dir(i))?;
        inode.state.lock().chunk(start)
    };
    assert!(chunks().all(|(i, start)| kept((i, start)).is_some() == (i >= 90)));
    assert_eq!(inodes.len(), 10, "empty entries are pruned");
    inodes.clear();
    assert_eq!(inodes.chunk_fifo.entries(), 0);
}

#[test]
fn negative_entries_are_bounded() {
    let inodes = Inodes::new(DirChunkFifo::default());
    for i in 0..10_000u32 {
        inodes.add_negative(DIR, &i.to_le_bytes(), LockCookie(1), inodes.change_stamp());
    }
    assert!(inodes.get(DIR).unwrap().state.lock().children.len() <= super::names::NEGATIVE_MAX);
}
