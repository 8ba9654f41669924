//! Errors of a store, and the errno that a client receives for each.

use std::{
    io,
    path::{Path, PathBuf},
};

use wire::Errno;

use crate::engine_files::FileDamage;
use crate::journal::Damage;
use crate::target::TargetError;

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// An operation on the local file system failed.
    #[error("{op} {}: {source}", path.display())]
    Io {
        /// The operation, such as "read".
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The key-value engine of the index failed.
    #[error("index {}: {op}: {why}", path.display())]
    Engine {
        /// The operation.
        op: &'static str,
        /// The index's directory.
        path: PathBuf,
        /// The engine's message.
        why: String,
    },
    /// This or an earlier sync failed. The contents of the disk are unknown, so no later sync
    /// succeeds.
    #[error("store {}: an earlier sync failed, so nothing can become durable: {why}. Check the disk and restart the target", path.display())]
    SyncFailed {
        /// The store's directory.
        path: PathBuf,
        /// The first failure.
        why: String,
    },
    /// A change failed earlier: the store is read-only until it is opened again.
    #[error("store {}: read-only since an earlier failure: {why}. Check the disk and restart the target", path.display())]
    ReadOnly {
        /// The store's directory.
        path: PathBuf,
        /// The first failure.
        why: String,
    },
    /// Another server has taken the target over.
    #[error("store {}: another server has taken the target over: {why}. Nothing that this server writes counts any more", path.display())]
    TakenOver {
        /// The target's directory.
        path: PathBuf,
        /// The generations, or why they are unknown.
        why: String,
    },
    /// Too little free space to open the store.
    #[error("store {}: the local file system is full: starting needs {needed_mib} MiB free", path.display())]
    Full {
        /// The store's directory.
        path: PathBuf,
        /// Free space that a start needs, MiB.
        needed_mib: u64,
    },
    /// A part of the index's journal is damaged.
    #[error("{}: damaged from byte {} to byte {}, followed by {} bytes of complete batches. Nothing was changed. Check the disk; 'nacre fsck' shows what would be lost, 'nacre fsck --repair' removes the damaged part and keeps a copy of the file, or restore the target from a backup", .0.journal.display(), .0.bytes.start, .0.bytes.end, .0.complete_after)]
    DamagedJournal(Damage),
    /// A file of the index is damaged.
    #[error("{}: {}. Nothing was changed. Check the disk; 'nacre fsck --repair' rebuilds the index from all records that can be read and keeps the old one, or restore the target from a backup", .0.file.display(), .0.why)]
    DamagedIndex(FileDamage),
    /// A store of a target that ran before is missing or empty.
    #[error("{}: {why}, although the target ran before. Is its disk mounted? Nothing was changed; mount the disk, or restore the target from a backup", path.display())]
    MissingStore {
        /// The store's directory.
        path: PathBuf,
        /// The problem, such as "no such directory".
        why: &'static str,
    },
    /// An object's file is missing or too short.
    #[error("object file {}: {why}; some of its data is lost. Check the disk; restore the file from a backup and remove it here", path.display())]
    DamagedObject {
        /// The object's file.
        path: PathBuf,
        /// Expected and found size.
        why: String,
    },
    /// The data of a block does not match the block's checksum.
    #[error("object file {}: the data at byte {offset} does not match its checksum. Check the disk; restore the file from a backup", path.display())]
    DamagedBlock {
        /// The object's file.
        path: PathBuf,
        /// The first byte of the block of 4 KiB.
        offset: u64,
    },
    /// A record of the store is malformed.
    #[error("store {}: bad record {record}: {why}", path.display())]
    Corrupt {
        /// The store's directory.
        path: PathBuf,
        /// The record.
        record: String,
        /// The expected and the found form.
        why: String,
    },
    /// The target's directory cannot be used.
    #[error(transparent)]
    Target(TargetError),
    /// No such object, or no data in the searched range.
    #[error("no such object, or no data after the offset")]
    NotFound,
    /// The arguments are invalid.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The runtime is shutting down, or a check was stopped.
    #[error("the process is stopping")]
    Stopping,
    /// The changes behind a barrier take too much memory.
    #[error(
        "the target's barrier ('lctl readonly') holds {limit_mib} MiB of changes in memory, which is the limit: restart the target"
    )]
    BarrierFull {
        /// The limit, MiB.
        limit_mib: usize,
    },
    /// Transactions in progress do not end.
    #[error("transactions in progress do not end: repeat the command")]
    Busy,
    /// The store does not support the operation.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// Too little free space: less than the change's purpose requires, or the file system is full.
    #[error("no space left")]
    NoSpace,
}

