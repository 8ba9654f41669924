//! After a crash: destroys the objects of new files whose creation the crash undid.
//!
//! The ids of these objects are close to the recorded bound ([`LastUsedId`]), which is at most 255
//! ids ahead of the last allocated one. A background task reads all inodes once and collects the
//! files' objects in a range of ids up to the bound. It queues all other ids in the range for
//! destruction, even ids to which no client has written: a client that writes to such an object
//! later must get an error. A clean stop makes the bounds exact and records that; the next start
//! then skips the scan.
//!
//! The crash may have undone a rise of the bound, too. If clients recover after the crash, the
//! files that they create again raise the bound. The scan begins when recovery has ended, and its
//! range ends at the new bound.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use osd::{
    Batch, OsdError,
    check::{Progress, for_each_entry},
};
use wire::{Errno, Fid, OstIndex};

use super::pool::{LAST_USED_STEP, LastUsedId};
use crate::{
    layout::{self, StripeObject},
    store::{Change, Inode, Store, keys},
};

/// Number of ids to check, up to the bound: enough for one step of the bound and for concurrent
/// creates.
const IDS_TO_CHECK: u32 = 4 * LAST_USED_STEP;
/// Maximum number of objects that one change queues for destruction.
const DESTROYS_PER_CHANGE: usize = 4096;
/// Name of the setting that records a clean stop.
const CLEAN_STOP: &str = "osp.exact";

/// Records a clean stop. The caller has recorded the exact bounds.
pub(super) fn record_clean_stop(store: &Store) -> Result<(), Errno> {
    let mut batch = Batch::new();
    batch.put(keys::setting(CLEAN_STOP), Vec::new());
    Ok(store.index().apply(batch)?)
}

/// The object ids of one OST that may belong to no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdRange {
    seq: u64,
    oids: RangeInclusive<u32>,
}

/// The object ids of each OST that may belong to no file.
pub(crate) type IdRanges = BTreeMap<OstIndex, IdRange>;

impl IdRange {
    /// The ids near a bound, without the first id of the sequence, which no file uses.
    fn near(bound: LastUsedId) -> IdRange {
        let first = bound.used.saturating_sub(IDS_TO_CHECK).max(1) + 1;
        IdRange {
            seq: bound.seq,
            oids: first..=bound.used,
        }
    }

    fn contains(&self, object: Fid) -> bool {
        object.f_seq == self.seq && self.oids.contains(&object.f_oid)
    }
}

/// The ids that may belong to no file; none after a clean stop. Removes the record of the clean
/// stop, so the caller must not have allocated ids yet.
pub(crate) async fn unverified_ids(store: &Store) -> Result<IdRanges, Errno> {
    let clean_stop = keys::setting(CLEAN_STOP);
    if store.index().get(&clean_stop).await?.is_some() {
        let mut batch = Batch::new();
        batch.delete(clean_stop);
        store.index().apply(batch)?;
        return Ok(IdRanges::new());
    }
    let bounds = bounds(store).await?;
    Ok(bounds
        .into_iter()
        .map(|(ost, bound)| (ost, IdRange::near(bound)))
        .collect())
}

/// Extends ranges of ids to the current bounds: replayed creates have raised them since.
pub(crate) async fn extend_to_bounds(store: &Store, ids: &mut IdRanges) -> Result<(), Errno> {
    for (ost, bound) in bounds(store).await? {
        if let Some(range) = ids.get_mut(&ost).filter(|range| range.seq == bound.seq) {
            range.oids = *range.oids.start()..=bound.used;
        }
    }
    Ok(())
}

/// The recorded bounds of all OSTs.
async fn bounds(store: &Store) -> Result<BTreeMap<OstIndex, LastUsedId>, Errno> {
    let mut bounds = BTreeMap::new();
    for_each_entry(
        &**store.index(),
        keys::OBJECTS,
        &Progress::default(),
        |key, value| {
            if let (Some(ost), Ok(bound)) = (keys::objects_ost(&key), LastUsedId::decode(&value)) {
                bounds.insert(ost, bound);
            }
            Ok::<(), OsdError>(())
        },
    )
    .await?;
    Ok(bounds)
}

