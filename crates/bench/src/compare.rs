//! The same load on several subjects in turn.

use crate::load::{self, Size};
use crate::subject::Subject;
use crate::{BenchError, Report};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Threads of the metadata load, each in a directory of its own.
    pub threads: usize,
    /// Files that each makes.
    pub files_per_thread: usize,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// How often everything is run.
    pub runs: usize,
}

/// Runs the load on each subject in turn, `runs` times. What `stop` interrupts is reported as far as it came,
/// with [`BenchError::Interrupted`] beside it; `progress` is told what comes next.
pub fn compare(
    subjects: &[Arc<dyn Subject>],
    cfg: Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str),
) -> (Report, Result<(), BenchError>) {
    let mut report = Report::default();
    let size = Size {
        threads: cfg.threads,
        files_per_thread: cfg.files_per_thread,
        stream_bytes: cfg.stream_bytes,
    };
    for run in 1..=cfg.runs {
        for subject in subjects {
            progress(&format!("run {run} of {}: {}", cfg.runs, subject.name()));
            let rows = load::metadata(subject, size, stop).and_then(|mut rows| {
                load::stream(subject, size)
                    .map(|more| rows.extend(more))
                    .map(|()| rows)
            });
            match rows {
                Ok(rows) => report.rows.extend(rows),
                Err(error) => return (report, Err(error)),
            }
        }
    }
    (report, Ok(()))
}
