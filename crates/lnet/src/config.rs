//! Settings of LNet and socklnd. Most are start parameters (`start`), which have the names and the
//! defaults of Lustre's module parameters.

use crate::{NetSpec, PortalRotor, RouteSpec};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The connections that the acceptor accepts (Lustre's module parameter `accept`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Accept {
    /// Connections from other hosts must come from a reserved port (below 1024), which only root
    /// can use there. If the acceptor itself listens on a reserved port, this also holds for
    /// connections from this host.
    #[default]
    Secure,
    /// Connections from any port.
    All,
    /// No connections: this node does not listen.
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

/// The administrator's settings. The default timeouts are ordered: connect < socket <= transaction.
#[derive(Debug, Clone)]
pub struct LnetConfig {
    /// TCP port of every acceptor, on this node and its peers.
    pub accept_port: u16,
    /// The connections that the acceptor accepts.
    pub accept: Accept,
    /// Time limit for the hello of an accepted connection.
    pub accept_timeout: Duration,
    /// Maximum number of accepted connections that have not completed their hello, for each
    /// acceptor (each address of this node that listens).
    pub accept_pending_max: usize,
    /// Maximum number of connections that one host may have opened to one acceptor. All addresses
    /// of this node's host count as one host.
    pub accept_host_max: usize,
    /// Maximum number of connections that all hosts together may have opened to one acceptor.
    pub accept_max: usize,
    /// Interval at which this node disconnects peers that the upper layers do not use and that
    /// exchanged no message since the previous check. Zero: it never does.
    pub unused_peer_timeout: Duration,
    /// Maximum number of peers of one partition.
    pub peers_max: usize,
    /// Maximum number of bytes of messages, over all connections, that wait for space in the queues
    /// of their services. Further messages are dropped.
    pub backlog_bytes_max: usize,
    /// Concurrent sends through an interface, split over its partitions. Each partition gets at
    /// least 8 times `peer_credits`, but at most all credits.
    pub credits: u32,
    /// Concurrent sends to one peer.
    pub peer_credits: u32,
    /// Time limit for connecting to a peer.
    pub connect_timeout: Duration,
    /// If a socket makes no progress for this time, this node closes it and all other connections
    /// to the peer.
    pub sock_timeout: Duration,
    /// Interval of keepalive messages on an idle connection.
    pub keepalive: Duration,
    /// Time limit of a PUT or GET: all attempts and the answer together.
    pub transaction_timeout: Duration,
    /// Maximum number of retries of a failed send, each on a fresh connection.
    pub retry_count: u32,
    /// The networks of this node (`networks`).
    pub networks: Vec<NetSpec>,
    /// The routes to other networks (`routes`).
    pub routes: Vec<RouteSpec>,
    /// Without effect; `lnetctl` shows it, as Lustre's does.
    pub peer_timeout: Duration,
    /// Bulk connections in each direction to a peer; 0: depends on the interface's speed.
    pub conns_per_peer: u32,
    /// How requests are distributed over the partitions of their service.
    pub portal_rotor: PortalRotor,
    /// Whether this node is a router that forwards between its networks.
    pub forwarding: bool,
    /// A router's buffers for messages without payload, over all partitions; 0: the default.
    pub tiny_router_buffers: u32,
    /// The same for payloads up to a page (4 KiB).
    pub small_router_buffers: u32,
    /// The same for larger payloads.
    pub large_router_buffers: u32,
    /// Maximum number of a router's buffers that one peer may hold; 0: the same as `peer_credits`.
    pub peer_buffer_credits: u32,
    /// Whether this node treats a router as down until the router answers a ping for the first
    /// time.
    pub check_routers_before_use: bool,
    /// Whether to skip a router if all its interfaces on the destination network are down, or if it
    /// has none there although the route has one hop.
    pub avoid_asym_router_failure: bool,
    /// Interval of pings to a router that is up. Zero: no router is ever pinged.
    pub alive_router_check_interval: Duration,
    /// Interval of pings to a router that is down. Zero: such a router is pinged only when it
    /// connects or sends a message.
    pub dead_router_check_interval: Duration,
    /// Time limit of a router's answer to a ping.
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
            backlog_bytes_max: 256 << 20,
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
