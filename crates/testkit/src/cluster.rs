//! A file system in one process and in memory: an MGS, one or several MDTs, some OSTs, and any
//! number of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use client::{Client, ClientError, MountOptions};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mdt::Mdt;
use mgc::Mgc;
use mgs::Mgs;
use node::{MGS_WAIT, Node, NodeConfig, NodeError, RandomSource, TargetSpec};
use osd::target::{TargetKind, TargetLabel};
use osd::{Index, MemoryIndex, MemoryStores, Space};
use ost::Ost;
use params::Registry;
use rpc::Ptlrpc;
use testbase::slow_index;
use tokio::time::timeout;
use wire::Nid;

use crate::{SettableClock, StoresWithIndex, slow_stores};

/// The file system's name.
pub const FSNAME: &str = "testfs";
/// Capacity of each store, bytes.
const CAPACITY: u64 = 1 << 30;
/// The longest wait for servers, with a margin for a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A file system with all servers on one node. Its clients are on the same node.
pub struct Cluster {
    /// The servers' node.
    pub node: Arc<Node>,
    /// The node's RPC layer.
    pub rpc: Arc<Ptlrpc>,
    /// The MGS.
    pub mgs: Arc<Mgs>,
    /// MDT0000.
    pub mdt: Arc<Mdt>,
    /// The OSTs on this node.
    pub osts: Vec<Arc<Ost>>,
    /// The servers' parameters. Each mount has its own registry.
    pub params: Registry,
    /// The servers' time of day.
    pub clock: SettableClock,
    /// The servers' connection to the MGS.
    pub mgc: Arc<Mgc>,
    /// The seed of the next mount.
    next_seed: AtomicU64,
}

/// A node with an object target, besides the cluster's node.
pub struct OstNode {
    /// The node.
    pub node: Arc<Node>,
    /// The node's RPC layer.
    pub rpc: Arc<Ptlrpc>,
    /// The object target.
    pub ost: Arc<Ost>,
    /// The node's parameters.
    pub params: Registry,
}

impl OstNode {
    /// Stops the node.
    pub async fn stop(self) {
        self.node.stop().await.unwrap();
    }
}

/// The label of a target of [`FSNAME`].
pub fn label(kind: TargetKind, index: u32) -> TargetLabel {
    let uuid = RandomSource::seeded(u64::from(index) << 8 | kind as u64).uuid();
    TargetLabel::new(kind, FSNAME, index, &uuid.unwrap())
}

/// Starts a node whose random numbers depend only on the seed. Its mounts do not follow the
/// parameters that the MGS stores: this would need another connection.
pub fn start_node(lnet: Arc<Lnet>, seed: u64, clock: &SettableClock) -> Arc<Node> {
    let config = NodeConfig {
        clock: clock.wall_clock(),
        follow_mgs_params: false,
        ..NodeConfig::new(RandomSource::seeded(seed))
    };
    Node::start(lnet, config).unwrap()
}

fn in_memory(kind: TargetKind, index: u32) -> TargetSpec {
    TargetSpec {
        stores: slow_stores::stores(MemoryStores(CAPACITY)),
        ..TargetSpec::in_memory(label(kind, index), CAPACITY)
    }
}

fn mdt_on(index: Arc<dyn Index>) -> TargetSpec {
    TargetSpec {
        stores: Box::new(StoresWithIndex(index)),
        ..in_memory(TargetKind::Mdt, 0)
    }
}

async fn serve(node: &Node, targets: Vec<TargetSpec>) {
    node.serve(targets, MGS_WAIT).await.unwrap();
}

impl Cluster {
    /// Starts a cluster. Returns when clients can create files.
    pub async fn start(osts: u32) -> Cluster {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        Cluster::start_on(lnet, osts).await
    }

    /// Starts a cluster on the node `lnet`.
    pub async fn start_on(lnet: Arc<Lnet>, osts: u32) -> Cluster {
        Cluster::start_with_clock(lnet, osts, SettableClock::default()).await
    }

    /// Starts a cluster with several MDTs.
    pub async fn start_with_mdts(mdts: u32, osts: u32) -> Cluster {
        let mut cluster = Cluster::start(osts).await;
        for index in 1..mdts {
            cluster.add_mdt(index).await;
        }
        cluster
    }

    /// Starts another metadata target on the cluster's own node. Returns when it can put files on
    /// all OSTs.
    pub async fn add_mdt(&mut self, index: u32) -> Arc<Mdt> {
        serve(&self.node, vec![in_memory(TargetKind::Mdt, index)]).await;
        let mdt = self.mdt_of(index);
        timeout(WAIT_MAX, mdt.osts_ready(self.osts.len()))
            .await
            .expect("the MDT can put files on all OSTs");
        mdt
    }

    /// The running metadata target with this index.
    pub fn mdt_of(&self, index: u32) -> Arc<Mdt> {
        let uuid = format!("{}_UUID", label(TargetKind::Mdt, index).svname());
        let found = self.node.mdts().into_iter().find(|mdt| mdt.uuid() == uuid);
        found.expect("the MDT runs")
    }

