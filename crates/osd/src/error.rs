//! What can go wrong in a store, and the errno a client sees for it.

use std::{io, path::PathBuf};

use wire::Errno;

use crate::journal::Damage;

/// A store's error.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The local file system refused an operation.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried ("read", "sync", ...).
        what: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The index's engine failed.
    #[error("index {}: {what}: {why}", path.display())]
    Engine {
        /// What was tried.
        what: &'static str,
        /// The index's directory.
        path: PathBuf,
        /// The engine's own words.
        why: String,
    },
    /// A sync failed before; what the disk holds is not known, so nothing more is promised.
    #[error("store {}: an earlier sync failed, nothing is durable any more: {why}", path.display())]
    Failed {
        /// The store's directory.
        path: PathBuf,
        /// The first failure.
        why: String,
    },
    /// Something failed before: nothing is changed any more until the store is opened again.
    #[error("store {}: read-only since an earlier failure, until the target is started again: {why}", path.display())]
    ReadOnly {
        /// The store's directory.
        path: PathBuf,
        /// The first failure.
        why: String,
    },
    /// There is too little space to open the store.
    #[error("store {}: the file system below is full: it takes {needed_mib} MiB to start", path.display())]
    Full {
        /// The store's directory.
        path: PathBuf,
        /// What there must be, MiB.
        needed_mib: u64,
    },
    /// A part of the index's journal is damaged.
    #[error("{}: damaged from byte {} to byte {}, with {} bytes of whole batches after that. Nothing was changed. Check the disk; 'nacre fsck' shows what would be lost, 'nacre fsck --repair' removes the damaged part and keeps a copy of the file, or restore the target from a backup", .0.journal.display(), .0.bytes.start, .0.bytes.end, .0.whole_after)]
    DamagedJournal(Damage),
    /// A store of a target that has run before is missing or empty.
    #[error("{}: {why}, although the target has run before. Is its disk mounted? Nothing was changed; mount the disk, or restore the target from a backup", path.display())]
    Lost {
        /// The store's directory.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// An object's file is not what was written.
    #[error("object file {}: {why}; data of it is lost. Check the disk; restore the file from a backup and remove it here", path.display())]
    DamagedObject {
        /// The object's file.
        path: PathBuf,
        /// What was expected, what was found.
        why: String,
    },
    /// A record of the store does not have the form that this version writes.
    #[error("store {}: bad record {what}: {why}", path.display())]
    Corrupt {
        /// The store's directory.
        path: PathBuf,
        /// Which record.
        what: String,
        /// What was expected, what was found.
        why: String,
    },
    /// There is no such object, or no data where it was sought.
    #[error("no such object or no data there")]
    NotFound,
    /// The operation is not possible with these arguments.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The runtime is being shut down.
    #[error("the process is stopping")]
    Stopping,
    /// The store cannot do this.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The device is full.
    #[error("no space left")]
    NoSpace,
}

impl OsdError {
    /// An error of the local file system, on a file or directory.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OsdError {
        let path = path.into();
        move |source| match source.raw_os_error() {
            Some(libc::ENOSPC) => OsdError::NoSpace,
            _ => OsdError::Io { what, path, source },
        }
    }

    /// The errno that a client sees.
    pub fn errno(&self) -> Errno {
        match self {
            OsdError::NotFound => Errno::ENOENT,
            OsdError::Invalid(_) => Errno::EINVAL,
            OsdError::NoSpace | OsdError::Full { .. } => Errno::ENOSPC,
            OsdError::ReadOnly { .. } => Errno::EROFS,
            OsdError::Unsupported(_) => Errno::EOPNOTSUPP,
            OsdError::Stopping => Errno::ESHUTDOWN,
            OsdError::Io { source, .. } => match source.raw_os_error() {
                Some(libc::EOPNOTSUPP) => Errno::EOPNOTSUPP,
                Some(libc::EFBIG) => Errno::EFBIG,
                _ => Errno::EIO,
            },
            OsdError::Engine { .. } | OsdError::Failed { .. } | OsdError::Corrupt { .. } => Errno::EIO,
            OsdError::DamagedJournal(_) | OsdError::Lost { .. } | OsdError::DamagedObject { .. } => {
                Errno::EIO
            }
        }
    }
}

impl From<OsdError> for Errno {
    fn from(e: OsdError) -> Errno {
        e.errno()
    }
}
