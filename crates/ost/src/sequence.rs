//! FID sequences of the target, and the last object made in each (guide 7.2, 8.1).
//!
//! MDT0 gives the target a super-sequence; of it the target gives one sequence after the other to the MDTs that make
//! objects here. Making an object only advances the last id of its sequence: there is nothing else of it until it is
//! written. Ids are never used twice, so that an object that this run has made need not be looked for on the disk: of one with
//! an id that an earlier run may have reached, before it was killed, the MDT says so when it connects, of the one sequence that
//! it uses: a file system has one MDT, and what it has left behind is as it was on the disk when it asked for another. The
//! records are in the target's index; what they say is in memory.
//!
//! ```text
//! key 's' 'q'            start, end, next: u64 LE, the super-sequence and the next sequence to give
//! key 's' 'l' seq u64 BE last: u64 LE
//! ```

use foldhash::HashMap;
use std::{
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

/// Objects in a sequence at most; reported with every precreation.
pub(crate) const SEQ_WIDTH: u64 = 0x1ff_ffff;

pub(crate) const SUPER_KEY: [u8; 2] = *b"sq";
pub(crate) const LAST_PREFIX: [u8; 2] = *b"sl";

/// All sequences of the target.
pub(crate) struct Sequences {
    index: Arc<dyn Index>,
    ost_index: OstIndex,
    range: Mutex<Range>,
    /// There is a super-sequence.
    ready: watch::Sender<bool>,
    last: RwLock<HashMap<u64, Arc<Sequence>>>,
    /// The MDT has said in this run which sequence it uses and how far it came in it: nothing else was made.
    settled: AtomicBool,
}

/// A super-sequence, and the next sequence of it to give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) next: u64,
}

/// One sequence.
pub(crate) struct Sequence {
    pub(crate) seq: u64,
    last: AtomicU64,
    /// Objects from here on were made in this run of the target: before it there was nothing of them.
    new_from: AtomicU64,
    /// Held over a whole precreation or clean-up of orphans.
    pub(crate) making: tokio::sync::Mutex<()>,
}

/// What a precreation request leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The last object from now on.
    pub(crate) last: u64,
    /// The last object to report.
    pub(crate) report: u64,
    /// Objects above this, up to the former last, are orphans.
    pub(crate) destroy_above: Option<u64>,
}

/// What to do when an MDT asks for objects up to `wanted` and `last` is the last one (guide 8.1). With `orphans` the MDT has
/// connected again and `wanted` is the last one that it used.
pub(crate) fn plan(last: u64, wanted: u64, orphans: bool) -> Plan {
    let stay = |report| Plan {
        last,
        report,
        destroy_above: None,
    };
    if wanted > last {
        return Plan {
            last: wanted,
            report: wanted,
            destroy_above: None,
        };
    }
    if orphans && wanted < last {
        if last - wanted > u64::from(OST_MAX_PRECREATE) {
            // So many objects are not thrown away on the word of an MDT that may be an old copy.
            return stay(last + 1);
        }
        // Their ids are not used again: a client may still write to one of them.
        return Plan {
            last,
            report: last,
            destroy_above: Some(wanted),
        };
    }
    if !orphans && wanted < last {
        return stay(last + 1);
    }
    stay(last)
}

impl Sequence {
    /// The last object that was made; 0 when there is none.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// All that an earlier run may have made is known by now: up to `last`.
    pub(crate) fn known_up_to(&self, last: u64) {
        // What was new before is so still.
        self.new_from.fetch_min(last + 1, SeqCst);
    }

