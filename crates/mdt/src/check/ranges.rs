//! The owners of sequences according to the FLDB, and the sequences that this MDT has not allocated
//! yet.

use bytes::Bytes;
use osd::{
    OsdError,
    check::{Progress, for_each_entry},
};
use wire::{FID_SEQ_NORMAL, Fid, LU_SEQ_RANGE_MDT, LuSeqRange, WireStruct};

use crate::{
    sequences::{SUPER_SEQUENCE, fixed_ranges},
    store::{Store, keys},
};

/// The records of sequences in a store.
pub(super) struct Ranges {
    mdt_index: u32,
    /// Whether `fldb` has the ranges of all servers.
    is_whole: bool,
    /// The fixed and the valid recorded ranges, sorted by start.
    pub(super) fldb: Vec<LuSeqRange>,
    /// The part of the MDT's super-sequence that is not recorded as allocated.
    unallocated: Option<LuSeqRange>,
    /// Keys of malformed records, with the reasons.
    pub(super) malformed: Vec<(Bytes, String)>,
}

impl Ranges {
    /// Reads the records from the store. `mdt0_fldb` replaces the part of the FLDB in the store.
    pub(super) async fn read(
        store: &Store,
        mdt_index: u32,
        mdt0_fldb: Option<&[LuSeqRange]>,
        progress: &Progress,
    ) -> Result<Ranges, OsdError> {
        let mut ranges = Ranges {
            mdt_index,
            is_whole: mdt_index == 0 || mdt0_fldb.is_some(),
            fldb: fixed_ranges(),
            unallocated: None,
            malformed: Vec::new(),
        };
        let mut end = FID_SEQ_NORMAL;
        for_each_entry(&**store.index(), keys::LOCATIONS, progress, |key, value| {
            match parse_range(&value) {
                Some(range) if keys::location(range.lsr_start) == key && range.lsr_start >= end => {
                    end = range.lsr_end;
                    ranges.fldb.push(range);
                }
                Some(range) => ranges.malformed.push((
                    key,
                    format!(
                        "a range that does not match its key or overlaps another: {:#x}",
                        range.lsr_start
                    ),
                )),
                None => ranges
                    .malformed
                    .push((key, format!("{} bytes that are not a range", value.len()))),
            }
            Ok::<(), OsdError>(())
        })
        .await?;
        ranges.fldb.sort_by_key(|r| r.lsr_start);
        if let Some(fldb) = mdt0_fldb {
            ranges.fldb = fldb.to_vec();
        }
        let own = keys::setting(SUPER_SEQUENCE);
        if let Some(value) = store.index().get(&own).await? {
            match LuSeqRange::from_bytes(&value) {
                Ok(range) if range.lsr_start <= range.lsr_end => ranges.unallocated = Some(range),
                _ => ranges
                    .malformed
                    .push((own, format!("{} bytes that are not a range", value.len()))),
            }
        }
        Ok(ranges)
    }

    /// The range that contains a sequence.
    pub(super) fn find(&self, seq: u64) -> Option<&LuSeqRange> {
        let after = self.fldb.partition_point(|r| r.lsr_start <= seq);
        let range = after.checked_sub(1).and_then(|i| self.fldb.get(i));
        range.filter(|r| seq < r.lsr_end)
    }

    /// Whether the range belongs to this MDT.
    pub(super) fn is_own(&self, range: &LuSeqRange) -> bool {
        range.lsr_flags == LU_SEQ_RANGE_MDT && range.lsr_index == self.mdt_index
    }

    /// Whether another MDT has, or may have, the inode with this FID.
    pub(super) fn is_remote(&self, fid: Fid) -> bool {
        match self.find(fid.f_seq) {
            Some(range) => range.lsr_flags == LU_SEQ_RANGE_MDT && range.lsr_index != self.mdt_index,
            None => !self.is_whole,
        }
    }

    /// Whether the file system has, or may have, other MDTs.
    pub(super) fn has_other_mdts(&self) -> bool {
        let is_other =
            |range: &LuSeqRange| range.lsr_flags == LU_SEQ_RANGE_MDT && range.lsr_index != self.mdt_index;
        !self.is_whole || self.fldb.iter().any(is_other)
    }

    /// Whether a sequence is in the unallocated part of the MDT's super-sequence.
    pub(super) fn is_unallocated(&self, seq: u64) -> bool {
        self.unallocated
            .is_some_and(|range| (range.lsr_start..range.lsr_end).contains(&seq))
    }
}

/// Parses a range of the FLDB; `None` if it is malformed or empty.
fn parse_range(value: &[u8]) -> Option<LuSeqRange> {
    let range = LuSeqRange::from_bytes(value).ok()?;
    (value.len() == LuSeqRange::SIZE && range.lsr_start < range.lsr_end).then_some(range)
}
