//! Cache of the FID location database (FLD): maps sequence ranges to metadata targets.
//!
//! Pure: the caller sends the queries. A range never changes its target while the file system
//! exists, so ranges do not expire. Servers allocate 2^30 sequences at a time, which bounds the
//! number of ranges.

use std::collections::BTreeMap;
use wire::LuSeqRange;

/// Ranges by their first sequence.
#[derive(Debug, Default)]
pub(crate) struct FldCache {
    ranges: BTreeMap<u64, LuSeqRange>,
}

impl FldCache {
    /// The index of the target that has this sequence, if cached.
    pub(crate) fn lookup(&self, seq: u64) -> Option<u32> {
        let (_, range) = self.ranges.range(..=seq).next_back()?;
        (seq < range.lsr_end).then_some(range.lsr_index)
    }

    /// Adds a range, which replaces the ranges that it covers. Ignores an empty range.
    pub(crate) fn insert(&mut self, new: LuSeqRange) {
        if new.lsr_start >= new.lsr_end {
            return;
        }
        let covered: Vec<u64> = self
            .ranges
            .range(new.lsr_start..new.lsr_end)
            .filter(|(_, old)| old.lsr_end <= new.lsr_end)
            .map(|(start, _)| *start)
            .collect();
        for start in covered {
            self.ranges.remove(&start);
        }
        self.ranges.insert(new.lsr_start, new);
    }
}

#[cfg(test)]
mod tests {
    use super::{FldCache, LuSeqRange};

    fn range(start: u64, end: u64, index: u32) -> LuSeqRange {
        LuSeqRange {
            lsr_start: start,
            lsr_end: end,
            lsr_index: index,
            lsr_flags: 0,
        }
    }

    #[test]
    fn a_lookup_finds_the_range_that_has_the_sequence() {
        let mut fld = FldCache::default();
        fld.insert(range(10, 20, 0));
        fld.insert(range(20, 30, 1));
        assert_eq!(fld.lookup(9), None);
        assert_eq!(fld.lookup(10), Some(0));
        assert_eq!(fld.lookup(19), Some(0));
        assert_eq!(fld.lookup(20), Some(1));
        assert_eq!(fld.lookup(30), None);
    }

    #[test]
    fn a_wider_range_replaces_the_ranges_that_it_covers() {
        let mut fld = FldCache::default();
        fld.insert(range(12, 13, 0));
        fld.insert(range(10, 20, 2));
        fld.insert(range(5, 5, 9));
        assert_eq!(fld.lookup(12), Some(2));
        assert_eq!(fld.ranges.len(), 1);
    }
}
