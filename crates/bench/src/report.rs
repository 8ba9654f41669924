//! The report of a comparison: rows, and summaries with median, minimum and maximum of the runs,
//! and ratios to the first subject and to the pass-through file system.

use crate::PASS_THROUGH;
use serde::Serialize;
use std::fmt;

/// One measurement of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The subject.
    pub subject: String,
    /// The phase with the unit of its rate.
    pub phase: &'static str,
    /// Number of tasks.
    pub tasks: usize,
    /// Directories of the tasks: `private` or `shared`; empty if the load has none.
    pub directories: &'static str,
    /// Operations or megabytes per second.
    pub rate: f64,
    /// CPU time of the load and of the subject's processes, microseconds per operation or megabyte.
    pub cpu_us: f64,
}

/// Phase, number of tasks, and directories. Only rows with the same key are compared.
type RowKey = (&'static str, usize, &'static str);

impl Row {
    fn key(&self) -> RowKey {
        (self.phase, self.tasks, self.directories)
    }
}

/// All runs of one phase on one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The subject.
    pub subject: String,
    /// The phase with the unit of its rate.
    pub phase: &'static str,
    /// Number of tasks.
    pub tasks: usize,
    /// Directories of the tasks.
    pub directories: &'static str,
    /// Number of runs.
    pub runs: usize,
    /// Median rate.
    pub median: f64,
    /// Minimum rate.
    pub min: f64,
    /// Maximum rate.
    pub max: f64,
    /// Median CPU time, microseconds per operation or megabyte.
    pub cpu_us: f64,
    /// Ratio of the median rate to the first subject's.
    pub ratio: f64,
    /// Ratio of the median rate to the pass-through file system's, if one was measured.
    pub of_pass_through: Option<f64>,
}

/// The results of a comparison; displays as a table of summaries.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// All rows, in the order of the runs.
    pub rows: Vec<Row>,
}

/// The median; 0 without values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

impl Report {
    fn rows_of(&self, key: RowKey, subject: &str) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|r| r.key() == key && r.subject == subject)
            .collect()
    }

    /// A summary for each phase, number of tasks, directories and subject, in the order of their
    /// first measurement; summaries of one phase are adjacent.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut keys: Vec<RowKey> = Vec::new();
        let mut subjects: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !keys.contains(&row.key()) {
                keys.push(row.key());
            }
            if !subjects.contains(&row.subject.as_str()) {
                subjects.push(&row.subject);
            }
        }
        let first_position = |phase| keys.iter().position(|k| k.0 == phase);
        let mut ordered = keys.clone();
        ordered.sort_by_key(|k| first_position(k.0));
        ordered
            .into_iter()
            .flat_map(|key| self.summaries_of(key, &subjects))
            .collect()
    }

    fn summaries_of(&self, key: RowKey, subjects: &[&str]) -> Vec<Summary> {
        let median_rate_of = |subject: &str| median(self.rows_of(key, subject).iter().map(|r| r.rate));
        let was_measured = |subject: &&str| !self.rows_of(key, subject).is_empty();
        let first_rate = subjects.first().map_or(0.0, |s| median_rate_of(s));
        let pass_through_rate = Some(PASS_THROUGH).filter(was_measured).map(median_rate_of);
        let summary = |subject: &str| {
            let rows = self.rows_of(key, subject);
            let median_rate = median_rate_of(subject);
            let (phase, tasks, directories) = key;
            Summary {
                subject: subject.to_owned(),
                phase,
                tasks,
                directories,
                runs: rows.len(),
                median: median_rate,
                min: rows.iter().map(|r| r.rate).fold(f64::INFINITY, f64::min),
                max: rows.iter().map(|r| r.rate).fold(0.0, f64::max),
                cpu_us: median(rows.iter().map(|r| r.cpu_us)),
                ratio: median_rate / first_rate,
                of_pass_through: pass_through_rate.map(|rate| median_rate / rate),
            }
        };
        subjects
            .iter()
            .copied()
            .filter(was_measured)
            .map(summary)
            .collect()
    }

    /// The rows as CSV, with a header.
    pub fn csv(&self) -> String {
        let line = |r: &Row| {
            format!(
                "{},{},{},{},{:.1},{:.3}\n",
                r.subject, r.phase, r.tasks, r.directories, r.rate, r.cpu_us
            )
        };
        std::iter::once("subject,phase,tasks,directories,rate,cpu_us\n".to_owned())
            .chain(self.rows.iter().map(line))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| phase | tasks | directories | subject | median | min to max | runs | CPU us each | ratio | of {PASS_THROUGH} |"
        )?;
        writeln!(f, "|---|---:|---|---|---:|---:|---:|---:|---:|---:|")?;
        for s in self.summaries() {
            let of_pass_through = s.of_pass_through.map_or(String::new(), |r| format!("{r:.2}"));
            writeln!(
                f,
                "| {} | {} | {} | {} | {:.0} | {:.0} to {:.0} | {} | {:.1} | {:.2} | {of_pass_through} |",
                s.phase, s.tasks, s.directories, s.subject, s.median, s.min, s.max, s.runs, s.cpu_us, s.ratio
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, phase: &'static str, rate: f64) -> Row {
        Row {
            subject: subject.to_owned(),
            phase,
            tasks: 2,
            directories: "private",
            rate,
            cpu_us: 1.0,
        }
    }

    #[test]
    fn medians_and_ratios_compare_the_same_phase() {
        let rows = vec![
            row("disk", "a", 10.0),
            row("nacre", "a", 5.0),
            row("disk", "b", 1.0),
            row("nacre", "b", 4.0),
            row("disk", "a", 30.0),
            row("nacre", "a", 15.0),
            row("disk", "a", 20.0),
            row("nacre", "a", 10.0),
        ];
        let all = Report { rows }.summaries();
        assert_eq!(all.len(), 4);
        assert_eq!(
            (all[0].median, all[0].min, all[0].max, all[0].ratio),
            (20.0, 10.0, 30.0, 1.0)
        );
        assert_eq!((all[1].subject.as_str(), all[1].ratio), ("nacre", 0.5));
        assert_eq!((all[3].phase, all[3].ratio), ("b", 4.0));
    }
}
