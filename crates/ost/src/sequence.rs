//! FID sequences of the target, and the last object created in each (docs/protocol.md, "FLDB and
//! FIDs").
//!
//! MDT0 gives the target a super-sequence. From it the target allocates sequences to the MDTs that
//! create objects here. Creating an object only advances the last id of its sequence: before the
//! first change the store holds nothing else about the object. Ids are never reused, so an object
//! that this run of the target created needs no lookup in the store before its first change.
//!
//! A killed run may have created objects and lost the new last id. When an MDT connects, it
//! reports its present sequence and the last object that it uses there. That suffices for its
//! objects: the last id of each earlier sequence was on disk before the MDT requested the next
//! sequence. When all MDTs of the configuration have reported, no unknown object can exist.
//! [`Sequences`] keeps all records in memory.
//!
//! ```text
//! key 's' 'q'            start, end, next: u64 LE, the super-sequence and the next sequence
//! key 's' 'l' seq u64 BE last: u64 LE
//! ```

use cpt::HashMap;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use osd::{Batch, Index, OsdError, prefix_end};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, time::timeout};
use wire::{
    FID_SEQ_IDIF, FID_SEQ_OST_MDT0, Fid, LU_SEQ_RANGE_OST, LuSeqRange, OST_MAX_PRECREATE, OstId, OstIndex,
};

use crate::OstError;

/// The largest number of objects in a sequence; sent with every precreation reply.
pub(crate) const SEQ_WIDTH: u64 = 0x1ff_ffff;

/// Key of the super-sequence's record.
pub(crate) const SUPER_KEY: [u8; 2] = *b"sq";
/// Prefix of the keys of the sequences' records.
pub(crate) const LAST_PREFIX: [u8; 2] = *b"sl";

/// All sequences of the target.
pub(crate) struct Sequences {
    index: Arc<dyn Index>,
    ost_index: OstIndex,
    range: Mutex<Range>,
    /// True once the target has a super-sequence on disk.
    range_ready: watch::Sender<bool>,
    /// The known sequences by number.
    sequences: RwLock<HashMap<u64, Arc<Sequence>>>,
    /// The indices of the MDTs that have reported, in this run, their sequence and the last object
    /// that they use.
    reported: Mutex<BTreeSet<u32>>,
    /// All MDTs have reported. From then on no object without a record can exist.
    all_reported: AtomicBool,
}

/// A super-sequence (`end` is exclusive), and the next sequence to allocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) next: u64,
}

/// One sequence and its last object.
pub(crate) struct Sequence {
    pub(crate) seq: u64,
    /// The id of the last object created.
    last: AtomicU64,
    /// `last` when the target started.
    stored_last: u64,
    /// Objects with this id or a higher one were created by this run of the target. `u64::MAX`: not
    /// yet known.
    new_from: AtomicU64,
    /// Held during a whole precreation or clean-up of orphans.
    pub(crate) create_lock: tokio::sync::Mutex<()>,
}

/// The effects of a precreation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrecreatePlan {
    /// The id of the new last object.
    pub(crate) last: u64,
    /// The id of the last object in the reply; `last + 1` if the MDT's id is too low.
    pub(crate) report: u64,
    /// Objects with ids above this, up to the former last one, are orphans.
    pub(crate) destroy_above: Option<u64>,
}

/// Plans a precreation (docs/protocol.md, "Data (OST)"). `last` is the id of the last object,
/// `wanted` the id up to which the MDT requests objects. With `destroy_orphans` the MDT has
/// reconnected, and `wanted` is the id of the last object that it uses.
pub(crate) fn plan_precreate(last: u64, wanted: u64, destroy_orphans: bool) -> PrecreatePlan {
    let keep_last = |report| PrecreatePlan {
        last,
        report,
        destroy_above: None,
    };
    if wanted > last {
        return PrecreatePlan {
            last: wanted,
            report: wanted,
            destroy_above: None,
        };
    }
    if destroy_orphans && wanted < last {
        if last - wanted > u64::from(OST_MAX_PRECREATE) {
            // The MDT may run on an old copy of its store: do not destroy that many objects.
            return keep_last(last + 1);
        }
        // The ids are not reused: a client may still write to one of the objects.
        return PrecreatePlan {
            last,
            report: last,
            destroy_above: Some(wanted),
        };
    }
    if !destroy_orphans && wanted < last {
        return keep_last(last + 1);
    }
    keep_last(last)
}

impl Sequence {
    /// The id of the last object created; 0 if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// The highest id that an earlier run can have created without a record on disk: that of one
    /// precreation.
    pub(crate) fn lost_last_max(&self) -> u64 {
        (self.stored_last + u64::from(OST_MAX_PRECREATE)).min(SEQ_WIDTH)
    }

