//! What was published, beside what was measured: figures of Lustre 2.3 as a percentage of 2.2, from 2012, and here the server that is
//! configured alike as a percentage of the baseline, where there were most clients.

use super::charts::{Chart, Line};
use super::kind::Kind;
use super::plot::short;
use super::rows::Directory;
use serde::{Deserialize, Deserializer};

/// The published figures.
const PUBLISHED: &str = include_str!("../../data/published/smp_affinity_2.3_vs_2.2_percent.csv");

/// One published figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Published {
    experiment: Kind,
    operation: String,
    directory: Option<Directory>,
    #[serde(deserialize_with = "on_off")]
    portal_rotor: Option<bool>,
    #[serde(deserialize_with = "on_off")]
    pdo: Option<bool>,
    files: String,
    percent_low: Option<f64>,
    percent_high: Option<f64>,
    note: String,
}

fn on_off<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        other => Err(serde::de::Error::custom(format!(
            "'{other}' is neither on nor off"
        ))),
    }
}

/// All that was published.
pub(super) fn published() -> Result<Vec<Published>, csv::Error> {
    csv::Reader::from_reader(PUBLISHED.as_bytes())
        .into_deserialize()
        .collect()
}

/// A line of the comparison.
#[derive(Debug, PartialEq)]
pub(super) struct Beside {
    /// Operation, directory, what was on or off.
    pub(super) what: String,
    pub(super) files: String,
    pub(super) published: String,
    pub(super) measured: String,
}

/// The comparison of an experiment. Of parallel directory operations what they gain over none is derived: those figures say
/// that with them off 2.3 was as fast as 2.2, or slower.
pub(super) fn beside(kind: Kind, charts: &[Chart], published: &[Published]) -> Vec<Beside> {
    let own = published.iter().filter(|p| p.experiment == kind);
    own.map(|p| Beside {
        what: p.what(),
        files: p.files.clone(),
        published: p.percent(),
        measured: measured(p, charts).unwrap_or_default(),
    })
    .collect()
}

impl Published {
    fn what(&self) -> String {
        let switch = |name: &str, on: Option<bool>| match on {
            Some(true) => format!(", {name} on"),
            Some(false) => format!(", {name} off"),
            None => String::new(),
        };
        let directory = self
            .directory
            .map_or(String::new(), |d| format!(", {}", d.words()));
        // That it was on is only of interest where it was off, too.
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
            // What it says is in the percentage already.
            "" | "below" => percent,
            note => format!("{percent} ({note})"),
        }
    }

    /// Whether a line of a chart is configured as this was.
    fn is_like(&self, line: &Line) -> bool {
        !line.baseline
            && !line.forced
            && self.portal_rotor.is_none_or(|on| on == line.portal_rotor)
            && self.pdo.is_none_or(|on| on == line.pdo)
    }
}

/// The least and the greatest ratio of the charts that show the same, where there were most clients.
fn measured(published: &Published, charts: &[Chart]) -> Option<String> {
    let same = |c: &&Chart| {
        c.kind == published.experiment
            && c.operation == published.operation
            && c.directory == published.directory
    };
    let lines = charts.iter().filter(same).flat_map(|c| &c.lines);
    let last = lines
        .filter(|l| published.is_like(l))
        .filter_map(|l| l.dots.last());
    let mut percent: Vec<f64> = last.filter_map(|d| d.ratio).map(|r| r * 100.0).collect();
    percent.sort_by(f64::total_cmp);
    let (least, most) = (percent.first()?, percent.last()?);
    let (least, most) = (short(least.round()), short(most.round()));
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
    fn the_published_figures_can_be_read() {
        let all = published().unwrap();
        assert_eq!(all.len(), 25);
        let below = all.iter().find(|p| p.note == "below").unwrap();
        assert_eq!(below.what(), "unlink, shared directory, PDO off");
        assert_eq!(below.percent(), "less than 100 %");
        let read = all.iter().find(|p| p.operation == "4K read").unwrap();
        assert_eq!(
            (read.what().as_str(), read.percent().as_str()),
            ("4K read, portal round-robin off", "600 to 700 %")
        );
    }

    #[test]
    fn a_figure_stands_beside_the_configuration_that_is_like_it() {
        let with = |configuration, pdo, stripes, rate| Row {
            pdo,
            stripes: Some(stripes),
            partitions: 2,
            ..row(configuration, "create", (4, 16), rate)
        };
        let rows = [
            with("1 (1:1)", true, 1, 10.0),
            with("2 (2:2)", true, 1, 15.0),
            with("2 (2:2), PDO off", false, 1, 5.0),
            with("1 (1:1)", true, 2, 10.0),
            with("2 (2:2)", true, 2, 20.0),
            Row {
                forced: true,
                ..with("4 (4:4)", true, 2, 100.0)
            },
        ];
        let lines = beside(Kind::Mdtest, &charts(&rows), &published().unwrap());
        let of = |what: &str| lines.iter().find(|l| l.what == what).unwrap().measured.clone();
        assert_eq!(of("create, shared directory, PDO on"), "150 to 200 %");
        assert_eq!(of("create, shared directory, PDO off"), "50 %");
        assert_eq!(of("stat, shared directory, PDO on"), "");
    }
}