/// Queues the destruction of the objects with these ids that belong to no file; returns their
/// number. Reads all inodes.
pub(crate) async fn queue_orphans(
    store: &Store,
    ids: &IdRanges,
    progress: &Progress,
) -> Result<usize, Errno> {
    if ids.is_empty() {
        return Ok(0);
    }
    let mut used: BTreeSet<(OstIndex, Fid)> = BTreeSet::new();
    for_each_entry(&**store.index(), keys::INODES, progress, |_, value| {
        // An unreadable inode may own any of the objects, so nothing is destroyed.
        let inode = Inode::decode(&value).map_err(|_| Errno::EIO)?;
        if inode.is_file() {
            for StripeObject { ost, fid } in layout::objects(&inode.lov)? {
                if ids.get(&ost).is_some_and(|range| range.contains(fid)) {
                    used.insert((ost, fid));
                }
            }
        }
        Ok::<(), Errno>(())
    })
    .await?;
    let mut queued = 0;
    for (&ost, range) in ids {
        let objects = range.oids.clone().map(|oid| Fid::new(range.seq, oid, 0));
        let mut unused = objects.filter(|fid| !used.contains(&(ost, *fid))).peekable();
        while unused.peek().is_some() {
            let mut change = Change::new();
            for fid in unused.by_ref().take(DESTROYS_PER_CHANGE) {
                change.queue_destroy(StripeObject { ost, fid });
                queued += 1;
            }
            store.apply(change).await?;
        }
    }
    Ok(queued)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use testbase::Wait;

    use super::{IDS_TO_CHECK, queue_orphans, record_clean_stop, unverified_ids};
    use crate::{
        namespace::tests::Fixture,
        osp::pool::LastUsedId,
        store::{Change, Store, keys},
    };
    use osd::{check::Progress, prefix_end};
    use wire::{Fid, OstIndex};

    const SEQ: u64 = 0x2_4000_0400;

    /// A store with a file that has object `used` of OST 0, removed files with the objects below
    /// `used`, and the recorded bound `bound`.
    fn store_with_bound(used: u32, bound: u32) -> Arc<Store> {
        let mut f = Fixture::new();
        for n in 1..used {
            f.file(Fid::ROOT, &format!("{n}"));
            f.unlink(Fid::ROOT, &format!("{n}")).unwrap();
        }
        f.file(Fid::ROOT, "used");
        let mut change = Change::new();
        change.set_record(
            keys::objects(OstIndex(0)),
            LastUsedId {
                seq: SEQ,
                used: bound,
            }
            .encode(),
        );
        f.store.apply(change).wait().unwrap();
        f.store.clone()
    }

    /// The ids of the objects with queued work.
    fn queued_ids(store: &Store) -> Vec<u32> {
        let rows = store
            .index()
            .scan(keys::WORK, &prefix_end(keys::WORK), usize::MAX)
            .wait()
            .unwrap();
        let mut ids: Vec<u32> = rows
            .iter()
            .map(|(k, _)| keys::work_object(k).unwrap().f_oid)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    #[test]
    fn orphan_objects_near_the_bound_are_destroyed() {
        let store = store_with_bound(5, 9);
        let ids = unverified_ids(&store).wait().unwrap();
        queue_orphans(&store, &ids, &Progress::default()).wait().unwrap();
        assert_eq!(queued_ids(&store), [1, 2, 3, 4, 6, 7, 8, 9]);
    }

    #[test]
    fn objects_far_below_the_bound_are_not_destroyed() {
        let store = store_with_bound(2, 5000);
        let before = queued_ids(&store);
        queue_orphans(
            &store,
            &unverified_ids(&store).wait().unwrap(),
            &Progress::default(),
        )
        .wait()
        .unwrap();
        let new: Vec<u32> = queued_ids(&store)
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        assert_eq!((new[0], new.len()), (5001 - IDS_TO_CHECK, IDS_TO_CHECK as usize));
    }

    #[test]
    fn clean_stop_skips_one_scan() {
        let store = store_with_bound(2, 9);
        record_clean_stop(&store).unwrap();
        assert!(unverified_ids(&store).wait().unwrap().is_empty());
        assert_eq!(unverified_ids(&store).wait().unwrap().len(), 1);
    }

    #[test]
    fn unreadable_inode_prevents_all_destroys() {
        let store = store_with_bound(5, 9);
        let before = queued_ids(&store);
        let mut change = Change::new();
        change.set_record(keys::inode(Fid::new(0x2_0000_0401, 77, 0)), "?".into());
        store.apply(change).wait().unwrap();
        assert!(
            queue_orphans(
                &store,
                &unverified_ids(&store).wait().unwrap(),
                &Progress::default()
            )
            .wait()
            .is_err()
        );
        assert_eq!(queued_ids(&store), before);
    }
}
