//! Statistics of a target by job, or by the NID of the client.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::{Row, StatsTable};

/// Maximum number of keys in a shard. Clients choose the names of jobs, so memory needs a limit:
/// with 20 operations, an entry has about 1 KiB.
const SHARD_KEYS_MAX: usize = 4096;

/// The statistics of each key. Each partition of a server writes only its own shard, so partitions
/// share no lock; readers add up the shards.
#[derive(Debug)]
pub struct KeyedStats<K> {
    /// Name and unit of each operation.
    operations: &'static [(&'static str, &'static str)],
    /// The key that counts samples of new keys while a shard is full.
    overflow_key: K,
    shards: Box<[Mutex<HashMap<K, Entry>>]>,
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
    /// Empty statistics. `operations`: name and unit of each; `shards`: the number of partitions;
    /// `overflow_key`: counts samples of new keys while a shard is full.
    pub fn new(
        operations: &'static [(&'static str, &'static str)],
        shards: usize,
        overflow_key: K,
    ) -> KeyedStats<K> {
        KeyedStats {
            operations,
            overflow_key,
            shards: (0..shards.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    /// Adds samples of a key at the time `now`: pairs of an operation's index and a value.
    pub fn add(&self, shard: usize, key: &K, samples: &[(usize, u64)], now: SystemTime) {
        let mut shard = self.shards[shard % self.shards.len()].lock();
        let key = match shard.contains_key(key) || shard.len() < SHARD_KEYS_MAX {
            true => key,
            false => &self.overflow_key,
        };
        // `entry` would clone the key of each sample.
        if !shard.contains_key(key) {
            let entry = Entry {
                table: StatsTable::new(self.operations),
                first: now,
                last: now,
            };
            shard.insert(key.clone(), entry);
        }
        if let Some(entry) = shard.get_mut(key) {
            entry.last = now;
            for &(operation, sample) in samples {
                entry.table.add(operation, sample);
            }
        }
    }

    /// Removes the keys without a sample in the last `idle` before `now`.
    pub fn remove_idle(&self, idle: Duration, now: SystemTime) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|_, entry| now.duration_since(entry.last).is_ok_and(|age| age < idle));
        }
    }

    /// Removes the keys for which `keeps` is false.
    pub fn retain(&self, keeps: impl Fn(&K) -> bool) {
        for shard in &self.shards {
            shard.lock().retain(|key, _| keeps(key));
        }
    }

    /// The statistics of each key, sorted by key.
    pub fn all(&self) -> Vec<KeyStats<K>> {
        let mut sums: HashMap<K, KeyStats<K>> = HashMap::new();
        for shard in &self.shards {
            for (key, entry) in &*shard.lock() {
                let rows = entry.table.stats().rows;
                match sums.get_mut(key) {
                    Some(sum) => sum.add(entry, &rows),
                    None => {
                        let (key, first, last) = (key.clone(), entry.first, entry.last);
                        sums.insert(
                            key.clone(),
                            KeyStats {
                                key,
                                first,
                                last,
                                rows,
                            },
                        );
                    }
                }
            }
        }
        let mut all: Vec<KeyStats<K>> = sums.into_values().collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }
}

impl<K> KeyStats<K> {
    /// Adds the statistics of another shard.
    fn add(&mut self, entry: &Entry, rows: &[Row]) {
        self.first = self.first.min(entry.first);
        self.last = self.last.max(entry.last);
        for (sum, row) in self.rows.iter_mut().zip(rows) {
            sum.sums = sum.sums.and(row.sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyedStats, SHARD_KEYS_MAX};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    const OPERATIONS: &[(&str, &str)] = &[("read_bytes", "bytes"), ("read", "usecs")];

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn shards_are_added_up() {
        let stats = KeyedStats::new(OPERATIONS, 2, "others");
        stats.add(1, &"b", &[(0, 10), (1, 3)], at(7));
        stats.add(0, &"b", &[(0, 30)], at(5));
        stats.add(0, &"a", &[(1, 1)], at(6));
        let all = stats.all();
        assert_eq!(all.iter().map(|k| k.key).collect::<Vec<_>>(), ["a", "b"]);
        let b = &all[1];
        assert_eq!((b.first, b.last), (at(5), at(7)));
        assert_eq!((b.rows[0].sums.count, b.rows[0].sums.sum), (2, 40));
        assert_eq!(b.rows[1].sums.max, 3);
    }

    #[test]
    fn idle_keys_are_removed() {
        let stats = KeyedStats::new(OPERATIONS, 1, "others");
        stats.add(0, &"old", &[(0, 1)], at(100));
        stats.add(0, &"new", &[(0, 1)], at(150));
        stats.remove_idle(Duration::from_secs(60), at(170));
        assert_eq!(stats.all().iter().map(|k| k.key).collect::<Vec<_>>(), ["new"]);
        stats.retain(|key| *key != "new");
        assert!(stats.all().is_empty());
    }

    #[test]
    fn full_shard_counts_new_keys_under_the_overflow_key() {
        let stats = KeyedStats::new(OPERATIONS, 1, usize::MAX);
        for key in 0..SHARD_KEYS_MAX + 5 {
            stats.add(0, &key, &[(0, 1)], at(1));
        }
        let all = stats.all();
        assert_eq!(all.len(), SHARD_KEYS_MAX + 1);
        let overflow = all.last().map(|k| (k.key, k.rows[0].sums.count));
        assert_eq!(overflow, Some((usize::MAX, 5)));
    }
}
