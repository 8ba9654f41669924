//! After a crash: destroys the objects of new files that did not reach the disk.
//!
//! Their ids are close to the recorded bound, which is at most a few hundred ids ahead of the last
//! allocated one. So a background task reads all inodes once and collects the objects in that
//! range; it destroys all others in the range, written or not, so that a client that still writes
//! to one gets an error. After a clean stop the bounds are exact, the store records that, and
//! nothing is scanned.

use std::collections::{BTreeMap, BTreeSet};

use osd::{
    Batch, OsdError,
    check::{Progress, for_each_entry},
};
use wire::{Errno, Fid, OstIndex};

use super::pool::{LAST_USED_STEP, LastUsed};
use crate::{
    layout::{self, StripeObject},
    store::{Inode, Store, keys},
};

/// Number of ids below the bound that are scanned: the bound's step, and concurrent creates.
const WINDOW: u32 = 4 * LAST_USED_STEP;
/// The setting that records a clean stop.
const CLEAN_STOP: &str = "osp.exact";

/// Records a clean stop, after the exact bounds.
pub(super) fn record_clean_stop(store: &Store) -> Result<(), Errno> {
    let mut batch = Batch::new();
    batch.put(keys::setting(CLEAN_STOP), Vec::new());
    Ok(store.index().apply(batch)?)
}

/// The ranges of each OST that may contain orphan objects; must be called before new ids are
/// allocated.
pub(crate) fn unverified_ranges(store: &Store) -> Result<BTreeMap<OstIndex, LastUsed>, Errno> {
    let exact = keys::setting(CLEAN_STOP);
    let mut marks = BTreeMap::new();
    if store.index().get(&exact)?.is_some() {
        let mut batch = Batch::new();
        batch.delete(exact);
        store.index().apply(batch)?;
        return Ok(marks);
    }
    for_each_entry(
        &**store.index(),
        keys::OBJECTS,
        &Progress::default(),
        |key, value| {
            if let (Some(ost), Ok(mark)) = (keys::objects_ost(&key), LastUsed::decode(&value)) {
                marks.insert(ost, mark);
            }
            Ok::<(), OsdError>(())
        },
    )?;
    Ok(marks)
}

/// Queues the orphan objects for destruction; returns their number. Reads the whole store: not for
/// a worker of the runtime.
pub(crate) fn queue_orphans(
    store: &Store,
    marks: &BTreeMap<OstIndex, LastUsed>,
    progress: &Progress,
) -> Result<usize, Errno> {
    if marks.is_empty() {
        return Ok(0);
    }
    let mut used: BTreeSet<(OstIndex, Fid)> = BTreeSet::new();
    for_each_entry(&**store.index(), b"i", progress, |_, value| {
        // An unreadable inode may have any object: then nothing is destroyed.
        let inode = Inode::decode(&value).map_err(|_| Errno::EIO)?;
        if inode.is_file() {
            for StripeObject { ost, fid } in layout::objects(&inode.lov)? {
                if marks
                    .get(&ost)
                    .is_some_and(|mark| window(mark).contains(&fid.f_oid) && mark.seq == fid.f_seq)
                {
                    used.insert((ost, fid));
                }
            }
        }
        Ok::<(), Errno>(())
    })?;
    let mut queued = 0;
    for (&ost, mark) in marks {
        let mut tx = store.begin();
        for oid in window(mark) {
            let fid = Fid::new(mark.seq, oid, 0);
            if !used.contains(&(ost, fid)) {
                tx.put_destroy(StripeObject { ost, fid });
                queued += 1;
            }
        }
        tx.commit()?;
    }
    Ok(queued)
}

/// The ids to scan. The first id of a sequence is never used.
fn window(mark: &LastUsed) -> std::ops::RangeInclusive<u32> {
    mark.used.saturating_sub(WINDOW).max(1) + 1..=mark.used
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::{WINDOW, queue_orphans, record_clean_stop, unverified_ranges};
    use crate::{
        namespace::tests::Fixture,
        osp::pool::LastUsed,
        store::{Store, keys},
    };
    use osd::check::Progress;
    use wire::{Fid, OstIndex};

    const SEQ: u64 = 0x2_4000_0400;

    /// A store with a file that has object `used` of OST 0, and the recorded bound `mark`.
    fn store(used: u32, mark: u32) -> Arc<Store> {
        let mut f = Fixture::new();
        for n in 1..used {
            f.file(Fid::ROOT, &format!("{n}"));
            f.unlink(Fid::ROOT, &format!("{n}")).unwrap();
        }
        f.file(Fid::ROOT, "used");
        let mut tx = f.store.begin();
        tx.put(
            keys::objects(OstIndex(0)),
            LastUsed { seq: SEQ, used: mark }.encode(),
        );
        tx.commit().unwrap();
        f.store.clone()
    }

    fn queued(store: &Store) -> Vec<u32> {
        let rows = store.index().scan(b"q", b"r", usize::MAX).unwrap();
        let mut ids: Vec<u32> = rows
            .iter()
            .map(|(k, _)| keys::work_object(k).unwrap().f_oid)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    #[test]
    fn orphan_objects_just_below_the_bound_are_destroyed() {
        let store = store(5, 9);
        let marks = unverified_ranges(&store).unwrap();
        queue_orphans(&store, &marks, &Progress::default()).unwrap();
        assert_eq!(queued(&store), [1, 2, 3, 4, 6, 7, 8, 9]);
    }

    #[test]
    fn objects_further_below_the_bound_are_not_touched() {
        let store = store(2, 5000);
        let before = queued(&store);
        queue_orphans(&store, &unverified_ranges(&store).unwrap(), &Progress::default()).unwrap();
        let new: Vec<u32> = queued(&store)
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        assert_eq!((new[0], new.len()), (5001 - WINDOW, WINDOW as usize));
    }

    #[test]
    fn clean_stop_skips_one_scan() {
        let store = store(2, 9);
        record_clean_stop(&store).unwrap();
        assert!(unverified_ranges(&store).unwrap().is_empty());
        assert_eq!(unverified_ranges(&store).unwrap().len(), 1);
    }

    #[test]
    fn unreadable_inode_prevents_all_destroys() {
        let store = store(5, 9);
        let before = queued(&store);
        let mut tx = store.begin();
        tx.put(keys::inode(Fid::new(0x2_0000_0401, 77, 0)), "?".into());
        tx.commit().unwrap();
        assert!(queue_orphans(&store, &unverified_ranges(&store).unwrap(), &Progress::default()).is_err());
        assert_eq!(queued(&store), before);
    }
}
