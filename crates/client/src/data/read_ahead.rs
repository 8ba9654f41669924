//! Which bytes of a file to read before they are asked for, when a reader goes through it in order.

use std::ops::Range;

/// Read-ahead starts with this many bytes.
const AHEAD_MIN: u64 = 256 << 10;
/// And grows to this many.
const AHEAD_MAX: u64 = 8 << 20;
/// A read this near to where the last one ended counts as the next (the kernel's requests overtake each other).
const NEAR: u64 = 1 << 20;

/// The reads of a file so far, as far as they decide what comes next.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Where the next read starts if the reader goes on.
    expected: u64,
    window: u64,
    /// Up to here it has been asked for.
    asked: u64,
}

impl ReadAhead {
    /// Takes note of a read; what to read ahead with it.
    pub(super) fn next(&mut self, offset: u64, len: u64) -> Option<Range<u64>> {
        if offset.abs_diff(self.expected) > NEAR.min(self.expected + len) {
            *self = ReadAhead {
                expected: offset + len,
                window: 0,
                asked: 0,
            };
            return None;
        }
        self.expected = self.expected.max(offset + len);
        self.window = (self.window * 2).clamp(AHEAD_MIN, AHEAD_MAX);
        if self.expected + self.window / 2 <= self.asked {
            return None;
        }
        let from = self.asked.max(self.expected);
        self.asked = self.expected + self.window;
        Some(from..self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_MAX, AHEAD_MIN, ReadAhead};

    #[test]
    fn reads_in_order_are_ahead_by_a_window_that_grows() {
        let (mut ahead, mut asked, mut at) = (ReadAhead::default(), 0, 0);
        for _ in 0..1000 {
            let next = ahead.next(at, 4096);
            at += 4096;
            if let Some(range) = next {
                assert!(
                    range.start == asked.max(at) && range.end > range.start,
                    "{range:?}"
                );
                asked = range.end;
            }
            assert!(asked >= at + AHEAD_MIN / 2 && asked <= at + AHEAD_MAX);
        }
        assert!(asked > at + AHEAD_MAX / 2 - 4096);
    }

    #[test]
    fn a_read_elsewhere_begins_anew() {
        let mut ahead = ReadAhead::default();
        assert!(ahead.next(0, 4096).is_some());
        assert_eq!(ahead.next(1 << 30, 4096), None);
        let next = (1 << 30) + 8192;
        assert_eq!(ahead.next((1 << 30) + 4096, 4096), Some(next..next + AHEAD_MIN));
    }
}
