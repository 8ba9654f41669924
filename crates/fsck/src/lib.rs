//! Checks the targets of a file system that is not running, and repairs them.
//!
//! Each kind of target examines its own store ([`mgs::check`], [`mdt::check`], [`ost::check`]).
//! This crate adds the comparison between targets: the layouts of files against the objects of the
//! OSTs ([`cross`]). A check without repair changes nothing. A repair begins with the files of the
//! indexes. Then it runs in rounds: it repairs each problem, and examines everything again, because
//! one problem can hide another.

mod cross;
mod repair;
mod targets;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use osd::{
    OsdError,
    check::{Finding, Progress},
    target::TargetError,
};
use wire::OstIndex;

pub use targets::Targets;

/// Maximum number of repair rounds.
const ROUNDS_MAX: usize = 10;

/// Errors that stop a check.
#[derive(Debug, thiserror::Error)]
pub enum FsckError {
    /// A target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A store cannot be read.
    #[error("{target}: {source}")]
    Store {
        /// The target.
        target: String,
        /// The cause.
        source: OsdError,
    },
    /// The targets are not of one file system.
    #[error("{}: target of file system '{found}', the others are of '{expected}': check one file system at a time", path.display())]
    OtherFileSystem {
        /// The target's directory.
        path: PathBuf,
        /// The target's file system.
        found: String,
        /// The file system of the other targets.
        expected: String,
    },
    /// Two directories hold the same target.
    #[error("{}: there is another {svname} among the targets: leave one out", path.display())]
    DuplicateTarget {
        /// The target's directory.
        path: PathBuf,
        /// The target.
        svname: String,
    },
    /// The user interrupted the check.
    #[error("interrupted; {0}")]
    Interrupted(&'static str),
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Targets that were checked.
    pub targets: Vec<String>,
    /// Parts that could not be checked, as sentences for the user.
    pub unchecked: Vec<String>,
    /// Numbers of inodes, names and other records; of all MDTs together; all 0 without one.
    pub counts: mdt::check::Counts,
    /// Objects found, on all OSTs.
    pub objects: u64,
    /// Number of findings, including the repaired ones.
    pub found: u64,
    /// Number of findings that remain.
    pub left: u64,
}

/// One finding, as passed to the caller's callback.
pub struct Report<'a> {
    /// The target's name.
    pub target: &'a str,
    /// The finding.
    pub finding: &'a Finding,
    /// The result of the repair; `None` if no repair was attempted.
    pub repaired: Option<Result<(), String>>,
}

/// Checks targets and, with `repair`, repairs them. Calls `report` once for each finding. With
/// `repair`, a repaired finding is reported after its repair, and a remaining one after the last
/// round.
///
/// # Errors
///
/// [`FsckError::Interrupted`] if the user stopped the check; [`FsckError::Store`] if a store cannot
/// be opened, read or synced.
pub async fn check(
    targets: &Targets,
    repair: bool,
    progress: &Progress,
    report: &mut (dyn FnMut(Report<'_>) + Send),
) -> Result<Summary, FsckError> {
    let mut summary = Summary::default();
    let mut damaged = targets.damaged_files(progress)?;
    if repair {
        targets.repair_files(&damaged, progress)?;
    }
    for problem in &damaged {
        report(Report {
            target: &problem.target,
            finding: &problem.finding,
            repaired: repair.then_some(Ok(())),
        });
    }
    summary.found = damaged.len() as u64;
    if repair {
        damaged.clear();
    }
    let read_only = targets.open(false, &damaged).await?;
    let mut found = read_only.examine(progress, &mut summary).await?;
    drop(read_only);
    if !repair || found.iter().all(|p| p.finding.repair.is_none()) {
        for problem in &found {
            report(Report {
                target: &problem.target,
                finding: &problem.finding,
                repaired: None,
            });
        }
        summary.found += found.len() as u64;
        summary.left = (damaged.len() + found.len()) as u64;
        return Ok(summary);
    }
    let stores = targets.open(true, &[]).await?;
    let mut failures: HashMap<(String, Finding), String> = HashMap::new();
    for _ in 0..ROUNDS_MAX {
        let mut repairer = stores.repairer();
        let mut repaired_count = 0;
        failures.clear();
        for problem in found.iter().filter(|p| p.finding.repair.is_some()) {
            progress.add(0).map_err(interrupted)?;
            match repairer.repair(problem).await {
                Ok(()) => {
                    repaired_count += 1;
                    report(Report {
                        target: &problem.target,
                        finding: &problem.finding,
                        repaired: Some(Ok(())),
                    });
                }
                Err(why) => {
                    failures.insert((problem.target.clone(), problem.finding.clone()), why);
                }
            }
        }
        summary.found += repaired_count;
        stores.sync().await?;
        found = stores.examine(progress, &mut summary).await?;
        if repaired_count == 0 || found.is_empty() {
            break;
        }
    }
    for problem in &found {
        let why = failures.get(&(problem.target.clone(), problem.finding.clone()));
        report(Report {
            target: &problem.target,
            finding: &problem.finding,
            repaired: why.cloned().map(Err),
        });
    }
    summary.left = found.len() as u64;
    summary.found += summary.left;
    Ok(summary)
}

/// Checks the stores of MDTs and of OSTs, and changes nothing. Each store has its target's name
/// and index. Returns each finding with the name of its target.
///
/// # Errors
///
/// [`FsckError::Store`] if a store cannot be read.
pub async fn examine(
    mdts: impl IntoIterator<Item = (String, u32, Arc<mdt::store::Store>)>,
    osts: impl IntoIterator<Item = (String, OstIndex, ost::check::Store)>,
) -> Result<Vec<(String, Finding)>, FsckError> {
    let stores = targets::Stores::from_open(mdts, osts);
    let found = stores
        .examine(&Progress::default(), &mut Summary::default())
        .await?;
    Ok(found
        .into_iter()
        .map(|problem| (problem.target, problem.finding))
        .collect())
}

fn interrupted(_: OsdError) -> FsckError {
    FsckError::Interrupted("every reported repair is complete; run the check again")
}
