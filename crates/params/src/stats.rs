//! Statistics of a fixed list of operations, for example of a target (`obdfilter.*.stats`).

use std::time::SystemTime;

use parking_lot::Mutex;

use crate::{Histogram, Row, Stats, Tally};

/// Name and unit of each operation of a table, in Lustre's order.
pub type Operations = &'static [(&'static str, &'static str)];

/// The unit of durations.
pub const USECS: &str = "usecs";

/// One tally per operation. Several threads may add samples at once without a lock.
#[derive(Debug)]
pub struct StatsTable {
    operations: Operations,
    tallies: Box<[Tally]>,
    /// A histogram per operation; empty for a table without histograms.
    histograms: Box<[Histogram]>,
    /// Time of the last reset.
    since: Mutex<SystemTime>,
}

impl StatsTable {
    /// An empty table without histograms.
    pub fn new(operations: Operations) -> StatsTable {
        StatsTable {
            operations,
            tallies: operations.iter().map(|_| Tally::default()).collect(),
            histograms: Box::default(),
            since: Mutex::new(SystemTime::now()),
        }
    }

    /// An empty table that also keeps a histogram of each operation.
    pub fn with_histograms(operations: Operations) -> StatsTable {
        StatsTable {
            histograms: operations.iter().map(|_| Histogram::default()).collect(),
            ..StatsTable::new(operations)
        }
    }

    /// Adds samples: pairs of an operation's index and a value.
    pub fn add(&self, samples: &[(usize, u64)]) {
        for &(operation, sample) in samples {
            self.tallies[operation].add(sample);
            if let Some(histogram) = self.histograms.get(operation) {
                histogram.add(sample);
            }
        }
    }

    /// Removes all samples.
    pub fn clear(&self) {
        self.tallies.iter().for_each(Tally::clear);
        self.histograms.iter().for_each(Histogram::clear);
        *self.since.lock() = SystemTime::now();
    }

    /// The statistics so far. Only durations have a histogram.
    pub fn stats(&self) -> Stats {
        let row = |(index, &(name, unit)): (usize, &(&'static str, &'static str))| Row {
            name,
            unit,
            sums: self.tallies[index].sums(),
            buckets: self
                .histograms
                .get(index)
                .filter(|_| unit == USECS)
                .map(Histogram::counts),
        };
        Stats {
            since: *self.since.lock(),
            rows: self.operations.iter().enumerate().map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StatsTable;

    const OPERATIONS: super::Operations = &[("read_bytes", "bytes"), ("read", "usecs")];

    #[test]
    fn clear_removes_samples_and_sets_the_start_time() {
        let table = StatsTable::new(OPERATIONS);
        table.add(&[(0, 4096), (1, 7)]);
        let stats = table.stats();
        assert_eq!(
            stats.rows.iter().map(|row| row.sums.sum).collect::<Vec<_>>(),
            [4096, 7]
        );
        assert!(stats.rows.iter().all(|row| row.buckets.is_none()));
        table.clear();
        let cleared = table.stats();
        assert!(cleared.since >= stats.since);
        assert!(cleared.rows.iter().all(|row| row.sums.count == 0));
    }

    #[test]
    fn tables_are_added_up_row_by_row() {
        let (one, two) = (
            StatsTable::with_histograms(OPERATIONS),
            StatsTable::with_histograms(OPERATIONS),
        );
        one.add(&[(0, 10), (1, 4)]);
        two.add(&[(1, 3), (1, 2000)]);
        let mut sum = one.stats();
        sum.add(&two.stats());
        assert_eq!(sum.rows[0].sums.sum, 10);
        assert_eq!(sum.rows[0].buckets, None);
        assert_eq!((sum.rows[1].sums.count, sum.rows[1].sums.max), (3, 2000));
        let buckets = sum.rows[1].buckets.unwrap_or_default();
        assert_eq!((buckets[1], buckets.iter().sum::<u64>()), (2, 3));
    }
}
