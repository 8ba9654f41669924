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
        let (_, r) = self.ranges.range(..=seq).next_back()?;
        (seq < r.lsr_end).then_some(r.lsr_index)
    }

    /// Adds a range, which replaces the ranges that it covers. An empty range is ignored.
    pub(crate) fn insert(&mut self, r: LuSeqRange) {
        if r.lsr_start >= r.lsr_end {
            return;
        }
        let covered: Vec<u64> = self
            .ranges
            .range(r.lsr_start..r.lsr_end)
            .filter(|(_, old)| old.lsr_end <= r.lsr_end)
            .map(|(start, _)| *start)
            .collect();
        for start in covered {
            self.ranges.remove(&start);
        }
        self.ranges.insert(r.lsr_start, r);
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
    fn a_wider_range_replaces_those_that_it_covers() {
        let mut fld = FldCache::default();
        fld.insert(range(12, 13, 0));
        fld.insert(range(10, 20, 2));
        fld.insert(range(5, 5, 9));
        assert_eq!(fld.lookup(12), Some(2));
        assert_eq!(fld.ranges.len(), 1);
    }
}
