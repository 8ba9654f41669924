//! What a client or a server learns from the MGS: configuration logs, read and watched; target registration.

mod capa;
mod config;
mod follow;
mod mgc;
mod nodemap;
pub mod registration;
mod role;
mod token;

use rpc::RpcError;
use wire::Nid;

pub use capa::{Bearer, CapaError, CapaKeyring, CapaKeys};
pub use config::{ConfParam, FsConfig, TargetConf};
pub use mgc::{CAPA_KEYS, Mgc, NODEMAPS, config_resource};
pub use nodemap::{DEFAULT, KnownRights, Nodemap, NodemapTable, Nodemaps, Rights, evict_denied};
pub use role::role_of;
pub use token::JoinToken;

/// Why the MGS could not be asked, or what it refused.
#[derive(Debug, thiserror::Error)]
pub enum MgcError {
    /// No MGS there.
    #[error("cannot connect to the MGS at {nids}: {source}; is it running, and reachable on that port?")]
    Connect {
        /// Where it was looked for.
        nids: String,
        /// What happened at the last attempt.
        source: RpcError,
    },
    /// The MGS has no such log: for `<fsname>-client`, no such file system.
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
        /// What the connection says.
        source: RpcError,
    },
    /// What was read is not a configuration.
    #[error("the configuration '{logname}' is damaged: {why}")]
    Bad {
        /// The log.
        logname: String,
        /// What is wrong with it.
        why: String,
    },
    /// The MGS does not take this node for one that may register targets.
    #[error(
        "the MGS at {mgs} lets no target at {nids} register: on the host of the MGS run \
         `nacre lctl set_param 'mgs.MGS.server_nids={nids}'` (a list: add to what `get_param` shows), \
         or copy the file `join-token` from the directory of the MGS into that of {svname}"
    )]
    NotAdmitted {
        /// The target.
        svname: String,
        /// The NIDs that it registers.
        nids: String,
        /// The NID of the MGS.
        mgs: Nid,
    },
    /// The MGS refuses to register a target, and gives a reason.
    #[error("{why}")]
    Refused {
        /// The reason, with the target's name.
        why: String,
        /// Its answer.
        errno: wire::Errno,
    },
    /// A target was not registered.
    #[error("the MGS did not register {svname}: {source}")]
    Register {
        /// The target.
        svname: String,
        /// Its answer.
        source: RpcError,
    },
}

impl MgcError {
    /// What a user of the file system sees.
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
