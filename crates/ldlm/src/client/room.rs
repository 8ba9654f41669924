//! How many unused locks the lock clients of a mount keep together, by the memory that there is.
//!
//! Every import has its own limit besides (`lru_size`). Where the limits of many imports come to more than there is room
//! for, those give back that keep more than their share: whoever is within it goes on as if it was alone.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory that there has to be for each unused lock: it takes 2 to 3 KiB on both sides, with what it covers.
const SHARE: u64 = 16 << 10;
/// The most that are kept, however much memory there is.
const LOCKS_MAX: u64 = 128 << 10;

/// See the module.
#[derive(Debug)]
pub struct LockRoom {
    max: usize,
    used: AtomicUsize,
    clients: AtomicUsize,
}

impl Default for LockRoom {
    /// By the memory that the process may use.
    fn default() -> LockRoom {
        LockRoom::new(LOCKS_MAX.min(cpt::memory_bytes() / SHARE) as usize)
    }
}

impl LockRoom {
    /// Room for so many unused locks.
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

    /// How many locks a client that keeps `unused` has to give back for the others.
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
