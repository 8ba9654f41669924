//! Statistics for each key, for example a target's statistics for each job.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::{Operations, Row, StatsTable};

/// Maximum number of keys in a shard, besides the overflow key. Clients choose the names of jobs,
/// so memory needs a limit: with 20 operations, an entry takes about 1 KiB.
const SHARD_KEYS_MAX: usize = 4096;

/// The statistics of each key. Each partition of a server writes only its own shard, so partitions
/// share no lock; readers add up the shards.
#[derive(Debug)]
pub struct KeyedStats<K> {
    operations: Operations,
    /// The key that counts samples of new keys while a shard is full.
    overflow_key: K,
    /// A key without a sample for this many seconds is removed; 0: never.
    idle_max_secs: Arc<AtomicU64>,
    shards: Box<[Mutex<Shard<K>>]>,
}

#[derive(Debug)]
struct Shard<K> {
    entries: HashMap<K, Entry>,
    /// When idle keys were last removed.
    swept: SystemTime,
}

#[derive(Debug)]
struct Entry {
    table: StatsTable,
    first: SystemTime,
    last: SystemTime,
}

/// The statistics of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStats<K> {
    /// The key.
    pub key: K,
    /// Time of the first sample.
    pub first: SystemTime,
    /// Time of the last sample.
    pub last: SystemTime,
    /// The rows, in the order of the operations.
    pub rows: Vec<Row>,
}

impl<K: Clone + Eq + Hash + Ord> KeyedStats<K> {
    /// Empty statistics. `shards`: the number of partitions; `overflow_key`: counts samples of new
    /// keys while a shard is full; `idle_max_secs`: a key without a sample for this many seconds is
    /// removed (0: never).
    pub fn new(
        operations: Operations,
        shards: usize,
        overflow_key: K,
        idle_max_secs: Arc<AtomicU64>,
    ) -> KeyedStats<K> {
        let shard = || {
            Mutex::new(Shard {
                entries: HashMap::new(),
                swept: SystemTime::UNIX_EPOCH,
            })
        };
        KeyedStats {
            operations,
            overflow_key,
            idle_max_secs,
            shards: (0..shards.max(1)).map(|_| shard()).collect(),
        }
    }

    /// Adds samples of a key at the time `now`: pairs of an operation's index and a value.
    pub fn add<Q>(&self, shard: usize, key: &Q, samples: &[(usize, u64)], now: SystemTime)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let mut shard = self.shards[shard % self.shards.len()].lock();
        let mut key = key;
        if !shard.entries.contains_key(key) {
            let idle_max = self.idle_max();
            let sweep_is_due = now
                .duration_since(shard.swept)
                .is_ok_and(|age| idle_max.is_some_and(|idle_max| age >= idle_max));
            if sweep_is_due {
                shard.remove_idle(idle_max, now);
            }
            if shard.entries.len() >= SHARD_KEYS_MAX {
                key = self.overflow_key.borrow();
            }
        }
        // `HashMap::entry` alone would clone the key in each call.
        let entry = match shard.entries.get_mut(key) {
            Some(entry) => entry,
            None => shard.entries.entry(key.to_owned()).or_insert_with(|| Entry {
                table: StatsTable::new(self.operations),
                first: now,
                last: now,
            }),
        };
        entry.last = now;
        entry.table.add(samples);
    }

    fn idle_max(&self) -> Option<Duration> {
        let secs = self.idle_max_secs.load(Relaxed);
        (secs > 0).then(|| Duration::from_secs(secs))
    }

    /// Removes the keys for which `keeps` is false.
    pub fn retain(&self, keeps: impl Fn(&K) -> bool) {
        for shard in &self.shards {
            shard.lock().entries.retain(|key, _| keeps(key));
        }
    }

    /// The statistics of each key, sorted by key, after idle keys are removed.
    pub fn all(&self, now: SystemTime) -> Vec<KeyStats<K>> {
        let mut sums: HashMap<K, KeyStats<K>> = HashMap::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.remove_idle(self.idle_max(), now);
            for (key, entry) in &shard.entries {
                let rows = entry.table.stats().rows;
                match sums.get_mut(key) {
                    Some(sum) => sum.add(entry, &rows),
                    None => {
                        let stats = KeyStats {
                            key: key.clone(),
                            first: entry.first,
                            last: entry.last,
                            rows,
                        };
                        sums.insert(key.clone(), stats);
                    }
                }
            }
        }
        let mut all: Vec<KeyStats<K>> = sums.into_values().collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }
}

