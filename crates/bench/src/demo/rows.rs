//! The results: one row for each operation of each measurement, the facts about the machine, and
//! the list of results not shown. The CSV file has the facts and the list as comment lines before
//! the table of rows. [`Record::parse`] reads it.

use super::kind::{Demo, ExperimentKind};
use super::load::{CreateMethod, DemoLoad, FileLoad};
use super::plan::Configuration;
use crate::Figure;
use crate::lnet::LnetRow;
use serde::{Deserialize, Serialize};

/// The directories of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directory {
    /// One directory for each thread.
    PerThread,
    /// One directory for all threads.
    Shared,
}

impl Directory {
    /// The name in titles.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Directory::PerThread => "directory per thread",
            Directory::Shared => "shared directory",
        }
    }
}

/// The measurement of one operation in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The operation.
    pub operation: String,
    /// Number of operations.
    pub operations: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// CPU time of clients and servers, microseconds per operation.
    pub cpu_us: f64,
    /// CPU time of the server, microseconds per operation.
    pub server_cpu_us: f64,
    /// Latency: p50, p90, p99 and maximum, microseconds; `None` for LNet selftest.
    pub latency_us: Option<[f64; 4]>,
}

impl Sample {
    /// The measurement of a phase of mdtest or mdsrate; `None` for phases that are not shown.
    pub fn from_figure(load: &FileLoad, figure: &Figure) -> Option<Sample> {
        let operation = match (figure.operation, load.create_method) {
            ("File creation", CreateMethod::Mknod) => "mknod",
            ("File creation", CreateMethod::Open(_)) => "create",
            ("File stat", _) => "stat",
            // Omit the removal of files made by mknod. Like files with 0 stripes, they have no
            // objects, and the removal of files with 0 stripes has a row.
            ("File removal" | "unlink", CreateMethod::Open(_)) => "unlink",
            ("mknod", CreateMethod::Mknod) => "mknod",
            ("create", CreateMethod::Open(_)) => "create",
            ("stat", _) => "stat",
            _ => return None,
        };
        let l = &figure.latencies;
        Some(Sample {
            operation: operation.to_owned(),
            operations: figure.operations,
            seconds: figure.seconds,
            cpu_us: figure.cpu_us(),
            server_cpu_us: figure.server_cpu_us(),
            latency_us: Some([l.p50, l.p90, l.p99, l.max]),
        })
    }

