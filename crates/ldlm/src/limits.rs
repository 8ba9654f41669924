//! How many locks the servers of a process may have, in all: above a threshold the ones that are held longest are asked
//! back, whether or not anybody wants them; at a limit new ones wait for that, and are refused when clients do not give
//! any back. Lustre's names: `ldlm.lock_reclaim_threshold_mb`, `ldlm.lock_limit_mb`.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
        fence,
    },
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
    /// Told when there come to be too many. Who is told looks for itself, until there are not.
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
        self.moved();
    }

    /// Shows them below `ldlm.`, as long as the group lives.
    pub fn show(self: &Arc<Self>, registry: &Registry) -> Group {
        let mut group = registry.group("ldlm".to_owned());
        let limits = self.clone();
        let count = Param::read_only(move || limits.locks().to_string());
        let mib = |value: &Arc<AtomicU64>| {
            let limits = self.clone();
            Param::atomic(value.clone(), 1..=MIB_MAX).when_set(move || limits.moved())
        };
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
            let more = (after - before) as u64;
            let had = self.locks.fetch_add(more, SeqCst);
            // Only by the one that makes them too many: a notice takes a lock that all partitions share.
            if (had..had + more).contains(&self.threshold()) {
                self.exceeded.notify_waiters();
            }
        } else if after < before {
            self.locks.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    /// A limit was set. Either this sees the locks that were made meanwhile, or who makes them sees the new limit.
    fn moved(&self) {
        fence(SeqCst);
        if self.surplus() > 0 {
            self.exceeded.notify_waiters();
        }
    }

    /// Whether new locks have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.locks() >= self.limit_mib.load(Relaxed) * LOCKS_PER_MIB
    }

    /// How many locks there are above the threshold.
    pub(crate) fn surplus(&self) -> u64 {
        self.locks().saturating_sub(self.threshold())
    }

    fn threshold(&self) -> u64 {
        let mib = self.reclaim_mib.load(SeqCst).min(self.limit_mib.load(SeqCst));
        mib * LOCKS_PER_MIB
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn told(waiting: Pin<&mut tokio::sync::futures::Notified<'_>>) -> bool {
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn only_the_lock_that_makes_them_too_many_tells() {
        let limits = LockLimits::default();
        limits.set(1, 2);
        let mut waiting = Box::pin(limits.exceeded.notified());
        limits.changed(0, 1024);
        assert!(!told(waiting.as_mut()), "as many as may be");
        limits.changed(1024, 1025);
        assert!(told(waiting.as_mut()));
        let mut waiting = Box::pin(limits.exceeded.notified());
        limits.changed(1025, 1500);
        assert!(!told(waiting.as_mut()), "who was told looks for itself");
        limits.changed(1500, 1000);
        limits.changed(1000, 2000);
        assert!(told(waiting.as_mut()), "anew, and by many at once");
    }

    #[test]
    fn a_limit_that_is_set_below_what_there_is_tells() {
        let limits = LockLimits::default();
        limits.set(2, 3);
        limits.changed(0, 1500);
        let mut waiting = Box::pin(limits.exceeded.notified());
        limits.set(2, 2);
        assert!(!told(waiting.as_mut()));
        limits.set(1, 2);
        assert!(told(waiting.as_mut()));
    }
}
