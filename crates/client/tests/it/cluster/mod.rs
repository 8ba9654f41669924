//! A whole file system in one process, in memory, for tests: MGS, one MDT, some OSTs, and as many clients as asked for.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

use client::{Client, MountOptions};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mdt::{Mdt, MdtConfig};
use mgc::Mgc;
use mgs::Mgs;
use osd::{Index, MemoryIndex, Space, StoreKind};
use ost::{Ost, OstConfig};
use rpc::{Ptlrpc, RpcConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::{LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_VIRGIN, MgsTargetInfo, Nid, Text};

/// The file system's name.
pub const FSNAME: &str = "testfs";

/// Servers in one process.
pub struct Cluster {
    pub rpc: Arc<Ptlrpc>,
    pub mgs: Arc<Mgs>,
    pub mdt: Arc<Mdt>,
    pub osts: Vec<Arc<Ost>>,
    mdt_config: MdtConfig,
    /// The servers' parameters.
    pub params: params::Registry,
    mgc: Arc<Mgc>,
    mounts: AtomicU64,
}

fn info(nid: Nid, kind: u32, index: u32) -> MgsTargetInfo {
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

async fn start_ost(rpc: &Arc<Ptlrpc>, mgc: &Mgc, params: &params::Registry, index: u32) -> Arc<Ost> {
    let config = mgc.watch(&format!("{FSNAME}-client"));
    let cfg = OstConfig {
        params: params.clone(),
        ..OstConfig::new(FSNAME, index)
    };
    let ost = Ost::start(rpc, config, &StoreKind::Memory(1 << 30), cfg).await;
    let nid = rpc.lnet().nid();
    mgc.register(info(nid, LDD_F_SV_TYPE_OST, index)).await.unwrap();
    ost.unwrap()
}

/// An object target on a node of its own.
pub struct OstNode {
    pub rpc: Arc<Ptlrpc>,
    pub ost: Arc<Ost>,
    mgc: Arc<Mgc>,
}

impl OstNode {
    /// Stops it.
    pub async fn stop(self) {
        self.ost.stop().await.unwrap();
        self.mgc.disconnect().await;
    }
}

impl Cluster {
    /// Another object target, on a node of its own; the cluster is on a network.
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

    /// Another object target, on the node of the others.
    pub async fn add_ost(&mut self) {
        let index = self.osts.len() as u32;
        let ost = start_ost(&self.rpc, &self.mgc, &self.params, index).await;
        self.osts.push(ost);
    }

    /// Starts it. Files can be made in it when this returns.
    pub async fn start(osts: u32) -> Cluster {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        Cluster::start_on(lnet, osts).await
    }

    /// The same, on a network.
    pub async fn start_on(lnet: Arc<Lnet>, osts: u32) -> Cluster {
        Cluster::start_with(lnet, osts, Arc::new(MemoryIndex::new(Space::of_memory(1 << 30)))).await
    }

    /// The same, with this index for the metadata target.
    pub async fn start_with(lnet: Arc<Lnet>, osts: u32, index: Arc<dyn Index>) -> Cluster {
        // RUST_LOG=debug shows what a failing test does; a second test in the process finds it set.
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
        let mgs = Mgs::start(&rpc, &StoreKind::Memory(1 << 30), 1).await.unwrap();
        let mgc = Mgc::connect(&rpc, vec![Nid::LO], "servers").await.unwrap();
        mgc.register(info(nid, LDD_F_SV_TYPE_MDT, 0)).await.unwrap();
        let cfg = MdtConfig {
            clock: Default::default(),
            locks: Arc::default(),
            nodemaps: Arc::default(),
            fsname: FSNAME.to_owned(),
            index: 0,
            seed: 2,
            params: params::Registry::default(),
        };
        let params = cfg.params.clone();
        let config = mgc.watch(&format!("{FSNAME}-client"));
        let mdt = Mdt::start_on(rpc.clone(), index, config, cfg.clone())
            .await
            .unwrap();
        let mut started = Vec::new();
        for index in 0..osts {
            started.push(start_ost(&rpc, &mgc, &params, index).await);
        }
        let mut seen = mgc.watch(&format!("{FSNAME}-client"));
        let all = seen.wait_for(|c| c.osts.len() == osts as usize && !c.mdts.is_empty());
        tokio::time::timeout(Duration::from_secs(30), all)
            .await
            .expect("the configuration is complete")
            .unwrap();
        Cluster {
            rpc,
            mgs,
            mdt,
            mdt_config: cfg,
            osts: started,
            params,
            mgc,
            mounts: AtomicU64::new(10),
        }
    }

    /// Stops the metadata target, and starts it on another index.
    pub async fn restart_mdt(&mut self, index: Arc<dyn Index>) {
        self.mdt.stop().await;
        let config = self.mgc.watch(&format!("{FSNAME}-client"));
        self.mdt = Mdt::start_on(self.rpc.clone(), index, config, self.mdt_config.clone())
            .await
            .unwrap();
    }

    /// Another mount of it.
    pub async fn mount(&self) -> Arc<Client> {
        self.mount_with(|_| {}).await
    }

    /// The same, with other options.
    pub async fn mount_with(&self, change: impl FnOnce(&mut MountOptions)) -> Arc<Client> {
        let seed = self.mounts.fetch_add(1, Ordering::Relaxed);
        let mut options = MountOptions::new(vec![Nid::LO], FSNAME, seed);
        change(&mut options);
        Client::mount(&self.rpc, options).await.unwrap()
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
