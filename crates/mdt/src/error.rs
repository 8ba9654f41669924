//! The errors that prevent the start of an MDT.

use osd::OsdError;
use wire::Errno;

/// An error that prevents the start of an MDT.
#[derive(Debug, thiserror::Error)]
pub enum MdtError {
    /// The store cannot be opened or read.
    #[error("{target}: {source}")]
    Store {
        /// The target.
        target: String,
        /// The cause.
        source: OsdError,
    },
    /// Records in the store cannot be read or written.
    #[error("{target}: cannot read or write {records} in its store: {errno}. Run 'nacre fsck' on the target")]
    Contents {
        /// The target.
        target: String,
        /// The records that cannot be used, such as `the FID sequences`.
        records: &'static str,
        /// The cause.
        errno: Errno,
    },
    /// The root directory is missing, although the target ran before or the store has other
    /// records.
    #[error(
        "{target}: the root directory is missing, although this target ran before: a part of the store was lost. Restore the target from a backup, or run 'nacre fsck' ('nacre fsck --repair' creates a new root directory, and moves files without a name to /lost+found)"
    )]
    NoRoot {
        /// The target.
        target: String,
    },
    /// The record of the MDT's index is missing or has another index, although the target ran
    /// before or the store has other records.
    #[error(
        "{target}: its store has no record of this MDT's index, although this target ran before: a part of the store was lost, or it is the store of another MDT. Restore the target from a backup"
    )]
    NoIndex {
        /// The target.
        target: String,
    },
    /// An RPC service cannot start.
    #[error("{target}: {source}")]
    Rpc {
        /// The target.
        target: String,
        /// The cause.
        source: rpc::RpcError,
    },
}
