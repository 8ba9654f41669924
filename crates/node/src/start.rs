//! The node: its start and stop, and access to its parts.

use std::sync::Arc;

use client::Client;
use ldlm::LockLimits;
use lnet::Lnet;
use mdt::Mdt;
use mgc::Mgc;
use mgs::Mgs;
use osd::target::TargetKind;
use ost::Ost;
use params::{Group, ParamGuard, Registry};
use parking_lot::Mutex;
use rpc::{Ptlrpc, RpcConfig};
use wire::{Nid, OstIndex};

use crate::steps::{STEP_MAX, await_all, limit_step};
use crate::target::{RunningTarget, Service};
use crate::{NodeConfig, NodeError};

/// A running node. Its methods may be called at the same time.
pub struct Node {
    pub(crate) lnet: Arc<Lnet>,
    pub(crate) rpc: Arc<Ptlrpc>,
    pub(crate) config: NodeConfig,
    /// Limit on the LDLM locks of all targets here.
    pub(crate) locks: Arc<LockLimits>,
    pub(crate) state: Mutex<State>,
    /// Registered parameters of the node.
    _params: Vec<ParamGuard>,
    /// Registered parameters of the limit on locks.
    _lock_params: Group,
}

/// The parts of a node that come and go.
#[derive(Default)]
pub(crate) struct State {
    /// The targets, in start order.
    pub(crate) targets: Vec<RunningTarget>,
    /// The connection to each MGS used here, with the NIDs of the MGS.
    pub(crate) mgcs: Vec<(Vec<Nid>, Arc<Mgc>)>,
    pub(crate) clients: Vec<Arc<Client>>,
    /// LNet selftest, if enabled.
    pub(crate) selftest: Option<Arc<lst::Node>>,
    /// Whether the node stops and accepts no new mount.
    pub(crate) stopping: bool,
}

impl State {
    fn services(&self) -> impl Iterator<Item = &Service> {
        self.targets.iter().map(|target| &target.service)
    }
}

impl Node {
    /// Starts a node without targets or mounts on a network. The node uses the CPU partitions of
    /// the network.
    ///
    /// # Errors
    ///
    /// [`NodeError::Random`] if the source of random numbers fails. The network stays as it is.
    pub fn start(lnet: Arc<Lnet>, config: NodeConfig) -> Result<Arc<Node>, NodeError> {
        let rpc_config = RpcConfig {
            seed: config.random.number()?,
            ..config.rpc.clone()
        };
        let registry = rpc_config.params.clone();
        let rpc = Ptlrpc::start(lnet.clone(), lnet.cpts().clone(), rpc_config);
        let mut params = crate::params::register(&registry, &rpc);
        params.extend(lnet.register_params(&registry));
        params.extend(config.jobs.register_params(&registry));
        let locks = Arc::<LockLimits>::default();
        let selftest = &config.selftest;
        let selftest = selftest
            .enabled
            .then(|| Arc::new(lst::Node::start(&lnet, selftest)));
        Ok(Arc::new(Node {
            lnet,
            rpc,
            config,
            state: Mutex::new(State {
                selftest,
                ..State::default()
            }),
            _lock_params: locks.register_params(&registry),
            locks,
            _params: params,
        }))
    }

    /// Waits until the MDTs here can create objects on all OSTs here that are not full. Returns the
    /// indices of the full ones.
    ///
    /// # Errors
    ///
    /// [`NodeError::NotReady`] after [`STEP_MAX`].
    pub async fn wait_until_ready(&self) -> Result<Vec<OstIndex>, NodeError> {
        let (mdts, osts) = (self.mdts(), self.osts().len());
        let ready = async {
            let mut full = Vec::new();
            for mdt in &mdts {
                full.extend(mdt.osts_ready(osts).await);
            }
            full
        };
        let result = tokio::time::timeout(STEP_MAX, ready).await;
        result.map_err(|_| NodeError::NotReady { waited: STEP_MAX })
    }

    /// Stops everything in reverse start order. Each step takes at most [`STEP_MAX`]. Dirty data of
    /// mounts is written within the step of the mounts.
    ///
    /// # Errors
    ///
    /// The error of the MGS: its last changes may not be on disk. Other errors are only logged.
    pub async fn stop(&self) -> Result<(), NodeError> {
        let state = {
            let mut state = self.state.lock();
            let stopped = State {
                stopping: true,
                ..State::default()
            };
            std::mem::replace(&mut *state, stopped)
        };
        drop(state.selftest);
        await_all(
            state
                .clients
                .into_iter()
                .map(|client| async move { client.umount().await }),
        )
        .await;
        let (mut mdts, mut osts, mut mgs) = (Vec::new(), Vec::new(), Vec::new());
        for target in state.targets {
            match target.service.kind() {
                TargetKind::Mdt => mdts.push(target.service.stop()),
                TargetKind::Ost => osts.push(target.service.stop()),
                TargetKind::Mgs => mgs.push(target.service.stop()),
            }
        }
        for targets in [mdts, osts] {
            for error in await_all(targets).await.into_iter().filter_map(Result::err) {
                tracing::warn!("{error}");
            }
        }
        await_all(state.mgcs.into_iter().map(|(_, mgc)| async move {
            limit_step("the connection to the MGS", mgc.disconnect()).await;
        }))
        .await;
        let result = await_all(mgs).await.into_iter().collect();
        limit_step("the RPC layer", self.rpc.shutdown()).await;
        limit_step("the network", self.lnet.shutdown()).await;
        result
    }

    /// The network.
    pub fn lnet(&self) -> &Arc<Lnet> {
        &self.lnet
    }

    /// The RPC layer.
    pub fn rpc(&self) -> &Arc<Ptlrpc> {
        &self.rpc
    }

    /// The parameters of the node and of all its parts.
    pub fn registry(&self) -> &Registry {
        &self.config.rpc.params
    }

    /// The MGS, if it runs here.
    pub fn mgs(&self) -> Option<Arc<Mgs>> {
        self.state.lock().services().find_map(|service| match service {
            Service::Mgs(mgs) => Some(mgs.clone()),
            _ => None,
        })
    }

    /// The MDTs here, in start order.
    pub fn mdts(&self) -> Vec<Arc<Mdt>> {
        let state = self.state.lock();
        let mdts = state.services().filter_map(|service| match service {
            Service::Mdt(mdt) => Some(mdt.clone()),
            _ => None,
        });
        mdts.collect()
    }

    /// The OSTs here, in start order.
    pub fn osts(&self) -> Vec<Arc<Ost>> {
        let state = self.state.lock();
        let osts = state.services().filter_map(|service| match service {
            Service::Ost(ost) => Some(ost.clone()),
            _ => None,
        });
        osts.collect()
    }

    /// Names of the targets here, in start order.
    pub fn target_names(&self) -> Vec<String> {
        let state = self.state.lock();
        state.targets.iter().map(|target| target.svname.clone()).collect()
    }

    /// The connections to the MGSs that targets and mounts here use.
    pub fn mgcs(&self) -> Vec<Arc<Mgc>> {
        let state = self.state.lock();
        state.mgcs.iter().map(|(_, mgc)| mgc.clone()).collect()
    }

    /// The mounts of this node.
    pub fn clients(&self) -> Vec<Arc<Client>> {
        self.state.lock().clients.clone()
    }

    /// LNet selftest, if it is enabled and the node is not stopping.
    pub fn selftest(&self) -> Option<Arc<lst::Node>> {
        self.state.lock().selftest.clone()
    }
}
