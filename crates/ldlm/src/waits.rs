//! How long the locks of a shard wait.

use crate::lock::LockId;
use cpt::{HashSeed, SeededMap};
use params::{Sums, Tally};
use std::time::Instant;

/// The waiting locks of a shard, and the lengths of earlier waits.
#[derive(Debug)]
pub(crate) struct LockWaits {
    /// When each waiting lock was queued.
    queued_at: SeededMap<LockId, Instant>,
    /// The waits that ended with a grant or a deadlock, in microseconds.
    ended: Tally,
}

impl LockWaits {
    /// No waits.
    pub(crate) fn new(seed: HashSeed) -> LockWaits {
        LockWaits {
            queued_at: SeededMap::with_hasher(seed),
            ended: Tally::default(),
        }
    }

    /// Records that a lock begins to wait.
    pub(crate) fn start(&mut self, id: LockId, now: Instant) {
        self.queued_at.insert(id, now);
    }

    /// Ends the wait of a lock and adds its length to the statistics.
    pub(crate) fn end(&mut self, id: LockId, now: Instant) {
        if let Some(queued_at) = self.queued_at.remove(&id) {
            self.ended.add_time(now.saturating_duration_since(queued_at));
        }
    }

    /// Forgets the wait of a lock that was cancelled or granted at once: such waits do not count.
    pub(crate) fn discard(&mut self, id: LockId) {
        self.queued_at.remove(&id);
    }

    /// Number of waiting locks.
    pub(crate) fn len(&self) -> usize {
        self.queued_at.len()
    }

    /// The lengths of the waits that ended, in microseconds.
    pub(crate) fn sums(&self) -> Sums {
        self.ended.sums()
    }
}
