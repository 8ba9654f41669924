//! Limits the unused locks of all lock clients of a mount by the available memory.
//!
//! Each lock client (one for each import) also has its own limit (`lru_size`). If all lock clients
//! together exceed the budget, those above an equal share cancel locks.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory of the process per lock of the budget, bytes. A lock takes 2 to 3 KiB on client and
/// server together; the data that it protects needs more.
const BYTES_PER_LOCK: u64 = 16 << 10;
/// Upper bound of the default budget, in locks.
const LOCKS_MAX: u64 = 128 << 10;

/// The budget of unused locks of a mount.
#[derive(Debug)]
pub struct UnusedLockBudget {
    /// Limit of unused locks.
    max: usize,
    /// Number of unused locks of all lock clients.
    unused: AtomicUsize,
    /// Number of lock clients.
    clients: AtomicUsize,
}

impl Default for UnusedLockBudget {
    /// A budget for the memory available to the process.
    fn default() -> UnusedLockBudget {
        UnusedLockBudget::new(LOCKS_MAX.min(cpt::memory_bytes() / BYTES_PER_LOCK) as usize)
    }
}

impl UnusedLockBudget {
    /// A budget of `max` unused locks.
    pub fn new(max: usize) -> UnusedLockBudget {
        UnusedLockBudget {
            max,
            unused: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
        }
    }

    /// Registers a lock client.
    pub(super) fn join(&self) {
        self.clients.fetch_add(1, Relaxed);
    }

    /// Removes a lock client and its `unused` locks.
    pub(super) fn leave(&self, unused: usize) {
        self.clients.fetch_sub(1, Relaxed);
        self.remove(unused);
    }

    /// Counts another unused lock.
    pub(super) fn add(&self) {
        self.unused.fetch_add(1, Relaxed);
    }

    /// Counts `locks` fewer unused locks.
    pub(super) fn remove(&self, locks: usize) {
        self.unused.fetch_sub(locks, Relaxed);
    }

    /// Number of locks that a lock client with `unused` unused locks must cancel.
    pub(super) fn surplus(&self, unused: usize) -> usize {
        let excess = self.unused.load(Relaxed).saturating_sub(self.max);
        if excess == 0 {
            return 0;
        }
        let share = self.max / self.clients.load(Relaxed).max(1);
        excess.min(unused.saturating_sub(share))
    }
}

#[cfg(test)]
mod tests {
    use super::UnusedLockBudget;

    #[test]
    fn only_clients_above_their_share_cancel() {
        let budget = UnusedLockBudget::new(100);
        (0..4).for_each(|_| budget.join());
        (0..110).for_each(|_| budget.add());
        assert_eq!(
            (budget.surplus(90), budget.surplus(30), budget.surplus(20)),
            (10, 5, 0)
        );
        budget.remove(10);
        assert_eq!(budget.surplus(80), 0);
        budget.leave(80);
        assert_eq!(budget.unused.load(super::Relaxed), 20);
    }
}
