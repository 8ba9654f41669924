//! After a crash: objects that were given to files whose creation did not reach the disk.
//!
//! Such ids lie closely below the mark that no id in use is above: it runs ahead of what is given out by a few hundred. So
//! all inodes are looked through once, in the background, for those that have such objects; the others are destroyed,
//! whether they were written or not, so that a client that still writes to one is told. After a stop in good order the marks
//! are exact, which the store says, and nothing is done.

use std::collections::{BTreeMap, BTreeSet};

use osd::{
    Batch, OsdError,
    check::{Progress, for_each_entry},
};
use wire::{Errno, Fid, OstIndex};

use super::pool::{MARK_STEP, Mark};
use crate::{
    layout::{self, Object},
    store::{Inode, Store, keys},
};

/// How far below the mark ids are looked at: its step, and what is being created at one time.
const WINDOW: u32 = 4 * MARK_STEP;
/// The setting that says that the marks are exact.
const EXACT: &str = "osp.exact";

/// Says whether the marks are exact, with the last changes of a stop.
pub(super) fn note_exact(store: &Store) -> Result<(), Errno> {
    let mut batch = Batch::new();
    batch.put(keys::setting(EXACT), Vec::new());
    Ok(store.index().apply(batch)?)
}

/// The ids of each OST that may have been given to no file; to be called before any more are given.
pub(crate) fn doubtful(store: &Store) -> Result<BTreeMap<OstIndex, Mark>, Errno> {
    let exact = keys::setting(EXACT);
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
            if let (Some(ost), Ok(mark)) = (keys::objects_ost(&key), Mark::decode(&value)) {
                marks.insert(ost, mark);
            }
            Ok::<(), OsdError>(())
        },
    )?;
    Ok(marks)
}

/// Queues what is nobody's to be destroyed; how many objects that are. Reads the whole store: not for a runtime's worker.
pub(crate) fn settle(
    store: &Store,
    marks: &BTreeMap<OstIndex, Mark>,
    progress: &Progress,
) -> Result<usize, Errno> {
    if marks.is_empty() {
        return Ok(0);
    }
    let mut used: BTreeSet<(OstIndex, Fid)> = BTreeSet::new();
    for_each_entry(&**store.index(), b"i", progress, |_, value| {
        // One that cannot be read may have any object: then nothing is destroyed.
        let inode = Inode::decode(&value).map_err(|_| Errno::EIO)?;
        if inode.is_file() {
            for Object { ost, fid } in layout::objects(&inode.lov)? {
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
                tx.put_destroy(Object { ost, fid });
                queued += 1;
            }
        }
        tx.commit()?;
    }
    Ok(queued)
}

/// The ids that are doubtful: the first of a sequence is nobody's, and never made.
fn window(mark: &Mark) -> std::ops::RangeInclusive<u32> {
    mark.used.saturating_sub(WINDOW).max(1) + 1..=mark.used
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::{WINDOW, doubtful, note_exact, settle};
    use crate::{
        namespace::tests::Fixture,
        osp::pool::Mark,
        store::{Store, keys},
    };
    use osd::check::Progress;
    use wire::{Fid, OstIndex};

    const SEQ: u64 = 0x2_4000_0400;

    /// A store with a file that has object `used` of OST 0, and this mark.
    fn store(used: u32, mark: u32) -> Arc<Store> {
        let mut f = Fixture::new();
        for n in 1..used {
            f.file(Fid::ROOT, &format!("{n}"));
            f.unlink(Fid::ROOT, &format!("{n}")).unwrap();
        }
        f.file(Fid::ROOT, "used");
        let mut tx = f.store.begin();
        tx.put(keys::objects(OstIndex(0)), Mark { seq: SEQ, used: mark }.encode());
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
    fn objects_closely_below_the_mark_that_no_file_has_are_destroyed() {
        let store = store(5, 9);
        let marks = doubtful(&store).unwrap();
        settle(&store, &marks, &Progress::default()).unwrap();
        assert_eq!(queued(&store), [1, 2, 3, 4, 6, 7, 8, 9]);
    }

    #[test]
    fn what_lies_further_down_is_not_touched() {
        let store = store(2, 5000);
        let before = queued(&store);
        settle(&store, &doubtful(&store).unwrap(), &Progress::default()).unwrap();
        let new: Vec<u32> = queued(&store)
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        assert_eq!((new[0], new.len()), (5001 - WINDOW, WINDOW as usize));
    }

    #[test]
    fn after_a_stop_in_good_order_nothing_is_doubtful_once() {
        let store = store(2, 9);
        note_exact(&store).unwrap();
        assert!(doubtful(&store).unwrap().is_empty());
        assert_eq!(doubtful(&store).unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_destroyed_while_a_file_cannot_be_read() {
        let store = store(5, 9);
        let before = queued(&store);
        let mut tx = store.begin();
        tx.put(keys::inode(Fid::new(0x2_0000_0401, 77, 0)), "?".into());
        tx.commit().unwrap();
        assert!(settle(&store, &doubtful(&store).unwrap(), &Progress::default()).is_err());
        assert_eq!(queued(&store), before);
    }
}
