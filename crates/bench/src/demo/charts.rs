//! Groups rows into charts: one chart for each operation of an experiment (and directory and stripe
//! count), one line for each configuration, one dot for each load (number of clients, and of
//! threads or requests in flight). A dot has the median of the runs, their range, and the ratio to
//! the baseline.

use super::kind::ExperimentKind;
use super::load::stripes_in_words;
use super::rows::{Directory, Row};
use crate::report::median;
use std::fmt::Write;

/// Median and range of the rates of the runs, operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// All runs of one load on one configuration.
#[derive(Clone, Debug)]
pub(super) struct Dot {
    /// Number of client nodes.
    pub(super) clients: usize,
    /// Threads or requests in flight on each client.
    pub(super) each: usize,
    /// Number of metadata targets with directories; 0 if only one configuration has the line.
    pub(super) mdts: usize,
    /// Number of runs.
    pub(super) runs: usize,
    pub(super) rate: Spread,
    /// Median CPU time of clients and server, microseconds per operation.
    pub(super) cpu_us: f64,
    /// Median CPU time of the server, microseconds per operation.
    pub(super) server_cpu_us: f64,
    /// Median over the runs of the median latency.
    pub(super) p50_us: Option<f64>,
    /// Median over the runs of the 99th percentile of latency.
    pub(super) p99_us: Option<f64>,
    /// Ratio of the median rate to the baseline's under the same load; for numbers of metadata
    /// targets, to that of the smallest number.
    pub(super) ratio: Option<f64>,
}

/// All loads on one configuration.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The name of the configuration.
    pub(super) configuration: String,
    /// Whether the configuration is the baseline.
    pub(super) baseline: bool,
    /// Whether `portal_rotor` is on.
    pub(super) portal_rotor: bool,
    /// Whether parallel directory operations are on.
    pub(super) pdo: bool,
    /// Whether partitions share CPUs, because the machine has too few.
    pub(super) forced: bool,
    /// Ordered by the value on the x axis.
    pub(super) dots: Vec<Dot>,
}

/// All configurations with one operation, directory and stripe count.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) kind: ExperimentKind,
    pub(super) operation: String,
    pub(super) directory: Option<Directory>,
    pub(super) stripes: Option<u16>,
    /// The lines. The first one is the baseline's.
    pub(super) lines: Vec<Line>,
}

impl Chart {
    /// The title of the chart.
    pub(super) fn title(&self) -> String {
        let mut title = self.operation.clone();
        if let Some(directory) = self.directory {
            let _ = write!(title, ", {}", directory.in_words());
        }
        match self.stripes {
            Some(count) => format!("{title}, {}", stripes_in_words(count)),
            None => title,
        }
    }

    fn contains(&self, row: &Row) -> bool {
        (self.kind, &self.operation, self.directory, self.stripes)
            == (row.experiment, &row.operation, row.directory, row.stripes)
    }
}

impl Dot {
    /// Number of CPUs that the clients keep busy. The others of the machine are idle or busy with
    /// servers.
    pub(super) fn client_cpus(&self) -> f64 {
        self.rate.median * (self.cpu_us - self.server_cpu_us) / 1e6
    }

    /// The value on the x axis: the number of clients, or of all their threads or requests in
    /// flight.
    pub(super) fn x(&self, kind: ExperimentKind) -> usize {
        match kind {
            ExperimentKind::LnetClients => self.clients,
            ExperimentKind::DneOne | ExperimentKind::DneTwo => self.mdts,
            _ => self.clients * self.each,
        }
    }
}

