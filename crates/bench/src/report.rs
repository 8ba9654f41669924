//! Rows and their summary: median, least and greatest of the runs, and the ratio to the first subject.

use serde::Serialize;
use std::fmt;

/// One figure of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// On what.
    pub subject: String,
    /// Which phase, with the unit of its rate.
    pub phase: &'static str,
    /// Operations or megabytes per second.
    pub rate: f64,
    /// CPU time, microseconds per operation or megabyte, of the load and what serves it.
    pub cpu_us: Option<f64>,
}

/// All runs of one phase on one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// On what.
    pub subject: String,
    /// Which phase.
    pub phase: &'static str,
    /// Number of runs.
    pub runs: usize,
    /// Median rate.
    pub median: f64,
    /// Least rate.
    pub min: f64,
    /// Greatest rate.
    pub max: f64,
    /// Median CPU time, microseconds per operation or megabyte.
    pub cpu_us: f64,
    /// Median over the first subject's.
    pub ratio: f64,
}

/// What came out of a comparison. Shown as a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Every figure, in the order of the runs.
    pub rows: Vec<Row>,
}

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
    fn of(&self, phase: &str, subject: &str) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|r| r.phase == phase && r.subject == subject)
            .collect()
    }

    /// One summary a phase and subject, in the order in which they first ran.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut done: Vec<(&'static str, &str)> = Vec::new();
        for row in &self.rows {
            if !done.contains(&(row.phase, &row.subject)) {
                done.push((row.phase, &row.subject));
            }
        }
        let phases: Vec<&'static str> = done.iter().map(|(p, _)| *p).fold(Vec::new(), |mut ps, p| {
            if !ps.contains(&p) {
                ps.push(p);
            }
            ps
        });
        let mut summaries = Vec::new();
        for phase in phases {
            let mut base = None;
            for (_, subject) in done.iter().filter(|(p, _)| *p == phase) {
                let rows = self.of(phase, subject);
                let middle = median(rows.iter().map(|r| r.rate));
                let base = *base.get_or_insert(middle);
                summaries.push(Summary {
                    subject: (*subject).to_owned(),
                    phase,
                    runs: rows.len(),
                    median: middle,
                    min: rows.iter().map(|r| r.rate).fold(f64::INFINITY, f64::min),
                    max: rows.iter().map(|r| r.rate).fold(0.0, f64::max),
                    cpu_us: median(rows.iter().filter_map(|r| r.cpu_us)),
                    ratio: middle / base,
                });
            }
        }
        summaries
    }

    /// The rows as CSV, with a header.
    pub fn csv(&self) -> String {
        let line = |r: &Row| {
            format!(
                "{},{},{:.1},{:.3}\n",
                r.subject,
                r.phase,
                r.rate,
                r.cpu_us.unwrap_or(f64::NAN)
            )
        };
        std::iter::once("subject,phase,rate,cpu_us\n".to_owned())
            .chain(self.rows.iter().map(line))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| phase | subject | median | min to max | runs | CPU us each | ratio |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|")?;
        for s in self.summaries() {
            writeln!(
                f,
                "| {} | {} | {:.0} | {:.0} to {:.0} | {} | {:.1} | {:.2} |",
                s.phase, s.subject, s.median, s.min, s.max, s.runs, s.cpu_us, s.ratio
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
            rate,
            cpu_us: Some(1.0),
        }
    }

    #[test]
    fn medians_and_ratios_are_of_the_same_phase() {
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
