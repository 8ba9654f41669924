//! RPC errors, and the errno that a user of the file system gets for each.

use lnet::LnetError;
use wire::Errno;

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// The peer answered a request or a callback with a negative status.
    #[error("the peer returned {0}")]
    Status(Errno),
    /// The server evicted this client or restarted: requests in flight fail, and the client's locks
    /// are lost. Names the import.
    #[error("{0}: evicted by the server")]
    Evicted(String),
    /// The import or the export is closed, or was never connected. Names the import or the client.
    #[error("{0}: not connected")]
    Closed(String),
    /// The import has no NID to connect to. Names the import.
    #[error("{0}: the configuration names no NIDs for this target")]
    NoNids(String),
    /// No reply arrived in time, or the connection was lost and the request must not be resent.
    /// Names the import or the client.
    #[error("{0}: no reply in time")]
    Timeout(String),
    /// The peer does not follow the protocol.
    #[error("{peer}: expected {expected}, found {found}")]
    Protocol {
        /// The peer's NID, or the target at it.
        peer: String,
        /// The rule of the protocol.
        expected: &'static str,
        /// The peer's deviation.
        found: String,
    },
    /// The peer cannot be reached now, or the connection to it was lost.
    #[error("{peer}: {why}")]
    Net {
        /// The peer's NID or the target's UUID.
        peer: String,
        /// The reason.
        why: String,
    },
    /// A service is configured for a partition that does not exist.
    #[error("{param} names CPU partition {cpt}, but there are only {ncpts}: from 0 to {}", ncpts - 1)]
    NoPartition {
        /// The parameter that names the partition.
        param: &'static str,
        /// The partition's number.
        cpt: usize,
        /// The number of partitions.
        ncpts: usize,
    },
}

impl RpcError {
    /// The errno that a user of the file system sees.
    pub fn errno(&self) -> Errno {
        match self {
            // Servers refuse unknown opcodes with ENOTSUPP, which user space does not know.
            RpcError::Status(Errno::ENOTSUPP) => Errno::EOPNOTSUPP,
            RpcError::Status(errno) => *errno,
            RpcError::Evicted(_) => Errno::EIO,
            RpcError::Closed(_) | RpcError::NoNids(_) => Errno::ESHUTDOWN,
            RpcError::Timeout(_) => Errno::ETIMEDOUT,
            RpcError::Protocol { .. } => Errno::EPROTO,
            RpcError::Net { .. } => Errno::ENOTCONN,
            RpcError::NoPartition { .. } => Errno::EINVAL,
        }
    }

    /// The error for a message that LNet could not send.
    pub(crate) fn net(peer: wire::Nid, why: &LnetError) -> RpcError {
        let (peer, why) = (peer.to_string(), why.to_string());
        // The text of an LnetError often starts with the NID, which must not appear twice.
        let rest = why.strip_prefix(&format!("{peer}: ")).map(str::to_owned);
        RpcError::Net {
            peer,
            why: rest.unwrap_or(why),
        }
    }
}

impl From<RpcError> for Errno {
    fn from(e: RpcError) -> Errno {
        e.errno()
    }
}
