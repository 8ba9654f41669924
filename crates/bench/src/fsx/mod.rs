//! Random operations on one file through one or several mounts that take turns, compared with memory after each.
//!
//! What fsx does since 1991, with what a file system of several nodes needs besides: each step goes through a mount that the
//! seed chooses, and what it answers must be as if there were but one. What was written through a mapping is
//! written back before the turn passes on, as programs must do it.

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

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Chooses the operations.
    pub seed: u64,
    /// How many.
    pub operations: u32,
    /// With `O_DIRECT`: most offsets and lengths are multiples of 4096.
    pub direct: bool,
    /// Also through mappings.
    pub mapped: bool,
    /// The file stays smaller than this, but for one append.
    pub size_max: u64,
    /// Bytes of one operation.
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

/// How a difference is told.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    what: String,
    last: Vec<Step>,
    /// The fewest steps found that differ too, and what they say; nothing when the same steps did not differ again.
    shortened: Option<(Vec<Step>, String)>,
}

/// How many of the last steps are told.
const TOLD: usize = 20;
/// How many sequences, and how long, are tried to make a failure shorter.
const TRIALS_MAX: usize = 2000;
const SHORTENING_MAX: Duration = Duration::from_secs(60);

/// Runs the operations on the file that all of `paths` are; says what differed, if something did. `progress` is told now and then
/// how many operations are done.
pub fn fsx(
    paths: &[PathBuf],
    cfg: Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(u32),
) -> Result<Option<Failure>, BenchError> {
    let steps = step::steps(&cfg, paths.len());
    let mut run = begin(paths, cfg)?;
    for (i, step) in steps.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        if let Err(what) = run.step(*step) {
            drop(run);
            return Ok(Some(failure(paths, cfg, &steps[..=i], what)));
        }
        if step.number.is_multiple_of(cfg.operations.div_ceil(10)) {
            progress(step.number);
        }
    }
    let whole = run.whole();
    drop(run);
    Ok(whole.err().map(|what| failure(paths, cfg, &steps, what)))
}

fn begin(paths: &[PathBuf], cfg: Config) -> Result<Run, BenchError> {
    Run::new(paths, cfg).map_err(|e| BenchError::Operation {
        subject: "fsx".to_owned(),
        operation: "open",
        what: paths
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
        why: e.to_string(),
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// What differs when these steps are done anew.
fn replay(paths: &[PathBuf], cfg: Config, steps: &[Step]) -> Option<String> {
    let mut run = Run::new(paths, cfg).ok()?;
    steps
        .iter()
        .find_map(|step| run.step(*step).err())
        .or_else(|| run.whole().err())
}

fn failure(paths: &[PathBuf], cfg: Config, steps: &[Step], what: String) -> Failure {
    let begun = Instant::now();
    let again = replay(paths, cfg, steps);
    let shortened = again.map(|mut what| {
        let fewest = shrink(steps.to_vec(), TRIALS_MAX, |candidate| {
            let differs = (begun.elapsed() < SHORTENING_MAX).then(|| replay(paths, cfg, candidate));
            match differs.flatten() {
                Some(now) => {
                    what = now;
                    true
                }
                None => false,
            }
        });
        (fewest, what)
    });
    Failure {
        seed: cfg.seed,
        what,
        last: steps[steps.len().saturating_sub(TOLD)..].to_vec(),
        shortened,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        writeln!(f, "the last steps:")?;
        self.last.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        match &self.shortened {
            Some((steps, what)) => {
                writeln!(f, "these alone differ too ({what}):")?;
                steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
            }
            None => writeln!(f, "the same steps did not differ again"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn on(paths: &[PathBuf], cfg: Config) -> Option<Failure> {
        fsx(paths, cfg, &AtomicBool::new(false), |_| {}).unwrap()
    }

    #[test]
    fn one_file_by_two_paths_of_a_disk_is_as_it_must_be() {
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
            let failed = on(&[one.clone(), two.clone()], cfg);
            assert!(failed.is_none(), "direct {direct}: {}", failed.unwrap());
        }
    }

    #[test]
    fn paths_that_are_not_the_same_file_differ_and_few_steps_show_it() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::write(&two, "").unwrap();
        let failed = on(&[one, two], Config::default()).unwrap();
        let (steps, _) = failed.shortened.as_ref().unwrap();
        assert!(steps.len() <= 2, "{failed}");
        assert!(failed.to_string().contains("seed 1: "), "{failed}");
    }
}
