//! Runs the tests: builds all test binaries, runs each in processes of its own, several at a time, and says at any moment which
//! tests run and how many are left.
//!
//! A unit test binary is one process. Every integration test is a process of its own. As root each process has its own network, mount and
//! process namespaces, so that tests share no address, mount or `/run/nacre`, and nothing outlives a test. Tests that mount file
//! systems wait more than they compute, so they run beside the others. The longest of the last run begin first.

mod build;
mod isolation;
mod job;
mod progress;
mod times;

use std::process::Command;
use std::time::Duration;

use build::{Binary, binaries};
use isolation::Isolation;
use job::{Job, Running};
use progress::Progress;
use times::Times;

/// A job that runs for longer has hung, and is killed.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// How often running jobs are looked at.
const TICK: Duration = Duration::from_millis(10);

/// What the command line selects.
#[derive(Default)]
struct Options {
    /// Crates; all when empty.
    packages: Vec<String>,
    /// A test runs when its full name contains one of these; all when empty.
    filters: Vec<String>,
    /// How many jobs of a kind run at once.
    jobs: Option<usize>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "-p" | "--package" => options.packages.push(value()?.clone()),
                "-j" | "--jobs" => {
                    let jobs = value()?.parse().ok().filter(|n| *n > 0);
                    options.jobs = Some(jobs.ok_or("--jobs needs a number above 0")?);
                }
                _ if arg.starts_with('-') => {
                    return Err(format!(
                        "{arg} is not known: test [-p CRATE]... [--jobs N] [FILTER]..."
                    ));
                }
                _ => options.filters.push(arg.clone()),
            }
        }
        Ok(options)
    }

    /// Whether a test of this full name was selected.
    fn select(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.as_str()))
    }
}

/// Whether tests of this crate need what `cargo xtask setup` installs.
pub(crate) fn needs_programs(args: &[String]) -> bool {
    Options::parse(args).is_ok_and(|o| {
        o.packages.is_empty()
            || o.packages
                .iter()
                .any(|p| ["nacre", "capi", "fuse", "bench"].contains(&p.as_str()))
    })
}

/// Builds and runs the selected tests. Its last line is `N passed, N failed`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    let isolation = Isolation::probe();
    let mut jobs = Vec::new();
    for binary in binaries(&options.packages)? {
        jobs.extend(jobs_of(&binary, &options)?);
    }
    let mut times = Times::load();
    // The last of the list begins first.
    jobs.sort_by_key(|job| times.of(&job.label).unwrap_or(Duration::MAX));
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    // Tests that share the machine's network take addresses by their process ids, which may meet.
    let at_once = match isolation {
        Isolation::Namespaces => cpus.max(2),
        Isolation::None => 1,
    };
    let at_once = options.jobs.unwrap_or(at_once);
    let failed = run_all(jobs, at_once, &isolation, &mut times);
    times.save();
    match failed? {
        0 => Ok(()),
        _ => Err(String::new()),
    }
}

/// The jobs for the selected tests of a binary.
fn jobs_of(binary: &Binary, options: &Options) -> Result<Vec<Job>, String> {
    let all = tests_of(binary)?;
    let full = |test: &String| format!("{} {} {test}", binary.package, binary.name);
    let selected: Vec<String> = all.iter().filter(|t| options.select(&full(t))).cloned().collect();
    Ok(if selected.is_empty() {
        Vec::new()
    } else if binary.unit {
        let all_of_it = selected.len() == all.len();
        vec![Job::unit(binary, selected, all_of_it)]
    } else {
        selected
            .into_iter()
            .map(|test| Job::integration(binary, test))
            .collect()
    })
}

/// The names of a binary's tests.
fn tests_of(binary: &Binary) -> Result<Vec<String>, String> {
    let listed = Command::new(&binary.path)
        .args(["--list", "--format", "terse"])
        .current_dir(&binary.dir)
        .output()
        .map_err(|e| format!("!!! cannot run {}: {e}", binary.path.display()))?;
    if !listed.status.success() {
        return Err(format!("!!! {} does not list its tests", binary.path.display()));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    Ok(text
        .lines()
        .filter_map(|l| l.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

/// Runs the jobs from the last to the first; gives how many tests failed.
fn run_all(
    mut jobs: Vec<Job>,
    at_once: usize,
    isolation: &Isolation,
    times: &mut Times,
) -> Result<usize, String> {
    let mut progress = Progress::new(jobs.iter().map(|j| j.tests.len()).sum());
    let mut running: Vec<Running> = Vec::new();
    loop {
        for mounts in [true, false] {
            while running.iter().filter(|r| r.job.mounts == mounts).count() < at_once {
                let Some(next) = jobs.iter().rposition(|j| j.mounts == mounts) else {
                    break;
                };
                running.push(jobs.remove(next).start(isolation)?);
            }
        }
        if running.is_empty() {
            return Ok(progress.finish());
        }
        std::thread::sleep(TICK);
        let mut i = 0;
        while i < running.len() {
            match running[i].ended(LIMIT)? {
                Some(end) => {
                    let ended = running.swap_remove(i);
                    times.set(&ended.job.label, ended.begun.elapsed());
                    progress.ended(&ended, end);
                }
                None => i += 1,
            }
        }
        progress.show(&running);
    }
}
