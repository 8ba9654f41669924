//! The result page: plots, comparison with published figures, tables, and a list of the published
//! results that this run cannot show. The page is well-formed XML without scripts or references to
//! other files.

use super::charts::{Chart, Line, charts};
use super::kind::{Demo, ExperimentKind};
use super::plot::{Plot, PlotDot, PlotLine, draw, escape_xml, format_short, swatch};
use super::published::{PublishedFigure, comparisons, published_figures};
use super::rows::Record;
use std::fmt::Write;

/// The style sheet.
const STYLE: &str = include_str!("page.css");

/// The page as HTML. `rows_file` is the name of the file with the rows.
pub fn page(record: &Record, rows_file: &str) -> String {
    let charts = charts(&record.rows);
    let title = match record.demo {
        Demo::Smp => "Partitioned servers",
        Demo::Pdo => "Parallel directory operations",
    };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    out.push_str(match record.demo {
        Demo::Smp => {
            "<p class=\"lead\">Each CPU partition of a server receives, queues, handles and answers requests independently. Each configuration was measured in turn with the baseline, a server with one partition.</p>\n"
        }
        Demo::Pdo => {
            "<p class=\"lead\">Operations on different names of one directory do not wait for each other. They were measured in turn with the baseline, in which each operation locks the whole directory.</p>\n"
        }
    });
    write_facts(&mut out, record);
    write_not_shown(&mut out, record);
    // Cannot fail: the data is compiled in, and a test parses it.
    let published = published_figures().unwrap_or_default();
    for &kind in ExperimentKind::of(record.demo) {
        let charts_of_kind: Vec<&Chart> = charts.iter().filter(|c| c.kind == kind).collect();
        if !charts_of_kind.is_empty() {
            write_section(&mut out, kind, &charts_of_kind, &charts, &published);
        }
    }
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        out,
        "<footer>Every run: <code>{}</code>. Dots are medians; bars reach from the slowest to the fastest run. The vertical axes begin at 0.</footer>\n</main>\n</body>\n</html>\n",
        escape_xml(rows_file)
    );
    out
}

fn write_facts(out: &mut String, record: &Record) {
    out.push_str("<table class=\"facts\">\n");
    for (name, value) in &record.facts {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape_xml(name),
            escape_xml(value)
        );
    }
    out.push_str("</table>\n");
}

fn write_not_shown(out: &mut String, record: &Record) {
    if record.not_shown.is_empty() {
        return;
    }
    out.push_str("<section>\n<h2>Limits of these results</h2>\n<ul>\n");
    for result in &record.not_shown {
        let _ = writeln!(out, "<li>{}</li>", escape_xml(result));
    }
    out.push_str("</ul>\n</section>\n");
}

fn write_section(
    out: &mut String,
    kind: ExperimentKind,
    charts_of_kind: &[&Chart],
    all_charts: &[Chart],
    published: &[PublishedFigure],
) {
    let _ = write!(
        out,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>{}</p>\n",
        kind.name(),
        escape_xml(kind.title()),
        escape_xml(kind.description())
    );
    let styles = styles(charts_of_kind);
    write_legend(out, charts_of_kind, &styles);
    out.push_str("<div class=\"plots\">\n");
    for chart in charts_of_kind {
        let plot = Plot {
            title: chart.title(),
            x_axis: kind.axis(),
            lines: chart.lines.iter().map(|l| plot_line(kind, l, &styles)).collect(),
        };
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption>\n{}</figure>\n",
            escape_xml(&chart.title()),
            draw(&plot)
        );
    }
    out.push_str("</div>\n");
    write_comparison_table(out, kind, all_charts, published);
    write_table(out, kind, charts_of_kind);
    out.push_str("</section>\n");
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

fn write_legend(out: &mut String, charts: &[&Chart], styles: &[String]) {
    out.push_str("<ul class=\"legend\">\n");
    for (style, name) in styles.iter().enumerate() {
        let mut lines = charts.iter().flat_map(|c| &c.lines);
        if let Some(line) = lines.find(|l| l.configuration == *name) {
            let _ = writeln!(
                out,
                "<li>{}{}</li>",
                swatch(style, line.forced),
                escape_xml(&marked_name(line))
            );
        }
    }
    out.push_str("</ul>\n");
}

fn write_comparison_table(
    out: &mut String,
    kind: ExperimentKind,
    charts: &[Chart],
    published: &[PublishedFigure],
) {
    let lines = comparisons(kind, charts, published);
    if lines.is_empty() {
        return;
    }
    out.push_str(
        "<div class=\"wide\"><table>\n<caption>Published in 2012: Lustre 2.3 as a percentage of 2.2 on 24 CPUs. Here: percentage of the baseline under the largest load</caption>\n<thead><tr><th>operation</th><th>files</th><th>published</th><th>here</th></tr></thead>\n<tbody>\n",
    );
    for line in lines {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape_xml(&line.label),
            escape_xml(&line.file_count),
            escape_xml(&line.published),
            match line.measured.as_str() {
                "" => "not measured".to_owned(),
                measured => escape_xml(measured),
            }
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

fn write_table(out: &mut String, kind: ExperimentKind, charts: &[&Chart]) {
    let _ = write!(
        out,
        "<details>\n<summary>All figures</summary>\n<div class=\"wide\"><table>\n<thead><tr><th>operation</th><th>{}</th><th>configuration</th><th>median/s</th><th>min to max</th><th>runs</th><th>of baseline</th><th>CPU µs/op</th><th>server CPU µs/op</th><th>p50 µs</th><th>p99 µs</th></tr></thead>\n<tbody>\n",
        escape_xml(kind.axis())
    );
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
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.0} to {:.0}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>",
                escape_xml(&chart.title()),
                match kind {
                    ExperimentKind::LnetInFlight | ExperimentKind::Mounts => dot.each.to_string(),
                    ExperimentKind::LnetClients => dot.clients.to_string(),
                    _ => format!("{} = {} × {}", dot.x(kind), dot.clients, dot.each),
                },
                escape_xml(&marked_name(line)),
                dot.rate.median,
                dot.rate.min,
                dot.rate.max,
                dot.runs,
                dot.ratio.map_or(String::new(), |r| format!("{r:.2}")),
                dot.cpu_us,
                dot.server_cpu_us,
                optional(dot.p50_us),
                optional(dot.p99_us)
            );
        }
    }
    out.push_str("</tbody>\n</table></div>\n</details>\n");
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