    /// Records that earlier runs created no object above `last`.
    pub(crate) fn confirm_up_to(&self, last: u64) {
        // Objects of this run stay new.
        self.new_from.fetch_min(last + 1, SeqCst);
    }

    /// Whether all objects that earlier runs created are known.
    fn is_confirmed(&self) -> bool {
        self.new_from.load(SeqCst) != u64::MAX
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Parses the record of the super-sequence.
pub(crate) fn parse_super(value: &[u8]) -> Option<Range> {
    let mut words = value.chunks(8).map_while(number);
    Some(Range {
        start: words.next()?,
        end: words.next()?,
        next: words.next()?,
    })
}

/// Parses the record of a sequence: its number and the id of its last object.
pub(crate) fn parse_last(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    let seq = key
        .strip_prefix(&LAST_PREFIX)?
        .try_into()
        .ok()
        .map(u64::from_be_bytes);
    Some((seq?, number(value)?))
}

/// The key and value of a sequence's record.
pub(crate) fn last_record(seq: u64, last: u64) -> (Vec<u8>, Vec<u8>) {
    (
        [&LAST_PREFIX[..], &seq.to_be_bytes()].concat(),
        last.to_le_bytes().to_vec(),
    )
}

impl Sequences {
    /// Loads the records of the index.
    pub(crate) async fn open(
        index: Arc<dyn Index>,
        svname: &str,
        ost_index: OstIndex,
    ) -> Result<Sequences, OstError> {
        let bad = |what, expected: &str, found: &[u8]| OstError::Record {
            svname: svname.into(),
            what,
            expected: expected.into(),
            found: format!("{} bytes", found.len()),
        };
        let mut range = Range::default();
        if let Some(r) = index.get(&SUPER_KEY).await? {
            range = parse_super(&r).ok_or_else(|| bad("super-sequence", "24 bytes", &r))?;
        }
        let mut sequences = HashMap::default();
        let end = prefix_end(&LAST_PREFIX);
        for (key, value) in index.scan(&LAST_PREFIX, &end, usize::MAX).await? {
            let (seq, n) = parse_last(&key, &value).ok_or_else(|| {
                bad(
                    "last object of a sequence",
                    "a key of 10 bytes and a value of 8 bytes",
                    &value,
                )
            })?;
            sequences.insert(seq, Sequence::new(seq, n));
        }
        let range_ready = watch::Sender::new(range.end != 0);
        Ok(Sequences {
            index,
            ost_index,
            range: Mutex::new(range),
            range_ready,
            sequences: RwLock::new(sequences),
            reported: Mutex::default(),
            all_reported: AtomicBool::new(false),
        })
    }

    /// Whether MDT0 has given the target a super-sequence.
    pub(crate) fn has_range(&self) -> bool {
        *self.range_ready.borrow()
    }

    /// Stores the super-sequence from MDT0. It is on disk when this returns.
    pub(crate) async fn set_range(&self, given: &LuSeqRange) -> Result<(), OsdError> {
        {
            let mut range = self.range.lock();
            let new = Range {
                start: given.lsr_start,
                end: given.lsr_end,
                next: given.lsr_start,
            };
            self.put_range(&new)?;
            *range = new;
        }
        self.index.sync().await?;
        self.range_ready.send_replace(true);
        Ok(())
    }

    /// Waits for the super-sequence, at most `limit`; returns whether there is one.
    pub(crate) async fn wait_for_range(&self, limit: Duration) -> bool {
        let mut ready = self.range_ready.subscribe();
        matches!(timeout(limit, ready.wait_for(|r| *r)).await, Ok(Ok(_)))
    }

    fn put_range(&self, r: &Range) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        batch.put_twice(
            &SUPER_KEY[..],
            [r.start, r.end, r.next].map(u64::to_le_bytes).concat(),
        );
        self.index.apply(batch)
    }

    /// Allocates the next sequence to the MDT with the index `mdt_index`; the record is on disk
    /// when this returns. `None` if there is no super-sequence, or it is used up.
    pub(crate) async fn allocate(&self, mdt_index: u32) -> Result<Option<LuSeqRange>, OsdError> {
        let allocated = {
            let mut range = self.range.lock();
            if range.next >= range.end {
                return Ok(None);
            }
            let new = Range {
                next: range.next + 1,
                ..*range
            };
            self.put_range(&new)?;
            *range = new;
            let seq = new.next - 1;
            let sequence = Sequence::new(seq, 0);
            sequence.confirm_up_to(0);
            self.sequences.write().insert(seq, sequence);
            seq
        };
        self.index.sync().await?;
        Ok(Some(LuSeqRange {
            lsr_start: allocated,
            lsr_end: allocated + 1,
            lsr_index: mdt_index,
            lsr_flags: LU_SEQ_RANGE_OST,
        }))
    }

    /// The FID of an `ost_id`. An `ost_id` is either a FID itself, or the number of an object
    /// without a FID, which belongs to the target's IDIF sequence.
    pub(crate) fn fid(&self, id: &OstId) -> Fid {
        if id.oi_seq == FID_SEQ_OST_MDT0 {
            let seq = FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16 | (id.oi_id >> 32 & 0xffff);
            return Fid::new(seq, id.oi_id as u32, 0);
        }
        id.fid()
    }

    /// Finds a sequence that this target allocated, or its IDIF sequence.
    pub(crate) fn find(&self, seq: u64) -> Option<Arc<Sequence>> {
        if let Some(found) = self.sequences.read().get(&seq) {
            return Some(found.clone());
        }
        let range = *self.range.lock();
        let idif = FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16;
        if !(range.start..range.next).contains(&seq) && seq != idif {
            return None;
        }
        Some(
            self.sequences
                .write()
                .entry(seq)
                .or_insert_with(|| Sequence::new(seq, 0))
                .clone(),
        )
    }

    /// Whether the object was created, according to the records.
    pub(crate) fn is_created(&self, fid: &Fid) -> bool {
        fid.f_ver == 0
            && fid.f_oid != 0
            && self
                .find(fid.f_seq)
                .is_some_and(|s| u64::from(fid.f_oid) <= s.last())
    }

    /// Whether an earlier run may have created the object and lost the record of it.
    pub(crate) fn may_exist(&self, fid: &Fid) -> bool {
        !self.all_reported.load(SeqCst)
            && fid.f_ver == 0
            && fid.f_oid != 0
            && self.find(fid.f_seq).is_some_and(|s| !s.is_confirmed())
    }

    /// Records that an MDT creates objects in this sequence. If all objects of this sequence are
    /// known, no unknown object of the MDT can exist in another sequence either, because the MDT
    /// uses no other. `mdts` are the indices of all MDTs. An MDT that joins later has no objects
    /// of an earlier run.
    pub(crate) fn mark_in_use(&self, sequence: &Sequence, mdt: u32, mdts: impl IntoIterator<Item = u32>) {
        if !sequence.is_confirmed() || self.all_reported.load(SeqCst) {
            return;
        }
        let mut reported = self.reported.lock();
        reported.insert(mdt);
        if mdts.into_iter().all(|mdt| reported.contains(&mdt)) {
            self.all_reported.store(true, SeqCst);
        }
    }

    /// Whether this run of the target created the object.
    pub(crate) fn is_new(&self, fid: &Fid) -> bool {
        let since = self.find(fid.f_seq).map(|s| s.new_from.load(SeqCst));
        since.is_some_and(|from| from <= fid.f_oid.into())
    }

    /// Sets the last object of a sequence, and adds the record to `batch`.
    pub(crate) fn set_last(&self, sequence: &Sequence, last: u64, batch: &mut Batch) {
        let (key, value) = last_record(sequence.seq, last);
        batch.put_twice(key, value);
        sequence.last.store(last, SeqCst);
    }
}

impl Sequence {
    fn new(seq: u64, last: u64) -> Arc<Sequence> {
        Arc::new(Sequence {
            seq,
            last: AtomicU64::new(last),
            stored_last: last,
            new_from: AtomicU64::new(u64::MAX),
            create_lock: tokio::sync::Mutex::new(()),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::MemoryIndex;

    use super::*;

    #[test]
    fn precreation_never_lowers_the_last_id() {
        assert_eq!(
            plan_precreate(0, 32, false),
            PrecreatePlan {
                last: 32,
                report: 32,
                destroy_above: None
            }
        );
        assert_eq!(
            plan_precreate(32, 32, false),
            PrecreatePlan {
                last: 32,
                report: 32,
                destroy_above: None
            }
        );
        assert_eq!(
            plan_precreate(32, 10, false),
            PrecreatePlan {
                last: 32,
                report: 33,
                destroy_above: None
            }
        );
    }

    #[test]
    fn orphans_are_destroyed_and_missing_objects_created() {
        assert_eq!(
            plan_precreate(64, 10, true),
            PrecreatePlan {
                last: 64,
                report: 64,
                destroy_above: Some(10)
            }
        );
        assert_eq!(
            plan_precreate(10, 64, true),
            PrecreatePlan {
                last: 64,
                report: 64,
                destroy_above: None
            }
        );
        assert_eq!(
            plan_precreate(10, 10, true),
            PrecreatePlan {
                last: 10,
                report: 10,
                destroy_above: None
            }
        );
        let many = 10 + u64::from(OST_MAX_PRECREATE) + 1;
        assert_eq!(
            plan_precreate(many, 10, true),
            PrecreatePlan {
                last: many,
                report: many + 1,
                destroy_above: None
            }
        );
    }

    #[tokio::test]
    async fn sequences_are_allocated_once_and_survive_a_restart() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let s = Sequences::open(index.clone(), "t", OstIndex(1)).await.unwrap();
        assert!(!s.has_range());
        assert_eq!(s.allocate(0).await.unwrap(), None);
        s.set_range(&LuSeqRange {
            lsr_start: 0x2c0000400,
            lsr_end: 0x2c0000402,
            ..LuSeqRange::default()
        })
        .await
        .unwrap();
        let first = s.allocate(0).await.unwrap().unwrap();
        assert_eq!(
            (first.lsr_start, first.lsr_end, first.lsr_flags),
            (0x2c0000400, 0x2c0000401, 1)
        );
        let sequence = s.find(first.lsr_start).unwrap();
        let mut batch = Batch::new();
        s.set_last(&sequence, 32, &mut batch);
        index.apply(batch).unwrap();
        assert!(s.is_created(&Fid::new(0x2c0000400, 32, 0)) && !s.is_created(&Fid::new(0x2c0000400, 33, 0)));
        assert!(!s.is_created(&Fid::new(0x2c0000401, 1, 0)));

        let restarted = Sequences::open(index, "t", OstIndex(1)).await.unwrap();
        assert_eq!(restarted.find(0x2c0000400).unwrap().last(), 32);
        assert_eq!(
            restarted.allocate(7).await.unwrap().unwrap().lsr_start,
            0x2c0000401
        );
        assert_eq!(restarted.allocate(7).await.unwrap(), None);
        assert!(restarted.find(0x2c0000402).is_none());
    }

    #[tokio::test]
    async fn no_unknown_object_may_exist_after_the_reports_of_all_mdts() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let start = 0x2c0000400;
        let run = async || Sequences::open(index.clone(), "t", OstIndex(1)).await.unwrap();
        let given = LuSeqRange {
            lsr_start: start,
            lsr_end: start + 10,
            ..LuSeqRange::default()
        };
        let first = run().await;
        first.set_range(&given).await.unwrap();
        for _ in 0..3 {
            first.allocate(0).await.unwrap();
        }
        let objects = [
            Fid::new(start, 33, 0),
            Fid::new(start + 2, 1, 0),
            Fid::new(0x1_0001_0000, 1, 0),
        ];
        let may_exist = |s: &Sequences| objects.map(|fid| s.may_exist(&fid));
        // The MDT continues with its sequence, or it is a new MDT and gets another one.
        for new_mdt in [false, true] {
            let s = run().await;
            s.mark_in_use(&s.find(start + 2).unwrap(), 0, [0, 1]);
            assert_eq!(may_exist(&s), [true; 3]);
            let used = match new_mdt {
                true => s.allocate(0).await.unwrap().unwrap().lsr_start,
                false => start + 2,
            };
            let used = s.find(used).unwrap();
            assert_eq!(may_exist(&s), [true; 3]);
            if !new_mdt {
                used.confirm_up_to(0);
            }
            s.mark_in_use(&used, 0, [0, 1]);
            // The other MDT may have unknown objects in its sequence, but the first one has none.
            assert_eq!(may_exist(&s), [true, new_mdt, true]);
            s.find(start).unwrap().confirm_up_to(0);
            s.mark_in_use(&s.find(start).unwrap(), 1, [0, 1]);
            assert_eq!(may_exist(&s), [false; 3]);
        }
    }

    #[tokio::test]
    async fn idif_objects_belong_to_the_targets_own_sequence() {
        let s = Sequences::open(Arc::new(MemoryIndex::default()), "t", OstIndex(1))
            .await
            .unwrap();
        assert_eq!(
            s.fid(&OstId { oi_id: 1, oi_seq: 0 }),
            Fid::new(0x1_0001_0000, 1, 0)
        );
        assert_eq!(
            s.fid(&OstId {
                oi_id: 0x2c0000401,
                oi_seq: 2
            }),
            Fid::new(0x2c0000401, 2, 0)
        );
        assert!(s.find(0x1_0001_0000).is_some());
    }
}