    /// Whether all that an earlier run may have made is known.
    fn is_known(&self) -> bool {
        self.new_from.load(SeqCst) != u64::MAX
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Reads the record of the super-sequence.
pub(crate) fn parse_super(value: &[u8]) -> Option<Range> {
    let mut words = value.chunks(8).map_while(number);
    Some(Range {
        start: words.next()?,
        end: words.next()?,
        next: words.next()?,
    })
}

/// Reads the record of a sequence: which it is, and its last object.
pub(crate) fn parse_last(key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
    let seq = key
        .strip_prefix(&LAST_PREFIX)?
        .try_into()
        .ok()
        .map(u64::from_be_bytes);
    Some((seq?, number(value)?))
}

/// The record of a sequence.
pub(crate) fn last_record(seq: u64, last: u64) -> (Vec<u8>, Vec<u8>) {
    (
        [&LAST_PREFIX[..], &seq.to_be_bytes()].concat(),
        last.to_le_bytes().to_vec(),
    )
}

impl Sequences {
    /// Reads what the index has.
    pub(crate) fn open(
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
        if let Some(r) = index.get(&SUPER_KEY)? {
            range = parse_super(&r).ok_or_else(|| bad("super-sequence", "24 bytes", &r))?;
        }
        let mut last = HashMap::default();
        for (key, value) in index.scan(&LAST_PREFIX, &prefix_end(&LAST_PREFIX), usize::MAX)? {
            let (seq, n) = parse_last(&key, &value)
                .ok_or_else(|| bad("last object of a sequence", "10 bytes and 8 bytes", &value))?;
            last.insert(seq, Sequence::new(seq, n));
        }
        let ready = watch::Sender::new(range.end != 0);
        Ok(Sequences {
            index,
            ost_index,
            range: Mutex::new(range),
            ready,
            last: RwLock::new(last),
            settled: AtomicBool::new(false),
        })
    }

    /// Whether MDT0 has given a super-sequence.
    pub(crate) fn has_range(&self) -> bool {
        *self.ready.borrow()
    }

    /// Takes the super-sequence that MDT0 gave; kept for good.
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
        self.ready.send_replace(true);
        Ok(())
    }

    /// Waits until there is a super-sequence, but not longer than this; whether there is one.
    pub(crate) async fn wait_for_range(&self, patience: Duration) -> bool {
        let mut ready = self.ready.subscribe();
        matches!(timeout(patience, ready.wait_for(|r| *r)).await, Ok(Ok(_)))
    }

    fn put_range(&self, r: &Range) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        batch.put(
            &SUPER_KEY[..],
            [r.start, r.end, r.next].map(u64::to_le_bytes).concat(),
        );
        self.index.apply(batch)
    }

    /// Gives the next sequence to an MDT, on disk before it is given. `None`: there is no super-sequence (left).
    pub(crate) async fn give(&self, to: u32) -> Result<Option<LuSeqRange>, OsdError> {
        let given = {
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
            let given = new.next - 1;
            let sequence = Sequence::new(given, 0);
            sequence.known_up_to(0);
            self.last.write().insert(given, sequence);
            given
        };
        self.index.sync().await?;
        Ok(Some(LuSeqRange {
            lsr_start: given,
            lsr_end: given + 1,
            lsr_index: to,
            lsr_flags: LU_SEQ_RANGE_OST,
        }))
    }

    /// The object that an `ost_id` names: a FID, or in the sequence of MDT0's objects of old a bare number.
    pub(crate) fn fid(&self, id: &OstId) -> Fid {
        if id.oi_seq == FID_SEQ_OST_MDT0 {
            let seq = FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16 | (id.oi_id >> 32 & 0xffff);
            return Fid::new(seq, id.oi_id as u32, 0);
        }
        id.fid()
    }

    /// The sequence, if the target gave it to somebody or it is the one of old objects.
    pub(crate) fn find(&self, seq: u64) -> Option<Arc<Sequence>> {
        if let Some(found) = self.last.read().get(&seq) {
            return Some(found.clone());
        }
        let range = *self.range.lock();
        let idif = FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16;
        if !(range.start..range.next).contains(&seq) && seq != idif {
            return None;
        }
        Some(
            self.last
                .write()
                .entry(seq)
                .or_insert_with(|| Sequence::new(seq, 0))
                .clone(),
        )
    }

    /// Whether the object was made.
    pub(crate) fn is_made(&self, fid: &Fid) -> bool {
        fid.f_ver == 0
            && fid.f_oid != 0
            && self
                .find(fid.f_seq)
                .is_some_and(|s| u64::from(fid.f_oid) <= s.last())
    }

    /// Whether an earlier run may have made the object though nothing is known of it.
    pub(crate) fn may_be_made(&self, fid: &Fid) -> bool {
        !self.settled.load(SeqCst)
            && fid.f_ver == 0
            && fid.f_oid != 0
            && self.find(fid.f_seq).is_some_and(|s| !s.is_known())
    }

    /// The MDT makes objects in this sequence. If all of it is known, then all of the others is too: it does not use them.
    pub(crate) fn in_use(&self, sequence: &Sequence) {
        if sequence.is_known() {
            self.settled.store(true, SeqCst);
        }
    }

    /// Whether the object was made in this run of the target.
    pub(crate) fn is_new(&self, fid: &Fid) -> bool {
        let since = self.find(fid.f_seq).map(|s| s.new_from.load(SeqCst));
        since.is_some_and(|from| from <= fid.f_oid.into())
    }

    /// Sets the last object of a sequence, with the transaction that does it.
    pub(crate) fn set_last(&self, sequence: &Sequence, last: u64, batch: &mut Batch) {
        let (key, value) = last_record(sequence.seq, last);
        batch.put(key, value);
        sequence.last.store(last, SeqCst);
    }
}

