//! What can go wrong in LNet, said so that the reader knows of whom and what to do.

use crate::claim::{AddressUser, user_of};
use std::io::{self, ErrorKind};
use std::time::Duration;
use wire::{Errno, Nid};

/// Why an operation of LNet failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LnetError {
    /// Another process has the address.
    #[error(
        "{nid}: port {port} is in use by {}: stop that, or use another address",
        by.as_ref().map_or("another process".to_owned(), ToString::to_string)
    )]
    AddrInUse {
        /// The NID that was to be added.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
        /// The process, where it is one of ours.
        by: Option<AddressUser>,
    },
    /// This process may not listen there.
    #[error(
        "{nid}: no permission to listen on port {port}: run as root, give the binary CAP_NET_BIND_SERVICE, or lower net.ipv4.ip_unprivileged_port_start"
    )]
    PermissionDenied {
        /// The NID that was to be added.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
    },
    /// No interface of this machine has the address.
    #[error("{nid}: no interface of this machine has this address")]
    AddrNotAvailable {
        /// The NID that was to be added.
        nid: Nid,
    },
    /// Listening failed for another reason.
    #[error("{nid}: cannot listen on port {port}: {why}")]
    Listen {
        /// The NID that was to be added.
        nid: Nid,
        /// The acceptor's port.
        port: u16,
        /// What the system said.
        why: String,
    },
    /// Processes listen at all addresses that there are for such.
    #[error(
        "every address from 127.0.0.1 to 127.0.0.254 is taken on port {port}: choose another address or port"
    )]
    NoLoopback {
        /// The port.
        port: u16,
    },
    /// This machine does not reach the peer from any address of its own.
    #[error("{peer}: this machine has no way there: {why}; say at which address it is to be")]
    NoWay {
        /// The peer.
        peer: Nid,
        /// What the system said.
        why: String,
    },
    /// What the administrator wrote says nothing.
    #[error("{what}='{text}': {why}")]
    Config {
        /// Which setting.
        what: &'static str,
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A network cannot be brought up on this machine.
    #[error("network {network}: {why}")]
    Interface {
        /// The network.
        network: String,
        /// What is missing.
        why: String,
    },
    /// The NID is there already, or is not there.
    #[error("{nid}: {why}")]
    Ni {
        /// The NID that was to be added or removed.
        nid: Nid,
        /// What is in the way.
        why: String,
    },
    /// A route cannot be added or removed.
    #[error("route by {gateway}: {why}")]
    Route {
        /// The router.
        gateway: Nid,
        /// What is in the way.
        why: String,
    },
    /// Only NIDs of TCP networks can be added.
    #[error("{nid} is not on a tcp network")]
    NotTcp {
        /// The NID that was to be added.
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
    /// The peer could not be connected to.
    #[error("{peer}: cannot connect: {why}")]
    Connect {
        /// The peer.
        peer: Nid,
        /// What happened.
        why: String,
    },
    /// The connections to the peer broke.
    #[error("{peer}: connection lost: {why}")]
    PeerLost {
        /// The peer.
        peer: Nid,
        /// What happened.
        why: String,
    },
    /// The peer did not answer, or did not take the message, in time.
    #[error("{peer}: no {what} within {after:?}")]
    Timeout {
        /// The peer.
        peer: Nid,
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// Nobody on this node waits for the message.
    #[error("no buffer is attached at portal {portal}, match bits {match_bits:#x}")]
    Unmatched {
        /// The portal.
        portal: u32,
        /// The match bits.
        match_bits: u64,
    },
    /// More than one message can carry.
    #[error("a message carries at most {limit} bytes, not {len}")]
    TooLong {
        /// How long the payload is.
        len: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The peer said something that the protocol does not allow.
    #[error("{peer}: {why}")]
    Protocol {
        /// The peer.
        peer: Nid,
        /// What it said.
        why: String,
    },
    /// This node's LNet is being shut down.
    #[error("LNet is shut down")]
    ShutDown,
}

impl LnetError {
    /// Why this process cannot listen there.
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

    /// The errno that a caller at the edge reports.
    pub fn errno(&self) -> Errno {
        Errno(match self {
            LnetError::AddrInUse { .. } | LnetError::NoLoopback { .. } => 98,
            LnetError::PermissionDenied { .. } => 13,
            LnetError::AddrNotAvailable { .. } => 99,
            LnetError::Listen { .. } => 5,
            LnetError::NotTcp { .. } | LnetError::Config { .. } | LnetError::Route { .. } => 22,
            LnetError::Interface { .. } => 19,
            LnetError::Ni { .. } => 17,
            LnetError::NoRoute { .. } | LnetError::NoRouter { .. } | LnetError::NoWay { .. } => 113,
            LnetError::Connect { .. } => 111,
            LnetError::PeerLost { .. } => 104,
            LnetError::Timeout { .. } => 110,
            LnetError::Unmatched { .. } => 2,
            LnetError::TooLong { .. } => 90,
            LnetError::Protocol { .. } => 71,
            LnetError::ShutDown => 108,
        })
    }
}