impl<K: Eq + Hash> Shard<K> {
    /// Removes the keys that had no sample for `idle_max`, and records the time of the sweep.
    /// `None` removes nothing.
    fn remove_idle(&mut self, idle_max: Option<Duration>, now: SystemTime) {
        self.swept = now;
        if let Some(idle_max) = idle_max {
            // If the last sample is later than `now`, the clock was set back; the key is not idle.
            let is_idle = |e: &Entry| now.duration_since(e.last).is_ok_and(|age| age >= idle_max);
            self.entries.retain(|_, entry| !is_idle(entry));
        }
    }
}

impl<K> KeyStats<K> {
    /// Adds the statistics of another shard.
    fn add(&mut self, entry: &Entry, rows: &[Row]) {
        self.first = self.first.min(entry.first);
        self.last = self.last.max(entry.last);
        for (sum, row) in self.rows.iter_mut().zip(rows) {
            sum.add(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyedStats, SHARD_KEYS_MAX};
    use crate::Operations;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    const OPERATIONS: Operations = &[("read_bytes", "bytes"), ("read", "usecs")];

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn jobs(shards: usize, idle_max_secs: u64) -> KeyedStats<String> {
        let idle_max = Arc::new(AtomicU64::new(idle_max_secs));
        KeyedStats::new(OPERATIONS, shards, "others".to_owned(), idle_max)
    }

    fn keys(stats: &KeyedStats<String>, now: SystemTime) -> Vec<String> {
        stats.all(now).into_iter().map(|k| k.key).collect()
    }

    #[test]
    fn shards_are_added_up() {
        let stats = jobs(2, 0);
        stats.add(1, "b", &[(0, 10), (1, 3)], at(7));
        stats.add(0, "b", &[(0, 30)], at(5));
        stats.add(0, "a", &[(1, 1)], at(6));
        assert_eq!(keys(&stats, at(1000)), ["a", "b"]);
        let b = &stats.all(at(8))[1];
        assert_eq!((b.first, b.last), (at(5), at(7)));
        assert_eq!((b.rows[0].sums.count, b.rows[0].sums.sum), (2, 40));
        assert_eq!(b.rows[1].sums.max, 3);
    }

    #[test]
    fn idle_keys_are_removed() {
        let stats = jobs(1, 60);
        stats.add(0, "old", &[(0, 1)], at(100));
        stats.add(0, "new", &[(0, 1)], at(150));
        assert_eq!(keys(&stats, at(159)), ["new", "old"]);
        assert_eq!(keys(&stats, at(160)), ["new"]);
        stats.retain(|key| key != "new");
        assert!(stats.all(at(170)).is_empty());
    }

    #[test]
    fn new_key_replaces_idle_ones_of_a_full_shard() {
        let stats = jobs(1, 60);
        for key in 0..SHARD_KEYS_MAX {
            stats.add(0, key.to_string().as_str(), &[(0, 1)], at(100));
        }
        stats.add(0, "early", &[(0, 1)], at(101));
        stats.add(0, "late", &[(0, 1)], at(170));
        assert_eq!(keys(&stats, at(160)), ["late"]);
    }

    #[test]
    fn full_shard_counts_new_keys_under_the_overflow_key() {
        let stats = jobs(1, 0);
        for key in 0..SHARD_KEYS_MAX + 5 {
            stats.add(0, key.to_string().as_str(), &[(0, 1)], at(1));
        }
        let all = stats.all(at(1));
        assert_eq!(all.len(), SHARD_KEYS_MAX + 1);
        let overflow = all.last().map(|k| (k.key.as_str(), k.rows[0].sums.count));
        assert_eq!(overflow, Some(("others", 5)));
    }
}
