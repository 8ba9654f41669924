//! Runs simulations: many seeds, or one with its history. With `--whole`, a failing history is not
//! shrunk.

use std::process::ExitCode;
use std::time::Instant;

use cpt::Bug;
use sim::run::{CLIENTS, OSTS, Report, Settings, run};
use sim::shrink::shrink;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Shows a run.
fn show(report: &Report) -> String {
    let counts = &report.counts;
    let load = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    format!(
        "seed {} digest {:016x}: {:.0} s, {} frames ({} disturbed), {} callbacks, {} evicted, {} MiB, {} undecided, {}",
        report.settings.seed,
        report.digest,
        report.time.as_secs_f64(),
        load(&counts.frames),
        load(&counts.disturbed),
        load(&counts.callbacks),
        report.evicted,
        report.memory >> 20,
        report.findings.undecided,
        match report.findings.broken.len() {
            0 => "clean".to_owned(),
            n => format!("{n} BROKEN PROMISES"),
        }
    )
}

/// Virtual time and the number of the node, for the log.
struct VirtualTime;

impl FormatTime for VirtualTime {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{:10.4}", sim::system::elapsed().as_secs_f64())?;
        match cpt::NodeScope::current_id() {
            Some(node) => write!(w, " node {node}"),
            None => Ok(()),
        }
    }
}

/// Number of seeds in which each planted bug must be found.
const PLANTED_SEEDS: u64 = 100;

/// Plants each bug, and looks for it.
fn planted() -> ExitCode {
    let mut missed = 0;
    for bug in Bug::ALL {
        let found = (1..=PLANTED_SEEDS).find_map(|seed| {
            let report = run(&Settings {
                bug: Some(bug),
                ..Settings::of(seed)
            });
            let broken = report.findings.broken.first()?.clone();
            Some((seed, broken))
        });
        match found {
            Some((seed, broken)) => {
                let line = broken.lines().next().unwrap_or_default();
                println!("{bug}: found by seed {seed}: {line}");
            }
            None => {
                println!("{bug}: NOT FOUND in {PLANTED_SEEDS} seeds");
                missed += 1;
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)
    };
    let number = |name: &str| word(name)?.parse::<u64>().ok();
    // Lost data and evictions are the business of a simulation: without RUST_LOG the log is empty.
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_timer(VirtualTime)
        .with_ansi(false)
        .init();
    if let Some(seed) = number("--seed") {
        let settings = Settings {
            bug: word("--bug").and_then(|name| Bug::ALL.into_iter().find(|bug| bug.to_string() == *name)),
            ..Settings::of(seed)
        };
        let mut report = run(&settings);
        if !report.findings.broken.is_empty() && !report.is_stuck && !args.iter().any(|arg| arg == "--whole") {
            println!("{}; shrinking", show(&report));
            report = shrink(&settings, (1 + OSTS..1 + OSTS + CLIENTS).map(|id| id as u8));
        }
        print!("{}", report.history);
        println!("{}", show(&report));
        report.findings.broken.iter().for_each(|text| println!("{text}"));
        return ExitCode::from(u8::from(!report.findings.broken.is_empty()));
    }
    if args.iter().any(|arg| arg == "--planted") {
        return planted();
    }
    let (first, seeds) = (number("--first").unwrap_or(1), number("--seeds").unwrap_or(10));
    let quiet = args.iter().any(|arg| arg == "--quiet");
    let begin = Instant::now();
    let mut broken = 0;
    for seed in first..first + seeds {
        let report = run(&Settings::of(seed));
        if !quiet || !report.findings.broken.is_empty() {
            println!("{}", show(&report));
        }
        for text in &report.findings.broken {
            println!("  {text}");
        }
        broken += u32::from(!report.findings.broken.is_empty());
    }
    let rate = seeds as f64 / begin.elapsed().as_secs_f64();
    println!("{seeds} seeds, {broken} broken, {rate:.2} seeds per second");
    ExitCode::from(u8::from(broken > 0))
}
