//! LNet's and socklnd's tunables, under the names and with the defaults of Lustre's module parameters.

use crate::{NetSpec, PortalRotor, RouteSpec};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which connections the acceptor takes, as Lustre's module parameter `accept` says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Accept {
    /// From another host only those that come from a reserved port (below 1024), as only root may use there. The same
    /// holds for this host where the acceptor itself listens on a reserved port.
    #[default]
    Secure,
    /// From any port.
    All,
    /// None: this node does not listen.
    None,
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accept::Secure => "secure",
            Accept::All => "all",
            Accept::None => "none",
        })
    }
}

impl FromStr for Accept {
    type Err = String;

    fn from_str(text: &str) -> Result<Accept, String> {
        let all = [Accept::Secure, Accept::All, Accept::None];
        let found = all.into_iter().find(|accept| accept.to_string() == text);
        found.ok_or_else(|| "expected secure, all or none".to_owned())
    }
}

/// What an administrator may set. The timeouts are ordered: connecting < socket <= transaction.
#[derive(Debug, Clone)]
pub struct LnetConfig {
    /// TCP port of every acceptor, here and at the peers.
    pub accept_port: u16,
    /// Which connections the acceptor takes.
    pub accept: Accept,
    /// How long an accepted connection may take to say who it is.
    pub accept_timeout: Duration,
    /// How many accepted connections may be saying who they are at once.
    pub accept_pending_max: usize,
    /// How many connections one host may have opened. This host is one host, whichever of its addresses is used.
    pub accept_host_max: usize,
    /// How many connections all hosts together may have opened.
    pub accept_max: usize,
    /// A peer that no session needs is disconnected when it neither sent nor got a message for so long (at most twice
    /// that). Zero: never.
    pub unused_peer_timeout: Duration,
    /// Peers that one partition remembers.
    pub peers_max: usize,
    /// Bytes of messages that wait for room in their services, of all connections; what comes then is dropped.
    pub parked_bytes_max: usize,
    /// Messages on their way out through all connections; split over the partitions.
    pub credits: u32,
    /// Messages on their way out to one peer.
    pub peer_credits: u32,
    /// How long connecting to a peer may take.
    pub connect_timeout: Duration,
    /// A socket that makes no progress for so long is closed, with all connections to that peer.
    pub sock_timeout: Duration,
    /// After so much silence a connection is asked whether it lives.
    pub keepalive: Duration,
    /// How long a put or a get may take, all attempts and the answer together.
    pub transaction_timeout: Duration,
    /// How often a message that did not leave is sent again on a fresh connection.
    pub retry_count: u32,
    /// The networks that this node is on (`networks`).
    pub networks: Vec<NetSpec>,
    /// The routers that lead to other networks (`routes`).
    pub routes: Vec<RouteSpec>,
    /// A peer that is silent for so long is shown as down; nothing else depends on it.
    pub peer_timeout: Duration,
    /// Connections for bulk each way to a peer; 0: as many as suit the interface's speed.
    pub conns_per_peer: u32,
    /// How requests are spread over the partitions of their service.
    pub portal_rotor: PortalRotor,
    /// Whether this node is a router: forwards between its networks.
    pub forwarding: bool,
    /// A router's buffers for messages without payload, of all partitions; 0: the default.
    pub tiny_router_buffers: u32,
    /// A router's buffers for payloads up to a page.
    pub small_router_buffers: u32,
    /// A router's buffers for larger payloads.
    pub large_router_buffers: u32,
    /// How many of a router's buffers one peer may hold; 0: as many as `peer_credits`.
    pub peer_buffer_credits: u32,
    /// Whether routers count as dead until they have answered once.
    pub check_routers_before_use: bool,
    /// Whether a router that is not itself on the network that it should lead to, or whose interface there is down, is left
    /// out.
    pub avoid_asym_router_failure: bool,
    /// How often a router is asked whether it lives; zero: never.
    pub alive_router_check_interval: Duration,
    /// The same for one that did not answer the last time.
    pub dead_router_check_interval: Duration,
    /// How long it may take to answer.
    pub router_ping_timeout: Duration,
}

impl Default for LnetConfig {
    fn default() -> LnetConfig {
        LnetConfig {
            accept_port: 988,
            accept: Accept::default(),
            accept_timeout: Duration::from_secs(5),
            accept_pending_max: 127,
            accept_host_max: 1024,
            accept_max: 1 << 16,
            unused_peer_timeout: Duration::from_secs(60),
            peers_max: 1 << 16,
            parked_bytes_max: 256 << 20,
            credits: 256,
            peer_credits: 8,
            connect_timeout: Duration::from_secs(5),
            sock_timeout: Duration::from_secs(50),
            keepalive: Duration::from_secs(30),
            transaction_timeout: Duration::from_secs(50),
            retry_count: 2,
            networks: Vec::new(),
            routes: Vec::new(),
            peer_timeout: Duration::from_secs(180),
            conns_per_peer: 0,
            portal_rotor: PortalRotor::default(),
            forwarding: false,
            tiny_router_buffers: 0,
            small_router_buffers: 0,
            large_router_buffers: 0,
            peer_buffer_credits: 0,
            check_routers_before_use: false,
            avoid_asym_router_failure: true,
            alive_router_check_interval: Duration::from_secs(60),
            dead_router_check_interval: Duration::from_secs(60),
            router_ping_timeout: Duration::from_secs(50),
        }
    }
}
