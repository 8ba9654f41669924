//! Reasons why a target's directory cannot be used.

use std::{io, path::PathBuf};

use super::FORMAT_VERSION;

/// Reasons why a target's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The directory has no label.
    #[error("{}: not a Nacre target (no file 'target' in it): check the path, and that its disk is mounted; `nacre mkfs` makes new targets", .0.display())]
    NotATarget(PathBuf),
    /// No such directory.
    #[error("{}: no such directory", .0.display())]
    NoDirectory(PathBuf),
    /// The directory holds other files.
    #[error("{}: not empty and not a Nacre target: '{found}' is in it; choose an empty or new directory", path.display())]
    WrongDirectory {
        /// The directory.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// A `mkfs` was interrupted.
    #[error("{}: incomplete target (its mkfs was interrupted): remove the directory and repeat 'nacre mkfs'", .0.display())]
    IncompleteMkfs(PathBuf),
    /// A `destroy` was interrupted.
    #[error("{}: partly destroyed target: finish with 'nacre destroy'", .0.display())]
    IncompleteDestroy(PathBuf),
    /// The directory already holds a target.
    #[error("{}: holds target {svname} already; remove the directory to make a new target", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// The existing target.
        svname: String,
    },
    /// A store of a target that ran before is missing or belongs to another target.
    #[error("{}: {why}, although {svname} ran before. Is its disk mounted? Nothing was changed; mount the disk, or restore the target from a backup", path.display())]
    MissingStore {
        /// The store's directory.
        path: PathBuf,
        /// The target.
        svname: String,
        /// The problem.
        why: String,
    },
    /// A newer version of Nacre wrote the target.
    #[error("{}: store of format {found}, this version knows formats up to {FORMAT_VERSION}: use the version of Nacre that wrote it, or a newer one", path.display())]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// The format of the target.
        found: u32,
    },
    /// The target is locked, usually by another process.
    #[error("{}: in use by another process{}", path.display(), by.as_deref().map(|p| format!(" ({p})")).unwrap_or_default())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, as it wrote itself into the lock file.
        by: Option<String>,
    },
    /// The target's lock is held, and the target cannot be taken over by force.
    #[error("{}: in use by another process, and cannot be taken over by force: its server started without several service nodes. Stop that server, or if its node is gone make sure that it no longer writes; then start this one. For the next time, name all nodes in 'service_nodes' of the file 'target' (nacre mkfs --servicenode)", .0.display())]
    NotShared(PathBuf),
    /// The label does not parse.
    #[error("{}: bad label: line {line}: {why}", path.display())]
    BadLabel {
        /// The label file.
        path: PathBuf,
        /// The line's number; 0: the whole file.
        line: usize,
        /// The problem.
        why: String,
    },
    /// An operation of the file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}
