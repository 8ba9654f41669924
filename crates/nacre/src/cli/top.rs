//! The command line of `nacre top`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Bounds of the interval, in seconds.
const INTERVAL: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Debug, Args)]
#[command(
    after_help = "Keys on a terminal: q: quit; b: rows by the next kind of key; s: sort by the next column"
)]
pub(crate) struct Top {
    /// Rows by this
    #[arg(long, default_value = "target")]
    pub(crate) by: By,
    /// Largest rows first, by this
    #[arg(long, default_value = "operations")]
    pub(crate) sort: Sort,
    /// Time between two reads, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Print the rates of one interval and end, as without a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the rates of N intervals and end
    #[arg(long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print a line of JSON for each interval
    #[arg(long)]
    pub(crate) json: bool,
}

/// The kind of key of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    /// A job, if clients name jobs (parameter jobid_var)
    Job,
    /// A user, from names of jobs such as dd.1000
    Uid,
    /// The clients with a NID
    Nid,
    /// A directory, for operations on its entries; MDTs record them only while they are read
    Directory,
    /// A target
    Target,
    /// A service of a process, such as mdt or ost_io
    Service,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Operations or requests per second
    Operations,
    /// Bytes per second, read and written
    Bytes,
    /// Mean latency, or for services the mean time in the queue
    Latency,
}

impl By {
    /// The next kind of key; after the last one, the first.
    pub(crate) fn next(self) -> By {
        next(self)
    }

    /// The value of the option on the command line.
    pub(crate) fn name(self) -> String {
        name(self)
    }
}

impl Sort {
    /// The next order; after the last one, the first.
    pub(crate) fn next(self) -> Sort {
        next(self)
    }

    /// The value of the option on the command line.
    pub(crate) fn name(self) -> String {
        name(self)
    }
}

fn next<T: ValueEnum + PartialEq>(value: T) -> T {
    let all = T::value_variants();
    let index = all.iter().position(|v| *v == value).unwrap_or(0);
    all[(index + 1) % all.len()].clone()
}

fn name<T: ValueEnum>(value: T) -> String {
    value
        .to_possible_value()
        .map(|v| v.get_name().to_owned())
        .unwrap_or_default()
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| INTERVAL.contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("expected {} to {} seconds", INTERVAL.start(), INTERVAL.end()))
}

#[cfg(test)]
mod tests {
    use super::{By, Sort, parse_interval};
    use std::time::Duration;

    #[test]
    fn interval_has_bounds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "4000", "soon"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_and_orders_follow_each_other_in_a_circle() {
        assert_eq!(By::Service.next(), By::Job);
        assert_eq!(Sort::Operations.next(), Sort::Bytes);
        assert_eq!(By::Nid.name(), "nid");
    }
}
