//! Sequential read-ahead: decides the range to read before a program requests it.

use std::ops::Range;

/// Smallest window in bytes; the first sequential read gets it.
const AHEAD_MIN: u64 = 256 << 10;
/// Largest window in bytes.
const AHEAD_MAX: u64 = 8 << 20;
/// A read within this distance of the expected offset, in bytes, counts as sequential, because the
/// kernel's requests may arrive out of order. The distance is smaller near the beginning of the
/// file.
const SEQUENTIAL_GAP_MAX: u64 = 1 << 20;

/// The state of sequential reads of a file.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// The offset of the next sequential read.
    expected: u64,
    /// Bytes to read ahead, from `expected` on; 0 after a read at another offset.
    window: u64,
    /// The end of the range already read ahead.
    end: u64,
}

impl ReadAhead {
    /// Records a read; returns the range to read ahead, if any.
    pub(super) fn record_read(&mut self, offset: u64, len: u64) -> Option<Range<u64>> {
        if offset.abs_diff(self.expected) > SEQUENTIAL_GAP_MAX.min(self.expected + len) {
            *self = ReadAhead {
                expected: offset + len,
                window: 0,
                end: 0,
            };
            return None;
        }
        self.expected = self.expected.max(offset + len);
        self.window = (self.window * 2).clamp(AHEAD_MIN, AHEAD_MAX);
        if self.expected + self.window / 2 <= self.end {
            return None;
        }
        let from = self.end.max(self.expected);
        self.end = self.expected + self.window;
        Some(from..self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_MAX, AHEAD_MIN, ReadAhead};

    #[test]
    fn sequential_reads_grow_the_window() {
        let (mut ahead, mut requested_end, mut at) = (ReadAhead::default(), 0, 0);
        for _ in 0..1000 {
            let next = ahead.record_read(at, 4096);
            at += 4096;
            if let Some(range) = next {
                assert!(
                    range.start == requested_end.max(at) && range.end > range.start,
                    "{range:?}"
                );
                requested_end = range.end;
            }
            assert!(requested_end >= at + AHEAD_MIN / 2 && requested_end <= at + AHEAD_MAX);
        }
        assert!(requested_end > at + AHEAD_MAX / 2 - 4096);
    }

    #[test]
    fn a_read_at_another_offset_resets_the_window() {
        let mut ahead = ReadAhead::default();
        assert!(ahead.record_read(0, 4096).is_some());
        assert_eq!(ahead.record_read(1 << 30, 4096), None);
        let next = (1 << 30) + 8192;
        assert_eq!(
            ahead.record_read((1 << 30) + 4096, 4096),
            Some(next..next + AHEAD_MIN)
        );
    }
}
