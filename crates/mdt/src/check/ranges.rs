//! The owners of sequences according to the FLDB, and the sequences that this MDT has not allocated
//! yet.

use bytes::Bytes;
use osd::{
    OsdError,
    check::{Progress, for_each_entry},
};
use wire::{FID_SEQ_NORMAL, LU_SEQ_RANGE_MDT, LuSeqRange, WireStruct};

use crate::{
    sequences::{SUPER_SEQUENCE, fixed_ranges},
    store::{Store, keys},
};

/// The sequences of a store.
pub(super) struct Ranges {
    mdt_index: u32,
    /// Sorted by start.
    pub(super) fldb: Vec<LuSeqRange>,
    /// The unallocated part of the MDT's own super-sequence.
    left: Option<LuSeqRange>,
    /// Keys of malformed records, with the reasons.
    pub(super) bad: Vec<(Bytes, String)>,
}

impl Ranges {
    /// Reads the records.
    pub(super) fn read(store: &Store, mdt_index: u32, progress: &Progress) -> Result<Ranges, OsdError> {
        let mut found = Ranges {
            mdt_index,
            fldb: fixed_ranges(),
            left: None,
            bad: Vec::new(),
        };
        let mut end = FID_SEQ_NORMAL;
        for_each_entry(&**store.index(), keys::LOCATIONS, progress, |key, value| {
            match range_of(&value) {
                Some(range) if keys::location(range.lsr_start) == key && range.lsr_start >= end => {
                    end = range.lsr_end;
                    found.fldb.push(range);
                }
                Some(range) => found.bad.push((
                    key,
                    format!(
                        "a range that does not match its key or overlaps another: {:#x}",
                        range.lsr_start
                    ),
                )),
                None => found
                    .bad
                    .push((key, format!("{} bytes that are not a range", value.len()))),
            }
            Ok::<(), OsdError>(())
        })?;
        found.fldb.sort_by_key(|r| r.lsr_start);
        let own = keys::setting(SUPER_SEQUENCE);
        if let Some(value) = store.index().get(&own)? {
            match LuSeqRange::from_bytes(&value) {
                Ok(range) if range.lsr_start <= range.lsr_end => found.left = Some(range),
                _ => found
                    .bad
                    .push((own, format!("{} bytes that are not a range", value.len()))),
            }
        }
        Ok(found)
    }

    /// The range that contains a sequence.
    pub(super) fn of(&self, seq: u64) -> Option<&LuSeqRange> {
        let at = self.fldb.partition_point(|r| r.lsr_start <= seq);
        let found = at.checked_sub(1).and_then(|i| self.fldb.get(i));
        found.filter(|r| seq < r.lsr_end)
    }

    /// Whether the range belongs to this MDT.
    pub(super) fn is_own(&self, range: &LuSeqRange) -> bool {
        range.lsr_flags == LU_SEQ_RANGE_MDT && range.lsr_index == self.mdt_index
    }

    /// Whether a sequence is not allocated yet.
    pub(super) fn is_left(&self, seq: u64) -> bool {
        self.left.is_some_and(|l| (l.lsr_start..l.lsr_end).contains(&seq))
    }
}

fn range_of(value: &[u8]) -> Option<LuSeqRange> {
    let range = LuSeqRange::from_bytes(value).ok()?;
    (value.len() == LuSeqRange::SIZE && range.lsr_start < range.lsr_end).then_some(range)
}
