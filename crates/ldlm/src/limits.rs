//! How many locks the servers of a process may have, in all: above a threshold the ones that are held longest are asked
//! back, whether or not anybody wants them; at a limit new ones wait for that, and are refused when clients do not give
//! any back. Lustre's names: `ldlm.lock_reclaim_threshold_mb`, `ldlm.lock_limit_mb`.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use params::{Group, Param, Registry};
use tokio::sync::Notify;

/// What a lock takes, with its places in the tables and its resource.
const LOCK_BYTES: u64 = 1 << 10;
const LOCKS_PER_MIB: u64 = (1 << 20) / LOCK_BYTES;
/// Shares of the process's memory, percent.
const RECLAIM_PERCENT: u64 = 20;
const LIMIT_PERCENT: u64 = 30;
/// The most that a limit may be set to, MiB.
const MIB_MAX: u64 = 1 << 30;

/// The limits, and what there is. Shared by the lock servers of a process.
#[derive(Debug)]
pub struct LockLimits {
    locks: AtomicU64,
    reclaim_mib: Arc<AtomicU64>,
    limit_mib: Arc<AtomicU64>,
    /// Told while there are too many.
    pub(crate) exceeded: Notify,
}

impl Default for LockLimits {
    /// By the memory that the process may use.
    fn default() -> LockLimits {
        let share = |percent: u64| {
            Arc::new(AtomicU64::new(
                ((cpt::memory_bytes() / 100 * percent) >> 20).max(1),
            ))
        };
        LockLimits {
            locks: AtomicU64::new(0),
            reclaim_mib: share(RECLAIM_PERCENT),
            limit_mib: share(LIMIT_PERCENT),
            exceeded: Notify::new(),
        }
    }
}

impl LockLimits {
    /// Sets both, MiB.
    pub fn set(&self, reclaim_mib: u64, limit_mib: u64) {
        self.reclaim_mib.store(reclaim_mib, Relaxed);
        self.limit_mib.store(limit_mib, Relaxed);
    }

    /// Shows them below `ldlm.`, as long as the group lives.
    pub fn show(self: &Arc<Self>, registry: &Registry) -> Group {
        let mut group = registry.group("ldlm".to_owned());
        let limits = self.clone();
        let count = Param::read_only(move || limits.locks().to_string());
        let mib = |value: &Arc<AtomicU64>| Param::atomic(value.clone(), 1..=MIB_MAX);
        group
            .add(
                "lock_granted_count",
                count.about("locks of all servers of this process, those that wait included"),
            )
            .add(
                "lock_reclaim_threshold_mb",
                mib(&self.reclaim_mib)
                    .about("with more memory in locks, MiB, clients are asked to give some back"),
            )
            .add(
                "lock_limit_mb",
                mib(&self.limit_mib).about("with more memory in locks, MiB, new ones wait, 20 s at most"),
            );
        group
    }

    /// Locks of all servers.
    pub fn locks(&self) -> u64 {
        self.locks.load(Relaxed)
    }

    /// A server has so many more, or fewer.
    pub(crate) fn changed(&self, before: usize, after: usize) {
        if after > before {
            self.locks.fetch_add((after - before) as u64, Relaxed);
            if self.surplus() > 0 {
                self.exceeded.notify_waiters();
            }
        } else if after < before {
            self.locks.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    /// Whether new locks have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.locks() >= self.limit_mib.load(Relaxed) * LOCKS_PER_MIB
    }

    /// How many locks there are above the threshold.
    pub(crate) fn surplus(&self) -> u64 {
        let mib = self.reclaim_mib.load(Relaxed).min(self.limit_mib.load(Relaxed));
        self.locks().saturating_sub(mib * LOCKS_PER_MIB)
    }
}
