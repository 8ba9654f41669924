//! The result page: plots, comparison with published figures, tables, and a list of the published
//! results that this run cannot show. The page is well-formed XML without scripts or references to
//! other files.

use super::charts::{Chart, Line, charts};
use super::kind::{Demo, ExperimentKind};
use super::plot::{Plot, PlotDot, PlotLine, draw, format_short, swatch};
use super::published::{PublishedFigure, comparisons, published_figures};
use super::published_rates;
use super::rows::Record;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style sheet.
const STYLE: &str = include_str!("page.css");

/// Elements without an end tag, which maud does not write as XML.
const META: PreEscaped<&str> = PreEscaped(
    "<meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>",
);

/// The page as HTML. `rows_file` is the name of the file with the rows.
pub fn page(record: &Record, rows_file: &str) -> String {
    let charts = charts(&record.rows);
    let (title, lead) = match record.demo {
        Demo::Smp => (
            "Partitioned servers",
            "Each CPU partition of a server receives, queues, handles and answers requests independently. Each configuration was measured in turn with the baseline, a server with one partition.",
        ),
        Demo::Pdo => (
            "Parallel directory operations",
            "Operations on different names of one directory do not wait for each other. They were measured in turn with the baseline, in which each operation locks the whole directory.",
        ),
        Demo::Dne => (
            "A name space over several metadata targets",
            "Directories on different metadata targets need no common server. The rates grow with the number of metadata servers.",
        ),
    };
    // Cannot fail: the data is compiled in, and a test parses it.
    let published = published_figures().unwrap_or_default();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (META)
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    p.lead { (lead) }
                    (facts(record))
                    (limits(record))
                    @for &kind in ExperimentKind::of(record.demo) {
                        (section(kind, &charts, &published))
                    }
                    footer {
                        "Every run: " code { (rows_file) }
                        ". Dots are medians; bars reach from the slowest to the fastest run. The vertical axes begin at 0."
                    }
                }
            }
        }
    };
    // XML does not allow control characters.
    let is_forbidden = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    page.into_string().replace(is_forbidden, "\u{fffd}")
}

fn facts(record: &Record) -> Markup {
    html! {
        table.facts {
            @for (name, value) in &record.facts {
                tr { th scope="row" { (name) } td { (value) } }
            }
        }
    }
}

fn limits(record: &Record) -> Markup {
    html! {
        @if !record.not_shown.is_empty() {
            section {
                h2 { "Limits of these results" }
                ul { @for result in &record.not_shown { li { (result) } } }
            }
        }
    }
}

/// The section of an experiment; empty if it has no charts.
fn section(kind: ExperimentKind, all_charts: &[Chart], published: &[PublishedFigure]) -> Markup {
    let charts: Vec<&Chart> = all_charts.iter().filter(|c| c.kind == kind).collect();
    let styles = styles(&charts);
    let plot = |chart: &Chart| Plot {
        title: chart.title(),
        x_axis: kind.axis(),
        lines: chart.lines.iter().map(|l| plot_line(kind, l, &styles)).collect(),
    };
    html! {
        @if !charts.is_empty() {
            section id=(kind.name()) {
                h2 { (kind.title()) }
                p { (kind.description()) }
                (legend(&charts, &styles))
                div.plots {
                    @for chart in &charts {
                        figure { figcaption { (chart.title()) } (draw(&plot(chart))) }
                    }
                }
                (comparison_table(kind, all_charts, published))
                (published_rates_table(kind, &charts))
                (figures_table(kind, &charts))
            }
        }
    }
}

/// The names of an experiment's configurations. The index of a name is the number of its style.
fn styles(charts: &[&Chart]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for line in charts.iter().flat_map(|c| &c.lines) {
        if !names.contains(&line.configuration) {
            names.push(line.configuration.clone());
        }
    }
    names
}

fn style_of(styles: &[String], line: &Line) -> usize {
    styles.iter().position(|s| *s == line.configuration).unwrap_or(0)
}

/// The name of a configuration, marked if it is the baseline or forced.
fn marked_name(line: &Line) -> String {
    match (line.baseline, line.forced) {
        (_, true) => format!("{} (forced: partitions share CPUs)", line.configuration),
        (true, _) => format!("{} (baseline)", line.configuration),
        _ => line.configuration.clone(),
    }
}

