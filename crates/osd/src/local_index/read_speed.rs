//! Decides whether a worker of the runtime may read the engine itself, by the time that recent
//! reads took.
//!
//! The engine does not tell whether a read needs the disk. While the last [`FAST_READS`] reads were
//! fast, all tables in use are in the caches of the engine or of the kernel, and a worker reads.
//! After a slow read, threads for blocking work read, until as many reads in succession were fast.
//! So at most one of `FAST_READS` reads holds a worker while it waits for the disk.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// A read that took longer, apart from the time for its entries, waited for the disk.
const SLOW: Duration = Duration::from_micros(200);
/// Time for each entry that a read returns.
const ENTRY: Duration = Duration::from_micros(1);
/// Number of fast reads in succession after which workers read.
const FAST_READS: u32 = 64;

/// The speed of recent reads of an index.
pub(super) struct ReadSpeed {
    /// Number of fast reads since the last slow one, up to [`FAST_READS`].
    fast: AtomicU32,
}

impl ReadSpeed {
    /// The speed before the first read. `in_memory`: no data are on the disk only.
    pub(super) fn new(in_memory: bool) -> ReadSpeed {
        ReadSpeed {
            fast: if in_memory { FAST_READS } else { 0 }.into(),
        }
    }

    /// Whether a worker may read.
    pub(super) fn is_fast(&self) -> bool {
        self.fast.load(Relaxed) >= FAST_READS
    }

    /// Runs a read, and records the time that it takes. `entries`: the number of entries in the
    /// result.
    pub(super) fn measure<T>(&self, read: impl FnOnce() -> T, entries: impl FnOnce(&T) -> usize) -> T {
        let begin = Instant::now();
        let result = read();
        let time = begin.elapsed();
        let entries = u32::try_from(entries(&result)).unwrap_or(u32::MAX);
        self.record(time.saturating_sub(ENTRY * entries));
        result
    }

    fn record(&self, time: Duration) {
        let fast = self.fast.load(Relaxed);
        match time > SLOW {
            true => self.fast.store(0, Relaxed),
            // Concurrent reads may count as one: that only delays the change.
            false if fast < FAST_READS => self.fast.store(fast + 1, Relaxed),
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FAST_READS, ReadSpeed, SLOW};
    use std::time::Duration;

    #[test]
    fn workers_read_only_after_a_series_of_fast_reads() {
        assert!(ReadSpeed::new(true).is_fast());
        let speed = ReadSpeed::new(false);
        assert!(!speed.is_fast());
        for _ in 0..2 {
            for _ in 1..FAST_READS {
                speed.record(SLOW);
                assert!(!speed.is_fast());
            }
            speed.record(Duration::ZERO);
            assert!(speed.is_fast());
            speed.record(SLOW * 2);
            assert!(!speed.is_fast());
        }
    }
}
