//! Errors of starting and stopping an object target.

use osd::OsdError;
use rpc::RpcError;

/// Starting or stopping an object target failed.
#[derive(Debug, thiserror::Error)]
pub enum OstError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] OsdError),
    /// The RPC layer failed: a service does not start, or the MGS cannot be reached.
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
