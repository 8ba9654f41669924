//! Unused locks: how many are kept, and for how long.

use super::cache::Shard;
use super::{LockClient, LockHandle};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use wire::LdlmResId;

/// How often the age of unused locks is looked at, at most and at least.
const SWEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Locks that leave a shard before it is looked again which one has the oldest.
const CHUNK: usize = 256;

impl LockClient {
    /// `lru_size`: unused locks that are kept.
    pub fn lru_size(&self) -> usize {
        self.lru_size.load(Ordering::Relaxed)
    }

    /// Sets `lru_size`; what is too many leaves.
    pub fn set_lru_size(&self, size: usize) {
        self.lru_size.store(size, Ordering::Relaxed);
        let surplus = self.unused_count().saturating_sub(size);
        self.let_go_oldest(surplus);
    }

    /// `lru_max_age`: how long unused locks are kept.
    pub fn lru_max_age(&self) -> Duration {
        Duration::from_millis(self.lru_max_age_ms.load(Ordering::Relaxed))
    }

    /// Sets `lru_max_age`.
    pub fn set_lru_max_age(&self, age: Duration) {
        self.lru_max_age_ms
            .store(age.as_millis() as u64, Ordering::Relaxed);
    }

    /// Gives all unused locks back (`lru_size=clear`).
    pub fn let_go_unused(&self) {
        self.let_go_oldest(self.unused_count());
    }

    /// Where there are more unused locks than `lru_size`, or than this client's share of the mount's room, the oldest leave, a
    /// good part of a shard at once, so that one request tells the server of many.
    pub(super) fn shrink(&self) {
        let unused = self.unused_count();
        let surplus = unused
            .saturating_sub(self.lru_size())
            .max(self.room.surplus(unused));
        if surplus > 0 {
            self.let_go_oldest(surplus.max(unused / (8 * super::SHARDS)));
        }
    }

    /// One more lock is unused.
    pub(super) fn more_unused(&self) {
        self.unused.fetch_add(1, Ordering::Relaxed);
        self.room.more();
    }

    /// So many fewer locks are unused.
    pub(super) fn less_unused(&self, locks: usize) {
        self.unused.fetch_sub(locks, Ordering::Relaxed);
        self.room.less(locks);
    }

    pub(super) fn watch_age(&self) {
        let me = self.me.clone();
        self.tasks.spawn(async move {
            loop {
                let Some(client) = me.upgrade() else { return };
                let age = client.lru_max_age();
                client.let_go_older(age);
                drop(client);
                tokio::time::sleep((age / 8).clamp(SWEEP.0, SWEEP.1)).await;
            }
        });
    }

    fn let_go_older(&self, age: Duration) {
        let now = Instant::now();
        for shard in &self.cache {
            let leaving = self.take_unused(shard, usize::MAX, |since| now.duration_since(since) >= age);
            if !leaving.is_empty() {
                self.start_giving_back(leaving);
            }
        }
    }

    fn let_go_oldest(&self, mut surplus: usize) {
        while surplus > 0
            && let Some(shard) = self.oldest_shard()
        {
            let leaving = self.take_unused(shard, surplus.min(CHUNK), |_| true);
            surplus -= leaving.len();
            if !leaving.is_empty() {
                self.start_giving_back(leaving);
            }
        }
    }

    /// The shard with the lock that is unused longest. (Not the one that is at hand: a few locks that are used all the time
    /// would have their shards emptied, and leave with them.)
    fn oldest_shard(&self) -> Option<&Mutex<Shard>> {
        let oldest = |shard: &Mutex<Shard>| shard.lock().unused.keys().next().copied();
        let at = self
            .cache
            .iter()
            .filter_map(|shard| Some((oldest(shard)?, shard)));
        at.min_by_key(|(at, _)| *at).map(|(_, shard)| shard)
    }

    /// Marks up to `most` of a shard's unused locks as leaving, the oldest first, as long as `old` says so.
    fn take_unused(
        &self,
        shard: &Mutex<Shard>,
        most: usize,
        old: impl Fn(Instant) -> bool,
    ) -> Vec<(LdlmResId, LockHandle)> {
        let mut shard = shard.lock();
        let oldest = shard.unused.values().take(most).take_while(|u| old(u.since));
        let chosen: Vec<(LdlmResId, LockHandle)> = oldest.map(|u| (u.res, u.cookie)).collect();
        chosen
            .into_iter()
            .filter(|(res, cookie)| self.mark(&mut shard, res, *cookie))
            .collect()
    }
}
