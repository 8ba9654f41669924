//! The client of the MGS: reads and follows configuration logs, and registers targets
//! (docs/protocol.md, "Configuration (MGS)").

mod capa;
mod config;
mod follow;
mod locations;
mod mgc;
pub mod nid_table;
mod nodemap;
pub mod registration;
mod role;
mod token;

use rpc::RpcError;
use wire::Nid;

pub use capa::{CapaError, CapaKeyring, CapaKeys, CapaScope};
pub use config::{ConfParam, FsConfig, TargetConf};
pub use mgc::{CAPA_KEYS, Mgc, NID_TABLE_SUFFIX, NODEMAPS, config_resource};
pub use nid_table::{NidTable, TargetLocation};
pub use nodemap::{CachedRights, DEFAULT, Nodemap, NodemapTable, Nodemaps, Rights, evict_denied};
pub use role::{mdt_index_of, role_of};
pub use token::JoinToken;

/// Errors of requests to the MGS.
#[derive(Debug, thiserror::Error)]
pub enum MgcError {
    /// The MGS did not answer at any of its NIDs, or refused the connection.
    #[error(
        "cannot connect to the MGS at {nids}: {source}; is the MGS running, and reachable from this node? (A client without a port option tries ports 988 and 7988.)"
    )]
    Connect {
        /// The MGS's NIDs, separated by commas.
        nids: String,
        /// The error of the last attempt.
        source: RpcError,
    },
    /// The MGS has no such log. For `<fsname>-client`: no such file system.
    #[error("the MGS knows no configuration '{logname}'")]
    NoSuchLog {
        /// The log.
        logname: String,
    },
    /// A log cannot be read.
    #[error("cannot read the configuration '{logname}': {source}")]
    Read {
        /// The log.
        logname: String,
        /// The error of the request.
        source: RpcError,
    },
    /// A log, or a reply that carries a part of it, is damaged.
    #[error("the configuration '{logname}' is damaged: {why}")]
    Bad {
        /// The log.
        logname: String,
        /// The defect.
        why: String,
    },
    /// The MGS does not allow this node to register targets.
    #[error(
        "the MGS at {mgs} does not allow targets at {nids} to register: on the host of the MGS run \
         `nacre lctl set_param 'mgs.MGS.server_nids={nids}'` (a list: add to what `get_param` shows), \
         or copy the file `join-token` from the directory of the MGS into that of {svname}"
    )]
    NotAdmitted {
        /// The target.
        svname: String,
        /// The target's NIDs, separated by spaces.
        nids: String,
        /// The NID of the MGS that refused.
        mgs: Nid,
    },
    /// The MGS refuses a registration and states the reason.
    #[error("{why}")]
    Refused {
        /// The reason, with the target's name.
        why: String,
        /// The status of the reply.
        errno: wire::Errno,
    },
    /// A registration failed without a reason from the MGS.
    #[error("the MGS did not register {svname}: {source}")]
    Register {
        /// The target.
        svname: String,
        /// The error of the request.
        source: RpcError,
    },
}

impl MgcError {
    /// The errno for a user of the file system.
    pub fn errno(&self) -> wire::Errno {
        match self {
            MgcError::Connect { source, .. }
            | MgcError::Read { source, .. }
            | MgcError::Register { source, .. } => source.errno(),
            MgcError::Refused { errno, .. } => *errno,
            MgcError::NotAdmitted { .. } => wire::Errno::EACCES,
            MgcError::NoSuchLog { .. } => wire::Errno::ENOENT,
            MgcError::Bad { .. } => wire::Errno::EIO,
        }
    }
}
