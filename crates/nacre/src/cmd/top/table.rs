//! The columns of `nacre top`, as text, and their layout without a full screen.

use super::rates::{Load, Operations, Waits};
use crate::cli::By;
use crate::output::printable;

/// The text of a cell if the key has no such statistics.
const NONE: &str = "-";

/// A column: its name, and its text for a row.
type Column = (&'static str, fn(&Load) -> String);

const OPERATIONS: &[Column] = &[
    ("OPS/S", |l| {
        operations(l, |o| {
            rate(o.per_second.reads + o.per_second.writes + o.per_second.metadata)
        })
    }),
    ("READS/S", |l| operations(l, |o| rate(o.per_second.reads))),
    ("WRITES/S", |l| operations(l, |o| rate(o.per_second.writes))),
    ("META/S", |l| operations(l, |o| rate(o.per_second.metadata))),
    ("READ B/S", |l| operations(l, |o| bytes(o.per_second.read_bytes))),
    ("WRITTEN B/S", |l| {
        operations(l, |o| bytes(o.per_second.written_bytes))
    }),
    ("LATENCY", |l| operations(l, |o| duration(o.latency_usec))),
];
const LOCKS: &[Column] = &[
    ("LOCK WAITS/S", |l| {
        waits(l.locks.as_ref(), |w| rate(w.per_second))
    }),
    ("LOCK WAIT", |l| {
        waits(l.locks.as_ref(), |w| duration(w.wait_usec))
    }),
    ("LOCKS WAITING", |l| {
        waits(l.locks.as_ref(), |w| w.waiting.to_string())
    }),
];
const QUEUE: &[Column] = &[
    ("REQUESTS/S", |l| waits(l.queue.as_ref(), |w| rate(w.per_second))),
    ("QUEUE WAIT", |l| {
        waits(l.queue.as_ref(), |w| duration(w.wait_usec))
    }),
    ("QUEUED", |l| waits(l.queue.as_ref(), |w| w.waiting.to_string())),
    ("ACTIVE", |l| {
        waits(l.queue.as_ref(), |w| w.active.unwrap_or(0).to_string())
    }),
];
const THROTTLED: &[Column] = &[
    ("THROTTLED/S", |l| {
        waits(l.throttled.as_ref(), |w| rate(w.per_second))
    }),
    ("TOKEN WAIT", |l| {
        waits(l.throttled.as_ref(), |w| duration(w.wait_usec))
    }),
    ("RULES", |l| match l.rules.is_empty() {
        true => NONE.to_owned(),
        false => l.rules.iter().map(String::as_str).collect::<Vec<_>>().join(","),
    }),
];

/// A table as text. The first column and the rules are aligned left, the others right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// The table of some loads.
    pub(super) fn new(by: By, loads: &[Load]) -> Table {
        let groups: &[&[Column]] = match by {
            By::Target => &[OPERATIONS, LOCKS],
            By::Service => &[QUEUE, THROTTLED],
            By::Directory => &[OPERATIONS],
            By::Job | By::Uid | By::Nid => &[OPERATIONS, THROTTLED],
        };
        let columns: Vec<&Column> = groups.iter().copied().flatten().collect();
        let names = columns.iter().map(|(name, _)| (*name).to_owned());
        let row = |load: &Load| {
            let cells = columns.iter().map(|(_, text)| text(load));
            // Clients choose the names of jobs.
            [printable(&load.key)].into_iter().chain(cells).collect()
        };
        Table {
            header: [by.name().to_uppercase()].into_iter().chain(names).collect(),
            rows: loads.iter().map(row).collect(),
        }
    }

    /// The width of each column, in characters.
    pub(super) fn widths(&self) -> Vec<usize> {
        let cells = |column: usize| self.lines().filter_map(move |line| line.get(column));
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        (0..self.header.len()).map(width).collect()
    }

    /// Whether a column is aligned left.
    pub(super) fn is_left(&self, column: usize) -> bool {
        column == 0 || self.header[column] == "RULES"
    }

    /// The header and the rows.
    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        [&self.header].into_iter().chain(&self.rows)
    }

    /// The lines of the text.
    pub(super) fn to_lines(&self) -> Vec<String> {
        let widths = self.widths();
        let cell = |(column, text): (usize, &String)| match self.is_left(column) {
            true => format!("{text:<0$}", widths[column]),
            false => format!("{text:>0$}", widths[column]),
        };
        let line = |cells: &Vec<String>| {
            let cells: Vec<String> = cells.iter().enumerate().map(cell).collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.lines().map(line).collect()
    }
}

