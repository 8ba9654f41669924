//! The limits and times of the RPC layer, under Lustre's names, with Lustre's defaults (guide 12.4).

use crate::ServicesTuning;
use params::Registry;
use std::time::Duration;

/// What a [`crate::Ptlrpc`] is started with.
#[derive(Debug, Clone)]
pub struct RpcConfig {
    /// `obd_timeout`: the base of the fixed times.
    pub obd_timeout: Duration,
    /// `at_min`: the least service time that a client allows for.
    pub at_min: Duration,
    /// `at_max`: the longest.
    pub at_max: Duration,
    /// `at_history`: how long a measured service time counts.
    pub at_history: Duration,
    /// `at_early_margin`: how long before a deadline an early reply is sent.
    pub at_early_margin: Duration,
    /// `at_extra`: how much time an early reply asks for.
    pub at_extra: Duration,
    /// How long an idle import waits before it pings.
    pub ping_interval: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long a client that blocks others may be unreachable before it is evicted: its connection is lost, and neither it
    /// nor this server can connect again.
    pub unreachable_timeout: Duration,
    /// Where handles, jitter and the first transaction id of the process come from: of each process another one.
    pub seed: u64,
    /// `tbf_rate`: requests in a second of a class for which no rule says otherwise.
    pub tbf_rate: u64,
    /// `tbf_depth`: tokens that a class may save up.
    pub tbf_depth: u32,
    /// Where the services are shown and set.
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
    /// The times that follow from `obd_timeout`.
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

    /// How long an export may be silent before it is evicted.
    pub fn evict_after(&self) -> Duration {
        self.ping_interval * 6
    }

    /// How soon an import pings to learn that its transactions are committed.
    pub(crate) fn ping_soon(&self) -> Duration {
        self.ping_interval.min(Duration::from_secs(7))
    }
}
