//! Errors of starting and stopping an OST.

use osd::OsdError;
use rpc::RpcError;

/// Starting or stopping an OST failed.
#[derive(Debug, thiserror::Error)]
pub enum OstError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] OsdError),
    /// A service of the RPC layer does not start.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A record of the store cannot be parsed: a newer version or another target wrote it.
    #[error("{svname}: record {what}: expected {expected}, found {found}")]
    Record {
        /// The target's name.
        svname: String,
        /// The kind of record.
        what: &'static str,
        /// The expected form.
        expected: String,
        /// The form found.
        found: String,
    },
}
