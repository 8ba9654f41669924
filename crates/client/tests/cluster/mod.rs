//! A whole file system in one process, in memory, for tests: MGS, one MDT, some OSTs, and as many clients as asked for.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

use client::{Client, MountOptions};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mdt::{Mdt, MdtConfig};
use mgc::Mgc;
use mgs::Mgs;
use osd::StoreKind;
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

impl Cluster {
    /// Starts it. Files can be made in it when this returns.
    pub async fn start(osts: u32) -> Cluster {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        Cluster::start_on(lnet, osts).await
    }

    /// The same, on a network.
    pub async fn start_on(lnet: Arc<Lnet>, osts: u32) -> Cluster {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
        // RUST_LOG=debug shows what a failing test does; a second test in the process finds it set.
        let log =
            tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env());
        let _ = log.with_test_writer().try_init();
        let nid = lnet.nid();
        let cpts = lnet.cpts().clone();
        let info = |kind, index| info(nid, kind, index);
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
        mgc.register(info(LDD_F_SV_TYPE_MDT, 0)).await.unwrap();
        let cfg = MdtConfig {
            clock: Default::default(),
            locks: Arc::default(),
            fsname: FSNAME.to_owned(),
            index: 0,
            seed: 2,
            params: params::Registry::default(),
        };
        let params = cfg.params.clone();
        let mdt = Mdt::start(rpc.clone(), &mgc, &StoreKind::Memory(1 << 30), cfg)
            .await
            .unwrap();
        let mut started = Vec::new();
        for index in 0..osts {
            let config = mgc.watch(&format!("{FSNAME}-client"));
            let ost = Ost::start(
                &rpc,
                config,
                &StoreKind::Memory(1 << 30),
                OstConfig {
                    params: params.clone(),
                    ..OstConfig::new(FSNAME, index)
                },
            )
            .await
            .unwrap();
            started.push(ost);
            mgc.register(info(LDD_F_SV_TYPE_OST, index)).await.unwrap();
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
            osts: started,
            params,
            mgc,
            mounts: AtomicU64::new(10),
        }
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
