//! `nacre bench` without a subcommand: runs the same loads on several subjects in turn.

use crate::cpu::wait_until_idle;
use crate::load::{Load, LoadContext, Phase};
use crate::subject::Subject;
use crate::{BenchError, Report};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Name of the pass-through FUSE file system, which the report uses as a second reference.
pub const PASS_THROUGH: &str = "bindfs";

/// The longest wait for the subjects' processes to become idle before a load.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The loads of a comparison.
#[derive(Clone, Debug)]
pub struct Config {
    /// Numbers of tasks of the metadata loads; each number is a load of its own.
    pub tasks: Vec<usize>,
    /// Run each metadata load also with one directory shared by all tasks.
    pub shared: bool,
    /// The phases to measure. Phases that they depend on run too.
    pub only: Vec<Phase>,
    /// Files created by each task.
    pub files_per_task: usize,
    /// Size of the streamed file in bytes, rounded down to whole MiB.
    pub stream_bytes: u64,
    /// Number of runs.
    pub runs: usize,
}

impl Config {
    fn loads(&self) -> Vec<Load> {
        let directories: &[bool] = if self.shared { &[false, true] } else { &[false] };
        let files = directories.iter().flat_map(|&shared| {
            self.tasks.iter().map(move |&tasks| Load::Files {
                tasks,
                shared,
                files_per_task: self.files_per_task,
            })
        });
        files
            .chain([Load::Stream(self.stream_bytes)])
            .filter(|load| load.has_any_phase(&self.only))
            .collect()
    }
}

/// Runs each load on each subject in turn, `runs` times. `progress` gets a description of each load
/// before the load starts, and how many of how many loads are done. The report has all measurements
/// so far even after an error, which is [`BenchError::Interrupted`] if `stop` was set.
pub fn compare(
    subjects: &[Arc<dyn Subject>],
    cfg: &Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str, usize, usize),
) -> (Report, Result<(), BenchError>) {
    let mut report = Report::default();
    let mut processes: Vec<u32> = subjects.iter().flat_map(|s| s.processes()).copied().collect();
    processes.sort_unstable();
    processes.dedup();
    let (mut done, total) = (0, cfg.runs * cfg.loads().len() * subjects.len());
    for run in 1..=cfg.runs {
        for load in cfg.loads() {
            for subject in subjects {
                let text = format!("run {run} of {}: {load}: {}", cfg.runs, subject.name());
                progress(&text, done, total);
                done += 1;
                // Background work left by one load must not slow down the next one.
                wait_until_idle(&processes, IDLE_WAIT_MAX);
                let mut context = LoadContext {
                    only: &cfg.only,
                    rows: &mut report.rows,
                    stop,
                };
                if let Err(error) = load.run(subject, &mut context) {
                    return (report, Err(error));
                }
            }
        }
    }
    (report, Ok(()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::PathSubject;
    use std::sync::atomic::Ordering;

    fn subject(name: &str, dir: &std::path::Path) -> Arc<dyn Subject> {
        let root = dir.join(name);
        std::fs::create_dir(&root).unwrap();
        Arc::new(PathSubject {
            name: name.to_owned(),
            root,
            processes: Vec::new(),
            drop_caches: None,
        })
    }

    #[test]
    fn every_load_runs_on_every_subject_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let subjects = ["disk", PASS_THROUGH, "other"].map(|name| subject(name, dir.path()));
        let mut cfg = Config {
            tasks: vec![1, 3],
            shared: true,
            only: Phase::ALL.to_vec(),
            files_per_task: 5,
            stream_bytes: 2 << 20,
            runs: 2,
        };
        let stop = AtomicBool::new(false);
        let (report, outcome) = compare(&subjects, &cfg, &stop, |_, _, _| {});
        outcome.unwrap();
        let summaries = report.summaries();
        // Three subjects; three phases of four loads with files, and two phases of the stream.
        assert_eq!(summaries.len(), (3 * 4 + 2) * 3);
        assert!(
            summaries
                .iter()
                .all(|s| s.runs == 2 && s.of_pass_through.is_some())
        );
        for subject in &subjects {
            assert!(subject.list("").unwrap().is_empty());
        }
        assert!(
            report.to_string().contains("| create/s | 3 | shared | disk |"),
            "{report}"
        );

        cfg.only = vec!["stat".parse().unwrap()];
        let (report, outcome) = compare(&subjects, &cfg, &stop, |_, _, _| {});
        outcome.unwrap();
        assert!(report.rows.iter().all(|r| r.phase == "stat/s"));
        assert_eq!(report.rows.len(), 4 * 3 * 2);
        assert!("statt".parse::<Phase>().is_err());
    }

    #[test]
    fn measurements_before_an_interruption_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let subjects = [subject("disk", dir.path())];
        let cfg = Config {
            tasks: vec![2],
            shared: false,
            only: Phase::ALL.to_vec(),
            files_per_task: 5,
            stream_bytes: 1 << 20,
            runs: 3,
        };
        let stop = AtomicBool::new(false);
        let (report, outcome) = compare(&subjects, &cfg, &stop, |next, _, _| {
            stop.store(next.starts_with("run 2"), Ordering::Relaxed);
        });
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        assert_eq!(report.rows.len(), 5);
    }

    #[test]
    fn stream_ends_after_an_interruption() {
        let dir = tempfile::tempdir().unwrap();
        let subjects = [subject("disk", dir.path())];
        let cfg = Config {
            tasks: vec![1],
            shared: false,
            only: vec![Phase::Write, Phase::Read],
            files_per_task: 1,
            stream_bytes: 2 << 20,
            runs: 2,
        };
        let stop = AtomicBool::new(false);
        let (report, outcome) = compare(&subjects, &cfg, &stop, |next, _, _| {
            stop.store(next.starts_with("run 2"), Ordering::Relaxed);
        });
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        assert_eq!(report.rows.len(), 2, "the second run has no row");
    }
}
