//! mdtest: several tasks create, stat, read and remove directories and files, in one shared tree or
//! in separate trees. Options, names and tables follow mdtest of hpc/ior 4; latencies and CPU time
//! are additions. If a run with a create phase is interrupted or fails, it removes the test
//! directories that it created.

mod phases;
mod plan;
mod report;

use crate::subject::{Subject, remove_tree};
use crate::task::{self, Task};
use crate::{BenchError, Figure};
use phases::TaskRun;
pub use plan::Options;
use plan::Plan;
pub use report::{Report, ReportOptions};
use std::sync::Arc;

/// The result of one task.
#[derive(Default)]
struct TaskResult {
    /// The figures of all phases; empty for tasks other than rank 0.
    figures: Vec<Figure>,
    /// Number of files that all tasks created until the stonewall, and the seconds until then, both
    /// summed over the iterations. `None` for tasks other than rank 0.
    stonewall: Option<(u64, f64)>,
    /// Number of machines that the tasks run on.
    nodes: usize,
    /// Number of iterations, including an incomplete one.
    iterations: usize,
    /// Number of reads with wrong content, of all tasks.
    wrong_reads: u64,
    /// Test directories that the task created, and that the clean-up must remove.
    dirs_to_clean_up: Vec<String>,
    /// Whether the task created the root of its subject, and the clean-up must remove the root.
    root_to_clean_up: bool,
}

/// Runs the tasks of this process. After an interruption or failure, the report has the completed
/// phases and an interrupted one, and the created test directories are removed. Only the process
/// with rank 0 gets a report.
///
/// # Errors
///
/// Invalid options, a failed operation, or an interruption.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let mut reported = None;
    let outcome = run_with_report(options, tasks, |report| {
        reported = Some(report);
        Ok(())
    });
    (reported, outcome)
}

/// Like [`run`], but passes the report to `on_report` before the clean-up, which may take long and
/// which a second interruption may cut short.
///
/// # Errors
///
/// As for [`run`], and the errors of `on_report`.
pub fn run_with_report<E: From<BenchError>>(
    options: &Options,
    tasks: Vec<Task>,
    on_report: impl FnOnce(Report) -> Result<(), E>,
) -> Result<(), E> {
    let Some(first) = tasks.first() else {
        return Ok(());
    };
    let (is_rank_0, size) = (first.is_first(), first.comm.size());
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let plan = Plan::new(options, size)?;
    let (mut results, outcome) = task::run_all(tasks, |task| {
        let mut run = TaskRun::new(&plan, task);
        let outcome = run.run();
        (run.result, outcome)
    });
    let reported = match results.first_mut().filter(|_| is_rank_0) {
        Some(first) => on_report(Report {
            plan,
            tasks: size,
            nodes: first.nodes,
            iterations: first.iterations,
            figures: std::mem::take(&mut first.figures),
            stonewall: first.stonewall,
            wrong_reads: first.wrong_reads,
        }),
        None => Ok(()),
    };
    let mut results = results.iter_mut().zip(&subjects);
    let removed = results.try_for_each(|(result, subject)| clean_up(subject, result));
    reported.and(Ok(outcome.and(removed)?))
}

/// Removes the directories that a task left to the clean-up.
fn clean_up(subject: &Arc<dyn Subject>, result: &mut TaskResult) -> Result<(), BenchError> {
    for dir in result.dirs_to_clean_up.drain(..) {
        remove_tree(&**subject, "", &dir)?;
    }
    if result.root_to_clean_up {
        subject.remove_dir("", "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
