//! Comparison of the rates of several metadata servers with published ones: how they grow with the
//! number of servers.

use super::charts::Chart;
use super::kind::ExperimentKind;
use serde::Deserialize;

/// The published rates with one metadata target on each server.
const ONE_MDT: &str = include_str!("../../data/published/dne1_one_mdt_per_mds.csv");
/// The published rates with two metadata targets on each server.
const TWO_MDTS: &str = include_str!("../../data/published/dne1_two_mdts_per_mds.csv");
/// The run number of a row with the mean of the runs.
const MEAN: &str = "mean";

/// A published rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct PublishedRate {
    operation: String,
    mdts: usize,
    mdss: usize,
    /// The number of the run, or [`MEAN`].
    row: String,
    ops_per_second: f64,
}

/// The published means of an experiment.
fn means(kind: ExperimentKind) -> Vec<PublishedRate> {
    let table = match kind.mdts_per_mds() {
        1 => ONE_MDT,
        2 => TWO_MDTS,
        _ => return Vec::new(),
    };
    let rows = csv::Reader::from_reader(table.as_bytes()).into_deserialize();
    // All rows are valid: the data is compiled in, and a test parses it.
    let rows = rows.filter_map(Result::ok);
    rows.filter(|rate: &PublishedRate| rate.row == MEAN).collect()
}

/// A row for each published rate of an experiment: operation, number of servers, published rate and
/// ratio, measured rate and ratio. The ratios are to the smallest published number of servers.
pub(super) fn comparisons(kind: ExperimentKind, charts: &[&Chart]) -> Vec<Vec<String>> {
    let means = means(kind);
    let published = |operation: &str, mdts: usize| {
        let mut rates = means.iter();
        rates
            .find(|rate| rate.operation == operation && rate.mdts == mdts)
            .map(|rate| rate.ops_per_second)
    };
    let measured = |operation: &str, mdts: usize| {
        let chart = charts.iter().find(|chart| chart.operation == operation)?;
        let mut dots = chart.lines.iter().flat_map(|line| &line.dots);
        dots.find(|dot| dot.mdts == mdts).map(|dot| dot.rate.median)
    };
    let row = |rate: &PublishedRate| {
        let of_operation = means.iter().filter(|other| other.operation == rate.operation);
        let first = of_operation.map(|other| other.mdts).min().unwrap_or(rate.mdts);
        let cells = |value: &dyn Fn(&str, usize) -> Option<f64>| {
            let (now, first) = (value(&rate.operation, rate.mdts), value(&rate.operation, first));
            let ratio = now.zip(first).map(|(now, first)| now / first);
            [
                now.map_or("not measured".to_owned(), |now| format!("{now:.0}")),
                ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            ]
        };
        let mut row = vec![rate.operation.clone(), rate.mdss.to_string()];
        row.extend(cells(&published));
        row.extend(cells(&measured));
        row
    };
    means.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::charts::charts;
    use crate::demo::rows::Row;
    use crate::demo::rows::tests::row;

    #[test]
    fn published_tables_are_valid() {
        for table in [ONE_MDT, TWO_MDTS] {
            let rows = csv::Reader::from_reader(table.as_bytes()).into_deserialize();
            let rates: Vec<PublishedRate> = rows.collect::<Result<_, _>>().unwrap();
            assert!(rates.iter().filter(|rate| rate.row == MEAN).count() >= 12);
        }
        assert_eq!(means(ExperimentKind::Pdo), []);
    }

    #[test]
    fn rates_are_compared_with_the_smallest_published_number_of_servers() {
        let with = |mdts: usize, rate: f64| Row {
            experiment: ExperimentKind::DneOne,
            mdss: mdts,
            mdts,
            ..row("1 MDT on each MDS", "create", (4, 8), rate)
        };
        let charts = charts(&[with(1, 10.0), with(2, 20.0), with(4, 36.0)]);
        let rows = comparisons(ExperimentKind::DneOne, &charts.iter().collect::<Vec<_>>());
        let of = |operation: &str, mdss: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row[0] == operation && row[1] == mdss)
                .unwrap()
                .clone()
        };
        assert_eq!(of("create", "2")[2..], ["55496", "1.00", "20", "1.00"]);
        assert_eq!(of("create", "4")[4..], ["36", "1.80"]);
        assert_eq!(of("stat", "3")[2..], ["578630", "1.27", "not measured", ""]);
        let dots = &charts[0].lines[0].dots;
        let ratios: Vec<_> = dots.iter().map(|dot| dot.ratio).collect();
        assert_eq!(ratios, [Some(1.0), Some(2.0), Some(3.6)]);
    }
}
