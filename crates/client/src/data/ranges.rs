//! A sorted, merged set of byte ranges, such as the dirty parts of an object: `rangemap`'s set,
//! with the number of bytes. Empty ranges have no effect.

use std::ops::Range;

/// Disjoint, non-adjacent, non-empty ranges of `u64` offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    ranges: rangemap::RangeSet<u64>,
    /// Total length in bytes.
    len: u64,
}

impl RangeSet {
    /// Total length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The end of the last range; 0 if the set is empty.
    pub(super) fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |r| r.end)
    }

    /// Adds a range and merges it with the ranges that it overlaps or touches.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.len += self.ranges.gaps(&range).map(|r| r.end - r.start).sum::<u64>();
            self.ranges.insert(range);
        }
    }

    /// Removes the bytes of a range; ranges that contain some of them are cut or split.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.len -= self.overlaps(range.clone()).map(|r| r.end - r.start).sum::<u64>();
            self.ranges.remove(range);
        }
    }

    /// The parts of `within` that are in the set, in order.
    pub(super) fn overlaps(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let (from, to) = (within.start, within.end);
        self.ranges
            .overlapping(within)
            .map(move |r| r.start.max(from)..r.end.min(to))
            .filter(|r| !r.is_empty())
    }

    /// Whether any byte of `range` is in the set.
    pub(super) fn intersects(&self, range: Range<u64>) -> bool {
        self.overlaps(range).next().is_some()
    }

    /// The parts of `within` that are not in the set, in order.
    pub(super) fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        self.ranges.gaps(&within).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_bytes(ops in proptest::collection::vec((any::<bool>(), 0u64..64, 0u64..20), 0..40),
                                     from in 0u64..64, len in 0u64..30) {
            let mut set = RangeSet::default();
            let mut model = [false; 100];
            for (add, start, len) in ops {
                if add { set.insert(start..start + len) } else { set.remove(start..start + len) }
                model[start as usize..(start + len) as usize].fill(add);
            }
            let mut previous_end = None;
            for r in set.overlaps(0..u64::MAX) {
                prop_assert!(r.start < r.end);
                prop_assert!(previous_end.is_none_or(|e| e < r.start), "adjacent ranges are merged");
                previous_end = Some(r.end);
            }
            prop_assert_eq!(set.len(), model.iter().filter(|&&m| m).count() as u64);
            let inside: Vec<bool> = (0..100).map(|i| set.gaps(i..i + 1).is_empty()).collect();
            prop_assert_eq!(&inside[..], &model[..]);
            let window = from..from + len;
            prop_assert_eq!(set.intersects(window.clone()), window.clone().any(|i| model[i as usize]));
            let gap_bytes: u64 = set.gaps(window.clone()).iter().map(|g| g.end - g.start).sum();
            prop_assert_eq!(gap_bytes, window.filter(|&i| !model[i as usize]).count() as u64);
        }
    }
}
