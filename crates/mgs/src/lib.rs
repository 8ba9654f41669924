//! The management server: configuration logs and target registration.
//!
//! Everything it knows is in its logs, which are kept byte for byte as Lustre's MGS writes them ([`sections`], [`logs`],
//! [`fsdb`]), but for the keys of capabilities ([`capa_keys`]); [`Mgs`] serves them.

mod admission;
mod capa_keys;
mod fsdb;
mod kept;
mod logs;
mod params_of;
mod sections;
mod service;

use wire::Errno;

pub use capa_keys::CAPA_KEYS_FILE;
pub use service::{Mgs, MgsConfig};

/// Reads all logs of a store, as a start does.
pub fn check(index: std::sync::Arc<dyn osd::Index>) -> Result<(), MgsError> {
    logs::Logs::load(index).map(drop)
}

/// Why the MGS cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum MgsError {
    /// What the store holds is not what this server wrote.
    #[error("the store of the MGS is damaged: {what}")]
    Store {
        /// What is wrong with it.
        what: String,
    },
    /// The store failed.
    #[error("the store of the MGS: {0}")]
    Osd(#[from] osd::OsdError),
    /// The RPC layer failed.
    #[error("the MGS cannot be served: {0}")]
    Rpc(#[from] rpc::RpcError),
    /// A log cannot take a change.
    #[error("log '{name}': {why}")]
    Log {
        /// The log.
        name: String,
        /// Why not.
        why: String,
    },
    /// A parameter cannot be kept.
    #[error("parameter '{name}': {why}")]
    Param {
        /// The parameter.
        name: String,
        /// Why not.
        why: String,
    },
    /// A change of the nodemaps that cannot be made.
    #[error("{why}")]
    Nodemap {
        /// Why not.
        why: String,
    },
    /// The keys of object capabilities cannot be read or kept.
    #[error("the keys of capabilities: {why}")]
    Keys {
        /// Why not.
        why: String,
    },
    /// A registration that cannot be granted.
    #[error("registration of {svname} refused: {why}")]
    Refused {
        /// The target that asked.
        svname: String,
        /// Why not.
        why: String,
        /// What it is told.
        errno: Errno,
    },
}

impl MgsError {
    /// What a peer is told.
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
