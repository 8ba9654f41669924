//! The figures that all tasks measured in a phase, and lists of figures as CSV and JSON.
//!
//! The subject is the measured file system. Its own processes, such as servers
//! ([`Subject::processes`](crate::Subject::processes)), are the `others` of fields and columns.

use crate::time_series::{PhaseParts, TimeSeries, Window, windows};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde::ser::Serializer;
use std::time::Duration;

/// A histogram of operation latencies with 1 % resolution.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

/// Significant decimal digits of each latency.
const DIGITS: u8 = 2;

impl Latencies {
    /// An empty histogram.
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new(DIGITS).expect("two digits can be kept"))
    }

    /// Adds an operation with this latency.
    pub(crate) fn add(&mut self, latency: Duration) {
        self.add_many(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    /// Adds `count` operations of about the same latency.
    pub(crate) fn add_many(&mut self, nanoseconds: u64, count: u64) {
        // The histogram grows as needed; it counts values above its limit at the limit.
        if self.0.record_n(nanoseconds, count).is_err() {
            self.0.saturating_record_n(nanoseconds, count);
        }
    }

    /// Adds the operations of another histogram.
    pub(crate) fn add_all(&mut self, other: &Latencies) {
        for (nanoseconds, count) in other.counts() {
            self.add_many(nanoseconds, count);
        }
    }

    /// The recorded latencies in nanoseconds, each with its number of operations.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let recorded = self.0.iter_recorded();
        recorded
            .map(|c| (c.value_iterated_to(), c.count_at_value()))
            .collect()
    }

    /// The quantiles for reports.
    pub(crate) fn quantiles(&self) -> Quantiles {
        let quantile_us = |share| self.0.value_at_quantile(share) as f64 / 1e3;
        Quantiles {
            p50: quantile_us(0.5),
            p90: quantile_us(0.9),
            p95: quantile_us(0.95),
            p99: quantile_us(0.99),
            p99_9: quantile_us(0.999),
            max: self.0.max() as f64 / 1e3,
        }
    }
}

/// Quantiles of latency in microseconds: half of the operations took at most `p50`, and so on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantiles {
    /// Latency that 50 % of the operations do not exceed.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p99_9: f64,
    /// The maximum.
    pub max: f64,
}

/// The totals of one operation with one number of tasks, over all phases so far.
#[derive(Clone, Debug)]
pub(crate) struct OperationTotals {
    /// Latencies of all operations.
    pub(crate) latencies: Latencies,
    /// Rates and memory over time.
    pub(crate) series: TimeSeries,
}

impl OperationTotals {
    /// The totals of one phase that took `seconds`.
    pub(crate) fn new(latencies: Latencies, parts: &PhaseParts, seconds: f64) -> OperationTotals {
        OperationTotals {
            latencies,
            series: parts.series(seconds),
        }
    }
}

/// The figures of one phase: one operation, executed by all tasks.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The operation.
    pub operation: &'static str,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of the repetition, from 0.
    pub iteration: usize,
    /// Number of operations.
    pub operations: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// CPU time of the tasks' processes and of the subject's processes, seconds.
    pub cpu_seconds: f64,
    /// The part of `cpu_seconds` that the subject's processes used.
    pub server_cpu_seconds: f64,
    /// Operations per second of each task, over its own duration.
    pub task_rates: Vec<f64>,
    /// Latencies of this phase.
    pub latencies: Quantiles,
    /// Resident bytes at the end of the phase: of the tasks' processes, and of the subject's.
    pub resident: (u64, u64),
    /// Totals of this operation up to this figure; `None` after a later figure has taken them over,
    /// or without operations.
    pub(crate) totals: Option<Box<OperationTotals>>,
}

impl Figure {
    /// Whether the other figure has the same operation and number of tasks.
    pub(crate) fn has_same_load(&self, other: &Figure) -> bool {
        (self.operation, self.tasks) == (other.operation, other.tasks)
    }

    /// Takes over the totals of the previous figures, so that for each operation and number of
    /// tasks only the last figure holds them.
    pub(crate) fn accumulate(&mut self, previous: &mut [Figure]) {
        if self.operations == 0 {
            self.totals = None;
            return;
        }
        let last = previous.iter_mut().rev().find(|f| self.has_same_load(f));
        let Some(mut sum) = last.and_then(|f| f.totals.take()) else {
            return;
        };
        if let Some(totals) = &self.totals {
            sum.latencies.add_all(&totals.latencies);
            sum.series.append(&totals.series);
        }
        self.totals = Some(sum);
    }

    /// Operations per second of all tasks together.
    pub fn rate(&self) -> f64 {
        match self.operations {
            0 => 0.0,
            n => n as f64 / self.seconds,
        }
    }

    /// CPU time per operation, microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.operations.max(1) as f64
    }

    /// CPU time of the subject's processes per operation, microseconds.
    pub fn server_cpu_us(&self) -> f64 {
        self.server_cpu_seconds * 1e6 / self.operations.max(1) as f64
    }

    /// The rates of the slowest and of the fastest task.
    pub fn task_range(&self) -> (f64, f64) {
        let least = self.task_rates.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.task_rates.iter().copied().fold(0.0, f64::max))
    }
}

