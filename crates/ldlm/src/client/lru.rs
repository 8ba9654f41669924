//! Unused locks: how many are kept, and for how long.

use super::LockClient;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use wire::LdlmResId;

/// How often the age of unused locks is looked at, at most and at least.
const SWEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

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
        self.let_go_oldest(usize::MAX);
    }

    /// Unused locks beyond `lru_size`, or beyond this client's share of the mount's room.
    fn surplus(&self) -> usize {
        let unused = self.unused_count();
        unused
            .saturating_sub(self.lru_size())
            .max(self.room.surplus(unused))
    }

    /// Where there are too many unused locks, the oldest of this resource's shard leave, a good part of them at once, so that
    /// one request tells the server of many.
    pub(super) fn shrink(&self, res: &LdlmResId) {
        let surplus = self.surplus();
        if surplus == 0 {
            return;
        }
        let part = self.lru_size() / (8 * super::SHARDS);
        let shard = self.cache_shard(res);
        let leaving = self.take_unused(shard, surplus.max(part), |_| true);
        if !leaving.is_empty() {
            self.start_giving_back(leaving);
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
        for shard in &self.cache {
            let leaving = self.take_unused(shard, surplus, |_| true);
            surplus -= leaving.len();
            if !leaving.is_empty() {
                self.start_giving_back(leaving);
            }
        }
    }

    /// Marks up to `most` of a shard's unused locks as leaving, the oldest first, as long as `old` says so.
    fn take_unused(
        &self,
        shard: &parking_lot::Mutex<super::cache::Shard>,
        most: usize,
        old: impl Fn(Instant) -> bool,
    ) -> Vec<(LdlmResId, u64)> {
        let mut shard = shard.lock();
        let oldest = shard.unused.values().take(most).take_while(|u| old(u.since));
        let chosen: Vec<(LdlmResId, u64)> = oldest.map(|u| (u.res, u.cookie)).collect();
        chosen
            .into_iter()
            .filter(|(res, cookie)| self.mark(&mut shard, res, *cookie))
            .collect()
    }
}
