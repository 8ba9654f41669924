//! Limits of the number and the age of unused locks.

use super::cache::Shard;
use super::{LockClient, LockCookie};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use wire::LdlmResId;

/// Minimum interval between checks of the age.
const SWEEP_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between checks of the age.
const SWEEP_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Maximum number of locks that the client cancels in a shard before it searches again for the
/// shard with the oldest lock.
const CANCELS_PER_SEARCH: usize = 256;

impl LockClient {
    /// `lru_size`: limit of unused locks.
    pub fn lru_size(&self) -> usize {
        self.lru_size.load(Ordering::Relaxed)
    }

    /// Sets `lru_size`, and cancels the oldest unused locks above it.
    pub fn set_lru_size(&self, size: usize) {
        self.lru_size.store(size, Ordering::Relaxed);
        let surplus = self.unused_count().saturating_sub(size);
        self.cancel_oldest(surplus);
    }

    /// `lru_max_age`: how long unused locks stay cached.
    pub fn lru_max_age(&self) -> Duration {
        Duration::from_millis(self.lru_max_age_ms.load(Ordering::Relaxed))
    }

    /// Sets `lru_max_age`.
    pub fn set_lru_max_age(&self, age: Duration) {
        self.lru_max_age_ms
            .store(age.as_millis() as u64, Ordering::Relaxed);
    }

    /// Cancels all unused locks (`lru_size=clear`).
    pub fn cancel_unused(&self) {
        self.cancel_oldest(self.unused_count());
    }

    /// Cancels the oldest unused locks if there are more than `lru_size`, or if the mount exceeds
    /// its budget and there are more than this client's share. Cancels many locks at once (at least
    /// an eighth of a shard's average number), so that one request carries many handles.
    pub(super) fn enforce_limits(&self) {
        let unused = self.unused_count();
        let surplus = unused
            .saturating_sub(self.lru_size())
            .max(self.budget.surplus(unused));
        if surplus > 0 {
            self.cancel_oldest(surplus.max(unused / (8 * super::SHARDS)));
        }
    }

    /// Counts another unused lock.
    pub(super) fn count_unused(&self) {
        self.unused.fetch_add(1, Ordering::Relaxed);
        self.budget.add();
    }

    /// Counts `locks` fewer unused locks.
    pub(super) fn uncount_unused(&self, locks: usize) {
        self.unused.fetch_sub(locks, Ordering::Relaxed);
        self.budget.remove(locks);
    }

    /// Starts the task that cancels locks unused for `lru_max_age` or longer.
    pub(super) fn spawn_age_sweep(&self) {
        let me = self.me.clone();
        self.tasks.spawn(async move {
            loop {
                let Some(client) = me.upgrade() else { return };
                let age = client.lru_max_age();
                client.cancel_older(age);
                drop(client);
                tokio::time::sleep((age / 8).clamp(SWEEP_INTERVAL_MIN, SWEEP_INTERVAL_MAX)).await;
            }
        });
    }

    fn cancel_older(&self, age: Duration) {
        let now = Instant::now();
        for shard in &self.cache {
            let cancelling = self.take_unused(shard, usize::MAX, |since| now.duration_since(since) >= age);
            if !cancelling.is_empty() {
                self.start_cancelling(cancelling);
            }
        }
    }

    fn cancel_oldest(&self, mut surplus: usize) {
        while surplus > 0
            && let Some(shard) = self.oldest_shard()
        {
            let cancelling = self.take_unused(shard, surplus.min(CANCELS_PER_SEARCH), |_| true);
            surplus -= cancelling.len();
            if !cancelling.is_empty() {
                self.start_cancelling(cancelling);
            }
        }
    }

    /// The shard with the least recently used lock. (The shard of the last released lock is no
    /// substitute: its locks may all be newer than those of other shards.)
    fn oldest_shard(&self) -> Option<&Mutex<Shard>> {
        let oldest = |shard: &Mutex<Shard>| shard.lock().unused.keys().next().copied();
        let last_uses = self
            .cache
            .iter()
            .filter_map(|shard| Some((oldest(shard)?, shard)));
        last_uses
            .min_by_key(|(last_use, _)| *last_use)
            .map(|(_, shard)| shard)
    }

    /// Marks up to `max` unused locks of a shard for cancelling, the oldest first, as long as
    /// `is_old` returns true for [`UnusedLock::since`](super::cache::UnusedLock::since).
    fn take_unused(
        &self,
        shard: &Mutex<Shard>,
        max: usize,
        is_old: impl Fn(Instant) -> bool,
    ) -> Vec<(LdlmResId, LockCookie)> {
        let mut shard = shard.lock();
        let oldest = shard.unused.values().take(max).take_while(|u| is_old(u.since));
        let chosen: Vec<(LdlmResId, LockCookie)> = oldest.map(|u| (u.res, u.cookie)).collect();
        chosen
            .into_iter()
            .filter(|(res, cookie)| self.mark_cancelling(&mut shard, res, *cookie))
            .collect()
    }
}
