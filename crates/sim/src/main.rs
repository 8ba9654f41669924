//! Runs simulations: many seeds, or one with its history. With `--whole`, a failing history is not
//! shrunk. `--mdts N` sets the number of MDTs. With `--dom`, files have their data on the MDT.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use cpt::Bug;
use sim::run::{Report, Settings, run};
use sim::shrink::shrink;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Describes a run in one line.
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

/// Runs a seed in a process of its own, so that no earlier run influences it: tokio counts the
/// runtimes of a process, and its random numbers depend on the count. Returns the output, and
/// whether the run broke a promise.
fn run_in_own_process(seed: u64, mdts: u32, dom: bool, bug: Option<Bug>) -> std::io::Result<(String, bool)> {
    let mut run = Command::new(std::env::current_exe()?);
    run.args(["--run", &seed.to_string(), "--mdts", &mdts.to_string()])
        .stderr(Stdio::inherit());
    if dom {
        run.arg("--dom");
    }
    if let Some(bug) = bug {
        run.args(["--bug", &bug.to_string()]);
    }
    let output = run.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((text, !output.status.success()))
}

/// Plants each bug, and runs seeds until one finds the bug. Fails if a bug is not found.
fn planted() -> std::io::Result<ExitCode> {
    let mut missed = 0;
    for bug in Bug::ALL {
        let mut found = None;
        for seed in 1..=PLANTED_SEEDS {
            let (text, broken) = run_in_own_process(seed, 1, false, Some(bug))?;
            if broken {
                found = Some((seed, text));
                break;
            }
        }
        match found {
            Some((seed, text)) => {
                let line = text.lines().nth(1).unwrap_or(&text).trim();
                println!("{bug}: found by seed {seed}: {line}");
            }
            None => {
                println!("{bug}: NOT FOUND in {PLANTED_SEEDS} seeds");
                missed += 1;
            }
        }
    }
    Ok(ExitCode::from(u8::from(missed > 0)))
}

fn main() -> std::io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let word = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)
    };
    let number = |name: &str| word(name)?.parse::<u64>().ok();
    // Each simulation causes lost data and evictions, and would log them: without RUST_LOG the log
    // is empty.
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_timer(VirtualTime)
        .with_ansi(false)
        .init();
    let bug = word("--bug").and_then(|name| Bug::ALL.into_iter().find(|bug| bug.to_string() == *name));
    let mdts = number("--mdts")
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(1)
        .max(1);
    let dom = args.iter().any(|arg| arg == "--dom");
    let settings_of = |seed| Settings {
        bug,
        mdts,
        data_on_mdt: dom,
        ..Settings::of(seed)
    };
    if let Some(seed) = number("--run") {
        let report = run(&settings_of(seed));
        println!("{}", show(&report));
        report
            .findings
            .broken
            .iter()
            .for_each(|text| println!("  {text}"));
        return Ok(ExitCode::from(u8::from(!report.findings.broken.is_empty())));
    }
    if let Some(seed) = number("--seed") {
        let settings = settings_of(seed);
        let mut report = run(&settings);
        if !report.findings.broken.is_empty() && !report.is_stuck && !args.iter().any(|arg| arg == "--whole")
        {
            println!("{}; shrinking", show(&report));
            report = shrink(&settings, settings.size().client_ids().map(|id| id as u8));
        }
        print!("{}", report.history);
        println!("{}", show(&report));
        report.findings.broken.iter().for_each(|text| println!("{text}"));
        return Ok(ExitCode::from(u8::from(!report.findings.broken.is_empty())));
    }
    if args.iter().any(|arg| arg == "--planted") {
        return planted();
    }
    let (first, seeds) = (number("--first").unwrap_or(1), number("--seeds").unwrap_or(10));
    let quiet = args.iter().any(|arg| arg == "--quiet");
    let begin = Instant::now();
    let mut broken = 0;
    for seed in first..first + seeds {
        let (text, is_broken) = run_in_own_process(seed, mdts, dom, bug)?;
        if !quiet || is_broken {
            print!("{text}");
        }
        broken += u32::from(is_broken);
    }
    let rate = seeds as f64 / begin.elapsed().as_secs_f64();
    println!("{seeds} seeds, {broken} broken, {rate:.2} seeds per second");
    Ok(ExitCode::from(u8::from(broken > 0)))
}