impl Sequence {
    fn new(seq: u64, last: u64) -> Arc<Sequence> {
        Arc::new(Sequence {
            seq,
            last: AtomicU64::new(last),
            new_from: AtomicU64::new(u64::MAX),
            making: tokio::sync::Mutex::new(()),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::MemoryIndex;

    use super::*;

    #[test]
    fn precreation_advances_and_never_goes_back() {
        assert_eq!(
            plan(0, 32, false),
            Plan {
                last: 32,
                report: 32,
                destroy_above: None
            }
        );
        assert_eq!(
            plan(32, 32, false),
            Plan {
                last: 32,
                report: 32,
                destroy_above: None
            }
        );
        assert_eq!(
            plan(32, 10, false),
            Plan {
                last: 32,
                report: 33,
                destroy_above: None
            }
        );
    }

    #[test]
    fn orphans_are_destroyed_and_missing_objects_made() {
        assert_eq!(
            plan(64, 10, true),
            Plan {
                last: 64,
                report: 64,
                destroy_above: Some(10)
            }
        );
        assert_eq!(
            plan(10, 64, true),
            Plan {
                last: 64,
                report: 64,
                destroy_above: None
            }
        );
        assert_eq!(
            plan(10, 10, true),
            Plan {
                last: 10,
                report: 10,
                destroy_above: None
            }
        );
        let many = 10 + u64::from(OST_MAX_PRECREATE) + 1;
        assert_eq!(
            plan(many, 10, true),
            Plan {
                last: many,
                report: many + 1,
                destroy_above: None
            }
        );
    }

    #[tokio::test]
    async fn sequences_are_given_once_and_kept() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let s = Sequences::open(index.clone(), "t", OstIndex(1)).unwrap();
        assert!(!s.has_range());
        assert_eq!(s.give(0).await.unwrap(), None);
        s.set_range(&LuSeqRange {
            lsr_start: 0x2c0000400,
            lsr_end: 0x2c0000402,
            ..LuSeqRange::default()
        })
        .await
        .unwrap();
        let first = s.give(0).await.unwrap().unwrap();
        assert_eq!(
            (first.lsr_start, first.lsr_end, first.lsr_flags),
            (0x2c0000400, 0x2c0000401, 1)
        );
        let sequence = s.find(first.lsr_start).unwrap();
        let mut batch = Batch::new();
        s.set_last(&sequence, 32, &mut batch);
        index.apply(batch).unwrap();
        assert!(s.is_made(&Fid::new(0x2c0000400, 32, 0)) && !s.is_made(&Fid::new(0x2c0000400, 33, 0)));
        assert!(!s.is_made(&Fid::new(0x2c0000401, 1, 0)));

        let again = Sequences::open(index, "t", OstIndex(1)).unwrap();
        assert_eq!(again.find(0x2c0000400).unwrap().last(), 32);
        assert_eq!(again.give(7).await.unwrap().unwrap().lsr_start, 0x2c0000401);
        assert_eq!(again.give(7).await.unwrap(), None);
        assert!(again.find(0x2c0000402).is_none());
    }

    #[tokio::test]
    async fn of_sequences_that_the_mdt_has_left_nothing_is_awaited_once_it_has_spoken() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let start = 0x2c0000400;
        let run = || Sequences::open(index.clone(), "t", OstIndex(1)).unwrap();
        let given = LuSeqRange {
            lsr_start: start,
            lsr_end: start + 10,
            ..LuSeqRange::default()
        };
        let first = run();
        first.set_range(&given).await.unwrap();
        for _ in 0..3 {
            first.give(0).await.unwrap();
        }
        let objects = [
            Fid::new(start, 33, 0),
            Fid::new(start + 2, 1, 0),
            Fid::new(0x1_0001_0000, 1, 0),
        ];
        let awaited = |s: &Sequences| objects.map(|fid| s.may_be_made(&fid));
        // It goes on with the one that it has, or it was made anew and has another one.
        for anew in [false, true] {
            let s = run();
            s.in_use(&s.find(start + 2).unwrap());
            assert_eq!(awaited(&s), [true; 3]);
            let used = match anew {
                true => s.give(0).await.unwrap().unwrap().lsr_start,
                false => start + 2,
            };
            let used = s.find(used).unwrap();
            assert_eq!(awaited(&s), [true; 3]);
            if !anew {
                used.known_up_to(0);
            }
            s.in_use(&used);
            assert_eq!(awaited(&s), [false; 3]);
        }
    }

    #[test]
    fn an_object_of_old_is_of_the_targets_own_sequence() {
        let s = Sequences::open(Arc::new(MemoryIndex::default()), "t", OstIndex(1)).unwrap();
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
