//! An MGS, an MDT and an OST in memory, and a misbehaving client that sends the requests of the
//! input. At the end another client must get replies from MDT and OST.
//!
//! Runs are deterministic: time is virtual, handles and sequences come from fixed seeds, and each
//! input gets new servers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, MatchEntry, Md, MdEvent, MdHandle, Payload};
use node::{MGS_WAIT, Node, NodeConfig, RandomSource, TargetSpec};
use osd::target::{TargetKind, TargetLabel};
use rpc::Ptlrpc;
use tokio::time::timeout;
use wire::{
    LustreHandle, MDS_BULK_PORTAL, MDS_REQUEST_PORTAL, MSG_CONNECT_INITIAL, MdtBody, Message, Nid,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_RDONLY, OBD_CONNECT2_REP_MBITS,
    OST_BULK_PORTAL, OST_REQUEST_PORTAL, ObdConnectData, PTL_RPC_MSG_REQUEST, PtlrpcBody, WireStruct,
};

const MDT: &str = "testfs-MDT0000_UUID";
const OST: &str = "testfs-OST0000_UUID";
/// UUID of the client that sends the input.
pub(crate) const MISBEHAVING_UUID: &str = "misbehaving";
/// Maximum number of requests in an input.
const REQUESTS_MAX: usize = 12;
/// Maximum time that a client waits for a reply: longer than all timeouts of a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1000);
/// The portals of replies. A server chooses one of them by the request's service.
const REPLY_PORTALS: [u32; 5] = [
    wire::OSC_REPLY_PORTAL,
    wire::MDC_REPLY_PORTAL,
    wire::LDLM_CANCEL_REPLY_PORTAL,
    wire::MGC_REPLY_PORTAL,
    wire::LDLM_CB_REPLY_PORTAL,
];
/// Size of a client's buffer for a reply or for bulk data, bytes.
const BUFFER_BYTES: u32 = 1 << 20;
/// All connect flags, except the flags of read-only mounts and of lightweight connections, and the
/// flags with which a server replies to other match bits than the xid.
pub(crate) const FLAGS: u64 = !(OBD_CONNECT_RDONLY | OBD_CONNECT_BULK_MBITS | OBD_CONNECT_LIGHTWEIGHT);
const FLAGS2: u64 = !OBD_CONNECT2_REP_MBITS;

/// One request of an input: an options byte, the portal, the length of the message, and the
/// message.
#[derive(Clone, Debug)]
pub struct FuzzRequest {
    /// A combination of [`KEEP_HANDLE`], [`KEEP_BODY`] and [`TO_OST`].
    pub options: u8,
    /// The portal.
    pub portal: u8,
    /// The message.
    pub message: Bytes,
}

/// Send to the OST's export instead of the MDT's.
pub const TO_OST: u8 = 1;
/// Keep the export handle of the message.
pub const KEEP_HANDLE: u8 = 2;
/// Keep times and counters of the message.
pub const KEEP_BODY: u8 = 4;

impl FuzzRequest {
    /// Splits an input into its complete requests, at most [`REQUESTS_MAX`].
    pub fn read(mut input: &[u8]) -> Vec<FuzzRequest> {
        let mut all = Vec::new();
        while let [options, portal, low, high, rest @ ..] = input
            && all.len() < REQUESTS_MAX
        {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (message, remaining) = rest.split_at(len);
            all.push(FuzzRequest {
                options: *options,
                portal: *portal,
                message: Bytes::copy_from_slice(message),
            });
            input = remaining;
        }
        all
    }

    /// Appends the request to an input.
    pub fn write(&self, input: &mut Vec<u8>) {
        let len = u16::try_from(self.message.len()).expect("seeds are short");
        input.extend([self.options, self.portal]);
        input.extend(len.to_le_bytes());
        input.extend(&self.message);
    }
}

