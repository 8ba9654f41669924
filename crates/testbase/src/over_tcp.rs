//! Nodes that talk over TCP on loopback addresses.

use crate::rpc_node::{RecordingOwner, import_config};
use cpt::{CptConfig, CptTable};
use lnet::{Lnet, LnetConfig, NiSpec};
use rpc::{Import, ImportKind, Ptlrpc, RpcConfig, services};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use wire::Nid;

/// Two loopback addresses of one test. No other test of this process uses them, so the acceptor's
/// port is free.
pub fn addresses() -> (Nid, Nid) {
    let nid = nid_maker();
    (nid(1), nid(2))
}

/// Returns a function from a last octet to a NID on loopback. No other test of this process gets
/// these addresses.
pub fn nid_maker() -> impl Fn(u8) -> Nid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    move |last| Nid::tcp(Ipv4Addr::new(127, (pid % 250) as u8 + 1, n, last), 0)
}

/// A table of this number of partitions, independent of the number of CPUs.
pub fn forced_partitions(cpu_npartitions: usize) -> Arc<CptTable> {
    CptTable::build(&CptConfig {
        cpu_npartitions,
        force_partitions: true,
        ..CptConfig::default()
    })
    .unwrap()
}

/// A node with its network on all partitions.
pub async fn node_on(cpts: Arc<CptTable>, nid: Nid, config: RpcConfig) -> Arc<Ptlrpc> {
    node_bound(cpts, nid, None, config).await
}

/// A node with its network on the partitions `lnet_cpts`; `None`: on all.
pub async fn node_bound(
    cpts: Arc<CptTable>,
    nid: Nid,
    lnet_cpts: Option<Vec<usize>>,
    config: RpcConfig,
) -> Arc<Ptlrpc> {
    let cfg = LnetConfig {
        accept_port: 7987,
        ..LnetConfig::default()
    };
    let lnet = Lnet::new(cpts.clone(), cfg);
    lnet.add_ni(&NiSpec {
        cpts: lnet_cpts,
        ..NiSpec::new(nid)
    })
    .unwrap();
    let rpc = Ptlrpc::start(lnet, cpts, config);
    for list in [services::MDS, services::OSS, services::LDLM] {
        rpc.serve(list).unwrap();
    }
    rpc
}

pub async fn node(nid: Nid, seed: u64) -> Arc<Ptlrpc> {
    let config = RpcConfig {
        seed,
        ..RpcConfig::default()
    };
    node_on(CptTable::single_current(), nid, config).await
}

/// An import that is connected to the target `uuid` at `server`, and its owner.
pub async fn import(
    rpc: &Arc<Ptlrpc>,
    server: Nid,
    uuid: &str,
    kind: ImportKind,
) -> (Arc<Import>, Arc<RecordingOwner>) {
    let owner = Arc::<RecordingOwner>::default();
    let cfg = import_config(uuid, kind, owner.clone());
    let import = Import::new(
        rpc,
        rpc::ImportConfig {
            nids: vec![server],
            client_uuid: format!("{:016x}-0000-4000-8000", rpc.lnet().nid().0),
            ..cfg
        },
    );
    import.connect().await.unwrap();
    (import, owner)
}