    /// Starts a cluster on the node `lnet` with a clock.
    pub async fn start_with_clock(lnet: Arc<Lnet>, osts: u32, clock: SettableClock) -> Cluster {
        let index = Arc::new(MemoryIndex::new(Space::of_memory(CAPACITY)));
        Cluster::start_all(lnet, osts, slow_index::index(index), clock).await
    }

    /// Starts a cluster with the given index for the metadata target.
    pub async fn start_with(lnet: Arc<Lnet>, osts: u32, index: Arc<dyn Index>) -> Cluster {
        Cluster::start_all(lnet, osts, index, SettableClock::default()).await
    }

    async fn start_all(lnet: Arc<Lnet>, osts: u32, index: Arc<dyn Index>, clock: SettableClock) -> Cluster {
        // With RUST_LOG=debug, a failing test prints its log. A process has one subscriber, so
        // `try_init` fails for its second test; this does not matter.
        let log =
            tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env());
        let _ = log.with_test_writer().try_init();
        let node = start_node(lnet, 1, &clock);
        let mut targets = vec![in_memory(TargetKind::Mgs, 0), mdt_on(index)];
        targets.extend((0..osts).map(|index| in_memory(TargetKind::Ost, index)));
        serve(&node, targets).await;
        let mdt = node.mdts().remove(0);
        timeout(WAIT_MAX, mdt.osts_ready(osts as usize))
            .await
            .expect("the MDT can put files on all OSTs");
        Cluster {
            rpc: node.rpc().clone(),
            mgs: node.mgs().unwrap(),
            mdt,
            osts: node.osts(),
            params: node.registry().clone(),
            clock,
            mgc: node.mgcs().remove(0),
            node,
            next_seed: AtomicU64::new(10),
        }
    }

    /// Starts another object target on a separate node. The cluster's own node must have an address
    /// on a network (not only `lo`).
    pub async fn start_ost_on(&self, lnet: Arc<Lnet>, index: u32) -> OstNode {
        let node = start_node(lnet, 100 + u64::from(index), &self.clock);
        let mut target = in_memory(TargetKind::Ost, index);
        target.label.mgsnode = vec![self.rpc.lnet().nid()];
        serve(&node, vec![target]).await;
        OstNode {
            rpc: node.rpc().clone(),
            ost: node.osts().remove(0),
            params: node.registry().clone(),
            node,
        }
    }

    /// Starts another object target on the cluster's own node.
    pub async fn add_ost(&mut self) {
        let index = self.osts.len() as u32;
        serve(&self.node, vec![in_memory(TargetKind::Ost, index)]).await;
        self.osts = self.node.osts();
    }

    /// Stops the metadata target.
    pub async fn stop_mdt(&self) {
        let svname = label(TargetKind::Mdt, 0).svname();
        self.node.stop_target(&svname).await.unwrap();
    }

    /// Stops the metadata target and restarts it on another index.
    pub async fn restart_mdt(&mut self, index: Arc<dyn Index>) {
        self.stop_mdt().await;
        serve(&self.node, vec![mdt_on(index)]).await;
        self.mdt = self.mdt_of(0);
    }

    /// Sets whether clients of this node need capabilities for objects. Users of these clients keep
    /// their IDs, and root keeps its rights.
    pub async fn require_capabilities(&self, required: bool) {
        let value = if required { "1" } else { "0" };
        self.mgs
            .change_nodemaps(|table| {
                if table.add("here").is_ok() {
                    table.add_range("here", "0@lo")?;
                    table.modify("here", "trusted", "1")?;
                    table.modify("here", "admin", "1")?;
                }
                table.modify("here", "capabilities", value)
            })
            .await
            .unwrap();
        let nodemaps = self.mgc.nodemaps().await.unwrap();
        let mut changes = nodemaps.changes();
        while nodemaps.table().rights(Nid::LO).capabilities != required {
            changes.changed().await.unwrap();
        }
    }

    /// Rotates the capability keys; returns when the servers have the new key.
    pub async fn rotate_capability_keys(&self) {
        let ring = self.mgc.capa_keys().await.unwrap();
        let before = ring.keys();
        self.params.set("mgs.MGS.capa_keys", "new").unwrap();
        while ring.keys() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Mounts the file system.
    pub async fn mount(&self) -> Arc<Client> {
        self.mount_with(|_| {}).await
    }

    /// Mounts the file system with the default options as modified by `change`.
    pub async fn mount_with(&self, change: impl FnOnce(&mut MountOptions)) -> Arc<Client> {
        self.try_mount(change).await.unwrap()
    }

    /// Mounts the file system with the default options as modified by `change`.
    ///
    /// # Errors
    ///
    /// As [`Client::mount`].
    pub async fn try_mount(
        &self,
        change: impl FnOnce(&mut MountOptions),
    ) -> Result<Arc<Client>, ClientError> {
        let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
        let mut options = MountOptions::new(vec![Nid::LO], FSNAME, seed);
        change(&mut options);
        self.node.mount(options).await.map_err(|e| match e {
            NodeError::Mount(e) => e,
            e => panic!("{e}"),
        })
    }

    /// Stops the clients that are still mounted, and the servers.
    pub async fn stop(self) {
        self.node.stop().await.unwrap();
    }
}
