//! Errors of LNet. Each names the object, such as a NID or a setting, and the problem.

use crate::claim::{AddressUser, user_of};
use std::io::{self, ErrorKind};
use std::time::Duration;
use wire::{Errno, Nid};

/// An error of an LNet operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LnetError {
    /// The acceptor's port is in use at this address.
    #[error(
        "{nid}: port {port} is in use by {}: stop it, or use another address",
        by.as_ref().map_or("another process".to_owned(), ToString::to_string)
    )]
    AddrInUse {
        /// The NID to add.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
        /// The process that uses the port; `None` if it is not one of Nacre's.
        by: Option<AddressUser>,
    },
    /// This process may not listen on the port.
    #[error(
        "{nid}: no permission to listen on port {port}: run as root, give the binary CAP_NET_BIND_SERVICE, or lower net.ipv4.ip_unprivileged_port_start"
    )]
    PermissionDenied {
        /// The NID to add.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
    },
    /// No interface of this machine has the address.
    #[error("{nid}: no interface of this machine has this address")]
    AddrNotAvailable {
        /// The NID to add.
        nid: Nid,
    },
    /// Listening failed for another reason.
    #[error("{nid}: cannot listen on port {port}: {why}")]
    Listen {
        /// The NID to add.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
        /// The system's error.
        why: String,
    },
    /// All loopback addresses for the automatic choice are in use.
    #[error(
        "every address from 127.0.0.1 to 127.0.0.254 is in use on port {port}: choose another address or port"
    )]
    NoLoopback {
        /// The port.
        port: u16,
    },
    /// This machine has no route to the peer, so no local address can be chosen.
    #[error("{peer}: this machine has no route to the peer ({why}); set this node's address explicitly")]
    HostUnreachable {
        /// The peer.
        peer: Nid,
        /// The system's error.
        why: String,
    },
    /// A setting is malformed.
    #[error("{what}='{text}': {why}")]
    Config {
        /// The name of the setting.
        what: &'static str,
        /// The value.
        text: String,
        /// The mistake.
        why: String,
    },
    /// A network cannot be brought up on this machine.
    #[error("network {network}: {why}")]
    Interface {
        /// The network.
        network: String,
        /// The reason.
        why: String,
    },
    /// The NID cannot be added or removed.
    #[error("{nid}: {why}")]
    Ni {
        /// The NID.
        nid: Nid,
        /// The reason.
        why: String,
    },
    /// The route cannot be added or removed.
    #[error("route through {gateway}: {why}")]
    Route {
        /// The router.
        gateway: Nid,
        /// The reason.
        why: String,
    },
    /// Only NIDs of TCP networks can be added.
    #[error("{nid} is not on a tcp network")]
    NotTcp {
        /// The NID to add.
        nid: Nid,
    },
    /// This node has no NID on the peer's network, and no router leads there.
    #[error("{peer}: this node has no NID on that network, and no route to it")]
    NoRoute {
        /// The peer.
        peer: Nid,
    },
    /// All routers that lead to the peer's network are down.
    #[error("{peer}: all routers to that network are down")]
    NoRouter {
        /// The peer.
        peer: Nid,
    },
    /// Connecting to the peer failed.
    #[error("{peer}: cannot connect: {why}")]
    Connect {
        /// The peer.
        peer: Nid,
        /// The reason.
        why: String,
    },
    /// The connections to the peer broke, or this node closed them.
    #[error("{peer}: connection lost: {why}")]
    PeerLost {
        /// The peer.
        peer: Nid,
        /// The reason.
        why: String,
    },
    /// The peer did not answer, or the message could not be sent, in time.
    #[error("{peer}: no {what} within {after:?}")]
    Timeout {
        /// The peer.
        peer: Nid,
        /// The missing event, such as `ACK of a PUT`.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// No buffer of this node matches the message.
    #[error("no buffer is attached at portal {portal}, match bits {match_bits:#x}")]
    Unmatched {
        /// The portal.
        portal: u32,
        /// The match bits.
        match_bits: u64,
    },
    /// The payload of a PUT, or the length requested by a GET, exceeds the limit of one message.
    #[error("payload of {len} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// Length of the payload or of the request, in bytes.
        len: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The peer violated the protocol.
    #[error("{peer}: {why}")]
    Protocol {
        /// The peer.
        peer: Nid,
        /// The violation.
        why: String,
    },
    /// This node's LNet has been shut down.
    #[error("LNet is shut down")]
    ShutDown,
}

impl LnetError {
    /// The error for a failed attempt to listen on `port` of `nid`.
    pub(crate) fn listen(nid: Nid, port: u16, why: &io::Error) -> LnetError {
        match why.kind() {
            ErrorKind::AddrInUse => LnetError::AddrInUse {
                nid,
                port,
                by: user_of(nid.addr(), port),
            },
            ErrorKind::PermissionDenied => LnetError::PermissionDenied { nid, port },
            ErrorKind::AddrNotAvailable => LnetError::AddrNotAvailable { nid },
            _ => LnetError::Listen {
                nid,
                port,
                why: why.to_string(),
            },
        }
    }

    /// The errno to report to users of the library and tools.
    pub fn errno(&self) -> Errno {
        match self {
            LnetError::AddrInUse { .. } | LnetError::NoLoopback { .. } => Errno::EADDRINUSE,
            LnetError::PermissionDenied { .. } => Errno::EACCES,
            LnetError::AddrNotAvailable { .. } => Errno::EADDRNOTAVAIL,
            LnetError::Listen { .. } => Errno::EIO,
            LnetError::NotTcp { .. } | LnetError::Config { .. } | LnetError::Route { .. } => Errno::EINVAL,
            LnetError::Interface { .. } => Errno::ENODEV,
            LnetError::Ni { .. } => Errno::EEXIST,
            LnetError::NoRoute { .. } | LnetError::NoRouter { .. } | LnetError::HostUnreachable { .. } => {
                Errno::EHOSTUNREACH
            }
            LnetError::Connect { .. } => Errno::ECONNREFUSED,
            LnetError::PeerLost { .. } => Errno::ECONNRESET,
            LnetError::Timeout { .. } => Errno::ETIMEDOUT,
            LnetError::Unmatched { .. } => Errno::ENOENT,
            LnetError::TooLong { .. } => Errno::EMSGSIZE,
            LnetError::Protocol { .. } => Errno::EPROTO,
            LnetError::ShutDown => Errno::ESHUTDOWN,
        }
    }
}
