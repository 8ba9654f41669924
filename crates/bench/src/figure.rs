//! What one phase of all tasks came to, and lists of such figures as CSV and JSON.

use hdrhistogram::Histogram;
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use std::fmt::Write;
use std::time::Duration;

/// How long operations took, to 1 %.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// Digits that are kept of each.
const DIGITS: u8 = 2;

impl Latencies {
    /// Of no operations yet.
    pub(crate) fn new() -> Latencies {
        Latencies(Histogram::new(DIGITS).expect("two digits can be kept"))
    }

    /// One operation.
    pub(crate) fn add(&mut self, took: Duration) {
        self.add_many(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), 1);
    }

    /// Several that took about as long.
    pub(crate) fn add_many(&mut self, nanoseconds: u64, count: u64) {
        // It grows as it must; what cannot be counted is saturated.
        if self.0.record_n(nanoseconds, count).is_err() {
            self.0.saturating_record_n(nanoseconds, count);
        }
    }

    /// Those of another phase too.
    pub(crate) fn add_all(&mut self, other: &Latencies) {
        for (nanoseconds, count) in other.counts() {
            self.add_many(nanoseconds, count);
        }
    }

    /// How many took how many nanoseconds.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let counted = self.0.iter_recorded();
        counted
            .map(|c| (c.value_iterated_to(), c.count_at_value()))
            .collect()
    }

    /// The time in microseconds within which this share of the operations was done.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }

    /// The longest, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }
}

/// One operation, done by all tasks together.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Which one.
    pub operation: &'static str,
    /// Tasks that did it.
    pub tasks: usize,
    /// Which repetition, from 0 on.
    pub iteration: usize,
    /// How often it was done.
    pub operations: u64,
    /// In what time.
    pub seconds: f64,
    /// CPU time of all processes that are known to have worked for it.
    pub cpu_seconds: f64,
    /// That of the processes that were named beside the tasks' own, such as servers.
    pub others_cpu_seconds: f64,
    /// Operations per second of each task, until it was done itself.
    pub task_rates: Vec<f64>,
    /// How long each took.
    pub latencies: Latencies,
}

impl Figure {
    /// Operations per second of all tasks together.
    pub fn rate(&self) -> f64 {
        match self.operations {
            0 => 0.0,
            n => n as f64 / self.seconds,
        }
    }

    /// CPU time, microseconds for each.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.operations.max(1) as f64
    }

    /// That of the processes that were named, microseconds for each.
    pub fn others_cpu_us(&self) -> f64 {
        self.others_cpu_seconds * 1e6 / self.operations.max(1) as f64
    }

    /// The slowest and the fastest task.
    pub fn task_range(&self) -> (f64, f64) {
        let least = self.task_rates.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.task_rates.iter().copied().fold(0.0, f64::max))
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (slowest, fastest) = self.task_range();
        let mut out = serializer.serialize_struct("Figure", 14)?;
        out.serialize_field("operation", self.operation)?;
        out.serialize_field("tasks", &self.tasks)?;
        out.serialize_field("iteration", &self.iteration)?;
        out.serialize_field("operations", &self.operations)?;
        out.serialize_field("seconds", &self.seconds)?;
        out.serialize_field("per_second", &self.rate())?;
        out.serialize_field("slowest_task", &slowest)?;
        out.serialize_field("fastest_task", &fastest)?;
        out.serialize_field("p50_us", &self.latencies.quantile_us(0.5))?;
        out.serialize_field("p90_us", &self.latencies.quantile_us(0.9))?;
        out.serialize_field("p99_us", &self.latencies.quantile_us(0.99))?;
        out.serialize_field("max_us", &self.latencies.max_us())?;
        out.serialize_field("cpu_us", &self.cpu_us())?;
        out.serialize_field("others_cpu_us", &self.others_cpu_us())?;
        out.end()
    }
}

/// Figures as CSV, with a header.
pub fn csv(figures: &[Figure]) -> String {
    let mut out = String::from(
        "operation,tasks,iteration,operations,seconds,per_second,slowest_task,fastest_task,p50_us,p90_us,p99_us,max_us,cpu_us,others_cpu_us\n",
    );
    for f in figures {
        let (slowest, fastest) = f.task_range();
        let _ = writeln!(
            out,
            "{},{},{},{},{:.6},{:.3},{slowest:.3},{fastest:.3},{:.1},{:.1},{:.1},{:.1},{:.3},{:.3}",
            f.operation,
            f.tasks,
            f.iteration,
            f.operations,
            f.seconds,
            f.rate(),
            f.latencies.quantile_us(0.5),
            f.latencies.quantile_us(0.9),
            f.latencies.quantile_us(0.99),
            f.latencies.max_us(),
            f.cpu_us(),
            f.others_cpu_us(),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::Latencies;
    use std::time::Duration;

    #[test]
    fn percentiles_survive_being_sent_and_added_up() {
        let mut one = Latencies::new();
        (1..=100).for_each(|ms| one.add(Duration::from_millis(ms)));
        let mut sum = Latencies::new();
        for (nanoseconds, count) in one.counts().into_iter().chain(one.counts()) {
            sum.add_many(nanoseconds, count);
        }
        for (share, ms) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
            let us = sum.quantile_us(share);
            assert!((us / 1e3 / ms - 1.0).abs() < 0.02, "{share}: {us}");
        }
        assert!((sum.max_us() / 1e5 - 1.0).abs() < 0.02);
    }
}
