//! Why an object target cannot be started.

use osd::OsdError;
use rpc::RpcError;

/// A start's or a stop's error.
#[derive(Debug, thiserror::Error)]
pub enum OstError {
    /// The store.
    #[error(transparent)]
    Store(#[from] OsdError),
    /// The RPC layer: a service that does not start, the management server.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The store holds another target's records, or of a form that this version does not know.
    #[error("{svname}: record {what}: expected {expected}, found {found}")]
    Record {
        /// The target.
        svname: String,
        /// Which record.
        what: &'static str,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
}
