//! Decides whether an OST is too full for new files. An OST becomes full below a low watermark of
//! space or inodes, and stays full until it reaches both high watermarks: the state must not change
//! with every file. An OST is also full if its statfs says so, or that it creates no objects.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use wire::{OS_STATFS_ENOINO, OS_STATFS_ENOSPC, OS_STATFS_NOCREATE, ObdStatfs};

/// The default low watermark of space is the OST's size divided by this, plus 1 MiB.
const LOW_DIVISOR: u64 = 1000;
/// Default low watermark of inodes.
const INODES_LOW: u64 = 32;

/// The watermarks and the state of an OST. If a high watermark is not above the low one, twice the
/// low one applies.
#[derive(Debug)]
pub(crate) struct Watermarks {
    /// `osp.*.reserved_mb_low`, MiB; 0: the default ([`LOW_DIVISOR`]).
    pub(crate) mb_low: Arc<AtomicU64>,
    /// `osp.*.reserved_mb_high`, MiB.
    pub(crate) mb_high: Arc<AtomicU64>,
    /// `osp.*.reserved_ino_low`, a number of inodes; 0: no limit.
    pub(crate) ino_low: Arc<AtomicU64>,
    /// `osp.*.reserved_ino_high`, a number of inodes.
    pub(crate) ino_high: Arc<AtomicU64>,
    /// Whether the OST is too full for new files.
    full: AtomicBool,
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        let atomic = |n| Arc::new(AtomicU64::new(n));
        Watermarks {
            mb_low: atomic(0),
            mb_high: atomic(0),
            ino_low: atomic(INODES_LOW),
            ino_high: atomic(2 * INODES_LOW),
            full: AtomicBool::new(false),
        }
    }
}

/// Space available to users, MiB.
fn avail_mib(space: &ObdStatfs) -> u64 {
    space.os_bavail.saturating_mul(space.os_bsize.into()) >> 20
}

impl Watermarks {
    /// Whether the OST is too full for new files.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Why an OST with this statfs is full.
    pub(crate) fn describe(space: &ObdStatfs) -> String {
        if space.os_state & OS_STATFS_NOCREATE != 0 {
            return "the OST creates no objects".to_owned();
        }
        format!("{} MiB and {} inodes available", avail_mib(space), space.os_ffree)
    }

    /// Updates the state from a statfs reply; returns whether it changed.
    pub(crate) fn update(&self, space: &ObdStatfs) -> bool {
        let was_full = self.is_full();
        let total_mib = space.os_blocks.saturating_mul(space.os_bsize.into()) >> 20;
        let watermark = |low: &AtomicU64, high: &AtomicU64, default: u64| {
            let low = match low.load(Relaxed) {
                0 => default,
                low => low,
            };
            match high.load(Relaxed) {
                _ if !was_full => low,
                high if high > low => high,
                _ => 2 * low,
            }
        };
        let mib = watermark(&self.mb_low, &self.mb_high, total_mib / LOW_DIVISOR + 1);
        let inodes = watermark(&self.ino_low, &self.ino_high, 0);
        let full_states = OS_STATFS_ENOSPC | OS_STATFS_ENOINO | OS_STATFS_NOCREATE;
        let full = avail_mib(space) < mib
            || (space.os_files != 0 && space.os_ffree < inodes)
            || space.os_state & full_states != 0;
        self.full.store(full, Relaxed);
        full != was_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(avail_mib: u64, inodes: u64) -> ObdStatfs {
        ObdStatfs {
            os_bsize: 4096,
            os_blocks: 256 * 10_000,
            os_bavail: 256 * avail_mib,
            os_files: 1000,
            os_ffree: inodes,
            ..ObdStatfs::default()
        }
    }

    #[test]
    fn ost_is_full_below_the_low_watermark_until_it_reaches_the_high_one() {
        let watermarks = Watermarks::default();
        let is_full = |mib, inodes| {
            watermarks.update(&space(mib, inodes));
            watermarks.is_full()
        };
        assert!(!is_full(11, 500));
        assert!(is_full(10, 500) && is_full(21, 500));
        assert!(!is_full(22, 500) && !is_full(11, 500));
        assert!(is_full(11, 31) && is_full(11, 500) && !is_full(100, 64));
        watermarks.mb_low.store(100, Relaxed);
        watermarks.mb_high.store(150, Relaxed);
        assert!(!is_full(100, 500) && is_full(99, 500) && is_full(149, 500) && !is_full(150, 500));
        assert!(watermarks.update(&ObdStatfs {
            os_state: OS_STATFS_ENOSPC,
            ..space(1000, 500)
        }));
    }
}