/// All charts. Directories, and the operations in a directory, are in the order of their first
/// measurement; the charts of an operation are in the order of their stripe counts.
pub(super) fn charts(rows: &[Row]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for row in rows {
        if !charts.iter().any(|c| c.contains(row)) {
            charts.push(Chart {
                kind: row.experiment,
                operation: row.operation.clone(),
                directory: row.directory,
                stripes: row.stripes,
                lines: Vec::new(),
            });
        }
    }
    for chart in &mut charts {
        let rows_of_chart: Vec<&Row> = rows.iter().filter(|r| chart.contains(r)).collect();
        chart.lines = lines(chart.kind, &rows_of_chart);
    }
    let by_first_row = charts.clone();
    let first_position = |is_same: &dyn Fn(&Chart) -> bool| by_first_row.iter().position(is_same);
    charts.sort_by_key(|c| {
        let same_directory = |o: &Chart| (o.kind, o.directory) == (c.kind, c.directory);
        let same_operation = |o: &Chart| same_directory(o) && o.operation == c.operation;
        (
            first_position(&same_directory),
            first_position(&same_operation),
            c.stripes,
        )
    });
    charts
}

fn lines(kind: ExperimentKind, rows: &[&Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        if !lines.iter().any(|l| l.configuration == row.configuration) {
            lines.push(Line {
                configuration: row.configuration.clone(),
                baseline: row.baseline,
                portal_rotor: row.portal_rotor,
                pdo: row.pdo,
                forced: row.forced,
                dots: Vec::new(),
            });
        }
    }
    for line in &mut lines {
        let rows_of_line: Vec<&Row> = (rows.iter().copied())
            .filter(|r| r.configuration == line.configuration)
            .collect();
        line.dots = dots(&rows_of_line);
        line.dots.sort_by_key(|d| (d.x(kind), d.clients));
    }
    lines.sort_by_key(|l| !l.baseline);
    if kind.mdts_per_mds() > 0 {
        for line in &mut lines {
            let first = line.dots.first().map(|dot| dot.rate.median);
            for dot in &mut line.dots {
                let ratio = first.map(|first| dot.rate.median / first);
                dot.ratio = ratio.filter(|ratio| ratio.is_finite());
            }
        }
    } else if let Some(baseline_dots) = lines.first().filter(|l| l.baseline).map(|l| l.dots.clone()) {
        for dot in lines.iter_mut().flat_map(|l| &mut l.dots) {
            let baseline_dot = baseline_dots
                .iter()
                .find(|b| (b.clients, b.each) == (dot.clients, dot.each));
            dot.ratio = baseline_dot
                .map(|b| dot.rate.median / b.rate.median)
                .filter(|ratio| ratio.is_finite());
        }
    }
    lines
}

fn dots(rows: &[&Row]) -> Vec<Dot> {
    let load_of = |row: &Row| (row.clients, row.each, row.mdts);
    let mut loads: Vec<(usize, usize, usize)> = Vec::new();
    for row in rows {
        if !loads.contains(&load_of(row)) {
            loads.push(load_of(row));
        }
    }
    let dot = |load: (usize, usize, usize)| {
        let (clients, each, mdts) = load;
        let runs: Vec<&Row> = (rows.iter().copied()).filter(|r| load_of(r) == load).collect();
        let median_of = |value: fn(&Row) -> f64| median(runs.iter().map(|r| value(r)));
        let median_of_known = |value: fn(&Row) -> Option<f64>| {
            let known: Vec<f64> = runs.iter().filter_map(|r| value(r)).collect();
            (!known.is_empty()).then(|| median(known.into_iter()))
        };
        Dot {
            clients,
            each,
            mdts,
            runs: runs.len(),
            rate: Spread {
                median: median_of(|r| r.rate),
                min: runs.iter().map(|r| r.rate).fold(f64::INFINITY, f64::min),
                max: runs.iter().map(|r| r.rate).fold(0.0, f64::max),
            },
            cpu_us: median_of(|r| r.cpu_us),
            server_cpu_us: median_of(|r| r.server_cpu_us),
            p50_us: median_of_known(|r| r.p50_us),
            p99_us: median_of_known(|r| r.p99_us),
            ratio: None,
        }
    };
    loads.into_iter().map(dot).collect()
}