/// Sends an input, and checks that the servers still answer.
pub fn serve(input: &[u8]) {
    let sent = FuzzRequest::read(input);
    if sent.is_empty() {
        return;
    }
    run(async {
        let servers = Servers::start().await;
        let misbehaving = Peer::connect(&servers.rpc, MISBEHAVING_UUID, FLAGS).await;
        for request in &sent {
            misbehaving.send(request).await;
        }
        let other = Peer::connect(&servers.rpc, "other", FLAGS).await;
        let root = MdtBody {
            mbo_fid1: wire::Fid::ROOT,
            mbo_valid: wire::OBD_MD_FLID,
            ..MdtBody::default()
        };
        let bufs = [root.to_bytes(), Bytes::new()];
        let attributes = other
            .call(false, MDS_REQUEST_PORTAL, wire::MDS_GETATTR, bufs)
            .await;
        assert!(
            attributes
                .get::<MdtBody>(1)
                .is_ok_and(|b| b.mbo_fid1 == wire::Fid::ROOT)
        );
        let space = other.call(true, OST_REQUEST_PORTAL, wire::OST_STATFS, []).await;
        assert_eq!(space.body().map(|b| b.pb_status), Ok(0));
        servers.stop().await;
    });
}

/// Runs a future with virtual time.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// The servers of one file system.
pub struct Servers {
    /// The RPC layer of their node.
    pub rpc: Arc<Ptlrpc>,
    node: Arc<Node>,
}

impl Servers {
    /// Starts an MGS, an MDT and an OST, ready to create files.
    pub async fn start() -> Servers {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        let node = Node::start(lnet, NodeConfig::new(RandomSource::seeded(7)));
        let node = node.expect("the node starts");
        let target = |kind| {
            let label = TargetLabel::new(kind, "testfs", 0, &format!("{kind}"));
            TargetSpec::in_memory(label, 1 << 30)
        };
        let targets = [TargetKind::Mgs, TargetKind::Mdt, TargetKind::Ost].map(target);
        let served = node.serve(targets.into(), MGS_WAIT).await;
        served.expect("the targets start");
        let ready = node.wait_until_ready().await;
        ready.expect("the OST is ready for new files");
        Servers {
            rpc: node.rpc().clone(),
            node,
        }
    }

    /// Stops the servers: no state remains for the next input.
    pub async fn stop(self) {
        self.node.stop().await.expect("the servers stop");
    }
}

/// A client that builds its messages by hand, connected to both targets.
pub struct Peer {
    lnet: Arc<Lnet>,
    /// Handles of the exports of the MDT and of the OST.
    handles: [u64; 2],
    xid: std::cell::Cell<u64>,
}

