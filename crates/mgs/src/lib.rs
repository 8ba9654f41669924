//! The management server (MGS): configuration logs and target registration.
//!
//! The configuration logs of file systems have the bytes that Lustre's MGS writes ([`sections`],
//! [`logs`], [`fsdb`]). Nodemaps and the MGS's own parameters are in a log that Lustre does not
//! have ([`stored_values`]), and the keys of object capabilities are in a file ([`capa_keys`]).
//! [`Mgs`] serves the logs.

mod admission;
mod capa_keys;
mod fsdb;
mod logs;
mod mgs_params;
mod nid_tables;
mod sections;
mod service;
mod stored_values;

use wire::Errno;

pub use capa_keys::{CAPA_KEYS_FILE, KeySource};
pub use service::{Clock, Mgs, MgsConfig};

/// Checks that all logs of a store can be read, as the MGS does when it starts.
///
/// # Errors
///
/// [`MgsError::Store`] if a log is damaged, [`MgsError::Osd`] if the store fails.
pub async fn check(index: std::sync::Arc<dyn osd::Index>) -> Result<(), MgsError> {
    logs::Logs::load(index).await?;
    Ok(())
}

/// Errors of the MGS.
#[derive(Debug, thiserror::Error)]
pub enum MgsError {
    /// The contents of the store are damaged.
    #[error("the store of the MGS is damaged: {what}")]
    Store {
        /// The defect.
        what: String,
    },
    /// The store failed.
    #[error("the store of the MGS failed: {0}")]
    Osd(#[from] osd::OsdError),
    /// The RPC layer failed.
    #[error("cannot serve the MGS: {0}")]
    Rpc(#[from] rpc::RpcError),
    /// A log cannot take a change.
    #[error("log '{name}': {why}")]
    Log {
        /// The log.
        name: String,
        /// The reason.
        why: String,
    },
    /// A parameter cannot be stored.
    #[error("parameter '{name}': {why}")]
    Param {
        /// The parameter.
        name: String,
        /// The reason.
        why: String,
    },
    /// A change of the nodemaps is invalid.
    #[error("{why}")]
    Nodemap {
        /// The reason.
        why: String,
    },
    /// The keys of object capabilities cannot be read or stored.
    #[error("the keys of capabilities: {why}")]
    Keys {
        /// The reason.
        why: String,
    },
    /// The MGS refuses a registration.
    #[error("registration of {svname} refused: {why}")]
    Refused {
        /// The target.
        svname: String,
        /// The reason.
        why: String,
        /// The status for the target.
        errno: Errno,
    },
}

impl MgsError {
    /// The status of the reply to a request that failed with this error.
    pub fn errno(&self) -> Errno {
        match self {
            MgsError::Store { .. } | MgsError::Keys { .. } => Errno::EIO,
            MgsError::Osd(e) => e.errno(),
            MgsError::Rpc(e) => e.errno(),
            MgsError::Log { .. } => Errno::ENOSPC,
            MgsError::Param { .. } | MgsError::Nodemap { .. } => Errno::EINVAL,
            MgsError::Refused { errno, .. } => *errno,
        }
    }
}
