//! A node in one process for tests: LNet on `lo`, the RPC layer, an echoing target, a recording
//! import owner.

use bytes::Bytes;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use parking_lot::Mutex;
use rpc::{
    BoxFuture, ConnectRequest, EndReason, Export, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner,
    Ptlrpc, Reply, RpcConfig, ServerRequest, Target, services,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use wire::{Errno, Message, Nid, ObdConnectData, Transno};

/// An RPC layer on `lo` with all services, on the current tokio runtime.
pub fn node(seed: u64) -> Arc<Ptlrpc> {
    node_with(RpcConfig {
        seed,
        ..RpcConfig::default()
    })
}

/// An RPC layer on `lo` like [`node`], with this configuration.
pub fn node_with(cfg: RpcConfig) -> Arc<Ptlrpc> {
    let cpts = CptTable::single_current();
    let lnet = Lnet::new(cpts.clone(), LnetConfig::default());
    let rpc = Ptlrpc::start(lnet, cpts, cfg);
    for list in [services::MGS, services::MDS, services::OSS, services::LDLM] {
        rpc.serve(list).expect("the standard services start");
    }
    rpc
}

/// The configuration of an import of `target_uuid` on this node.
pub fn import_config(target_uuid: &str, kind: ImportKind, owner: Arc<dyn ImportOwner>) -> ImportConfig {
    ImportConfig {
        name: format!("{target_uuid}-test"),
        target_uuid: target_uuid.to_owned(),
        client_uuid: "00000000-0000-4000-8000-000000000001".to_owned(),
        nids: vec![Nid::LO],
        kind,
        connect: ObdConnectData::default(),
        max_rpcs_in_flight: 8,
        owner,
    }
}

/// An import of `target_uuid`, connected over `lo`, and its owner.
pub async fn client(
    rpc: &Arc<Ptlrpc>,
    target_uuid: &str,
    kind: ImportKind,
) -> (Arc<Import>, Arc<RecordingOwner>) {
    let owner = Arc::<RecordingOwner>::default();
    let import = Import::new(rpc, import_config(target_uuid, kind, owner.clone()));
    import.connect().await.expect("the target admits the client");
    (import, owner)
}

/// An import owner that records events and callbacks.
#[derive(Debug, Default)]
pub struct RecordingOwner {
    /// The events so far: `connected`, `disconnected`, `evicted`, `idle`, `closed`.
    pub events: Mutex<Vec<&'static str>>,
    /// The opcodes of the callbacks so far.
    pub callbacks: Mutex<Vec<u32>>,
    /// The value of [`ImportOwner::in_use`].
    pub in_use: AtomicBool,
}

impl ImportOwner for RecordingOwner {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        self.callbacks.lock().push(opc);
        Box::pin(async move { Ok(Reply::new(vec![msg.bytes(1)])) })
    }

    fn event(&self, event: ImportEvent) {
        self.events.lock().push(match event {
            ImportEvent::Connected(_) => "connected",
            ImportEvent::Disconnected => "disconnected",
            ImportEvent::Evicted => "evicted",
            ImportEvent::Idle => "idle",
            ImportEvent::Closed => "closed",
        });
    }

    fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }
}

/// A target that replies to every request with the request's buffers and grants all requested
/// flags.
#[derive(Debug)]
pub struct EchoTarget {
    uuid: String,
    /// Number of requests executed.
    pub executed: AtomicU64,
    /// Dropped exports: the client's UUID, and whether it was evicted.
    pub gone: Mutex<Vec<(String, bool)>>,
}

impl EchoTarget {
    /// A target with this UUID.
    pub fn new(uuid: &str) -> Arc<EchoTarget> {
        Arc::new(EchoTarget {
            uuid: uuid.to_owned(),
            executed: AtomicU64::new(0),
            gone: Mutex::default(),
        })
    }
}

impl Target for EchoTarget {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        Ok(req.data)
    }

    fn last_committed(&self) -> Transno {
        Transno::NONE
    }

    fn replayable(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            self.executed.fetch_add(1, Ordering::Relaxed);
            let bufs: Vec<Bytes> = req.msg.bufs.iter().skip(1).cloned().collect();
            Ok(Reply::new(bufs))
        })
    }

    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.gone
                .lock()
                .push((export.client_uuid.clone(), why == EndReason::Evicted))
        })
    }
}