/// The dots for the table of a chart: all numbers of metadata targets, or the largest load.
fn shown_dots(chart: &Chart) -> Vec<(&Line, &Dot)> {
    let all = chart.kind.mdts_per_mds() > 0;
    let dots = |line: &'_ Line| match all {
        true => 0,
        false => line.dots.len().saturating_sub(1),
    };
    let lines = chart.lines.iter();
    lines
        .flat_map(|line| line.dots.iter().skip(dots(line)).map(move |dot| (line, dot)))
        .collect()
}

/// The results under the largest load of each line, as a table for a terminal.
pub fn summary(rows: &[Row]) -> String {
    let mut out = String::from(
        "| experiment | operation | configuration | clients x each | median/s | min to max | of baseline | CPU us (server) |\n|---|---|---|---|---:|---:|---:|---:|\n",
    );
    for chart in &charts(rows) {
        for (line, dot) in shown_dots(chart) {
            let _ = writeln!(
                out,
                "| {} | {} | {}{} | {}x{} | {:.0} | {:.0} to {:.0} | {} | {:.1} ({:.1}) |",
                chart.kind.name(),
                chart.title(),
                line.configuration,
                match (line.forced, dot.mdts) {
                    (true, _) => " (forced)".to_owned(),
                    (false, 0) => String::new(),
                    (false, mdts) => format!(", {mdts} in all"),
                },
                dot.clients,
                dot.each,
                dot.rate.median,
                dot.rate.min,
                dot.rate.max,
                dot.ratio.map_or(String::new(), |r| format!("{r:.2}")),
                dot.cpu_us,
                dot.server_cpu_us
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::rows::tests::row;

    #[test]
    fn medians_and_ratios_compare_the_same_load() {
        let rows = [
            row("2 (2:2)", "create", (4, 16), 30.0),
            row("1 (1:1)", "create", (4, 16), 10.0),
            row("1 (1:1)", "create", (1, 2), 5.0),
            row("1 (1:1)", "stat", (1, 2), 7.0),
            row("2 (2:2)", "create", (4, 16), 50.0),
            row("2 (2:2)", "create", (4, 16), 20.0),
            row("2 (2:2)", "create", (8, 16), 20.0),
        ];
        let charts = charts(&rows);
        let titles: Vec<String> = charts.iter().map(Chart::title).collect();
        assert_eq!(
            titles,
            [
                "create, shared directory, 2 stripes",
                "stat, shared directory, 2 stripes"
            ]
        );
        let create = &charts[0].lines;
        assert_eq!((create.len(), create[0].baseline), (2, true));
        let x_values: Vec<usize> = create[0]
            .dots
            .iter()
            .map(|d| d.x(ExperimentKind::Mdtest))
            .collect();
        assert_eq!(x_values, [2, 64]);
        let dot = &create[1].dots[0];
        let spread = Spread {
            median: 30.0,
            min: 20.0,
            max: 50.0,
        };
        assert_eq!((dot.rate, dot.runs, dot.ratio), (spread, 3, Some(3.0)));
        assert_eq!(create[1].dots[1].ratio, None, "no baseline under this load");
        let text = summary(&rows);
        assert!(
            text.contains("| 1 (1:1) | 4x16 | 10 | 10 to 10 | 1.00 |"),
            "{text}"
        );
    }

    #[test]
    fn charts_are_ordered_by_directory_operation_and_stripes() {
        let row_with = |operation: &str, directory, stripes| Row {
            directory: Some(directory),
            stripes: Some(stripes),
            ..row("1 (1:1)", operation, (1, 1), 1.0)
        };
        let mut rows = Vec::new();
        for directory in [Directory::PerThread, Directory::Shared] {
            for stripes in [0, 2] {
                rows.push(row_with("create", directory, stripes));
                rows.push(row_with("unlink", directory, stripes));
            }
        }
        let titles: Vec<String> = charts(&rows).iter().map(Chart::title).collect();
        assert_eq!(titles[0], "create, directory per thread, 0 stripes");
        assert_eq!(titles[1], "create, directory per thread, 2 stripes");
        assert_eq!(titles[2], "unlink, directory per thread, 0 stripes");
        assert_eq!(titles[4], "create, shared directory, 0 stripes");
    }
}
