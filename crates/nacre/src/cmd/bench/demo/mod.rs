//! `nacre bench demo`: runs a published demonstration on servers that it starts, and writes rows
//! and a page, even after an interruption or an error.

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
    Demo, Event, ExperimentKind, Plan, Record, Resources, Size, machine, page, run as play, summary,
};
use cpt::Topology;

use super::load;
use super::{ScratchDir, stop_flag};
use crate::cli::{BenchDemo, DemoPage, DemoRun};
use crate::fd_limit;
use crate::instance::Store;
use crate::output::outln;
use stage::DemoStage;

/// Runs the command.
pub(super) fn run(args: &BenchDemo) -> Result<ExitCode> {
    match args {
        BenchDemo::Smp(args) => perform(Demo::Smp, args),
        BenchDemo::Pdo(args) => perform(Demo::Pdo, args),
        BenchDemo::Page(args) => redraw(args),
    }
}

/// Writes rows as they arrive, and finally the page.
struct RunLog {
    record: Record,
    csv: File,
    csv_at: PathBuf,
    start_time: Instant,
}

fn perform(demo: Demo, args: &DemoRun) -> Result<ExitCode> {
    fd_limit::raise();
    let size = size(demo, args)?;
    let plan = plan(demo, args, &size)?;
    let or_default = |path: &Option<PathBuf>, ending| {
        path.clone()
            .unwrap_or_else(|| format!("demo-{}.{ending}", demo.name()).into())
    };
    let (csv_at, page_at) = (or_default(&args.csv, "csv"), or_default(&args.page, "html"));
    let place = ScratchDir::new(args.dir.clone().unwrap_or_else(std::env::temp_dir))?;
    let record = Record {
        demo,
        facts: facts(args, &plan, &place.dir),
        not_shown: plan.not_shown.clone(),
        rows: Vec::new(),
    };
    let mut csv = File::create(&csv_at).with_context(|| format!("cannot write {}", csv_at.display()))?;
    csv.write_all(record.head().as_bytes())
        .with_context(|| format!("cannot write {}", csv_at.display()))?;
    let mut log = RunLog {
        record,
        csv,
        csv_at,
        start_time: Instant::now(),
    };
    let stop = stop_flag()?;
    let mut stage = DemoStage::new(
        &place.dir,
        args.store,
        args.osts as usize,
        size.seconds,
        stop.clone(),
    )?;
    let mut lost = None;
    let played = play(&plan, &mut stage, &stop, &mut |event| {
        if let Err(e) = log.record_event(event) {
            lost = Some(e);
            stop.store(true, Ordering::Relaxed);
        }
    });
    drop(stage);
    drop(place);
    log.close(&page_at, &played)?;
    match lost {
        Some(e) => Err(e),
        None => load::exit_code(played),
    }
}

fn size(demo: Demo, args: &DemoRun) -> Result<Size> {
    let mut size = Size::named(demo, &args.size).context("the size is unknown")?;
    size.runs = args.runs.map_or(size.runs, |runs| runs as usize);
    size.files = args.files.map_or(size.files, |files| files as usize);
    if let Some(seconds) = args.seconds {
        if !(0.05..=3600.0).contains(&seconds) {
            bail!("--seconds must be from 0.05 to 3600");
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
        let own: Vec<&str> = ExperimentKind::of(demo).iter().map(|k| k.name()).collect();
        bail!(
            "{} is not an experiment of {}: choose from {}",
            other.name(),
            demo.name(),
            own.join(", ")
        );
    }
    let topology = Topology::detect()?;
    let resources = Resources {
        cpus: topology.cpus().len(),
        published: cpt::published(&topology),
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
    let own = [
        ("program", format!("nacre {}{build}", env!("CARGO_PKG_VERSION"))),
        ("begun", format!("{} UTC", load::now())),
        (
            "size",
            format!(
                "{}: {} runs of each, {} measurements; {} OSTs for each file system",
                args.size,
                plan.runs,
                plan.measurements(),
                args.osts
            ),
        ),
        ("command", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
    ];
    facts.extend(own.map(|(name, value)| (name.to_owned(), value)));
    facts
}

impl RunLog {
    fn record_event(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Next { text, done, total } => self.show(&text, done, total),
            Event::Rows(rows) => {
                self.csv
                    .write_all(Record::lines(rows).as_bytes())
                    .with_context(|| format!("cannot write {}", self.csv_at.display()))?;
                self.record.rows.extend_from_slice(rows);
            }
        }
        Ok(())
    }

    /// Shows the next step and an estimate of the remaining time.
    fn show(&self, text: &str, done: usize, total: usize) {
        let left = match done {
            0 => String::new(),
            _ => {
                let each = self.start_time.elapsed() / u32::try_from(done).unwrap_or(u32::MAX);
                format!(
                    ", {} left",
                    rough_duration(each * u32::try_from(total - done).unwrap_or(u32::MAX))
                )
            }
        };
        let line = format!("{} of {total}{left}: {text}", done + 1);
        match std::io::stderr().is_terminal() {
            true => eprint!("\r{line}\x1b[K"),
            false => eprintln!("{line}"),
        }
    }

    /// Writes the page from all rows so far.
    fn close(&self, page_at: &Path, played: &Result<(), BenchError>) -> Result<()> {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        let mut record = self.record.clone();
        if let Err(e) = played {
            let what = format!("Everything: the run ended early ({e}).");
            (&self.csv)
                .write_all(Record::not_shown_line(&what).as_bytes())
                .with_context(|| format!("cannot write {}", self.csv_at.display()))?;
            record.not_shown.push(what);
        }
        write_page(&record, &self.csv_at, page_at)?;
        outln!("{}", summary(&record.rows));
        for what in &record.not_shown {
            outln!("not shown: {what}");
        }
        outln!("\nrows: {}\npage: {}", self.csv_at.display(), page_at.display());
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

fn write_page(record: &Record, rows_in: &Path, at: &Path) -> Result<()> {
    let name = rows_in.file_name().unwrap_or_default().to_string_lossy();
    fs::write(at, page(record, &name)).with_context(|| format!("cannot write {}", at.display()))
}

fn redraw(args: &DemoPage) -> Result<ExitCode> {
    let from = args.csv.display();
    let text = fs::read_to_string(&args.csv).with_context(|| format!("cannot read {from}"))?;
    let record = Record::parse(&text).map_err(|e| anyhow::anyhow!("{from}: {e}"))?;
    let at = args
        .page
        .clone()
        .unwrap_or_else(|| args.csv.with_extension("html"));
    write_page(&record, &args.csv, &at)?;
    outln!("page: {}", at.display());
    Ok(ExitCode::SUCCESS)
}