fn plot_line(kind: ExperimentKind, line: &Line, styles: &[String]) -> PlotLine {
    let dots = line.dots.iter().map(|d| PlotDot {
        x: d.x(kind),
        median: d.rate.median,
        min: d.rate.min,
        max: d.rate.max,
    });
    PlotLine {
        name: marked_name(line),
        style: style_of(styles, line),
        dashed: line.forced,
        dots: dots.collect(),
    }
}

fn legend(charts: &[&Chart], styles: &[String]) -> Markup {
    let line_named = |name: &String| {
        let mut lines = charts.iter().flat_map(|c| &c.lines);
        lines.find(|l| l.configuration == *name)
    };
    html! {
        ul.legend {
            @for (style, line) in styles.iter().map(line_named).enumerate() {
                @if let Some(line) = line {
                    li { (swatch(style, line.forced)) (marked_name(line)) }
                }
            }
        }
    }
}

/// A table that can be scrolled to the side.
fn wide_table(caption: Option<&str>, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Markup {
    html! {
        div.wide {
            table {
                @if let Some(text) = caption { caption { (text) } }
                thead { tr { @for head in heads { th { (head) } } } }
                tbody {
                    @for row in rows { tr { @for cell in row { td { (cell) } } } }
                }
            }
        }
    }
}

fn comparison_table(kind: ExperimentKind, charts: &[Chart], published: &[PublishedFigure]) -> Markup {
    let lines = comparisons(kind, charts, published);
    if lines.is_empty() {
        return Markup::default();
    }
    let rows = lines.into_iter().map(|line| {
        let measured = match line.measured.as_str() {
            "" => "not measured".to_owned(),
            _ => line.measured,
        };
        vec![line.label, line.file_count, line.published, measured]
    });
    wide_table(
        Some(
            "Published in 2012: Lustre 2.3 as a percentage of 2.2 on 24 CPUs. Here: percentage of the baseline under the largest load",
        ),
        &["operation", "files", "published", "here"],
        rows,
    )
}

fn published_rates_table(kind: ExperimentKind, charts: &[&Chart]) -> Markup {
    let rows = published_rates::comparisons(kind, charts);
    if rows.is_empty() {
        return Markup::default();
    }
    wide_table(
        Some(
            "Published in 2013: means of the rates of Lustre's servers with 100 directories of 20,000 files. Here: medians. The ratios are to the smallest number of servers that was published",
        ),
        &[
            "operation",
            "metadata servers",
            "published/s",
            "ratio",
            "here/s",
            "ratio",
        ],
        rows,
    )
}

fn figures_table(kind: ExperimentKind, charts: &[&Chart]) -> Markup {
    let mut rows = Vec::new();
    for chart in charts {
        // List the configurations of each load one after the other.
        let mut dots: Vec<_> = chart
            .lines
            .iter()
            .flat_map(|l| l.dots.iter().map(move |d| (l, d)))
            .collect();
        dots.sort_by_key(|(_, d)| (d.x(kind), d.clients));
        for (line, dot) in dots {
            let optional = |value: Option<f64>| value.map_or(String::new(), format_short);
            rows.push(vec![
                chart.title(),
                match kind {
                    ExperimentKind::LnetInFlight | ExperimentKind::Mounts => dot.each.to_string(),
                    ExperimentKind::LnetClients => dot.clients.to_string(),
                    _ if dot.mdts > 0 => dot.mdts.to_string(),
                    _ => format!("{} = {} × {}", dot.x(kind), dot.clients, dot.each),
                },
                marked_name(line),
                format!("{:.0}", dot.rate.median),
                format!("{:.0} to {:.0}", dot.rate.min, dot.rate.max),
                dot.runs.to_string(),
                dot.ratio.map_or(String::new(), |r| format!("{r:.2}")),
                format!("{:.1}", dot.cpu_us),
                format!("{:.1}", dot.server_cpu_us),
                format!("{:.2}", dot.client_cpus()),
                optional(dot.p50_us),
                optional(dot.p99_us),
            ]);
        }
    }
    let heads = [
        "operation",
        kind.axis(),
        "configuration",
        "median/s",
        "min to max",
        "runs",
        "of baseline",
        "CPU µs/op",
        "server CPU µs/op",
        "CPUs of clients",
        "p50 µs",
        "p99 µs",
    ];
    html! {
        details {
            summary { "All figures" }
            (wide_table(None, &heads, rows))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::rows::Row;
    use crate::demo::rows::tests::{record, row};

    /// Parses the page as XML.
    fn parse(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        };
        roxmltree::Document::parse_with_options(page, options).unwrap()
    }

    fn texts<'a>(document: &'a roxmltree::Document<'_>, tag: &str) -> Vec<&'a str> {
        let nodes = document.descendants().filter(|n| n.has_tag_name(tag));
        nodes.filter_map(|n| n.text()).collect()
    }

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for operation in ["create", "stat"] {
            for (i, configuration) in ["1 (1:1)", "2 (2:2)", "4 (4:4)"].into_iter().enumerate() {
                for client_threads in [(1, 4), (4, 4)] {
                    for run in 1..=3 {
                        rows.push(Row {
                            run,
                            forced: i == 2,
                            partitions: 1 << i,
                            ..row(
                                configuration,
                                operation,
                                client_threads,
                                1000.0 * (i + run) as f64,
                            )
                        });
                    }
                }
            }
        }
        rows
    }

    #[test]
    fn every_line_is_drawn_and_listed() {
        let text = page(&record(rows()), "demo.csv");
        let document = parse(&text);
        let plots = || {
            document
                .descendants()
                .filter(|n| n.attribute("class") == Some("plot"))
        };
        assert_eq!(plots().count(), 2);
        for plot in plots() {
            let lines: Vec<_> = plot
                .descendants()
                .filter(|n| n.has_tag_name("polyline"))
                .collect();
            assert_eq!(lines.len(), 3);
            for line in lines {
                assert_eq!(line.attribute("points").unwrap().split(' ').count(), 2);
            }
            let spreads = plot
                .descendants()
                .filter(|n| n.attribute("class") == Some("spread"));
            assert_eq!(spreads.count(), 6);
        }
        assert_eq!(
            texts(&document, "figcaption"),
            [
                "create, shared directory, 2 stripes",
                "stat, shared directory, 2 stripes"
            ]
        );
        // A row of the table for each median: 2 operations, 3 configurations, 2 client counts.
        let details = document
            .descendants()
            .find(|n| n.has_tag_name("details"))
            .unwrap();
        let body = details.descendants().find(|n| n.has_tag_name("tbody")).unwrap();
        assert_eq!(body.children().filter(|n| n.has_tag_name("tr")).count(), 12);
        // The forced configuration is marked in the legend and in the tables, and dashed in the
        // plot.
        assert!(text.matches("4 (4:4) (forced").count() > 4);
        assert!(text.contains("class=\"s2 dashed\""));
        // The measured percentage leaves out the forced configuration.
        assert!(text.contains("<td>350 % (at least)</td><td>150 %</td>"), "{text}");
        assert!(texts(&document, "li").iter().any(|li| li.contains("12 (12:12)")));
    }

    #[test]
    fn values_are_escaped() {
        let nasty = "<script>alert('x' & \"y\")</script>\u{1b}";
        let mut record = record(vec![row(nasty, nasty, (1, 1), 5.0)]);
        record.not_shown = vec![nasty.to_owned()];
        record.facts = vec![(nasty.to_owned(), nasty.to_owned())];
        let text = page(&record, nasty);
        let document = parse(&text);
        assert!(document.descendants().all(|n| !n.has_tag_name("script")));
        assert!(texts(&document, "td").iter().any(|t| t.starts_with("<script>")));
    }

    #[test]
    fn page_has_no_external_references() {
        let text = page(&record(rows()), "demo.csv");
        for word in ["http", "src=", "<link", "url(", "@import"] {
            assert!(!text.contains(word), "{word}");
        }
    }

    #[test]
    fn page_without_rows_is_valid() {
        let text = page(&record(Vec::new()), "demo.csv");
        assert_eq!(texts(&parse(&text), "h2"), ["Limits of these results"]);
    }
}
