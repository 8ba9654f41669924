//! Why a mount does not come about. (What an operation on a mounted file system meets is a [`wire::Errno`].)

use mgc::MgcError;
use rpc::RpcError;
use wire::Errno;

/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration could not be had.
    #[error("cannot read the configuration of file system '{fsname}': {source}")]
    Config {
        /// The file system.
        fsname: String,
        /// Why.
        source: MgcError,
    },
    /// The configuration has no metadata target.
    #[error("file system '{fsname}' has no metadata target yet: start its MDT first")]
    NoMdt {
        /// The file system.
        fsname: String,
    },
    /// A target did not take the connection.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The target.
        target: String,
        /// Why.
        source: RpcError,
    },
    /// A target lacks what a client cannot do without.
    #[error("{target} does not offer what a client needs: missing connect flags {missing:#x}")]
    Features {
        /// The target.
        target: String,
        /// `OBD_CONNECT_*` that it did not grant.
        missing: u64,
    },
    /// The root directory could not be had.
    #[error("cannot get the root of file system '{fsname}': {errno}")]
    Root {
        /// The file system.
        fsname: String,
        /// Why.
        errno: Errno,
    },
    /// The directory to mount could not be had.
    #[error("cannot mount directory '/{subdir}' of file system '{fsname}': {errno}")]
    Subdir {
        /// The file system.
        fsname: String,
        /// The directory.
        subdir: String,
        /// Why: `ENOENT`, `ENOTDIR`, `EACCES` of it or of one above it.
        errno: Errno,
    },
    /// What is to be mounted is not said.
    #[error("'{text}' does not say what to mount: {why}")]
    Source {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file system's name is not one.
    #[error("'{fsname}' is not a file system's name: 1 to 8 letters, digits, '-' or '_'")]
    Name {
        /// What was given.
        fsname: String,
    },
}

impl ClientError {
    /// What a program sees that only learns a number.
    pub fn errno(&self) -> Errno {
        match self {
            ClientError::Config { source, .. } => source.errno(),
            ClientError::NoMdt { .. } => Errno::ENODEV,
            ClientError::Connect { source, .. } => source.errno(),
            ClientError::Features { .. } => Errno::EPROTONOSUPPORT,
            ClientError::Root { errno, .. } | ClientError::Subdir { errno, .. } => *errno,
            ClientError::Source { .. } | ClientError::Name { .. } => Errno::EINVAL,
        }
    }
}