impl Peer {
    /// Connects to both targets.
    pub async fn connect(rpc: &Arc<Ptlrpc>, uuid: &str, flags: u64) -> Peer {
        let mut peer = Peer {
            lnet: rpc.lnet().clone(),
            handles: [0; 2],
            xid: std::cell::Cell::new(1 << 40),
        };
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ocd_connect_flags2: FLAGS2,
            ocd_brw_size: 1 << 20,
            ocd_ibits_known: 0x7f,
            ocd_cksum_types: u32::MAX,
            ocd_grant: 2 << 20,
            ..ObdConnectData::default()
        };
        for (to_ost, target) in [(false, MDT), (true, OST)] {
            let (portal, opc) = if to_ost {
                (OST_REQUEST_PORTAL, wire::OST_CONNECT)
            } else {
                (MDS_REQUEST_PORTAL, wire::MDS_CONNECT)
            };
            let bufs = [
                wire::nul_terminated(target.as_bytes()),
                wire::nul_terminated(uuid.as_bytes()),
                LustreHandle { cookie: 5 }.to_bytes(),
                data.to_bytes(),
                Bytes::new(),
            ];
            let reply = peer.call(to_ost, portal, opc, bufs).await;
            let body = reply.body().expect("a reply has a body");
            assert_eq!(body.pb_status, 0, "connecting to {target}");
            peer.handles[usize::from(to_ost)] = body.pb_handle.cookie;
        }
        peer
    }

    fn next_xid(&self) -> u64 {
        self.xid.set(self.xid.get() + 128);
        self.xid.get()
    }

    fn attach(&self, portal: u32, xid: u64, md: Md) -> MdHandle {
        let at = MatchEntry {
            portal,
            match_bits: xid,
            from: None,
        };
        self.lnet.attach(at, md)
    }

    /// Sends a request and waits for the reply.
    pub async fn call(
        &self,
        to_ost: bool,
        portal: u32,
        opc: u32,
        bufs: impl IntoIterator<Item = Bytes>,
    ) -> Message {
        let body = PtlrpcBody {
            pb_version: wire::format::service_version(opc) | 3,
            pb_opc: opc,
            pb_op_flags: MSG_CONNECT_INITIAL,
            ..PtlrpcBody::default()
        };
        let message = Message::new(&body, bufs).build();
        let sent = FuzzRequest {
            options: if to_ost { TO_OST } else { 0 },
            portal: portal as u8,
            message,
        };
        self.send(&sent).await.expect("a reply")
    }

    /// Sends a request of an input, and returns the reply. `None` if the request cannot be sent or
    /// no reply arrives within [`REPLY_TIMEOUT`].
    pub async fn send(&self, sent: &FuzzRequest) -> Option<Message> {
        let xid = self.next_xid();
        let mut message = sent.message.clone();
        let mut opc = 0;
        if let Ok(mut parsed) = Message::parse(&message)
            && let Ok(mut body) = parsed.body()
        {
            self.complete_body(&mut body, sent.options);
            opc = body.pb_opc;
            parsed.set_body(&body);
            message = parsed.build();
        }
        let sink = || Md::Sink {
            max_len: BUFFER_BYTES,
        };
        let replies = REPLY_PORTALS.map(|portal| self.attach(portal, xid, sink()));
        let _bulk = match opc {
            wire::OST_WRITE => {
                let zeros = Payload::from(vec![0; 1 << 16]);
                Some(self.attach(OST_BULK_PORTAL, xid, Md::Source(zeros)))
            }
            wire::OST_READ => Some(self.attach(OST_BULK_PORTAL, xid, sink())),
            wire::MDS_READPAGE => Some(self.attach(MDS_BULK_PORTAL, xid, sink())),
            _ => None,
        };
        let put = self.lnet.put(
            Nid::LO,
            sent.portal.into(),
            xid,
            0,
            0,
            Payload::from(message),
            false,
        );
        put.await.ok()?;
        timeout(REPLY_TIMEOUT, first_reply(replies)).await.ok()
    }

    /// Sets the fields without which a server would drop the request.
    fn complete_body(&self, body: &mut PtlrpcBody, options: u8) {
        if options & KEEP_HANDLE == 0 {
            body.pb_handle.cookie = self.handles[usize::from(options & TO_OST != 0)];
        }
        if options & KEEP_BODY == 0 {
            body.pb_type = PTL_RPC_MSG_REQUEST;
            body.pb_conn_cnt = 1;
            body.pb_timeout = 100;
            body.pb_last_xid = 0;
            body.pb_tag = 0;
        }
    }
}

/// The first reply that is not an early reply.
async fn first_reply([mut a, mut b, mut c, mut d, mut e]: [MdHandle; 5]) -> Message {
    loop {
        let event = tokio::select! {
            event = a.next() => event,
            event = b.next() => event,
            event = c.next() => event,
            event = d.next() => event,
            event = e.next() => event,
        };
        if let Some(MdEvent::Put { payload, .. }) = event
            && let Ok(msg) = Message::parse(&payload.into_bytes())
            && msg.cksum == 0
        {
            return msg;
        }
    }
}
