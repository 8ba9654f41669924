//! The same loads on several subjects in turn.

use crate::cpu::settle;
use crate::load::{Desk, Load, Phase};
use crate::subject::Subject;
use crate::{BenchError, Report};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The subject that others are set beside, as well as the first: a pass-through FUSE file system.
pub const PASS_THROUGH: &str = "bindfs";

/// How long what works for the subjects may take to come to rest before a load.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// What is compared, and how much of it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tasks of the metadata loads, one load after the other.
    pub tasks: Vec<usize>,
    /// Each load also in one directory that its tasks share, not only in one for each.
    pub shared: bool,
    /// What is measured.
    pub only: Vec<Phase>,
    /// Files that each task makes.
    pub files_per_task: usize,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// How often everything is run.
    pub runs: usize,
}

impl Config {
    fn loads(&self) -> Vec<Load> {
        let directories: &[bool] = if self.shared { &[false, true] } else { &[false] };
        let files = directories.iter().flat_map(|&shared| {
            self.tasks.iter().map(move |&tasks| Load::Files {
                tasks,
                shared,
                each: self.files_per_task,
            })
        });
        files
            .chain([Load::Stream(self.stream_bytes)])
            .filter(|load| load.has(&self.only))
            .collect()
    }
}

/// Runs each load on each subject in turn, `runs` times. What `stop` interrupts is reported as far as it came,
/// with [`BenchError::Interrupted`] beside it; `progress` is told what comes next.
pub fn compare(
    subjects: &[Arc<dyn Subject>],
    cfg: &Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str),
) -> (Report, Result<(), BenchError>) {
    let mut report = Report::default();
    let mut processes: Vec<u32> = subjects.iter().flat_map(|s| s.processes()).copied().collect();
    processes.sort_unstable();
    processes.dedup();
    for run in 1..=cfg.runs {
        for load in cfg.loads() {
            for subject in subjects {
                progress(&format!("run {run} of {}: {load}: {}", cfg.runs, subject.name()));
                // What one load has left to be done is not to be done at the next one's expense.
                settle(&processes, SETTLE_MAX);
                let mut desk = Desk {
                    only: &cfg.only,
                    rows: &mut report.rows,
                    stop,
                };
                if let Err(error) = load.run(subject, &mut desk) {
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

    fn subject(name: &str, at: &std::path::Path) -> Arc<dyn Subject> {
        let root = at.join(name);
        std::fs::create_dir(&root).unwrap();
        Arc::new(PathSubject {
            name: name.to_owned(),
            root,
            processes: Vec::new(),
        })
    }

    #[test]
    fn every_load_runs_on_every_subject_and_leaves_nothing() {
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
        let (report, ended) = compare(&subjects, &cfg, &stop, |_| {});
        ended.unwrap();
        let summaries = report.summaries();
        // Three phases of four loads with files, and two of the stream, on three subjects.
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
        let (report, ended) = compare(&subjects, &cfg, &stop, |_| {});
        ended.unwrap();
        assert!(report.rows.iter().all(|r| r.phase == "stat/s"));
        assert_eq!(report.rows.len(), 4 * 3 * 2);
        assert!("statt".parse::<Phase>().is_err());
    }

    #[test]
    fn what_was_measured_before_an_interruption_is_kept() {
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
        let (report, ended) = compare(&subjects, &cfg, &stop, |next| {
            stop.store(next.starts_with("run 2"), Ordering::Relaxed);
        });
        assert!(matches!(ended, Err(BenchError::Interrupted)));
        assert_eq!(report.rows.len(), 5);
    }
}