/// Explains why a table is empty.
pub(super) fn empty_text(by: By) -> &'static str {
    match by {
        By::Job | By::Uid => {
            "no job sent requests; clients name jobs with the parameter jobid_var, such as jobid_var=procname_uid"
        }
        By::Nid => "no client sent requests",
        By::Directory => "no operations on names in directories of this machine's MDTs in this interval",
        By::Target | By::Service => "no counts yet",
    }
}

fn operations(load: &Load, text: fn(&Operations) -> String) -> String {
    load.operations.as_ref().map_or_else(|| NONE.to_owned(), text)
}

fn waits(waits: Option<&Waits>, text: fn(&Waits) -> String) -> String {
    waits.map_or_else(|| NONE.to_owned(), text)
}

/// A number per second: one decimal below 10.
fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// Bytes, in units of powers of 1024.
fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut bytes, mut unit) = (bytes, 0);
    while bytes >= 1023.5 && unit + 1 < UNITS.len() {
        bytes /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && bytes < 9.95);
    format!("{bytes:.decimals$}{}", UNITS[unit])
}

/// A duration in microseconds, in a suitable unit.
fn duration(usecs: Option<f64>) -> String {
    match usecs {
        None => NONE.to_owned(),
        Some(t) if t < 999.5 => format!("{t:.0}us"),
        Some(t) if t < 999_500.0 => format!("{:.1}ms", t / 1e3),
        Some(t) => format!("{:.1}s", t / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, bytes, duration, rate};
    use crate::cli::By;
    use crate::cmd::top::rates::{Load, OperationNumbers, Operations, Waits};

    #[test]
    fn numbers_have_short_units() {
        assert_eq!(
            [0.0, 0.34, 9.9, 9.96, 1234.4].map(rate),
            ["0", "0.3", "9.9", "10", "1234"]
        );
        assert_eq!(
            [0.0, 1023.0, 1024.0, 10.0 * 1024.0, 3.25 * 1024.0 * 1024.0].map(bytes),
            ["0", "1023", "1.0K", "10K", "3.2M"]
        );
        assert_eq!(
            [None, Some(85.2), Some(1234.0), Some(2.5e6)].map(duration),
            ["-", "85us", "1.2ms", "2.5s"]
        );
    }

    #[test]
    fn columns_are_aligned_and_missing_statistics_have_a_dash() {
        let operations = Operations {
            per_second: OperationNumbers {
                reads: 3.0,
                metadata: 200.0,
                read_bytes: 4096.0,
                ..OperationNumbers::default()
            },
            latency_usec: Some(70.0),
            ..Operations::default()
        };
        let throttled = Waits {
            total: 4,
            per_second: 2.0,
            wait_usec: Some(90_000.0),
            ..Waits::default()
        };
        let busy = Load {
            key: "dd.0".to_owned(),
            operations: Some(operations),
            ..Load::default()
        };
        let slow = Load {
            key: "a\nb".to_owned(),
            throttled: Some(throttled),
            rules: ["slow".to_owned(), "late".to_owned()].into(),
            ..Load::default()
        };
        let lines = Table::new(By::Job, &[busy, slow]).to_lines();
        assert_eq!(
            lines,
            [
                "JOB   OPS/S  READS/S  WRITES/S  META/S  READ B/S  WRITTEN B/S  LATENCY  THROTTLED/S  TOKEN WAIT  RULES",
                "dd.0    203      3.0         0     200      4.0K            0     70us            -           -  -",
                "a?b       -        -         -       -         -            -        -          2.0      90.0ms  late,slow",
            ]
        );
    }
}
