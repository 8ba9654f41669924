//! Comparison of published figures with measured ones. Published in 2012: the rate of Lustre 2.3,
//! with CPU partitions and parallel directory operations, in percent of the rate of Lustre 2.2,
//! without them. Measured: the rate of Nacre's server with them, in percent of its rate without
//! them, under the largest load.

use super::charts::{Chart, Line};
use super::kind::ExperimentKind;
use super::plot::format_short;
use super::rows::Directory;
use serde::{Deserialize, Deserializer};

/// The table of published figures.
const PUBLISHED: &str = include_str!("../../data/published/smp_affinity_2.3_vs_2.2_percent.csv");

/// One published figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct PublishedFigure {
    experiment: ExperimentKind,
    operation: String,
    directory: Option<Directory>,
    #[serde(deserialize_with = "parse_switch")]
    portal_rotor: Option<bool>,
    #[serde(deserialize_with = "parse_switch")]
    pdo: Option<bool>,
    /// Number of files in the published run, such as `256K`; empty if the load has no files or if
    /// their number is not published.
    file_count: String,
    /// The range in percent; `None` if the range has no bound at that end.
    percent_low: Option<f64>,
    percent_high: Option<f64>,
    note: String,
}

fn parse_switch<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        other => Err(serde::de::Error::custom(format!(
            "'{other}' is neither on nor off"
        ))),
    }
}

/// Parses the published figures, which are compiled in.
pub(super) fn published_figures() -> Result<Vec<PublishedFigure>, csv::Error> {
    csv::Reader::from_reader(PUBLISHED.as_bytes())
        .into_deserialize()
        .collect()
}

/// A row of the comparison.
#[derive(Debug, PartialEq)]
pub(super) struct Comparison {
    /// Operation, directory, and switches.
    pub(super) label: String,
    /// Number of files in the published run, such as `256K`; may be empty.
    pub(super) file_count: String,
    /// The published percentage, or its range.
    pub(super) published: String,
    /// The measured percentage, or its range; empty if nothing was measured.
    pub(super) measured: String,
}

/// A row for each published figure of an experiment.
pub(super) fn comparisons(
    kind: ExperimentKind,
    charts: &[Chart],
    published: &[PublishedFigure],
) -> Vec<Comparison> {
    let figures = published.iter().filter(|p| p.experiment == kind);
    figures
        .map(|p| Comparison {
            label: p.label(),
            file_count: p.file_count.clone(),
            published: p.percent(),
            measured: measured_percent(p, charts).unwrap_or_default(),
        })
        .collect()
}

impl PublishedFigure {
    fn label(&self) -> String {
        let switch = |name: &str, on: Option<bool>| match on {
            Some(true) => format!(", {name} on"),
            Some(false) => format!(", {name} off"),
            None => String::new(),
        };
        let directory = self
            .directory
            .map_or(String::new(), |d| format!(", {}", d.in_words()));
        // Mention PDO only where figures for both states exist.
        let pdo = match self.directory {
            Some(Directory::Shared) => self.pdo,
            _ => None,
        };
        self.operation.clone()
            + &directory
            + &switch("portal round-robin", self.portal_rotor)
            + &switch("PDO", pdo)
    }

    fn percent(&self) -> String {
        let percent = match (self.percent_low, self.percent_high) {
            (Some(low), Some(high)) if low == high => format!("{low} %"),
            (Some(low), Some(high)) => format!("{low} to {high} %"),
            (None, Some(high)) => format!("less than {high} %"),
            (Some(low), None) => format!("more than {low} %"),
            (None, None) => String::new(),
        };
        match self.note.as_str() {
            // The percentage already expresses this note.
            "" | "below" => percent,
            note => format!("{percent} ({note})"),
        }
    }

    /// Whether a line of a chart has the configuration of this figure, and is neither the baseline
    /// nor forced.
    fn matches(&self, line: &Line) -> bool {
        !line.baseline
            && !line.forced
            && self.portal_rotor.is_none_or(|on| on == line.portal_rotor)
            && self.pdo.is_none_or(|on| on == line.pdo)
    }
}

/// The rate under the largest load, in percent of the baseline's rate. If several lines match the
/// figure, one for each stripe count, the result is the range of their percentages.
fn measured_percent(published: &PublishedFigure, charts: &[Chart]) -> Option<String> {
    let is_same_operation = |c: &&Chart| {
        c.kind == published.experiment
            && c.operation == published.operation
            && c.directory == published.directory
    };
    let lines = charts.iter().filter(is_same_operation).flat_map(|c| &c.lines);
    let largest_loads = lines
        .filter(|l| published.matches(l))
        .filter_map(|l| l.dots.last());
    let mut percent: Vec<f64> = largest_loads.filter_map(|d| d.ratio).map(|r| r * 100.0).collect();
    percent.sort_by(f64::total_cmp);
    let (least, most) = (percent.first()?, percent.last()?);
    let (least, most) = (format_short(least.round()), format_short(most.round()));
    Some(match least == most {
        true => format!("{least} %"),
        false => format!("{least} to {most} %"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::charts::charts;
    use crate::demo::rows::Row;
    use crate::demo::rows::tests::row;

    #[test]
    fn published_figures_parse() {
        let all = published_figures().unwrap();
        assert_eq!(all.len(), 25);
        let below = all.iter().find(|p| p.note == "below").unwrap();
        assert_eq!(below.label(), "unlink, shared directory, PDO off");
        assert_eq!(below.percent(), "less than 100 %");
        let read = all.iter().find(|p| p.operation == "4K read").unwrap();
        assert_eq!(
            (read.label().as_str(), read.percent().as_str()),
            ("4K read, portal round-robin off", "600 to 700 %")
        );
    }

    #[test]
    fn figure_is_compared_with_the_matching_configuration() {
        let row_with = |configuration, pdo, stripes, rate| Row {
            pdo,
            stripes: Some(stripes),
            partitions: 2,
            ..row(configuration, "create", (4, 16), rate)
        };
        let rows = [
            row_with("1 (1:1)", true, 1, 10.0),
            row_with("2 (2:2)", true, 1, 15.0),
            row_with("2 (2:2), PDO off", false, 1, 5.0),
            row_with("1 (1:1)", true, 2, 10.0),
            row_with("2 (2:2)", true, 2, 20.0),
            Row {
                forced: true,
                ..row_with("4 (4:4)", true, 2, 100.0)
            },
        ];
        let lines = comparisons(
            ExperimentKind::Mdtest,
            &charts(&rows),
            &published_figures().unwrap(),
        );
        let measured = |label: &str| lines.iter().find(|l| l.label == label).unwrap().measured.clone();
        assert_eq!(measured("create, shared directory, PDO on"), "150 to 200 %");
        assert_eq!(measured("create, shared directory, PDO off"), "50 %");
        assert_eq!(measured("stat, shared directory, PDO on"), "");
    }
}
