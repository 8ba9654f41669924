//! `nacre bench demo`: runs a published demonstration on servers that it starts. Writes rows and a
//! page, even after an interruption or an error. Can also write the page of an earlier run again,
//! from its rows.

mod cluster;
mod servers;
mod stage;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::BenchError;
use bench::demo::{
    Demo, Event, ExperimentKind, Plan, Record, Resources, Size, machine, page, run as run_plan, summary,
};
use cpt::Topology;
use serde_json::json;

use super::load;
use super::{ScratchDir, stop_flag};
use crate::cli::{BenchDemo, DemoPage, DemoRun};
use crate::fd_limit;
use crate::instance::Store;
use crate::output::{errln, outln};
use crate::progress::ProgressLine;
use stage::DemoStage;

/// Runs the command.
pub(super) fn run(args: &BenchDemo) -> Result<ExitCode> {
    match args {
        BenchDemo::Smp(args) => run_demo(Demo::Smp, args),
        BenchDemo::Pdo(args) => run_demo(Demo::Pdo, args),
        BenchDemo::Dne(args) => run_demo(Demo::Dne, args),
        BenchDemo::Page(args) => rewrite_page(args),
    }
}

/// The output of a run: rows as they arrive, and the page at the end.
struct RunLog {
    record: Record,
    csv: File,
    csv_path: PathBuf,
    start_time: Instant,
    progress: ProgressLine,
    /// Print JSON at the end.
    json: bool,
}

fn run_demo(demo: Demo, args: &DemoRun) -> Result<ExitCode> {
    fd_limit::raise();
    let size = size(demo, args)?;
    let plan = plan(demo, args, &size)?;
    let (default_csv, default_page) = unused_paths(Path::new(""), demo.name());
    let csv_path = args.csv.clone().unwrap_or(default_csv);
    let page_path = args.page.clone().unwrap_or(default_page);
    if is_too_short_to_measure(args) {
        errln!("{NOISE}");
    }
    let scratch = ScratchDir::new(args.dir.clone().unwrap_or_else(std::env::temp_dir))?;
    let record = Record {
        demo,
        facts: facts(args, &plan, &scratch.dir),
        not_shown: plan.not_shown.clone(),
        rows: Vec::new(),
    };
    let mut csv = File::create(&csv_path).with_context(|| format!("cannot write {}", csv_path.display()))?;
    csv.write_all(record.head().as_bytes())
        .with_context(|| format!("cannot write {}", csv_path.display()))?;
    let mut log = RunLog {
        record,
        csv,
        csv_path,
        start_time: Instant::now(),
        progress: ProgressLine::new(),
        json: args.json,
    };
    let stop = stop_flag()?;
    let mut stage = DemoStage::new(
        &scratch.dir,
        args.store,
        args.osts as usize,
        (size.seconds, args.mds_cpus),
        stop.clone(),
    )?;
    let mut write_error = None;
    let outcome = run_plan(&plan, &mut stage, &stop, &mut |event| {
        if let Err(e) = log.record_event(event) {
            write_error = Some(e);
            stop.store(true, Ordering::Relaxed);
        }
    });
    drop(stage);
    drop(scratch);
    log.close(&page_path, &outcome)?;
    match write_error {
        Some(e) => Err(e),
        None => load::exit_code(outcome),
    }
}

/// Warns that measurements of the smallest size cannot be compared.
const NOISE: &str = "size tiny only shows that everything works: each measurement is so short that the differences between configurations are noise; measure with --size small or larger";

fn is_too_short_to_measure(args: &DemoRun) -> bool {
    args.size == "tiny"
}

/// Paths in `dir` for the rows and the page of a new run. The paths do not exist yet:
/// `demo-smp.csv` and `demo-smp.html`, then `demo-smp-2.csv` and so on.
fn unused_paths(dir: &Path, demo: &str) -> (PathBuf, PathBuf) {
    let mut number = 1;
    loop {
        let name = match number {
            1 => format!("demo-{demo}"),
            n => format!("demo-{demo}-{n}"),
        };
        let [csv, page] = ["csv", "html"].map(|ending| dir.join(format!("{name}.{ending}")));
        if !csv.exists() && !page.exists() {
            return (csv, page);
        }
        number += 1;
    }
}

/// The size with the changes from the command line.
fn size(demo: Demo, args: &DemoRun) -> Result<Size> {
    let mut size = Size::named(demo, &args.size).with_context(|| format!("unknown size '{}'", args.size))?;
    size.runs = args.runs.map_or(size.runs, |runs| runs as usize);
    size.files = args.files.map_or(size.files, |files| files as usize);
    size.seconds = args.seconds.unwrap_or(size.seconds);
    if !args.crowds.is_empty() {
        size.client_threads.clone_from(&args.crowds);
    }
    if !args.stripes.is_empty() {
        size.stripes.clone_from(&args.stripes);
    }
    Ok(size)
}

