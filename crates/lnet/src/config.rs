//! LNet's and socklnd's tunables, under the names and with the defaults of Lustre's module parameters.

use std::time::Duration;

/// What an administrator may set. The timeouts are ordered: connecting < socket <= transaction.
#[derive(Debug, Clone)]
pub struct LnetConfig {
    /// TCP port of every acceptor, here and at the peers.
    pub accept_port: u16,
    /// How long an accepted connection may take to say who it is.
    pub accept_timeout: Duration,
    /// How many accepted connections may be saying who they are at once.
    pub accept_pending_max: usize,
    /// How many connections one host may have opened.
    pub accept_host_max: usize,
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
}

impl Default for LnetConfig {
    fn default() -> LnetConfig {
        LnetConfig {
            accept_port: 988,
            accept_timeout: Duration::from_secs(5),
            accept_pending_max: 127,
            accept_host_max: 1024,
            peers_max: 1 << 16,
            parked_bytes_max: 256 << 20,
            credits: 256,
            peer_credits: 8,
            connect_timeout: Duration::from_secs(5),
            sock_timeout: Duration::from_secs(50),
            keepalive: Duration::from_secs(30),
            transaction_timeout: Duration::from_secs(50),
            retry_count: 2,
        }
    }
}
