//! Limits and times of the RPC layer. A field that is named after a Lustre parameter has Lustre's
//! default.

use crate::ServicesTuning;
use params::Registry;
use std::time::Duration;

/// Maximum interval of pings while transactions are uncommitted, as in Lustre.
const UNCOMMITTED_PING_INTERVAL_MAX: Duration = Duration::from_secs(7);

/// The configuration of a [`crate::Ptlrpc`].
#[derive(Debug, Clone)]
pub struct RpcConfig {
    /// `obd_timeout`: the base from which the fixed timeouts follow.
    pub obd_timeout: Duration,
    /// `at_min`: the minimum of the service time that clients and services estimate.
    pub at_min: Duration,
    /// `at_max`: the maximum of the service time that clients and services estimate.
    pub at_max: Duration,
    /// `at_history`: the time for which a measured service time counts.
    pub at_history: Duration,
    /// `at_early_margin`: the time before a deadline at which the server sends an early reply.
    pub at_early_margin: Duration,
    /// `at_extra`: the time from an early reply to the new deadline.
    pub at_extra: Duration,
    /// An import pings when it has received no reply for this time.
    pub ping_interval: Duration,
    /// Time limit of one attempt to connect. On a server, a connect also waits at most this long
    /// until earlier exports of the client have ended.
    pub connect_timeout: Duration,
    /// The server evicts a client that blocks other clients after the client was unreachable for
    /// this long. Unreachable: the connection is lost, and neither side can connect again.
    pub unreachable_timeout: Duration,
    /// Seed of handles. An import derives its jitter from its handle. Each process needs a
    /// different seed.
    pub seed: u64,
    /// `tbf_rate`: requests per second, on each partition, of a class that only the default rule
    /// matches. New rules without a rate have this one.
    pub tbf_rate: u64,
    /// `tbf_depth`: maximum number of tokens that a class can accumulate.
    pub tbf_depth: u32,
    /// The registry that the services' parameters are added to.
    pub params: Registry,
    /// Threads and partitions of the services.
    pub services: ServicesTuning,
}

impl Default for RpcConfig {
    fn default() -> RpcConfig {
        RpcConfig::with_timeout(Duration::from_secs(100), 0)
    }
}

impl RpcConfig {
    /// The defaults with the times that follow from `obd_timeout`.
    pub fn with_timeout(obd_timeout: Duration, seed: u64) -> RpcConfig {
        RpcConfig {
            obd_timeout,
            at_min: Duration::from_secs(5),
            at_max: Duration::from_secs(600),
            at_history: Duration::from_secs(600),
            at_early_margin: Duration::from_secs(5),
            at_extra: Duration::from_secs(30),
            ping_interval: (obd_timeout / 4).max(Duration::from_secs(1)),
            connect_timeout: (obd_timeout / 20).max(Duration::from_secs(5)),
            unreachable_timeout: Duration::from_secs(10),
            seed,
            tbf_rate: 10_000,
            tbf_depth: 3,
            params: Registry::default(),
            services: ServicesTuning::default(),
        }
    }

    /// Time of silence after which a client is evicted.
    pub fn eviction_silence(&self) -> Duration {
        self.ping_interval * 6
    }

    /// After this time without a reply, an import with uncommitted transactions pings to learn
    /// `last_committed`.
    pub(crate) fn uncommitted_ping_interval(&self) -> Duration {
        self.ping_interval.min(UNCOMMITTED_PING_INTERVAL_MAX)
    }
}