fn plan(demo: Demo, args: &DemoRun, size: &Size) -> Result<Plan> {
    if let Some(other) = args
        .only
        .iter()
        .find(|kind| !ExperimentKind::of(demo).contains(kind))
    {
        let experiments: Vec<&str> = ExperimentKind::of(demo).iter().map(|k| k.name()).collect();
        bail!(
            "{} is not an experiment of {}: choose from {}",
            other.name(),
            demo.name(),
            experiments.join(", ")
        );
    }
    let topology = Topology::detect()?;
    let resources = Resources {
        cpus: topology.cpus().len(),
        published_count: cpt::published_count(&topology),
        osts: args.osts as usize,
        forced: args.force_partitions,
    };
    Ok(Plan::new(demo, size, &resources, &args.only))
}

/// The description of machine, program and run for the page.
fn facts(args: &DemoRun, plan: &Plan, dir: &Path) -> Vec<(String, String)> {
    let store = (args.store == Store::Local).then_some(dir);
    let mut facts = machine(store);
    let build = if cfg!(debug_assertions) {
        ", a debug build: not for measurements"
    } else {
        ""
    };
    let facts_of_run = [
        ("program", format!("nacre {}{build}", env!("CARGO_PKG_VERSION"))),
        ("begun", format!("{} UTC", load::now())),
        (
            "size",
            format!(
                "{}: {} runs of each measurement, {} in all; {} OSTs for each file system",
                args.size,
                plan.runs,
                plan.measurements(),
                args.osts
            ),
        ),
        ("command", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
    ];
    if plan.demo == Demo::Dne {
        let cap = format!("a process each, which may use {} CPUs", args.mds_cpus);
        facts.push(("metadata servers".to_owned(), cap));
    }
    if is_too_short_to_measure(args) {
        facts.push(("warning".to_owned(), NOISE.to_owned()));
    }
    facts.extend(facts_of_run.map(|(name, value)| (name.to_owned(), value)));
    facts
}

impl RunLog {
    fn record_event(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Next { text, done, total } => self.show_progress(&text, done, total),
            Event::Rows(rows) => {
                self.csv
                    .write_all(Record::lines(rows).as_bytes())
                    .with_context(|| format!("cannot write {}", self.csv_path.display()))?;
                self.record.rows.extend_from_slice(rows);
            }
        }
        Ok(())
    }

    /// Shows the next measurement and an estimate of the remaining time.
    fn show_progress(&mut self, text: &str, done: usize, total: usize) {
        let remaining = match done {
            0 => String::new(),
            _ => {
                let mean = self.start_time.elapsed() / u32::try_from(done).unwrap_or(u32::MAX);
                format!(
                    " ({} left)",
                    rough_duration(mean * u32::try_from(total - done).unwrap_or(u32::MAX))
                )
            }
        };
        let text = format!("{text}{remaining}");
        self.progress.show(&text, done as u64, Some(total as u64));
    }

    /// Writes the page from all rows, and prints the summary. After an error, the CSV file and the
    /// page get a note that the run is incomplete.
    fn close(&mut self, page_path: &Path, outcome: &Result<(), BenchError>) -> Result<()> {
        self.progress.clear();
        let mut record = self.record.clone();
        if let Err(e) = outcome {
            let note = format!("Everything: the run ended early ({e}).");
            (&self.csv)
                .write_all(Record::not_shown_line(&note).as_bytes())
                .with_context(|| format!("cannot write {}", self.csv_path.display()))?;
            record.not_shown.push(note);
        }
        write_page(&record, &self.csv_path, page_path)?;
        if self.json {
            let text = json!({
                "csv": self.csv_path,
                "page": page_path,
                "not_shown": record.not_shown,
                "rows": record.rows,
            });
            outln!("{}", serde_json::to_string_pretty(&text)?);
            return Ok(());
        }
        outln!("{}", summary(&record.rows));
        for note in &record.not_shown {
            outln!("not shown: {note}");
        }
        outln!(
            "\nrows: {}\npage: {}",
            self.csv_path.display(),
            page_path.display()
        );
        Ok(())
    }
}

/// An approximate duration: `12 s`, `3 min`.
fn rough_duration(time: Duration) -> String {
    match time.as_secs() {
        s if s < 100 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

fn write_page(record: &Record, csv_path: &Path, page_path: &Path) -> Result<()> {
    let rows_file = csv_path.file_name().unwrap_or_default().to_string_lossy();
    fs::write(page_path, page(record, &rows_file))
        .with_context(|| format!("cannot write {}", page_path.display()))
}

fn rewrite_page(args: &DemoPage) -> Result<ExitCode> {
    let csv_path = args.csv.display();
    let text = fs::read_to_string(&args.csv).with_context(|| format!("cannot read {csv_path}"))?;
    let record = Record::parse(&text).map_err(|e| anyhow::anyhow!("{csv_path}: {e}"))?;
    let page_path = args
        .page
        .clone()
        .unwrap_or_else(|| args.csv.with_extension("html"));
    write_page(&record, &args.csv, &page_path)?;
    outln!("page: {}", page_path.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn run_does_not_overwrite_the_files_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let (csv, page) = unused_paths(dir.path(), "smp");
            [csv, page].map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(names(), ["demo-smp.csv", "demo-smp.html"]);
        fs::write(dir.path().join("demo-smp.html"), "").unwrap();
        assert_eq!(names(), ["demo-smp-2.csv", "demo-smp-2.html"]);
    }
}
