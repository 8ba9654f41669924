//! What was measured, one row for each operation of each run, with what the machine is and what is not shown; and all that as one
//! CSV file, which can be read again: comment lines, then a table.

use super::kind::{Demo, Kind};
use super::load::{FileLoad, Load, Make};
use super::plan::Setting;
use crate::Figure;
use crate::lnet::LnetRow;
use serde::{Deserialize, Serialize};

/// Where files are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directory {
    /// A directory for each thread.
    PerThread,
    /// All in one.
    Shared,
}

impl Directory {
    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Directory::PerThread => "directory per thread",
            Directory::Shared => "shared directory",
        }
    }
}

/// One operation, as a load of a configuration did it once.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Which.
    pub operation: String,
    /// How often.
    pub operations: u64,
    /// In what time.
    pub seconds: f64,
    /// CPU time of all, microseconds each.
    pub cpu_us: f64,
    /// That of the server among it.
    pub server_cpu_us: f64,
    /// Microseconds within which half, 90 and 99 % were done, and the longest.
    pub latency_us: Option<[f64; 4]>,
}

impl Sample {
    /// What mdtest measured, of those phases that are shown.
    pub fn of_figure(load: &FileLoad, figure: &Figure) -> Option<Sample> {
        let operation = match (figure.operation, load.make) {
            ("File creation", Make::Mknod) => "mknod",
            ("File creation", Make::Open(_)) => "create",
            ("File stat", _) => "stat",
            // What mknod made is removed as what was opened with no objects, which has a row of its own.
            ("File removal", Make::Open(_)) => "unlink",
            _ => return None,
        };
        let l = &figure.latencies;
        Some(Sample {
            operation: operation.to_owned(),
            operations: figure.operations,
            seconds: figure.seconds,
            cpu_us: figure.cpu_us(),
            server_cpu_us: figure.others_cpu_us(),
            latency_us: Some([l.p50, l.p90, l.p99, l.max]),
        })
    }