    /// The measurement of LNet selftest.
    pub fn from_lnet(row: &LnetRow) -> Sample {
        Sample {
            operation: row.load.clone(),
            operations: row.requests,
            seconds: row.seconds,
            cpu_us: row.cpu_us,
            server_cpu_us: row.server_cpu_us,
            latency_us: None,
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The experiment.
    pub experiment: ExperimentKind,
    /// The operation.
    pub operation: String,
    /// The name of the servers' configuration.
    pub configuration: String,
    /// Whether the configuration is the baseline.
    pub baseline: bool,
    /// Number of CPU partitions.
    pub partitions: usize,
    /// Number of partitions with LNet.
    pub lnet_cpts: usize,
    /// Number of partitions with services.
    pub service_cpts: usize,
    /// `portal_rotor`: whether incoming requests rotate over the partitions.
    pub portal_rotor: bool,
    /// Whether parallel directory operations are on.
    pub pdo: bool,
    /// Whether partitions share CPUs, which makes their speed meaningless.
    pub forced: bool,
    /// Number of metadata servers with processes of their own.
    #[serde(default)]
    pub mdss: usize,
    /// Number of metadata targets with directories.
    #[serde(default)]
    pub mdts: usize,
    /// The directories of the files; `None` for LNet selftest.
    pub directory: Option<Directory>,
    /// Stripe count of the files; `None` for mknod and LNet selftest.
    pub stripes: Option<u16>,
    /// Number of client nodes.
    pub clients: usize,
    /// Threads or requests in flight on each client.
    pub each: usize,
    /// Number of the run, from 1.
    pub run: usize,
    /// Number of operations.
    pub operations: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// Operations per second.
    pub rate: f64,
    /// CPU time of clients and server, microseconds per operation.
    pub cpu_us: f64,
    /// CPU time of the server, microseconds per operation.
    pub server_cpu_us: f64,
    /// Median latency, microseconds.
    pub p50_us: Option<f64>,
    /// 90th percentile of latency, microseconds.
    pub p90_us: Option<f64>,
    /// 99th percentile of latency, microseconds.
    pub p99_us: Option<f64>,
    /// Maximum latency, microseconds.
    pub max_us: Option<f64>,
}

impl Row {
    pub(super) fn new(
        kind: ExperimentKind,
        configuration: &Configuration,
        baseline: bool,
        load: &DemoLoad,
        run: usize,
        sample: Sample,
    ) -> Row {
        let (directory, stripes, clients, each) = match load {
            DemoLoad::Lnet(p) => (None, None, p.clients, p.concurrency),
            DemoLoad::Files(l) => (
                Some(l.directory),
                l.stripes(),
                l.client_threads.clients,
                l.client_threads.threads,
            ),
        };
        let latency = |i: usize| sample.latency_us.and_then(|l| l.get(i).copied());
        Row {
            experiment: kind,
            configuration: configuration.name.clone(),
            baseline,
            partitions: configuration.partitions,
            lnet_cpts: configuration.lnet,
            service_cpts: configuration.services,
            portal_rotor: configuration.rotor,
            pdo: configuration.pdo,
            forced: configuration.forced,
            mdss: configuration.mdss,
            mdts: configuration.mdts,
            directory,
            stripes,
            clients,
            each,
            run,
            operations: sample.operations,
            seconds: sample.seconds,
            rate: match sample.operations {
                0 => 0.0,
                n => n as f64 / sample.seconds,
            },
            cpu_us: sample.cpu_us,
            server_cpu_us: sample.server_cpu_us,
            p50_us: latency(0),
            p90_us: latency(1),
            p99_us: latency(2),
            max_us: latency(3),
            operation: sample.operation,
        }
    }
}

/// Name of the comment with the demonstration.
const DEMO: &str = "demo";
/// Name of a comment with a result that is not shown.
const NOT_SHOWN: &str = "not shown";

/// The record of a demonstration.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The demonstration.
    pub demo: Demo,
    /// Machine, program and command line, as names and values.
    pub facts: Vec<(String, String)>,
    /// Results that are not shown, with the reason.
    pub not_shown: Vec<String>,
    /// The rows, in the order of the runs.
    pub rows: Vec<Row>,
}

impl Record {
    /// The comments and the table's header.
    pub fn head(&self) -> String {
        let mut out = String::new();
        let mut comment = |name: &str, value: &str| out.push_str(&comment(name, value));
        comment(DEMO, self.demo.name());
        for (name, value) in &self.facts {
            comment(&name.replace(": ", " "), value);
        }
        for result in &self.not_shown {
            comment(NOT_SHOWN, result);
        }
        let columns = table(&[EMPTY_ROW], true);
        out + columns.lines().next().unwrap_or_default() + "\n"
    }

    /// A comment line for a result that is not shown, to append after the rows.
    pub fn not_shown_line(not_shown: &str) -> String {
        comment(NOT_SHOWN, not_shown)
    }

    /// The CSV lines of rows.
    pub fn lines(rows: &[Row]) -> String {
        table(rows, false)
    }

    /// The whole file.
    pub fn csv(&self) -> String {
        self.head() + &Record::lines(&self.rows)
    }

