//! Errors of a node.

use std::io;
use std::time::Duration;

use wire::Errno;

/// Starting or stopping a part of a node failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A target does not start.
    #[error("{target}: {source}")]
    Target {
        /// The target, and the place of its store.
        target: String,
        /// The cause.
        source: Box<NodeError>,
    },
    /// The MGS does not start or stop.
    #[error(transparent)]
    Mgs(#[from] mgs::MgsError),
    /// An MDT does not start.
    #[error(transparent)]
    Mdt(#[from] mdt::MdtError),
    /// An OST does not start.
    #[error(transparent)]
    Ost(#[from] ost::OstError),
    /// The store of a target failed.
    #[error(transparent)]
    Store(#[from] osd::OsdError),
    /// A service of the RPC layer does not start.
    #[error(transparent)]
    Rpc(#[from] rpc::RpcError),
    /// The MGS is unreachable, or refuses a request.
    #[error(transparent)]
    Mgc(#[from] mgc::MgcError),
    /// The node cannot connect to the MGS of a file system to mount.
    #[error("cannot mount file system '{fsname}': {source}")]
    MountMgs {
        /// The file system.
        fsname: String,
        /// The error of the connection.
        source: mgc::MgcError,
    },
    /// A file system cannot be mounted.
    #[error(transparent)]
    Mount(#[from] client::ClientError),
    /// The source of random numbers failed.
    #[error("cannot get random numbers: {0}")]
    Random(io::Error),
    /// A small file of a target cannot be read.
    #[error("cannot read {name}: {source}")]
    File {
        /// The file.
        name: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A parameter in a target's label is invalid.
    #[error("{name}={value} in the label: {why}")]
    LabelParam {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// The reason.
        why: String,
    },
    /// The MGS answers, but does not register a target, because the first MDT has not registered.
    #[error(
        "the MGS has not registered {svname} within {} s: start the first MDT of {fsname}, which must register first",
        waited.as_secs()
    )]
    NotRegistered {
        /// The target.
        svname: String,
        /// Its file system.
        fsname: String,
        /// The time that the target waited.
        waited: Duration,
    },
    /// The MDT gets no objects from the OSTs of the node.
    #[error("the MDT could not create objects on the OSTs within {} s", waited.as_secs())]
    NotReady {
        /// The time that the node waited.
        waited: Duration,
    },
    /// The node has no such target.
    #[error("no target {svname} runs on this node")]
    NoTarget {
        /// The target.
        svname: String,
    },
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
}

impl NodeError {
    /// The errno for a program.
    pub fn errno(&self) -> Errno {
        match self {
            NodeError::Target { source, .. } => source.errno(),
            NodeError::Mgs(e) => e.errno(),
            NodeError::Store(e) => e.errno(),
            NodeError::Rpc(e) => e.errno(),
            NodeError::Mgc(e) | NodeError::MountMgs { source: e, .. } => e.errno(),
            NodeError::Mount(e) => e.errno(),
            NodeError::Random(e) | NodeError::File { source: e, .. } => Errno::from(e),
            NodeError::Mdt(_) | NodeError::Ost(_) => Errno::EIO,
            NodeError::LabelParam { .. } => Errno::EINVAL,
            NodeError::NotRegistered { .. } | NodeError::NotReady { .. } => Errno::ETIMEDOUT,
            NodeError::NoTarget { .. } => Errno::ENODEV,
            NodeError::Stopping => Errno::ESHUTDOWN,
        }
    }
}
