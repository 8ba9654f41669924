//! Limits the unused locks of all lock clients of a mount by the available memory.
//!
//! Each import also has its own limit (`lru_size`). If all imports together exceed the budget,
//! those above an equal share cancel locks; the others are not affected.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory per unused lock: it takes 2 to 3 KiB on both sides, plus the data that it protects.
const SHARE: u64 = 16 << 10;
/// Upper bound, regardless of memory.
const LOCKS_MAX: u64 = 128 << 10;

/// The budget of unused locks. See the module.
#[derive(Debug)]
pub struct LockRoom {
    max: usize,
    used: AtomicUsize,
    clients: AtomicUsize,
}

impl Default for LockRoom {
    /// A budget for the memory available to the process.
    fn default() -> LockRoom {
        LockRoom::new(LOCKS_MAX.min(cpt::memory_bytes() / SHARE) as usize)
    }
}

impl LockRoom {
    /// A budget of `max` unused locks.
    pub fn new(max: usize) -> LockRoom {
        LockRoom {
            max,
            used: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
        }
    }

    pub(super) fn join(&self) {
        self.clients.fetch_add(1, Relaxed);
    }

    pub(super) fn leave(&self, unused: usize) {
        self.clients.fetch_sub(1, Relaxed);
        self.less(unused);
    }

    pub(super) fn more(&self) {
        self.used.fetch_add(1, Relaxed);
    }

    pub(super) fn less(&self, locks: usize) {
        self.used.fetch_sub(locks, Relaxed);
    }

    /// How many locks a client with `unused` ones has to cancel.
    pub(super) fn surplus(&self, unused: usize) -> usize {
        let over = self.used.load(Relaxed).saturating_sub(self.max);
        if over == 0 {
            return 0;
        }
        let share = self.max / self.clients.load(Relaxed).max(1);
        over.min(unused.saturating_sub(share))
    }
}

#[cfg(test)]
mod tests {
    use super::LockRoom;

    #[test]
    fn only_who_has_more_than_its_share_makes_room() {
        let room = LockRoom::new(100);
        (0..4).for_each(|_| room.join());
        (0..110).for_each(|_| room.more());
        assert_eq!((room.surplus(90), room.surplus(30), room.surplus(20)), (10, 5, 0));
        room.less(10);
        assert_eq!(room.surplus(80), 0);
        room.leave(80);
        assert_eq!(room.used.load(super::Relaxed), 20);
    }
}
