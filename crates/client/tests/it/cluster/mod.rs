//! A file system in one process and in memory, for tests: an MGS, an MDT, some OSTs, and any number
//! of clients.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

use client::{Client, ClientError, MountOptions};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mdt::{Mdt, MdtConfig, WallClock};
use mgc::Mgc;
use mgs::{Mgs, MgsConfig};
use osd::{Index, MemoryIndex, MemoryStores, Space};
use ost::{Ost, OstConfig};
use rpc::{Ptlrpc, RpcConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::{
    LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_VIRGIN, MgsTargetInfo, Nid, Text, Time,
};

/// The file system's name.
pub const FSNAME: &str = "testfs";

/// The servers of one node.
pub struct Cluster {
    pub rpc: Arc<Ptlrpc>,
    pub mgs: Arc<Mgs>,
    pub mdt: Arc<Mdt>,
    pub osts: Vec<Arc<Ost>>,
    mdt_config: MdtConfig,
    /// The servers' parameters.
    pub params: params::Registry,
    /// The MGS's parameters.
    mgs_params: params::Registry,
    /// The metadata target's clock.
    pub clock: SettableClock,
    pub mgc: Arc<Mgc>,
    /// The seed of the next mount.
    next_seed: AtomicU64,
}

/// The registration of a target.
pub fn target_info(nid: Nid, kind: u32, index: u32) -> MgsTargetInfo {
    let mut info = MgsTargetInfo {
        mti_flags: kind | LDD_F_VIRGIN | LDD_F_UPDATE,
        mti_stripe_index: index,
        mti_nid_count: 1,
        mti_fsname: Text::truncated(FSNAME),
        ..MgsTargetInfo::default()
    };
    info.mti_nids[0] = nid;
    info
}

/// Starts an OST that the MGS has registered.
async fn start_ost(rpc: &Arc<Ptlrpc>, mgc: &Mgc, params: &params::Registry, index: u32) -> Arc<Ost> {
    let config = mgc.follow_in_background(&format!("{FSNAME}-client"));
    let nid = rpc.lnet().nid();
    // Only registered targets get the keys of capabilities.
    mgc.register(target_info(nid, LDD_F_SV_TYPE_OST, index))
        .await
        .unwrap();
    let cfg = OstConfig {
        params: params.clone(),
        nodemaps: mgc.nodemaps().await.unwrap(),
        capa_keys: mgc.capa_keys().await.unwrap(),
        ..OstConfig::new(FSNAME, wire::OstIndex(index))
    };
    Ost::start(rpc, config, &MemoryStores(1 << 30), cfg)
        .await
        .unwrap()
}

/// A clock that may run behind the time of day.
#[derive(Clone, Default)]
pub struct SettableClock(Arc<AtomicU64>);

impl SettableClock {
    /// Lets the clock run `secs` seconds behind the time of day.
    pub fn set_behind(&self, secs: u64) {
        self.0.store(secs, Ordering::SeqCst);
    }

    fn wall_clock(&self) -> WallClock {
        let behind = self.0.clone();
        WallClock::new(move || {
            let now = Time::from(std::time::SystemTime::now());
            now.later(-(behind.load(Ordering::SeqCst) as i64))
        })
    }
}

/// An object target on a separate node.
pub struct OstNode {
    pub rpc: Arc<Ptlrpc>,
    pub ost: Arc<Ost>,
    mgc: Arc<Mgc>,
}

impl OstNode {
    /// Stops the object target.
    pub async fn stop(self) {
        self.ost.stop().await.unwrap();
        self.mgc.disconnect().await;
    }
}

impl Cluster {
    /// Starts another object target on a separate node. The cluster's own node must have an address
    /// on a network (not only `lo`).
    pub async fn start_ost_on(&self, lnet: Arc<Lnet>, index: u32) -> OstNode {
        let cfg = RpcConfig {
            seed: 100 + u64::from(index),
            ..RpcConfig::default()
        };
        let rpc = Ptlrpc::start(lnet.clone(), lnet.cpts().clone(), cfg);
        let mgs = vec![self.rpc.lnet().nid()];
        let mgc = Mgc::connect(&rpc, mgs, "another node").await.unwrap();
        let ost = start_ost(&rpc, &mgc, &self.params, index).await;
        OstNode { rpc, ost, mgc }
    }

    /// Starts another object target on the cluster's own node.
    pub async fn add_ost(&mut self) {
        let index = self.osts.len() as u32;
        let ost = start_ost(&self.rpc, &self.mgc, &self.params, index).await;
        self.osts.push(ost);
    }

    /// Starts a cluster. Returns when clients can create files.
    pub async fn start(osts: u32) -> Cluster {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        Cluster::start_on(lnet, osts).await
    }

    /// Starts a cluster on the node `lnet`.
    pub async fn start_on(lnet: Arc<Lnet>, osts: u32) -> Cluster {
        Cluster::start_with(lnet, osts, Arc::new(MemoryIndex::new(Space::of_memory(1 << 30)))).await
    }

    /// Starts a cluster with the given index for the metadata target.
    pub async fn start_with(lnet: Arc<Lnet>, osts: u32, index: Arc<dyn Index>) -> Cluster {
        // With RUST_LOG=debug, a failing test prints its log. A process has one subscriber, so
        // `try_init` fails for its second test; this does not matter.
        let log =
            tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env());
        let _ = log.with_test_writer().try_init();
        let nid = lnet.nid();
        let cpts = lnet.cpts().clone();
        let rpc = Ptlrpc::start(
            lnet,
            cpts,
            RpcConfig {
                seed: 1,
                ..RpcConfig::default()
            },
        );
        let mgs_params = params::Registry::default();
        let config = MgsConfig {
            seed: 1,
            params: mgs_params.clone(),
            ..MgsConfig::default()
        };
        let mgs = Mgs::start_with(&rpc, &MemoryStores(1 << 30), config)
            .await
            .unwrap();
        let mgc = Mgc::connect(&rpc, vec![Nid::LO], "servers").await.unwrap();
        mgc.register(target_info(nid, LDD_F_SV_TYPE_MDT, 0))
            .await
            .unwrap();
        let clock = SettableClock::default();
        let cfg = MdtConfig {
            clock: clock.wall_clock(),
            locks: Arc::default(),
            nodemaps: mgc.nodemaps().await.unwrap(),
            capa_keys: mgc.capa_keys().await.unwrap(),
            fsname: FSNAME.to_owned(),
            index: 0,
            seed: 2,
            params: params::Registry::default(),
        };
        let params = cfg.params.clone();
        let config = mgc.follow_in_background(&format!("{FSNAME}-client"));
        let mdt = Mdt::start_on(rpc.clone(), index, config, cfg.clone())
            .await
            .unwrap();
        let mut all_osts = Vec::new();
        for index in 0..osts {
            all_osts.push(start_ost(&rpc, &mgc, &params, index).await);
        }
        let mut config = mgc.follow_in_background(&format!("{FSNAME}-client"));
        let complete =
            config.wait_for(|config| config.osts.len() == osts as usize && !config.mdts.is_empty());
        tokio::time::timeout(Duration::from_secs(120), complete)
            .await
            .expect("the configuration is complete")
            .unwrap();
        tokio::time::timeout(Duration::from_secs(120), mdt.osts_ready(osts as usize))
            .await
            .expect("the MDT can put files on all OSTs");
        Cluster {
            rpc,
            mgs,
            mdt,
            mdt_config: cfg,
            osts: all_osts,
            params,
            mgs_params,
            clock,
            mgc,
            next_seed: AtomicU64::new(10),
        }
    }

    /// Stops the metadata target and restarts it on another index.
    pub async fn restart_mdt(&mut self, index: Arc<dyn Index>) {
        self.mdt.stop().await;
        let config = self.mgc.follow_in_background(&format!("{FSNAME}-client"));
        self.mdt = Mdt::start_on(self.rpc.clone(), index, config, self.mdt_config.clone())
            .await
            .unwrap();
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
        self.mgs_params.set("mgs.MGS.capa_keys", "new").unwrap();
        while ring.keys() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Mounts the file system.
    pub async fn mount(&self) -> Arc<Client> {
        self.mount_with(|_| {}).await
    }

    /// Mounts the file system with other options.
    pub async fn mount_with(&self, change: impl FnOnce(&mut MountOptions)) -> Arc<Client> {
        self.try_mount(change).await.unwrap()
    }

    /// Mounts the file system with other options; may fail.
    pub async fn try_mount(
        &self,
        change: impl FnOnce(&mut MountOptions),
    ) -> Result<Arc<Client>, ClientError> {
        let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
        let mut options = MountOptions::new(vec![Nid::LO], FSNAME, seed);
        change(&mut options);
        Client::mount(&self.rpc, options).await
    }

    /// Stops the servers.
    pub async fn stop(self) {
        self.mdt.stop().await;
        for ost in &self.osts {
            ost.stop().await.unwrap();
        }
        self.mgc.disconnect().await;
        self.mgs.stop().await.unwrap();
    }
}
