//! `nacre bench demo`: runs a published demonstration on servers that it starts. Writes rows and a
//! page, even after an interruption or an error. Can also write the page of an earlier run again,
//! from its rows.

mod servers;
mod stage;

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
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

use super::load;
use super::{ScratchDir, stop_flag};
use crate::cli::{BenchDemo, DemoPage, DemoRun};
use crate::fd_limit;
use crate::instance::Store;
use crate::output::{self, errln, outln};
use stage::DemoStage;

/// Runs the command.
pub(super) fn run(args: &BenchDemo) -> Result<ExitCode> {
    match args {
        BenchDemo::Smp(args) => run_demo(Demo::Smp, args),
        BenchDemo::Pdo(args) => run_demo(Demo::Pdo, args),
        BenchDemo::Page(args) => rewrite_page(args),
    }
}

/// The output of a run: rows as they arrive, and the page at the end.
struct RunLog {
    record: Record,
    csv: File,
    csv_path: PathBuf,
    start_time: Instant,
}

fn run_demo(demo: Demo, args: &DemoRun) -> Result<ExitCode> {
    fd_limit::raise();
    let size = size(demo, args)?;
    let plan = plan(demo, args, &size)?;
    let or_default = |path: &Option<PathBuf>, ending| {
        path.clone()
            .unwrap_or_else(|| format!("demo-{}.{ending}", demo.name()).into())
    };
    let (csv_path, page_path) = (or_default(&args.csv, "csv"), or_default(&args.page, "html"));
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
    };
    let stop = stop_flag()?;
    let mut stage = DemoStage::new(
        &scratch.dir,
        args.store,
        args.osts as usize,
        size.seconds,
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

/// The size with the changes from the command line.
fn size(demo: Demo, args: &DemoRun) -> Result<Size> {
    let mut size = Size::named(demo, &args.size).with_context(|| format!("unknown size '{}'", args.size))?;
    size.runs = args.runs.map_or(size.runs, |runs| runs as usize);
    size.files = args.files.map_or(size.files, |files| files as usize);
    if let Some(seconds) = args.seconds {
        if !(0.05..=3600.0).contains(&seconds) {
            bail!("--seconds is {seconds}; it must be from 0.05 to 3600");
        }
        size.seconds = seconds;
    }
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
    fn show_progress(&self, text: &str, done: usize, total: usize) {
        let remaining = match done {
            0 => String::new(),
            _ => {
                let mean = self.start_time.elapsed() / u32::try_from(done).unwrap_or(u32::MAX);
                format!(
                    ", {} left",
                    rough_duration(mean * u32::try_from(total - done).unwrap_or(u32::MAX))
                )
            }
        };
        let line = format!("{} of {total}{remaining}: {text}", done + 1);
        match std::io::stderr().is_terminal() {
            true => output::write_err(format_args!("\r{line}\x1b[K")),
            false => errln!("{line}"),
        }
    }

    /// Writes the page from all rows, and prints the summary. After an error, the CSV file and the
    /// page get a note that the run is incomplete.
    fn close(&self, page_path: &Path, outcome: &Result<(), BenchError>) -> Result<()> {
        if std::io::stderr().is_terminal() {
            output::write_err(format_args!("\r\x1b[K"));
        }
        let mut record = self.record.clone();
        if let Err(e) = outcome {
            let note = format!("Everything: the run ended early ({e}).");
            (&self.csv)
                .write_all(Record::not_shown_line(&note).as_bytes())
                .with_context(|| format!("cannot write {}", self.csv_path.display()))?;
            record.not_shown.push(note);
        }
        write_page(&record, &self.csv_path, page_path)?;
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
