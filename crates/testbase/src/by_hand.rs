//! A target with a handler from the test, and hand-made messages.

use bytes::Bytes;
use lnet::{Lnet, MatchEntry, Md, MdEvent, MdHandle, Payload};
use params::Operations;
use rpc::{BoxFuture, ConnectRequest, EndReason, Export, Reply, Role, ServerRequest, Target};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use wire::{Errno, LustreHandle, Message, Nid, ObdConnectData, PtlrpcBody, Transno, WireStruct};

pub const MDT: &str = "testfs-MDT0000_UUID";
pub const OST: &str = "testfs-OST0000_UUID";

/// The buffers of a request with a text.
pub fn text(s: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(s.as_bytes())]
}

type Handler =
    Box<dyn for<'a> Fn(&'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> + Send + Sync>;

/// A target with a handler from the test. It grants all flags, requested or not.
pub struct TestTarget {
    uuid: String,
    handle: Handler,
    /// Number of requests executed so far.
    pub executed: AtomicU64,
    /// Number of requests in execution.
    pub running: AtomicUsize,
    /// Maximum of `running` so far.
    pub running_max: AtomicUsize,
    /// For each dropped export, whether its client was evicted.
    pub gone: Mutex<Vec<bool>>,
    /// The NID that the target admits as a server.
    pub server_nid: Mutex<Option<Nid>>,
    /// Number of calls of `last_request_done` so far.
    pub last_done: AtomicU64,
}

impl TestTarget {
    pub fn new<F>(uuid: &str, handle: F) -> Arc<TestTarget>
    where
        F: for<'a> Fn(&'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> + Send + Sync + 'static,
    {
        Arc::new(TestTarget {
            uuid: uuid.into(),
            handle: Box::new(handle),
            executed: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
            gone: Mutex::default(),
            server_nid: Mutex::default(),
            last_done: AtomicU64::new(0),
        })
    }

    pub fn executed(&self) -> u64 {
        self.executed.load(Ordering::SeqCst)
    }
}

impl Target for TestTarget {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn admit(&self, req: &ConnectRequest) -> Result<Role, Errno> {
        let is_server = req.claims_server() && *self.server_nid.lock().unwrap() == Some(req.peer);
        Ok(if is_server { Role::Server } else { Role::Client })
    }

    fn negotiate(&self, _req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        Ok(ObdConnectData {
            ocd_connect_flags: u64::MAX,
            ocd_connect_flags2: u64::MAX,
            ocd_maxmodrpcs: 3,
            ..Default::default()
        })
    }

    fn last_committed(&self) -> Transno {
        Transno(40)
    }

    fn replayable(&self) -> bool {
        true
    }

    fn operations(&self) -> Operations {
        &[("read_bytes", "bytes"), ("getattr", "usecs")]
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            self.executed.fetch_add(1, Ordering::SeqCst);
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.running_max.fetch_max(running, Ordering::SeqCst);
            let result = (self.handle)(req).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            result
        })
    }

    fn export_gone<'a>(&'a self, _export: &'a Arc<Export>, why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.gone.lock().unwrap().push(why == EndReason::Evicted) })
    }

    fn last_request_done<'a>(&'a self, _export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.last_done.fetch_add(1, Ordering::SeqCst);
        })
    }
}

/// A buffer for replies on a reply portal.
pub fn reply_buffer(lnet: &Arc<Lnet>, portal: u32, match_bits: u64) -> MdHandle {
    lnet.attach(
        MatchEntry {
            portal,
            match_bits,
            from: None,
        },
        Md::Sink { max_len: 4096 },
    )
}

/// The next reply: its offset and message.
pub async fn next_reply(buffer: &mut MdHandle) -> (u32, Message) {
    match buffer.next().await {
        Some(MdEvent::Put { offset, payload, .. }) => {
            (offset, Message::parse(&payload.into_bytes()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

/// The body of a request; its client waits 11 s for the reply.
pub fn body(opc: u32, version: u32, handle: u64) -> PtlrpcBody {
    PtlrpcBody {
        pb_handle: LustreHandle { cookie: handle },
        pb_type: wire::PTL_RPC_MSG_REQUEST,
        pb_version: version | 3,
        pb_opc: opc,
        pb_conn_cnt: 1,
        pb_timeout: 11,
        ..Default::default()
    }
}

/// Sends a message to a portal of `to`.
pub async fn send(lnet: &Arc<Lnet>, to: Nid, portal: u32, xid: u64, msg: &Message) {
    lnet.put(to, portal, xid, 0, 0, Payload::from(msg.build()), false)
        .await
        .unwrap();
}

/// Connects by hand to a metadata target of this node, like [`connect_to`].
pub async fn connect_by_hand(
    lnet: &Arc<Lnet>,
    uuid: &str,
    client: &str,
    claim: (u64, u32, bool),
    requested: ObdConnectData,
) -> (u32, PtlrpcBody, Option<ObdConnectData>) {
    connect_to(lnet, Nid::LO, uuid, client, claim, requested).await
}

/// Connects by hand to a metadata target, with the client's import handle, its `conn_cnt`, and
/// whether the connect is initial (`MSG_CONNECT_INITIAL`). Returns the reply's offset, body and
/// connect data.
pub async fn connect_to(
    lnet: &Arc<Lnet>,
    to: Nid,
    uuid: &str,
    client: &str,
    (cookie, conn_cnt, initial): (u64, u32, bool),
    requested: ObdConnectData,
) -> (u32, PtlrpcBody, Option<ObdConnectData>) {
    let xid = 0x7000_0000 + u64::from(conn_cnt) * 128;
    let mut buffer = reply_buffer(lnet, 10, xid);
    let body = PtlrpcBody {
        pb_conn_cnt: conn_cnt,
        pb_op_flags: if initial { wire::MSG_CONNECT_INITIAL } else { 0 },
        ..body(wire::MDS_CONNECT, wire::LUSTRE_OBD_VERSION, 0)
    };
    let bufs = [
        wire::nul_terminated(uuid.as_bytes()),
        wire::nul_terminated(client.as_bytes()),
        LustreHandle { cookie }.to_bytes(),
        requested.to_bytes(),
        Bytes::new(),
    ];
    send(
        lnet,
        to,
        12,
        xid,
        &Message {
            flags: 0,
            ..Message::new(&body, bufs)
        },
    )
    .await;
    let (offset, msg) = next_reply(&mut buffer).await;
    (offset, msg.body().unwrap(), msg.get(1).ok())
}
