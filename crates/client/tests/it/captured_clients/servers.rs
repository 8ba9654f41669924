//! The file system under test, as captured: an MGS, an MDT and an OST on one node, an OST on
//! another.

pub(crate) use crate::cluster::FSNAME;
use crate::cluster::target_info;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mdt::{Mdt, MdtConfig, WallClock};
use mgc::Mgc;
use mgs::Mgs;
use osd::MemoryStores;
use ost::{Ost, OstConfig};
use rpc::{Ptlrpc, RpcConfig};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::{LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, Nid, Time};

/// The port of all acceptors.
const PORT: u16 = 7990;
/// The longest wait for a message. Long enough for a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The address of a captured node in this run: a loopback address of this process.
pub(crate) fn local_nid(captured: Nid) -> Nid {
    let last = (u64::from(captured) & 0xff) as u8;
    let pid = std::process::id();
    Nid::tcp(
        Ipv4Addr::new(127, (pid % 250) as u8 + 1, (pid / 250 % 250) as u8 + 1, last),
        0,
    )
}

/// The captured NID of this number, `10.88.0.N@tcp`.
pub(crate) fn captured_nid(last: u8) -> Nid {
    Nid::tcp(Ipv4Addr::new(10, 88, 0, last), 0)
}

/// Starts a node at a captured NID's address.
pub(crate) async fn start_node(captured: Nid) -> Arc<Lnet> {
    let config = LnetConfig {
        accept_port: PORT,
        ..LnetConfig::default()
    };
    let lnet = Lnet::new(CptTable::single_current(), config);
    lnet.add_tcp(local_nid(captured), true).await.unwrap();
    lnet
}

/// The servers of a run.
pub(crate) struct Servers {
    nodes: Vec<Arc<Ptlrpc>>,
    mgs: Arc<Mgs>,
    mdt: Arc<Mdt>,
    osts: Vec<Arc<Ost>>,
    mgcs: Vec<Arc<Mgc>>,
    /// The servers' time of day, seconds since 1970.
    clock: Arc<AtomicU64>,
}

impl Servers {
    /// Starts the servers. Files can be created when this returns.
    pub(crate) async fn start() -> Servers {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
        let mut rpcs = Vec::new();
        for (seed, nid) in [(1, captured_nid(11)), (2, captured_nid(12))] {
            let lnet = start_node(nid).await;
            rpcs.push(Ptlrpc::start(
                lnet,
                CptTable::single_current(),
                RpcConfig {
                    seed,
                    ..RpcConfig::default()
                },
            ));
        }
        let memory = || MemoryStores(1 << 30);
        let (srv1, srv2) = (local_nid(captured_nid(11)), local_nid(captured_nid(12)));
        let mgs = Mgs::start(&rpcs[0], &memory(), 1).await.unwrap();
        let mut mgcs = Vec::new();
        for (rpc, name) in rpcs.iter().zip(["srv1", "srv2"]) {
            mgcs.push(Mgc::connect(rpc, vec![srv1], name).await.unwrap());
        }
        mgcs[0]
            .register(target_info(srv1, LDD_F_SV_TYPE_MDT, 0))
            .await
            .unwrap();
        let params = params::Registry::default();
        let clock = Arc::new(AtomicU64::new(1_795_170_711));
        let now = clock.clone();
        let cfg = MdtConfig {
            clock: WallClock::new(move || Time::secs(now.load(Ordering::SeqCst) as i64)),
            locks: Arc::default(),
            nodemaps: Arc::default(),
            capa_keys: Arc::default(),
            fsname: FSNAME.to_owned(),
            index: 0,
            seed: 2,
            params: params.clone(),
        };
        let config = mgcs[0].follow_in_background(&format!("{FSNAME}-client"));
        let mdt = Mdt::start(rpcs[0].clone(), config, &memory(), cfg).await.unwrap();
        let mut osts = Vec::new();
        for (index, nid) in [(0, srv1), (1, srv2)] {
            let (rpc, mgc) = (&rpcs[index as usize], &mgcs[index as usize]);
            let config = mgc.follow_in_background(&format!("{FSNAME}-client"));
            let cfg = OstConfig {
                params: params::Registry::default(),
                ..OstConfig::new(FSNAME, wire::OstIndex(index))
            };
            osts.push(Ost::start(rpc, config, &memory(), cfg).await.unwrap());
            mgc.register(target_info(nid, LDD_F_SV_TYPE_OST, index))
                .await
                .unwrap();
        }
        let mut config = mgcs[0].follow_in_background(&format!("{FSNAME}-client"));
        let complete = config.wait_for(|c| c.osts.len() == 2 && !c.mdts.is_empty());
        tokio::time::timeout(WAIT_MAX, complete)
            .await
            .expect("the configuration is complete")
            .unwrap();
        let servers = Servers {
            nodes: rpcs,
            mgs,
            mdt,
            osts,
            mgcs,
            clock,
        };
        // Waits before a client mounts: the MDT uses an OST that joins later only after a delay.
        servers.osts_ready().await;
        servers
    }

    /// Waits until the MDT can put new files on both OSTs: it skips an OST without preallocated
    /// objects.
    pub(crate) async fn osts_ready(&self) {
        let ready = self.mdt.osts_ready(self.osts.len());
        tokio::time::timeout(WAIT_MAX, ready)
            .await
            .expect("the MDT has preallocated objects of both OSTs");
    }

    /// The node of the MGS, the MDT and the first OST.
    pub(crate) fn first_node(&self) -> &Arc<Ptlrpc> {
        &self.nodes[0]
    }

    /// Sets the servers' clock to a captured time, in microseconds since 1970.
    pub(crate) fn set_time(&self, us: u64) {
        self.clock.store(us / 1_000_000, Ordering::SeqCst);
    }

    /// Stops the servers.
    pub(crate) async fn stop(self) {
        self.mdt.stop().await;
        for ost in &self.osts {
            ost.stop().await.unwrap();
        }
        for mgc in &self.mgcs {
            mgc.disconnect().await;
        }
        self.mgs.stop().await.unwrap();
        for node in &self.nodes {
            node.shutdown().await;
            node.lnet().shutdown().await;
        }
    }
}