    /// What LNet selftest measured.
    pub fn of_lnet(row: &LnetRow) -> Sample {
        Sample {
            operation: row.load.clone(),
            operations: row.requests,
            seconds: row.seconds,
            cpu_us: row.cpu_us,
            server_cpu_us: row.others_cpu_us,
            latency_us: None,
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which experiment.
    pub experiment: Kind,
    /// Which operation.
    pub operation: String,
    /// The name of the servers' configuration.
    pub configuration: String,
    /// Whether it is what the others are compared with.
    pub baseline: bool,
    /// Its CPU partitions.
    pub partitions: usize,
    /// Partitions that LNet is on.
    pub lnet_cpts: usize,
    /// Partitions that the services are on.
    pub service_cpts: usize,
    /// Requests go round the partitions.
    pub portal_rotor: bool,
    /// Parallel directory operations.
    pub pdo: bool,
    /// Partitions share CPUs: says nothing about their speed.
    pub forced: bool,
    /// Where files were made.
    pub directory: Option<Directory>,
    /// Stripes of files that were opened.
    pub stripes: Option<u16>,
    /// Client nodes.
    pub clients: usize,
    /// Threads, or requests in flight, of each.
    pub each: usize,
    /// Which run, from 1 on.
    pub run: usize,
    /// How often it was done.
    pub operations: u64,
    /// In what time.
    pub seconds: f64,
    /// Operations a second.
    pub rate: f64,
    /// CPU time of clients and server, microseconds each.
    pub cpu_us: f64,
    /// That of the server.
    pub server_cpu_us: f64,
    /// Latency, microseconds.
    pub p50_us: Option<f64>,
    /// The same.
    pub p90_us: Option<f64>,
    /// The same.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

impl Row {
    pub(super) fn new(
        kind: Kind,
        setting: &Setting,
        baseline: bool,
        load: &Load,
        run: usize,
        s: Sample,
    ) -> Row {
        let (directory, stripes, clients, each) = match load {
            Load::Lnet(p) => (None, None, p.clients, p.concurrency),
            Load::Files(l) => (Some(l.directory), l.stripes(), l.crowd.clients, l.crowd.threads),
        };
        let latency = |i: usize| s.latency_us.and_then(|l| l.get(i).copied());
        Row {
            experiment: kind,
            configuration: setting.name.clone(),
            baseline,
            partitions: setting.partitions,
            lnet_cpts: setting.lnet,
            service_cpts: setting.services,
            portal_rotor: setting.rotor,
            pdo: setting.pdo,
            forced: setting.forced,
            directory,
            stripes,
            clients,
            each,
            run,
            operations: s.operations,
            seconds: s.seconds,
            rate: match s.operations {
                0 => 0.0,
                n => n as f64 / s.seconds,
            },
            cpu_us: s.cpu_us,
            server_cpu_us: s.server_cpu_us,
            p50_us: latency(0),
            p90_us: latency(1),
            p99_us: latency(2),
            max_us: latency(3),
            operation: s.operation,
        }
    }
}

/// The comment that names the demonstration, and the one for each thing that is not shown.
const DEMO: &str = "demo";
const NOT_SHOWN: &str = "not shown";

/// All that a demonstration leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Which.
    pub demo: Demo,
    /// The machine, the program and how it was run: names and values.
    pub facts: Vec<(String, String)>,
    /// What is not shown, and why.
    pub not_shown: Vec<String>,
    /// In the order of the runs.
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
        self.not_shown.iter().for_each(|what| comment(NOT_SHOWN, what));
        let columns = table(&[BLANK], true);
        out + columns.lines().next().unwrap_or_default() + "\n"
    }

    /// A line that says of something that it is not shown, when it is known only after the head.
    pub fn late(not_shown: &str) -> String {
        comment(NOT_SHOWN, not_shown)
    }

    /// Lines for rows.
    pub fn lines(rows: &[Row]) -> String {
        table(rows, false)
    }

    /// All of it.
    pub fn csv(&self) -> String {
        self.head() + &Record::lines(&self.rows)
    }

    /// Reads it again; a last line that was cut off by a crash is left out.
    pub fn parse(text: &str) -> Result<Record, String> {
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut record = Record {
            demo: Demo::Smp,
            facts: Vec::new(),
            not_shown: Vec::new(),
            rows: Vec::new(),
        };
        let mut demo = None;
        let comments = whole.lines().filter_map(|line| line.strip_prefix("# "));
        for (name, value) in comments.filter_map(|line| line.split_once(": ")) {
            match name {
                DEMO => demo = Demo::named(value),
                NOT_SHOWN => record.not_shown.push(value.to_owned()),
                name => record.facts.push((name.to_owned(), value.to_owned())),
            }
        }
        record.demo = demo
            .ok_or("these are not the rows of a demonstration: there is no '# demo: smp' or '# demo: pdo'")?;
        let mut reader = csv::ReaderBuilder::new()
            .comment(Some(b'#'))
            .from_reader(whole.as_bytes());
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

/// A row that only has the right columns.
const BLANK: Row = Row {
    experiment: Kind::Mdtest,
    operation: String::new(),
    configuration: String::new(),
    baseline: false,
    partitions: 0,
    lnet_cpts: 0,
    service_cpts: 0,
    portal_rotor: false,
    pdo: false,
    forced: false,
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
        // Rows have plain fields and go to memory: neither fails.
        let _ = writer.serialize(row);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A row of the experiment with files.
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
            ..BLANK
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
    fn what_is_written_is_what_is_read() {
        let rows = vec![
            row("2 (1:1), rotor off", "create", (4, 16), 1234.5678901),
            Row {
                directory: None,
                stripes: None,
                experiment: Kind::LnetInFlight,
                operation: "4K \"read\",\nagain".to_owned(),
                p99_us: Some(1e9),
                forced: true,
                ..row("1 (1:1)", "ping", (1, 64), 1e6 / 7.0)
            },
        ];
        let whole = record(rows);
        assert_eq!(Record::parse(&whole.csv()).unwrap(), whole);
        let none = record(Vec::new());
        assert_eq!(Record::parse(&none.csv()).unwrap(), none);
    }

    #[test]
    fn a_line_cut_off_by_a_crash_is_left_out() {
        let rows = vec![
            row("1 (1:1)", "create", (1, 1), 5.0),
            row("1 (1:1)", "stat", (1, 1), 6.0),
        ];
        let text = record(rows.clone()).csv();
        let cut = Record::parse(&text[..text.len() - 9]).unwrap();
        assert_eq!(cut.rows, rows[..1]);
    }

    #[test]
    fn what_is_known_late_is_read_too() {
        let record = record(vec![row("1 (1:1)", "create", (1, 1), 5.0)]);
        let text = record.csv() + &Record::late("the\nrest");
        let again = Record::parse(&text).unwrap();
        assert_eq!((again.rows.len(), again.not_shown[1].as_str()), (1, "the rest"));
    }

    #[test]
    fn another_file_is_refused() {
        assert!(Record::parse("a,b\n1,2\n").unwrap_err().contains("not the rows"));
        let wrong = Record::parse("# demo: smp\nexperiment,operation\nmdtest,x\n").unwrap_err();
        assert!(wrong.contains("missing field"), "{wrong}");
    }

    #[test]
    fn comments_stay_lines_of_their_own() {
        let mut record = record(Vec::new());
        record.facts = vec![("a: b".to_owned(), "one\n# demo: pdo\r\nexperiment".to_owned())];
        let again = Record::parse(&record.csv()).unwrap();
        assert_eq!((again.demo, again.facts.len()), (Demo::Smp, 1));
        assert_eq!(again.facts[0].0, "a b");
    }
}