    /// Parses a file. Ignores an incomplete last line, which a crash may leave.
    ///
    /// # Errors
    ///
    /// The file is not a record of a demonstration, or a row is malformed.
    pub fn parse(text: &str) -> Result<Record, String> {
        let complete_lines = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut record = Record {
            demo: Demo::Smp,
            facts: Vec::new(),
            not_shown: Vec::new(),
            rows: Vec::new(),
        };
        let mut demo = None;
        let comments = complete_lines.lines().filter_map(|line| line.strip_prefix("# "));
        for (name, value) in comments.filter_map(|line| line.split_once(": ")) {
            match name {
                DEMO => demo = Demo::named(value),
                NOT_SHOWN => record.not_shown.push(value.to_owned()),
                name => record.facts.push((name.to_owned(), value.to_owned())),
            }
        }
        record.demo = demo.ok_or(
            "not the rows of a demonstration: no line '# demo: smp', '# demo: pdo' or '# demo: dne'",
        )?;
        let mut reader = csv::ReaderBuilder::new()
            .comment(Some(b'#'))
            .from_reader(complete_lines.as_bytes());
        for row in reader.deserialize() {
            record.rows.push(row.map_err(|e| e.to_string())?);
        }
        Ok(record)
    }
}

fn comment(name: &str, value: &str) -> String {
    let plain = |text: &str| text.replace(['\n', '\r'], " ");
    format!("# {}: {}\n", plain(name), plain(value))
}

/// A row without values, to get the header line.
const EMPTY_ROW: Row = Row {
    experiment: ExperimentKind::Mdtest,
    operation: String::new(),
    configuration: String::new(),
    baseline: false,
    partitions: 0,
    lnet_cpts: 0,
    service_cpts: 0,
    portal_rotor: false,
    pdo: false,
    forced: false,
    mdss: 0,
    mdts: 0,
    directory: None,
    stripes: None,
    clients: 0,
    each: 0,
    run: 0,
    operations: 0,
    seconds: 0.0,
    rate: 0.0,
    cpu_us: 0.0,
    server_cpu_us: 0.0,
    p50_us: None,
    p90_us: None,
    p99_us: None,
    max_us: None,
};

fn table(rows: &[Row], header: bool) -> String {
    let mut writer = csv::WriterBuilder::new()
        .has_headers(header)
        .from_writer(Vec::new());
    for row in rows {
        // Cannot fail: rows have plain fields and go to memory.
        let _ = writer.serialize(row);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A row of an experiment with files.
    pub(in crate::demo) fn row(
        configuration: &str,
        operation: &str,
        (clients, each): (usize, usize),
        rate: f64,
    ) -> Row {
        Row {
            operation: operation.to_owned(),
            configuration: configuration.to_owned(),
            baseline: configuration == "1 (1:1)",
            directory: Some(Directory::Shared),
            stripes: Some(2),
            clients,
            each,
            run: 1,
            operations: 10,
            seconds: 10.0 / rate,
            rate,
            cpu_us: 1.0 / 3.0,
            pdo: true,
            p50_us: Some(0.1),
            ..EMPTY_ROW
        }
    }

    pub(in crate::demo) fn record(rows: Vec<Row>) -> Record {
        Record {
            demo: Demo::Smp,
            facts: vec![("CPUs".to_owned(), "2, <of> \"A & B\": C".to_owned())],
            not_shown: vec!["12 (12:12): only 2 CPUs".to_owned()],
            rows,
        }
    }

    #[test]
    fn written_record_parses_again() {
        let rows = vec![
            row("2 (1:1), rotor off", "create", (4, 16), 1234.5678901),
            Row {
                directory: None,
                stripes: None,
                experiment: ExperimentKind::LnetInFlight,
                operation: "4K \"read\",\nagain".to_owned(),
                p99_us: Some(1e9),
                forced: true,
                ..row("1 (1:1)", "ping", (1, 64), 1e6 / 7.0)
            },
        ];
        let with_rows = record(rows);
        assert_eq!(Record::parse(&with_rows.csv()).unwrap(), with_rows);
        let without_rows = record(Vec::new());
        assert_eq!(Record::parse(&without_rows.csv()).unwrap(), without_rows);
    }

    #[test]
    fn incomplete_last_line_is_ignored() {
        let rows = vec![
            row("1 (1:1)", "create", (1, 1), 5.0),
            row("1 (1:1)", "stat", (1, 1), 6.0),
        ];
        let text = record(rows.clone()).csv();
        let cut = Record::parse(&text[..text.len() - 9]).unwrap();
        assert_eq!(cut.rows, rows[..1]);
    }

    #[test]
    fn comment_after_the_rows_is_parsed() {
        let record = record(vec![row("1 (1:1)", "create", (1, 1), 5.0)]);
        let text = record.csv() + &Record::not_shown_line("the\nrest");
        let again = Record::parse(&text).unwrap();
        assert_eq!((again.rows.len(), again.not_shown[1].as_str()), (1, "the rest"));
    }

    #[test]
    fn file_of_another_form_is_rejected() {
        assert!(Record::parse("a,b\n1,2\n").unwrap_err().contains("not the rows"));
        let error = Record::parse("# demo: smp\nexperiment,operation\nmdtest,x\n").unwrap_err();
        assert!(error.contains("missing field"), "{error}");
    }

    #[test]
    fn line_breaks_in_comments_are_replaced() {
        let mut record = record(Vec::new());
        record.facts = vec![("a: b".to_owned(), "one\n# demo: pdo\r\nexperiment".to_owned())];
        let again = Record::parse(&record.csv()).unwrap();
        assert_eq!((again.demo, again.facts.len()), (Demo::Smp, 1));
        assert_eq!(again.facts[0].0, "a b");
    }
}
