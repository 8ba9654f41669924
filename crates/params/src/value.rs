//! Typed values of parameters. Lustre's text is one view of them; metrics are another.

use std::fmt;
use std::time::SystemTime;

use crate::{BUCKETS, KeyStats, Sums, jobs, stats_header};

/// The value of a parameter. Its `Display` is Lustre's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text, or a setting.
    Text(String),
    /// A number that only grows until the process ends.
    Counter(u64),
    /// A number that grows and shrinks.
    Gauge(u64),
    /// A `stats` file.
    Stats(Stats),
    /// A `job_stats` file.
    Jobs(Vec<KeyStats<String>>),
    /// The statistics of each directory, in the format of `job_stats`; the keys are paths or FIDs.
    Directories(Vec<KeyStats<String>>),
}

/// The content of a `stats` file: the statistics of each operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Time of the last reset.
    pub since: SystemTime,
    /// The rows in Lustre's order. `Display` leaves out rows without samples.
    pub rows: Vec<Row>,
}

/// A row of a `stats` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Lustre's name of the operation or quantity.
    pub name: &'static str,
    /// Unit of the samples: `usecs`, `bytes`, `reqs`, ...
    pub unit: &'static str,
    /// The statistics of the samples.
    pub sums: Sums,
    /// The number of samples in each bucket, if the row has a histogram.
    pub buckets: Option<[u64; BUCKETS]>,
}

impl Row {
    /// Adds the samples of the same row of another table.
    pub fn add(&mut self, other: &Row) {
        self.sums = self.sums.and(other.sums);
        if let (Some(own), Some(others)) = (&mut self.buckets, &other.buckets) {
            own.iter_mut().zip(others).for_each(|(sum, n)| *sum += n);
        }
    }
}

impl Stats {
    /// Adds the samples of a table with the same operations.
    pub fn add(&mut self, other: &Stats) {
        self.since = self.since.min(other.since);
        for (sum, row) in self.rows.iter_mut().zip(&other.rows) {
            sum.add(row);
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Counter(n) | Value::Gauge(n) => write!(f, "{n}"),
            Value::Stats(stats) => stats.fmt(f),
            Value::Jobs(jobs) => jobs::write("job_stats", "job_id", jobs, f),
            Value::Directories(dirs) => jobs::write("dir_stats", "directory", dirs, f),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = stats_header(self.since);
        for row in &self.rows {
            row.sums.write_line(&mut out, row.name, row.unit);
        }
        f.write_str(&out)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Stats> for Value {
    fn from(stats: Stats) -> Value {
        Value::Stats(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Stats, Value};
    use crate::Tally;
    use std::time::UNIX_EPOCH;

    #[test]
    fn stats_are_shown_with_their_times_and_rows_with_samples() {
        let (used, unused) = (Tally::default(), Tally::default());
        used.add(4);
        let row = |name, tally: &Tally| Row {
            name,
            unit: "bytes",
            sums: tally.sums(),
            buckets: None,
        };
        let text = Value::from(Stats {
            since: UNIX_EPOCH,
            rows: vec![row("read_bytes", &used), row("write_bytes", &unused)],
        })
        .to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("snapshot_time "), "{text}");
        assert!(lines[2].starts_with("elapsed_time "), "{text}");
        assert_eq!(
            lines[3],
            "read_bytes                          1 samples [bytes] 4 4 4 16"
        );
    }
}
