//! Random operations on one file through several mounts in turn, compared with a copy in memory
//! after each operation.
//!
//! The test follows fsx of 1991, extended for cluster file systems: the seed chooses the mount of
//! each step, and results must be the same as with one mount. The test writes back data that it
//! wrote through a mapping before it uses another mount, as POSIX requires of programs.

mod file;
mod run;
mod shadow;
mod step;

use crate::BenchError;
use crate::shrink::shrink;
use run::Run;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use step::Step;

/// The configuration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Seed of the random operations.
    pub seed: u64,
    /// Number of operations.
    pub operations: u32,
    /// Use `O_DIRECT`; nine of ten steps then have offsets and lengths that are multiples of 4096.
    pub direct: bool,
    /// Also use mappings.
    pub mapped: bool,
    /// Size limit of the file, bytes. One append may exceed it.
    pub size_max: u64,
    /// The longest operation, bytes.
    pub length_max: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 1,
            operations: 10_000,
            direct: false,
            mapped: false,
            size_max: 1 << 20,
            length_max: 16 << 10,
        }
    }
}

/// A difference between the file and the copy in memory.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    /// Description of the difference.
    difference: String,
    /// The last steps, at most [`STEPS_SHOWN`].
    last_steps: Vec<Step>,
    /// The shortest sequence of steps found that still fails, and its difference; `None` if the
    /// failure did not recur.
    shortened: Option<(Vec<Step>, String)>,
}

/// Maximum number of last steps in the report.
const STEPS_SHOWN: usize = 20;
/// Maximum number of step sequences that the shortening of a failure tries.
const TRIALS_MAX: usize = 2000;
/// Time limit of the shortening of a failure.
const SHORTENING_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the operations on a file; `paths` are the file's paths, one through each mount. Returns the
/// first difference. `progress` gets the number of completed operations after each tenth of them.
///
/// # Errors
///
/// The file cannot be opened, or [`BenchError::Interrupted`].
pub fn fsx(
    paths: &[PathBuf],
    cfg: Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(u32),
) -> Result<Option<Failure>, BenchError> {
    let steps = step::steps(&cfg, paths.len());
    let mut run = open_run(paths, cfg)?;
    for (i, step) in steps.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        if let Err(difference) = run.step(*step) {
            drop(run);
            return Ok(Some(shorten_failure(paths, cfg, &steps[..=i], difference)));
        }
        if step.number.is_multiple_of(cfg.operations.div_ceil(10)) {
            progress(step.number);
        }
    }
    let outcome = run.check_whole_file();
    drop(run);
    let failure = |difference| shorten_failure(paths, cfg, &steps, difference);
    Ok(outcome.err().map(failure))
}

fn open_run(paths: &[PathBuf], cfg: Config) -> Result<Run, BenchError> {
    Run::new(paths, cfg).map_err(|e| BenchError::Operation {
        subject: "fsx".to_owned(),
        operation: "open",
        object: paths
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
        reason: e.to_string(),
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// Empties the file and repeats the steps. Returns the difference; `None` if there is none or the
/// file cannot be opened.
fn replay(paths: &[PathBuf], cfg: Config, steps: &[Step]) -> Option<String> {
    let mut run = Run::new(paths, cfg).ok()?;
    steps
        .iter()
        .find_map(|step| run.step(*step).err())
        .or_else(|| run.check_whole_file().err())
}

/// Describes a failure, with the shortest failing sequence that is found in time.
fn shorten_failure(paths: &[PathBuf], cfg: Config, steps: &[Step], difference: String) -> Failure {
    let start_time = Instant::now();
    let recurring_difference = replay(paths, cfg, steps);
    let shortened = recurring_difference.map(|mut last_difference| {
        let fewest = shrink(steps.to_vec(), TRIALS_MAX, |candidate| {
            let in_time = start_time.elapsed() < SHORTENING_TIME_MAX;
            match in_time.then(|| replay(paths, cfg, candidate)).flatten() {
                Some(difference) => {
                    last_difference = difference;
                    true
                }
                None => false,
            }
        });
        (fewest, last_difference)
    });
    Failure {
        seed: cfg.seed,
        difference,
        last_steps: steps[steps.len().saturating_sub(STEPS_SHOWN)..].to_vec(),
        shortened,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.difference)?;
        writeln!(f, "the last steps:")?;
        self.last_steps
            .iter()
            .try_for_each(|step| writeln!(f, "  {step}"))?;
        match &self.shortened {
            Some((steps, difference)) => {
                writeln!(f, "shortest failing sequence ({difference}):")?;
                steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
            }
            None => writeln!(f, "the failure did not recur with the same steps"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run_fsx(paths: &[PathBuf], cfg: Config) -> Option<Failure> {
        fsx(paths, cfg, &AtomicBool::new(false), |_| {}).unwrap()
    }

    #[test]
    fn local_file_with_two_paths_passes() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&one, "").unwrap();
        std::fs::hard_link(&one, &two).unwrap();
        for (direct, mapped) in [(false, false), (true, false), (false, true), (true, true)] {
            let cfg = Config {
                operations: 2000,
                direct,
                mapped,
                ..Config::default()
            };
            let failure = run_fsx(&[one.clone(), two.clone()], cfg);
            assert!(failure.is_none(), "direct {direct}: {}", failure.unwrap());
        }
    }

    #[test]
    fn different_files_fail_and_the_failure_is_shortened() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&two, "").unwrap();
        let failure = run_fsx(&[one, two], Config::default()).unwrap();
        let (steps, _) = failure.shortened.as_ref().unwrap();
        assert!(steps.len() <= 2, "{failure}");
        assert!(failure.to_string().contains("seed 1: "), "{failure}");
    }
}
