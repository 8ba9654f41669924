//! What can go wrong with an RPC, and the errno that a user sees of it.

use lnet::LnetError;
use wire::Errno;

/// Why a request has no good reply.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RpcError {
    /// The server answered with a negative status.
    #[error("the server answered {0}")]
    Status(Errno),
    /// The server has forgotten this client, or evicted it: what was in flight failed, all locks are gone.
    #[error("{0}: evicted by the server")]
    Evicted(String),
    /// The import or the export is closed, or was never connected.
    #[error("{0}: not connected")]
    Closed(String),
    /// No reply within the time that the caller gave.
    #[error("{0}: no reply in time")]
    Timeout(String),
    /// The peer does not follow the protocol.
    #[error("{peer}: expected {expected}, found {found}")]
    Protocol {
        /// Who sent it.
        peer: String,
        /// What the protocol asks for.
        expected: &'static str,
        /// What came instead.
        found: String,
    },
    /// The message did not get to the peer.
    #[error("{peer}: {why}")]
    Net {
        /// Who it was for.
        peer: String,
        /// What the network says.
        why: String,
    },
    /// A service is to run on a partition that there is not.
    #[error("{param} names CPU partition {cpt}, but there are only {ncpts}: from 0 to {}", ncpts - 1)]
    NoPartition {
        /// The parameter.
        param: &'static str,
        /// The partition.
        cpt: usize,
        /// How many there are.
        ncpts: usize,
    },
}

impl RpcError {
    /// The errno that a user of the file system sees.
    pub fn errno(&self) -> Errno {
        match self {
            // What a server says of requests that it does not know; programs know only the other.
            RpcError::Status(Errno::ENOTSUPP) => Errno::EOPNOTSUPP,
            RpcError::Status(errno) => *errno,
            RpcError::Evicted(_) => Errno::EIO,
            RpcError::Closed(_) => Errno::ESHUTDOWN,
            RpcError::Timeout(_) => Errno::ETIMEDOUT,
            RpcError::Protocol { .. } => Errno::EPROTO,
            RpcError::Net { .. } => Errno::ENOTCONN,
            RpcError::NoPartition { .. } => Errno::EINVAL,
        }
    }

    pub(crate) fn net(peer: wire::Nid, why: &LnetError) -> RpcError {
        let (peer, why) = (peer.to_string(), why.to_string());
        // LNet names the peer too.
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