impl OsdError {
    /// Maps an error of the local file system on `path`: `ENOSPC` becomes [`OsdError::NoSpace`].
    pub fn io(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OsdError {
        let path = path.into();
        move |source| match source.raw_os_error() {
            Some(libc::ENOSPC) => OsdError::NoSpace,
            _ => OsdError::Io { op, path, source },
        }
    }

    /// Whether the disk failed an operation, so that it may fail others too. A damaged object or
    /// block is none: the disk could read it.
    pub fn is_disk_error(&self) -> bool {
        match self {
            OsdError::Io { source, .. } => !matches!(
                source.raw_os_error(),
                Some(
                    libc::EAGAIN
                        | libc::EDQUOT
                        | libc::EFBIG
                        | libc::EINTR
                        | libc::EINVAL
                        | libc::EMFILE
                        | libc::ENFILE
                        | libc::ENOMEM
                        | libc::EOPNOTSUPP
                )
            ),
            OsdError::Engine { .. } | OsdError::SyncFailed { .. } | OsdError::ReadOnly { .. } => true,
            _ => false,
        }
    }

    /// The errno that a client receives.
    pub fn errno(&self) -> Errno {
        match self {
            OsdError::NotFound => Errno::ENOENT,
            OsdError::Invalid(_) => Errno::EINVAL,
            OsdError::NoSpace | OsdError::Full { .. } | OsdError::BarrierFull { .. } => Errno::ENOSPC,
            OsdError::Busy => Errno::EBUSY,
            OsdError::ReadOnly { .. } => Errno::EROFS,
            OsdError::Unsupported(_) => Errno::EOPNOTSUPP,
            OsdError::Stopping => Errno::ESHUTDOWN,
            OsdError::Io { source, .. } => match source.raw_os_error() {
                Some(libc::EOPNOTSUPP) => Errno::EOPNOTSUPP,
                Some(libc::EFBIG) => Errno::EFBIG,
                _ => Errno::EIO,
            },
            OsdError::Engine { .. } | OsdError::SyncFailed { .. } | OsdError::Corrupt { .. } => Errno::EIO,
            OsdError::TakenOver { .. } => Errno::ESHUTDOWN,
            OsdError::DamagedJournal(_)
            | OsdError::DamagedIndex(_)
            | OsdError::MissingStore { .. }
            | OsdError::DamagedObject { .. }
            | OsdError::DamagedBlock { .. } => Errno::EIO,
            OsdError::Target(_) => Errno::EIO,
        }
    }
}

/// The first failure of a store, after which the store accepts no change.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// A sync or a change failed: the reason.
    Disk(String),
    /// Another server has taken the target over: the generations.
    TakenOver(String),
}

impl Failure {
    /// The failure of `op`.
    pub(crate) fn of(op: &str, e: &OsdError) -> Failure {
        match e {
            OsdError::TakenOver { why, .. } => Failure::TakenOver(why.clone()),
            e => Failure::Disk(format!("{op}: {e}")),
        }
    }

    /// The error of a change after the failure.
    pub(crate) fn of_change(self, store: &Path) -> OsdError {
        let path = store.to_owned();
        match self {
            Failure::Disk(why) => OsdError::ReadOnly { path, why },
            Failure::TakenOver(why) => OsdError::TakenOver { path, why },
        }
    }

    /// The error of a sync after the failure.
    pub(crate) fn of_sync(self, store: &Path) -> OsdError {
        let path = store.to_owned();
        match self {
            Failure::Disk(why) => OsdError::SyncFailed { path, why },
            Failure::TakenOver(why) => OsdError::TakenOver { path, why },
        }
    }
}

impl From<OsdError> for Errno {
    fn from(e: OsdError) -> Errno {
        e.errno()
    }
}
