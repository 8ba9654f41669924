//! Limits the memory of the locks of all lock servers of a process. Above a threshold the servers
//! also revoke locks that block no others. At a limit new locks of clients wait, and the servers
//! refuse them if clients do not cancel enough locks in time. Lustre's names are
//! `ldlm.lock_reclaim_threshold_mb` for the threshold and `ldlm.lock_limit_mb` for the limit.

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

/// Assumed memory of a lock, including its table entries and resource, bytes.
const LOCK_BYTES: u64 = 1 << 10;
const LOCKS_PER_MIB: u64 = (1 << 20) / LOCK_BYTES;
/// Default threshold as a percentage of the memory available to the process.
const RECLAIM_PERCENT: u64 = 20;
/// Default limit as a percentage of that memory.
const LIMIT_PERCENT: u64 = 30;
/// Upper bound of both parameters, MiB.
const MIB_MAX: u64 = 1 << 30;

/// The limits and the number of locks, shared by the lock servers of a process.
#[derive(Debug)]
pub struct LockLimits {
    /// Number of locks, granted and waiting.
    locks: AtomicU64,
    reclaim_mib: Arc<AtomicU64>,
    limit_mib: Arc<AtomicU64>,
    /// Notified when the count rises above the threshold, or a new threshold is below the count.
    /// The reclaimers then poll until the count is at most the threshold.
    pub(crate) over_threshold: Notify,
}

impl Default for LockLimits {
    /// Limits derived from the memory available to the process.
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
            over_threshold: Notify::new(),
        }
    }
}

impl LockLimits {
    /// Sets the threshold and the limit, MiB.
    pub fn set(&self, reclaim_mib: u64, limit_mib: u64) {
        self.reclaim_mib.store(reclaim_mib, Relaxed);
        self.limit_mib.store(limit_mib, Relaxed);
        self.handle_new_limits();
    }

    /// Registers the parameters below `ldlm.` until the group is dropped.
    pub fn register_params(self: &Arc<Self>, registry: &Registry) -> Group {
        let mut group = registry.group("ldlm".to_owned());
        let limits = self.clone();
        let count = Param::read_only(move || limits.locks().to_string());
        let mib = |value: &Arc<AtomicU64>| {
            let limits = self.clone();
            Param::atomic(value.clone(), 1..=MIB_MAX).when_set(move || limits.handle_new_limits())
        };
        group
            .add(
                "lock_granted_count",
                count.about("locks of all servers of this process, granted and waiting"),
            )
            .add(
                "lock_reclaim_threshold_mb",
                mib(&self.reclaim_mib).about(
                    "memory of locks, MiB, above which servers also revoke locks that block no others",
                ),
            )
            .add(
                "lock_limit_mb",
                mib(&self.limit_mib)
                    .about("limit of the memory of locks, MiB: at the limit, new locks wait, and are refused after 20 s"),
            );
        group
    }

    /// Number of locks of all servers.
    pub fn locks(&self) -> u64 {
        self.locks.load(Relaxed)
    }

    /// Updates the count after a server's number of locks has changed.
    pub(crate) fn update_count(&self, before: usize, after: usize) {
        if after > before {
            let added = (after - before) as u64;
            let previous = self.locks.fetch_add(added, SeqCst);
            // Notify only when the count crosses the threshold: notifying takes a mutex that all
            // partitions share.
            if (previous..previous + added).contains(&self.threshold()) {
                self.over_threshold.notify_waiters();
            }
        } else if after < before {
            self.locks.fetch_sub((before - after) as u64, Relaxed);
        }
    }

    /// Notifies the reclaimers if the count is above a new threshold. The fence ensures that either
    /// this thread sees new locks, or the thread that creates them sees the new threshold.
    fn handle_new_limits(&self) {
        fence(SeqCst);
        if self.surplus() > 0 {
            self.over_threshold.notify_waiters();
        }
    }

    /// Whether the limit is reached, so that new locks of clients have to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.locks() >= self.limit_mib.load(Relaxed) * LOCKS_PER_MIB
    }

    /// Number of locks above the threshold.
    pub(crate) fn surplus(&self) -> u64 {
        self.locks().saturating_sub(self.threshold())
    }

    /// The lower of both parameters, in locks.
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

    fn is_notified(waiting: Pin<&mut tokio::sync::futures::Notified<'_>>) -> bool {
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn only_crossing_the_threshold_notifies() {
        let limits = LockLimits::default();
        limits.set(1, 2);
        let mut waiting = Box::pin(limits.over_threshold.notified());
        limits.update_count(0, 1024);
        assert!(!is_notified(waiting.as_mut()), "at the threshold");
        limits.update_count(1024, 1025);
        assert!(is_notified(waiting.as_mut()));
        let mut waiting = Box::pin(limits.over_threshold.notified());
        limits.update_count(1025, 1500);
        assert!(!is_notified(waiting.as_mut()), "above it: the reclaimer polls");
        limits.update_count(1500, 1000);
        limits.update_count(1000, 2000);
        assert!(is_notified(waiting.as_mut()), "crossed again, by many at once");
    }

    #[test]
    fn a_new_threshold_notifies_only_if_below_the_count() {
        let limits = LockLimits::default();
        limits.set(2, 3);
        limits.update_count(0, 1500);
        let mut waiting = Box::pin(limits.over_threshold.notified());
        limits.set(2, 2);
        assert!(!is_notified(waiting.as_mut()));
        limits.set(1, 2);
        assert!(is_notified(waiting.as_mut()));
    }
}
