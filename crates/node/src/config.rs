//! The configuration of a node.

use std::sync::Arc;

use client::JobIds;
use mdt::WallClock;
use rpc::RpcConfig;

use crate::RandomSource;

/// The configuration of a node, besides its network.
#[derive(Clone)]
pub struct NodeConfig {
    /// The RPC layer. The node's parameters are added to the registry `rpc.params`; `rpc.seed` is
    /// replaced by a number from `random`.
    pub rpc: RpcConfig,
    /// The source of all random numbers of the node.
    pub random: RandomSource,
    /// The time of day: for the MGS, the MDTs, and the mounts.
    pub clock: WallClock,
    /// The source of the job names that the requests of mounts carry.
    pub jobs: Arc<JobIds>,
    /// LNet selftest.
    pub selftest: lst::Settings,
    /// Whether mounts apply the parameters that the MGS keeps for all nodes (`lctl set_param -P`).
    /// Targets always apply them. If true, the node also connects to the MGS of each mount, unless
    /// it is connected already.
    pub follow_mgs_params: bool,
    /// Receives a message when a target's start waits for the MGS.
    pub report_waiting: Arc<dyn Fn(&str) + Send + Sync>,
}

impl NodeConfig {
    /// The default configuration, with the system's time of day.
    pub fn new(random: RandomSource) -> NodeConfig {
        NodeConfig {
            rpc: RpcConfig::default(),
            random,
            clock: WallClock::default(),
            jobs: Arc::default(),
            selftest: lst::Settings::default(),
            follow_mgs_params: true,
            report_waiting: Arc::new(|_| {}),
        }
    }
}
