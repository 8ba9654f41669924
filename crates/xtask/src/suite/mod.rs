//! Runs the tests: builds all test binaries, runs them in several processes at a time, and shows
//! the running tests and the number of remaining ones.
//!
//! A unit test binary is one process; every integration test is a separate process. As root, each
//! process has its own network, mount and PID namespaces, so tests share no address, mount or
//! `/run/nacre`, and leave no process behind. Tests that mount file systems mostly wait, so they
//! run in addition to the others. Tests without a time from a previous run start first, then those
//! with the longest time.

mod build;
mod isolation;
mod job;
mod progress;
mod times;

use std::process::Command;
use std::time::Duration;

use build::{Binary, build_binaries};
use isolation::Isolation;
use job::{Job, RunningJob};
use progress::Progress;
use times::Times;

/// Time limit of a job.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Polling interval of running jobs.
const TICK: Duration = Duration::from_millis(10);

/// The selection of the command line.
#[derive(Default)]
struct Options {
    /// Crates to test; empty for all.
    packages: Vec<String>,
    /// Parts of full test names to run; empty for all.
    filters: Vec<String>,
    /// Number of jobs of each kind (mounting, others) that run concurrently.
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
                        "unknown option {arg}: expected test [-p CRATE]... [--jobs N] [PART OF A NAME]..."
                    ));
                }
                _ => options.filters.push(arg.clone()),
            }
        }
        Ok(options)
    }

    /// Whether the test with this full name was selected.
    fn selects(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|f| name.contains(f.as_str()))
    }
}

/// Whether these tests need the programs of `cargo xtask setup`.
pub(crate) fn needs_programs(args: &[String]) -> bool {
    Options::parse(args).is_ok_and(|o| {
        o.packages.is_empty()
            || o.packages
                .iter()
                .any(|p| ["nacre", "capi", "fuse", "bench"].contains(&p.as_str()))
    })
}

/// Builds and runs the selected tests. The last line of output is `N passed, N failed`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    let isolation = Isolation::probe();
    let mut jobs = Vec::new();
    for binary in build_binaries(&options.packages)? {
        jobs.extend(jobs_of(&binary, &options)?);
    }
    let mut times = Times::load();
    // Jobs start from the end of the list.
    jobs.sort_by_key(|job| times.get(&job.label).unwrap_or(Duration::MAX));
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    // Without namespaces, concurrent tests might use the same addresses.
    let concurrency = match isolation {
        Isolation::Namespaces => cpus.max(2),
        Isolation::None => 1,
    };
    let concurrency = options.jobs.unwrap_or(concurrency);
    let failed = run_all(jobs, concurrency, &isolation, &mut times);
    times.save();
    match failed? {
        0 => Ok(()),
        _ => Err(String::new()),
    }
}

/// Jobs for the selected tests of a binary.
fn jobs_of(binary: &Binary, options: &Options) -> Result<Vec<Job>, String> {
    let all = tests_of(binary)?;
    let full_name = |test: &String| format!("{} {} {test}", binary.package, binary.name);
    let selected: Vec<String> = all
        .iter()
        .filter(|t| options.selects(&full_name(t)))
        .cloned()
        .collect();
    Ok(if selected.is_empty() {
        Vec::new()
    } else if binary.has_unit_tests {
        let is_whole = selected.len() == all.len();
        vec![Job::unit_tests(binary, selected, is_whole)]
    } else {
        selected
            .into_iter()
            .map(|test| Job::integration_test(binary, test))
            .collect()
    })
}

/// Names of all tests in a binary.
fn tests_of(binary: &Binary) -> Result<Vec<String>, String> {
    let list = Command::new(&binary.path)
        .args(["--list", "--format", "terse"])
        .current_dir(&binary.dir)
        .output()
        .map_err(|e| format!("!!! cannot run {}: {e}", binary.path.display()))?;
    if !list.status.success() {
        return Err(format!("!!! {} cannot list its tests", binary.path.display()));
    }
    let text = String::from_utf8_lossy(&list.stdout);
    Ok(text
        .lines()
        .filter_map(|l| l.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

/// Runs the jobs from the last to the first. Returns the number of failed tests.
fn run_all(
    mut jobs: Vec<Job>,
    concurrency: usize,
    isolation: &Isolation,
    times: &mut Times,
) -> Result<usize, String> {
    let mut progress = Progress::new(jobs.iter().map(|j| j.tests.len()).sum());
    let mut running: Vec<RunningJob> = Vec::new();
    loop {
        for mounts in [true, false] {
            while running.iter().filter(|r| r.job.mounts == mounts).count() < concurrency {
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
            match running[i].try_finish(LIMIT)? {
                Some(result) => {
                    let ended = running.swap_remove(i);
                    times.set(&ended.job.label, ended.start_time.elapsed());
                    progress.record(&ended, result);
                }
                None => i += 1,
            }
        }
        progress.show(&running);
    }
}
