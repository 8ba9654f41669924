//! mdtest: several tasks create, stat, read and remove directories and files, in one shared tree or in trees of their own.
//! Its options, names and tables are those of the mdtest of hpc/ior 4; beside rates it tells how long operations took
//! and what CPU time they cost. A tree that was made by a run that creates and was interrupted or failed is removed.

mod phases;
mod plan;
mod report;

use crate::subject::{Subject, remove_all};
use crate::task::{self, Task};
use crate::{BenchError, Figure};
use phases::Run;
pub use plan::Options;
use plan::Plan;
pub use report::{Report, Show};
use std::sync::Arc;

/// What one task brings home: figures only rank 0's, and the test directories that it made and that are still there.
#[derive(Default)]
struct Brought {
    figures: Vec<Figure>,
    stonewall: Option<(u64, f64)>,
    nodes: usize,
    iterations: usize,
    wrong_reads: u64,
    made: Vec<String>,
    made_root: bool,
}

/// Runs the tasks of this process to the end. What was interrupted, or failed, is reported as far as it came, and what it
/// made is removed. The report is that of rank 0: in other processes of the job there is none.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let mut reported = None;
    let ended = run_and_tell(options, tasks, |report| {
        reported = Some(report);
        Ok(())
    });
    (reported, ended)
}

/// The same, but the report is told before anything is removed, which may take long: who is in a hurry to end this process
/// has it then.
pub fn run_and_tell<E: From<BenchError>>(
    options: &Options,
    tasks: Vec<Task>,
    tell: impl FnOnce(Report) -> Result<(), E>,
) -> Result<(), E> {
    let Some(first) = tasks.first() else {
        return Ok(());
    };
    let (speaks, size) = (first.is_first(), first.team.size());
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let plan = Plan::new(options, size)?;
    let (mut brought, ended) = task::run_all(tasks, |task| {
        let mut run = Run::new(&plan, task);
        let ended = run.all();
        (run.brought, ended)
    });
    let told = match brought.first_mut().filter(|_| speaks) {
        Some(first) => tell(Report {
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
    let mut all = brought.iter_mut().zip(&subjects);
    let removed = all.try_for_each(|(brought, subject)| clean_up(subject, brought));
    told.and(Ok(ended.and(removed)?))
}

/// Removes what was made and not removed.
fn clean_up(subject: &Arc<dyn Subject>, brought: &mut Brought) -> Result<(), BenchError> {
    for dir in brought.made.drain(..) {
        remove_all(&**subject, "", &dir)?;
    }
    if brought.made_root {
        subject.remove_dir("", "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
