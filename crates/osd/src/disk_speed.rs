//! Decides whether a worker of the runtime may itself do work that can wait for the disk, by the
//! time that such work took lately.
//!
//! Nothing tells beforehand whether a read or a write waits for the disk. While the last pieces of
//! work were fast, everything that they need is in the caches of an engine or of the kernel, and
//! workers do the work. After a slow piece, threads for blocking work do it, until a number of
//! pieces in succession were fast. So at most one piece of this number keeps a worker waiting for
//! the disk.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The speed of recent work of one kind.
pub(crate) struct DiskSpeed {
    /// Work that took longer waited for the disk.
    slow: Duration,
    /// Number of fast pieces of work in succession after which workers do the work.
    fast_pieces: u32,
    /// Number of fast pieces since the last slow one, up to `fast_pieces`.
    fast: AtomicU32,
}

impl DiskSpeed {
    /// The speed before the first piece of work. `is_fast`: workers may do the first pieces.
    pub(crate) fn new(slow: Duration, fast_pieces: u32, is_fast: bool) -> DiskSpeed {
        DiskSpeed {
            slow,
            fast_pieces,
            fast: if is_fast { fast_pieces } else { 0 }.into(),
        }
    }

    /// Whether a worker may do the work.
    pub(crate) fn is_fast(&self) -> bool {
        self.fast.load(Relaxed) >= self.fast_pieces
    }

    /// Does the work, and records the time that it takes beyond the time that its result needs.
    pub(crate) fn measure<T>(&self, work: impl FnOnce() -> T, needed: impl FnOnce(&T) -> Duration) -> T {
        let begin = Instant::now();
        let result = work();
        let time = begin.elapsed();
        self.record(time.saturating_sub(needed(&result)));
        result
    }

    fn record(&self, time: Duration) {
        let fast = self.fast.load(Relaxed);
        match time > self.slow {
            true => self.fast.store(0, Relaxed),
            // Concurrent pieces may count as one: that only delays the change.
            false if fast < self.fast_pieces => self.fast.store(fast + 1, Relaxed),
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DiskSpeed;
    use std::time::Duration;

    #[test]
    fn workers_do_the_work_only_after_a_series_of_fast_pieces() {
        const SLOW: Duration = Duration::from_micros(200);
        assert!(DiskSpeed::new(SLOW, 64, true).is_fast());
        let speed = DiskSpeed::new(SLOW, 64, false);
        assert!(!speed.is_fast());
        for _ in 0..2 {
            for _ in 1..64 {
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
