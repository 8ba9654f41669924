//! Checks a file system that does not run, and repairs it.
//!
//! Each kind of target examines its own store ([`mdt::check`], [`ost::check`]); here the layouts of files and the objects of
//! the OSTs are held against each other ([`cross`]). A plain check changes nothing. A repair is done in rounds: what
//! was found is repaired, each problem in one transaction, and everything is examined again, since one damage may have
//! hidden another.

mod cross;
mod repair;
mod targets;

use std::path::PathBuf;

use osd::{
    OsdError,
    check::{Finding, Progress},
    target::TargetError,
};

pub use targets::Targets;

/// Rounds of repairs at most.
const ROUNDS: usize = 10;

/// Why a check cannot be made.
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
        /// Why.
        source: OsdError,
    },
    /// The targets are not of one file system.
    #[error("{}: target of file system '{found}', the others are of '{expected}': check one file system at a time", path.display())]
    OtherFileSystem {
        /// The target's directory.
        path: PathBuf,
        /// Its file system.
        found: String,
        /// That of the others.
        expected: String,
    },
    /// The same target is there twice.
    #[error("{}: there is another {svname} among the targets: leave one out", path.display())]
    Twice {
        /// The target's directory.
        path: PathBuf,
        /// The target.
        svname: String,
    },
    /// It was asked to stop.
    #[error("interrupted; {0}")]
    Interrupted(&'static str),
}

/// What was looked at, and what came out.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Targets that were checked.
    pub targets: Vec<String>,
    /// What could not be checked, in words.
    pub unchecked: Vec<String>,
    /// Inodes, names and the like; zeros without the MDT.
    pub counts: mdt::check::Counts,
    /// Objects that are there, on all OSTs.
    pub objects: u64,
    /// Findings in all.
    pub found: u64,
    /// Those that are still there.
    pub left: u64,
}

/// A finding and the target that it is on.
pub struct Told<'a> {
    /// The target's name.
    pub target: &'a str,
    /// What was found.
    pub finding: &'a Finding,
    /// What became of repairing it: nothing was tried, or done, or why not.
    pub repaired: Option<Result<(), String>>,
}

/// Checks targets; with `repair`, repairs them. Each finding is told as it is judged.
pub async fn check(
    targets: &Targets,
    repair: bool,
    progress: &Progress,
    tell: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<Summary, FsckError> {
    let mut summary = Summary::default();
    let journals = targets.damaged_journals()?;
    let unchanged = targets.open(false).await?;
    let mut found = unchanged.examine(progress, &mut summary).await?;
    drop(unchanged);
    if !repair || journals.is_empty() && found.iter().all(|p| p.finding.repair.is_none()) {
        for problem in journals.iter().chain(&found) {
            tell(Told {
                target: &problem.target,
                finding: &problem.finding,
                repaired: None,
            });
        }
        summary.found = (journals.len() + found.len()) as u64;
        summary.left = summary.found;
        return Ok(summary);
    }
    targets.repair_journals()?;
    for problem in &journals {
        tell(Told {
            target: &problem.target,
            finding: &problem.finding,
            repaired: Some(Ok(())),
        });
    }
    summary.found = journals.len() as u64;
    let stores = targets.open(true).await?;
    for _ in 0..ROUNDS {
        let mut repairer = stores.repairer();
        let mut done = 0;
        for problem in &found {
            progress.add(0).map_err(stopped)?;
            let repaired = match problem.finding.repair {
                None => None,
                Some(_) => Some(repairer.repair(problem).await),
            };
            done += u64::from(matches!(repaired, Some(Ok(()))));
            tell(Told {
                target: &problem.target,
                finding: &problem.finding,
                repaired,
            });
        }
        summary.found += done;
        stores.sync().await?;
        found = stores.examine(progress, &mut summary).await?;
        if done == 0 || found.is_empty() {
            break;
        }
    }
    summary.left = found.len() as u64;
    summary.found += summary.left;
    Ok(summary)
}

fn stopped(_: OsdError) -> FsckError {
    FsckError::Interrupted("each repair that was told is whole: check again")
}
