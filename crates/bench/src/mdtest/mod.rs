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

/// Runs the tasks of this process to the end. What was interrupted, or failed, is reported as far as it came. The report
/// is that of rank 0: in other processes of the job there is none.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let Some(first) = tasks.first() else {
        return (None, Ok(()));
    };
    let (speaks, size) = (first.is_first(), first.team.size());
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let plan = match Plan::new(options, size) {
        Ok(plan) => plan,
        Err(e) => return (None, Err(e)),
    };
    let (mut brought, mut ended) = task::run_all(tasks, |task| {
        let mut run = Run::new(&plan, task);
        let ended = run.all();
        (run.brought, ended)
    });
    for (subject, brought) in subjects.iter().zip(&mut brought) {
        if let Err(e) = clean_up(subject, brought)
            && ended.is_ok()
        {
            ended = Err(e);
        }
    }
    let Some(first) = brought.into_iter().next().filter(|_| speaks) else {
        return (None, ended);
    };
    let report = Report {
        plan,
        tasks: size,
        nodes: first.nodes,
        iterations: first.iterations,
        figures: first.figures,
        stonewall: first.stonewall,
        wrong_reads: first.wrong_reads,
    };
    (Some(report), ended)
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