/// A value of a row.
enum Cell {
    Text(&'static str),
    Count(u64),
    /// A number, and how many decimals the CSV has.
    Number(f64, usize),
    /// No value.
    Nothing,
}

/// The names of the columns. A row of a time window leaves some empty; a row of a figure has window
/// 0.
const COLUMNS: [&str; 19] = [
    "operation",
    "tasks",
    "iteration",
    "window",
    "operations",
    "seconds",
    "per_second",
    "slowest_task",
    "fastest_task",
    "p50_us",
    "p90_us",
    "p95_us",
    "p99_us",
    "p99_9_us",
    "max_us",
    "cpu_us",
    "server_cpu_us",
    "resident_kib",
    "others_resident_kib",
];

/// A row of the list of figures and windows.
struct ListRow([Cell; COLUMNS.len()]);

impl ListRow {
    fn from_figure(f: &Figure) -> ListRow {
        let (slowest, fastest) = f.task_range();
        let (own, others) = f.resident;
        let microseconds = |us| Cell::Number(us, 1);
        ListRow([
            Cell::Text(f.operation),
            Cell::Count(f.tasks as u64),
            Cell::Count(f.iteration as u64),
            Cell::Count(0),
            Cell::Count(f.operations),
            Cell::Number(f.seconds, 6),
            Cell::Number(f.rate(), 3),
            Cell::Number(slowest, 3),
            Cell::Number(fastest, 3),
            microseconds(f.latencies.p50),
            microseconds(f.latencies.p90),
            microseconds(f.latencies.p95),
            microseconds(f.latencies.p99),
            microseconds(f.latencies.p99_9),
            microseconds(f.latencies.max),
            Cell::Number(f.cpu_us(), 3),
            Cell::Number(f.server_cpu_us(), 3),
            Cell::Count(own >> 10),
            Cell::Count(others >> 10),
        ])
    }

    fn from_window(w: &Window) -> ListRow {
        let mut cells = [const { Cell::Nothing }; COLUMNS.len()];
        let cells_by_column = [
            (0, Cell::Text(w.operation)),
            (1, Cell::Count(w.tasks as u64)),
            (3, Cell::Count(w.number as u64)),
            (4, Cell::Count(w.operations)),
            (5, Cell::Number(w.seconds, 6)),
            (6, Cell::Number(w.rate, 3)),
            (17, Cell::Count(w.own_resident >> 10)),
            (18, Cell::Count(w.others_resident >> 10)),
        ];
        for (column, cell) in cells_by_column {
            cells[column] = cell;
        }
        ListRow(cells)
    }

    /// The rows of the figures, then the rows of `count` time windows for each operation.
    fn all(figures: &[Figure], count: usize) -> Vec<ListRow> {
        let windows = windows(figures, count);
        let window_rows = windows.iter().map(ListRow::from_window);
        figures
            .iter()
            .map(ListRow::from_figure)
            .chain(window_rows)
            .collect()
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Count(n) => serializer.serialize_u64(*n),
            Cell::Number(n, _) => serializer.serialize_f64(*n),
            Cell::Nothing => serializer.serialize_none(),
        }
    }
}

impl Serialize for ListRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(COLUMNS.iter().zip(&self.0))
    }
}

/// Figures as CSV with a header, followed by a row for each of `windows` time windows of each
/// operation.
pub fn csv(figures: &[Figure], windows: usize) -> String {
    let text = |cell: &Cell| match cell {
        Cell::Text(text) => (*text).to_owned(),
        Cell::Count(n) => n.to_string(),
        Cell::Number(n, digits) => format!("{n:.digits$}"),
        Cell::Nothing => String::new(),
    };
    let rows = ListRow::all(figures, windows).into_iter();
    let rows = rows.map(|row| row.0.iter().map(text).collect::<Vec<_>>().join(","));
    std::iter::once(COLUMNS.join(","))
        .chain(rows)
        .flat_map(|row| [row, "\n".to_owned()])
        .collect()
}

/// The rows of [`csv()`] as a JSON array.
///
/// # Errors
///
/// A value cannot be encoded.
pub fn json(figures: &[Figure], windows: usize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&ListRow::all(figures, windows))
}

#[cfg(test)]
mod tests {
    use super::Latencies;
    use std::time::Duration;

    #[test]
    fn adding_all_counts_twice_keeps_the_quantiles() {
        let mut one = Latencies::new();
        (1..=100).for_each(|ms| one.add(Duration::from_millis(ms)));
        let mut sum = Latencies::new();
        for (nanoseconds, count) in one.counts().into_iter().chain(one.counts()) {
            sum.add_many(nanoseconds, count);
        }
        let quantiles = sum.quantiles();
        for (us, ms) in [
            (quantiles.p50, 50.0),
            (quantiles.p90, 90.0),
            (quantiles.p99, 99.0),
            (quantiles.max, 100.0),
        ] {
            assert!((us / 1e3 / ms - 1.0).abs() < 0.02, "{quantiles:?}");
        }
    }
}
