//! Statistics of a fixed list of operations, for example of a target (`obdfilter.*.stats`).

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::{Row, Stats, Tally};

/// One tally per operation. Several threads may add samples at once without a lock.
#[derive(Debug)]
pub struct StatsTable {
    /// Name and unit of each operation, in Lustre's order.
    operations: &'static [(&'static str, &'static str)],
    tallies: Box<[Tally]>,
    /// Time of the last reset.
    since: Mutex<SystemTime>,
}

impl StatsTable {
    /// An empty table. `operations`: name and unit of each, in Lustre's order.
    pub fn new(operations: &'static [(&'static str, &'static str)]) -> StatsTable {
        StatsTable {
            operations,
            tallies: operations.iter().map(|_| Tally::default()).collect(),
            since: Mutex::new(SystemTime::now()),
        }
    }

    /// Adds a sample of the operation with this index.
    pub fn add(&self, operation: usize, sample: u64) {
        self.tallies[operation].add(sample);
    }

    /// Adds a duration of the operation with this index, in microseconds.
    pub fn add_time(&self, operation: usize, time: Duration) {
        self.tallies[operation].add_time(time);
    }

    /// Removes all samples.
    pub fn clear(&self) {
        self.tallies.iter().for_each(Tally::clear);
        *self.since.lock() = SystemTime::now();
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        let rows = self.operations.iter().zip(&self.tallies);
        let rows = rows.map(|(&(name, unit), tally)| Row {
            name,
            unit,
            sums: tally.sums(),
        });
        Stats {
            since: *self.since.lock(),
            rows: rows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StatsTable;
    use std::time::Duration;

    #[test]
    fn clear_removes_samples_and_sets_the_start_time() {
        let table = StatsTable::new(&[("read_bytes", "bytes"), ("read", "usecs")]);
        table.add(0, 4096);
        table.add_time(1, Duration::from_micros(7));
        let stats = table.stats();
        assert_eq!(
            stats.rows.iter().map(|row| row.sums.sum).collect::<Vec<_>>(),
            [4096, 7]
        );
        table.clear();
        let cleared = table.stats();
        assert!(cleared.since >= stats.since);
        assert!(cleared.rows.iter().all(|row| row.sums.count == 0));
    }
}
