//! Why a metadata target does not start.

use osd::OsdError;
use wire::Errno;

/// Why a metadata target does not start.
#[derive(Debug, thiserror::Error)]
pub enum MdtError {
    /// Its store cannot be opened.
    #[error("{target}: {source}")]
    Store {
        /// The target.
        target: String,
        /// Why.
        source: OsdError,
    },
    /// What is in its store cannot be used.
    #[error("{target}: its store is not usable: {what}: {errno}")]
    Contents {
        /// The target.
        target: String,
        /// What was being read or written.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
    /// Its store holds no root directory, although the target has run before or other records are there.
    #[error(
        "{target}: the root directory is missing, although this target has run before: a part of the store was lost. Restore the target from a backup, or see what 'nacre fsck' finds ('nacre fsck --repair' makes a new root directory, and puts files that have no name left into /lost+found)"
    )]
    NoRoot {
        /// The target.
        target: String,
    },
    /// Its services do not start.
    #[error("{target}: {source}")]
    Rpc {
        /// The target.
        target: String,
        /// Why.
        source: rpc::RpcError,
    },
}
