//! Errors of a mount. (Operations on a mounted file system fail with a [`wire::Errno`].)

use mgc::MgcError;
use rpc::RpcError;
use wire::Errno;

/// The reason that a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The configuration cannot be read from the MGS.
    #[error("cannot read the configuration of file system '{fsname}': {source}")]
    Config {
        /// The file system.
        fsname: String,
        /// The MGC's error.
        source: MgcError,
    },
    /// The configuration has no active MDT0000.
    #[error("file system '{fsname}' has no active MDT0000: start its MDT first")]
    NoMdt {
        /// The file system.
        fsname: String,
    },
    /// MDT0000 refused the connection or did not answer.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The target.
        target: String,
        /// The error of the connect request.
        source: RpcError,
    },
    /// MDT0000 lacks a required feature.
    #[error("{target} lacks required connect flags {missing:#x}: upgrade the server")]
    Features {
        /// The target.
        target: String,
        /// Required `OBD_CONNECT_*` flags that the target did not grant.
        missing: u64,
    },
    /// The root directory cannot be found.
    #[error("cannot get the root of file system '{fsname}': {errno}")]
    Root {
        /// The file system.
        fsname: String,
        /// The error of `MDS_GET_ROOT`.
        errno: Errno,
    },
    /// The directory to mount cannot be found or accessed.
    #[error("cannot mount directory '/{subdir}' of file system '{fsname}': {errno}")]
    Subdir {
        /// The file system.
        fsname: String,
        /// The directory.
        subdir: String,
        /// The error of `MDS_GET_ROOT`, such as `ENOENT`, `ENOTDIR` or `EACCES`.
        errno: Errno,
    },
    /// The device argument of the mount is malformed.
    #[error("cannot mount '{text}': {problem}")]
    Source {
        /// The argument.
        text: String,
        /// The reason that the text is rejected.
        problem: String,
    },
    /// The file system's name is invalid.
    #[error("'{fsname}' is not a file system name: use 1 to 8 letters, digits, '-' or '_'")]
    Name {
        /// The given name.
        fsname: String,
    },
}

impl ClientError {
    /// The errno for programs that can show only a number.
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
