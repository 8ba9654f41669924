//! A client that builds its messages by hand: its connections to the targets, its requests, and its
//! answers to lock callbacks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cpt::BoxFuture;
use lnet::{IncomingPut, Lnet, MatchEntry, Md, MdHandle, Payload, PortalGuard, PutSink, SinkFull};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use wire::{
    LdlmRequest, LustreHandle, Message, Nid, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_LIGHTWEIGHT,
    OBD_CONNECT_MDS, OBD_CONNECT_MDS_MDS, OBD_CONNECT_RDONLY, OBD_CONNECT2_REP_MBITS, ObdConnectData,
    PTL_RPC_MSG_REPLY, PTL_RPC_MSG_REQUEST, PtlrpcBody, WireStruct,
};

use crate::cluster::{MDT, OST};
use crate::requests::{Request, ServerHandles};

/// How long a client waits for a reply before its next step. Virtual time advances only when no
/// task can run, so a reply that waits for no timer arrives in this time.
const REPLY_WAIT: Duration = Duration::from_millis(1);
/// Number of requests that a client can send again.
const RESENDABLE_MAX: usize = 8;
/// All connect flags, except those of read-only mounts and of servers, and those that make match
/// bits differ from the xid.
const FLAGS: u64 = !(OBD_CONNECT_RDONLY | OBD_CONNECT_BULK_MBITS | SERVER_FLAGS);
const SERVER_FLAGS: u64 = OBD_CONNECT_LIGHTWEIGHT | OBD_CONNECT_MDS | OBD_CONNECT_MDS_MDS;
const FLAGS2: u64 = !OBD_CONNECT2_REP_MBITS;

/// How a client answers lock callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Replies, and cancels the lock.
    Cancel,
    /// Cancels the lock, and replies afterwards.
    CancelFirst,
    /// Replies, and keeps the lock.
    Keep,
    /// Refuses the callback.
    Refuse,
    /// Does not reply.
    Silence,
    /// Replies with bytes that are not a message.
    Garbage,
}

impl Answer {
    /// The answer with this number.
    pub fn from_number(n: u8) -> Answer {
        use Answer::{Cancel, CancelFirst, Garbage, Keep, Refuse, Silence};
        [Cancel, CancelFirst, Keep, Refuse, Silence, Garbage][usize::from(n) % 6]
    }
}

/// The role in which a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A mount.
    Mount,
    /// A server of the file system.
    Server,
}

/// A reply that has arrived.
#[derive(Debug)]
pub struct Reply {
    /// The operation of its request.
    pub opc: u32,
    /// The lock that its request enqueues: the index in [`ServerHandles::locks`].
    pub lock: Option<usize>,
    /// The reply.
    pub message: Message,
}

/// The receiving side of a client: replies, and lock callbacks with the client's answers.
struct Inbox {
    lnet: Arc<Lnet>,
    server: Nid,
    /// Replies by match bits.
    replies: Mutex<BTreeMap<u64, Message>>,
    arrived: Notify,
    answer: Mutex<Answer>,
    /// Export handles of MDT and OST.
    handles: Mutex<[u64; 2]>,
    known: Arc<Mutex<ServerHandles>>,
    xid: AtomicU64,
    me: Weak<Inbox>,
}

/// A client.
pub struct Client {
    uuid: &'static str,
    role: Role,
    inbox: Arc<Inbox>,
    _portals: Vec<PortalGuard>,
    conn_cnt: [u32; 2],
    /// Requests without a reply: operation and lock.
    waiting: BTreeMap<u64, (u32, Option<usize>)>,
    /// The last requests, which [`Client::resend`] can send again.
    sent: VecDeque<Sent>,
    /// Buffers for bulk data that the server fetches or sends.
    sources: Vec<MdHandle>,
}

/// A request that was sent.
#[derive(Clone)]
struct Sent {
    xid: u64,
    to_ost: bool,
    portal: u32,
    message: Message,
    body: PtlrpcBody,
}

impl Client {
    /// A client on a network of its own. It connects at its first request.
    pub fn new(
        uuid: &'static str,
        role: Role,
        lnet: Arc<Lnet>,
        server: Nid,
        known: Arc<Mutex<ServerHandles>>,
    ) -> Client {
        let inbox = Arc::new_cyclic(|me| Inbox {
            lnet: lnet.clone(),
            server,
            replies: Mutex::default(),
            arrived: Notify::new(),
            answer: Mutex::new(Answer::Cancel),
            handles: Mutex::default(),
            known,
            xid: AtomicU64::new(1 << 40),
            me: me.clone(),
        });
        let portals = [
            wire::OSC_REPLY_PORTAL,
            wire::MDC_REPLY_PORTAL,
            wire::LDLM_CANCEL_REPLY_PORTAL,
            wire::MGC_REPLY_PORTAL,
            wire::LDLM_CB_REQUEST_PORTAL,
        ];
        let portals = portals.map(|portal| lnet.serve_portal(portal, inbox.clone()));
        Client {
            uuid,
            role,
            inbox,
            _portals: portals.into(),
            conn_cnt: [0; 2],
            waiting: BTreeMap::new(),
            sent: VecDeque::new(),
            sources: Vec::new(),
        }
    }

    /// The client's UUID.
    pub fn uuid(&self) -> &str {
        self.uuid
    }

    /// Whether the client has a connection to a target, as far as it knows.
    pub fn is_connected(&self, to_ost: bool) -> bool {
        self.inbox.handles.lock()[usize::from(to_ost)] != 0
    }

    /// Chooses how the client answers callbacks.
    pub fn set_answer(&self, answer: Answer) {
        *self.inbox.answer.lock() = answer;
    }

    /// Connects to a target, as a new client (`initial`) or again. Returns the status.
    pub async fn connect(&mut self, to_ost: bool, initial: bool) -> Option<i32> {
        let side = usize::from(to_ost);
        self.conn_cnt[side] += 1;
        let flags = match self.role {
            Role::Mount => FLAGS,
            Role::Server => FLAGS | OBD_CONNECT_MDS,
        };
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ocd_connect_flags2: FLAGS2,
            ocd_brw_size: 1 << 20,
            ocd_ibits_known: 0x7f,
            ocd_cksum_types: u32::MAX,
            ocd_grant: 2 << 20,
            ocd_maxmodrpcs: 8,
            ..ObdConnectData::default()
        };
        let (target, portal, opc) = match to_ost {
            false => (MDT, wire::MDS_REQUEST_PORTAL, wire::MDS_CONNECT),
            true => (OST, wire::OST_REQUEST_PORTAL, wire::OST_CONNECT),
        };
        let bufs = vec![
            wire::nul_terminated(target.as_bytes()),
            wire::nul_terminated(self.uuid.as_bytes()),
            LustreHandle {
                cookie: 5 + side as u64,
            }
            .to_bytes(),
            data.to_bytes(),
            Bytes::new(),
        ];
        let request = Request {
            to_ost,
            portal,
            opc,
            bufs,
        };
        let op_flags = if initial { wire::MSG_CONNECT_INITIAL } else { 0 };
        let body = PtlrpcBody {
            pb_op_flags: op_flags,
            ..self.body(&request)
        };
        let xid = self.send(&request, body).await?;
        let reply = self.reply(xid).await?.message.body().ok()?;
        if reply.pb_status == 0 {
            self.inbox.handles.lock()[side] = reply.pb_handle.cookie;
        }
        Some(reply.pb_status)
    }

    /// Disconnects from a target. Returns the status, `None` without a reply.
    pub async fn disconnect(&mut self, to_ost: bool) -> Option<i32> {
        let (portal, opc) = match to_ost {
            false => (wire::MDS_REQUEST_PORTAL, wire::MDS_DISCONNECT),
            true => (wire::OST_REQUEST_PORTAL, wire::OST_DISCONNECT),
        };
        let request = Request {
            to_ost,
            portal,
            opc,
            bufs: Vec::new(),
        };
        let body = self.body(&request);
        let xid = self.send(&request, body).await?;
        self.inbox.handles.lock()[usize::from(to_ost)] = 0;
        let reply = self.reply(xid).await?;
        Some(reply.message.body().ok()?.pb_status)
    }

    /// The body of a request to a target.
    pub fn body(&self, request: &Request) -> PtlrpcBody {
        let side = usize::from(request.to_ost);
        PtlrpcBody {
            pb_version: wire::format::service_version(request.opc) | 3,
            pb_opc: request.opc,
            pb_type: PTL_RPC_MSG_REQUEST,
            pb_handle: LustreHandle {
                cookie: self.inbox.handles.lock()[side],
            },
            pb_conn_cnt: self.conn_cnt[side],
            pb_timeout: 100,
            ..PtlrpcBody::default()
        }
    }

    /// Sends a request. Returns its xid; `None` if it cannot be sent.
    pub async fn send(&mut self, request: &Request, body: PtlrpcBody) -> Option<u64> {
        let message = Message::new(&body, request.bufs.iter().cloned());
        self.send_message(request.to_ost, request.portal, message, body)
            .await
    }

    /// Sends a whole message. Sets the export's handle in the body and, unless `keep_body`, the
    /// type, timeout and counters, so that the server accepts them. Returns the xid; `None` if it
    /// cannot be sent.
    pub async fn send_raw(
        &mut self,
        to_ost: bool,
        portal: u32,
        message: &Bytes,
        keep_body: bool,
    ) -> Option<u64> {
        let Ok(mut parsed) = Message::parse(message) else {
            self.put(portal, self.inbox.next_xid(), message.clone()).await;
            return None;
        };
        let Ok(mut body) = parsed.body() else {
            self.put(portal, self.inbox.next_xid(), message.clone()).await;
            return None;
        };
        body.pb_handle.cookie = self.inbox.handles.lock()[usize::from(to_ost)];
        if !keep_body {
            body.pb_type = PTL_RPC_MSG_REQUEST;
            body.pb_conn_cnt = self.conn_cnt[usize::from(to_ost)];
            body.pb_timeout = 100;
            (body.pb_last_xid, body.pb_tag) = (0, 0);
        }
        parsed.set_body(&body);
        self.send_message(to_ost, portal, parsed, body).await
    }

    async fn send_message(
        &mut self,
        to_ost: bool,
        portal: u32,
        message: Message,
        body: PtlrpcBody,
    ) -> Option<u64> {
        let xid = self.inbox.next_xid();
        let lock = (body.pb_opc == wire::LDLM_ENQUEUE).then(|| {
            let locks = &mut self.inbox.known.lock().locks;
            locks.push(0);
            locks.len() - 1
        });
        self.waiting.insert(xid, (body.pb_opc, lock));
        if self.sent.len() == RESENDABLE_MAX {
            self.sent.pop_front();
        }
        let sent = Sent {
            xid,
            to_ost,
            portal,
            message,
            body,
        };
        self.sent.push_back(sent.clone());
        self.transmit(&sent).await.then_some(xid)
    }

    /// Sends an earlier request again, with these flags added. `back` 0 is the last request.
    /// Returns its xid.
    pub async fn resend(&mut self, back: usize, flags: u32) -> Option<u64> {
        let index = self.sent.len().checked_sub(1 + back % self.sent.len().max(1))?;
        let mut sent = self.sent[index].clone();
        sent.body.pb_flags |= flags;
        sent.body.pb_conn_cnt = self.conn_cnt[usize::from(sent.to_ost)];
        sent.body.pb_handle.cookie = self.inbox.handles.lock()[usize::from(sent.to_ost)];
        sent.message.set_body(&sent.body);
        self.waiting.entry(sent.xid).or_insert((sent.body.pb_opc, None));
        self.transmit(&sent).await.then_some(sent.xid)
    }

    async fn transmit(&mut self, sent: &Sent) -> bool {
        let at = |portal| MatchEntry {
            portal,
            match_bits: sent.xid,
            from: None,
        };
        let lnet = &self.inbox.lnet;
        match sent.body.pb_opc {
            wire::OST_WRITE => {
                let zeros = Payload::from(vec![0; 1 << 16]);
                self.sources
                    .push(lnet.attach(at(wire::OST_BULK_PORTAL), Md::Source(zeros)));
            }
            wire::OST_READ => self
                .sources
                .push(lnet.attach(at(wire::OST_BULK_PORTAL), Md::Sink { max_len: 1 << 20 })),
            wire::MDS_READPAGE => self
                .sources
                .push(lnet.attach(at(wire::MDS_BULK_PORTAL), Md::Sink { max_len: 1 << 20 })),
            _ => {}
        }
        self.put(sent.portal, sent.xid, sent.message.build()).await
    }

    async fn put(&self, portal: u32, xid: u64, message: Bytes) -> bool {
        self.inbox.put(portal, xid, message).await
    }

    /// Waits a moment for the reply to a request.
    pub async fn reply(&mut self, xid: u64) -> Option<Reply> {
        let inbox = self.inbox.clone();
        let arrival = async {
            loop {
                let arrived = inbox.arrived.notified();
                if let Some(message) = inbox.replies.lock().remove(&xid) {
                    return message;
                }
                arrived.await;
            }
        };
        let message = timeout(REPLY_WAIT, arrival).await.ok()?;
        self.take(xid, message)
    }

    /// The directory pages that the server sent for the last request.
    pub async fn pages(&mut self) -> Option<Bytes> {
        let mut sink = self.sources.pop()?;
        match timeout(REPLY_WAIT, sink.next()).await.ok()?? {
            lnet::MdEvent::Put { payload, .. } => Some(payload.into_bytes()),
            lnet::MdEvent::Get { .. } => None,
        }
    }

    fn take(&mut self, xid: u64, message: Message) -> Option<Reply> {
        let (opc, lock) = self.waiting.remove(&xid)?;
        Some(Reply { opc, lock, message })
    }

    /// The replies that have arrived in the meantime.
    pub fn late_replies(&mut self) -> Vec<Reply> {
        let all = std::mem::take(&mut *self.inbox.replies.lock());
        all.into_iter()
            .filter_map(|(xid, message)| self.take(xid, message))
            .collect()
    }

    /// Forgets the requests that were sent.
    pub fn forget_requests(&mut self) {
        self.inbox.replies.lock().clear();
        self.waiting.clear();
        self.sent.clear();
        self.sources.clear();
    }

    /// Resets the client for the next input.
    pub fn forget(&mut self) {
        self.forget_requests();
        self.set_answer(Answer::Cancel);
        self.conn_cnt = [0; 2];
        *self.inbox.handles.lock() = [0; 2];
    }
}

impl Inbox {
    fn next_xid(&self) -> u64 {
        self.xid.fetch_add(128, Relaxed) + 128
    }

    async fn put(&self, portal: u32, xid: u64, message: Bytes) -> bool {
        self.put_at(portal, xid, 0, message).await
    }

    async fn put_at(&self, portal: u32, xid: u64, offset: u32, message: Bytes) -> bool {
        let put = self
            .lnet
            .put(self.server, portal, xid, offset, 0, message.into(), false);
        put.await.is_ok()
    }

    /// Answers a lock callback.
    async fn answer(self: Arc<Inbox>, xid: u64, callback: Bytes) {
        let Ok(message) = Message::parse(&callback) else {
            return;
        };
        let Ok(body) = message.body() else { return };
        let answer = *self.answer.lock();
        if answer == Answer::CancelFirst {
            self.cancel(&body, &message).await;
        }
        let status = if answer == Answer::Refuse { -22 } else { 0 };
        let reply = PtlrpcBody {
            pb_type: PTL_RPC_MSG_REPLY,
            pb_status: status,
            ..body
        };
        let reply = match answer {
            Answer::Silence => return,
            Answer::Garbage => Bytes::from_static(&[7; 40]),
            _ => Message::new(&reply, []).build(),
        };
        // The space for early replies precedes the reply.
        self.put_at(wire::LDLM_CB_REPLY_PORTAL, xid, message.repsize, reply)
            .await;
        if answer == Answer::Cancel {
            self.cancel(&body, &message).await;
        }
    }

    /// Cancels the lock of a blocking callback.
    async fn cancel(&self, callback: &PtlrpcBody, message: &Message) {
        let Ok(request) = message.get::<LdlmRequest>(1) else {
            return;
        };
        if callback.pb_opc != wire::LDLM_BL_CALLBACK {
            return;
        }
        let cancel = LdlmRequest {
            lock_count: 1,
            ..LdlmRequest::default()
        };
        let side = usize::from(callback.pb_handle.cookie == 6);
        let body = PtlrpcBody {
            pb_version: wire::format::service_version(wire::LDLM_CANCEL) | 3,
            pb_opc: wire::LDLM_CANCEL,
            pb_type: PTL_RPC_MSG_REQUEST,
            pb_handle: LustreHandle {
                cookie: self.handles.lock()[side],
            },
            pb_conn_cnt: u32::MAX,
            pb_timeout: 100,
            ..PtlrpcBody::default()
        };
        let message = Message::new(&body, [cancel.to_bytes_with(&request.lock_handle[1..])]);
        let xid = self.next_xid();
        self.put(wire::LDLM_CANCEL_REQUEST_PORTAL, xid, message.build())
            .await;
    }
}

impl PutSink for Inbox {
    fn put(&self, incoming: IncomingPut) -> Result<(), SinkFull> {
        let bytes = incoming.payload.into_bytes();
        if incoming.portal == wire::LDLM_CB_REQUEST_PORTAL {
            if let Some(inbox) = self.me.upgrade() {
                tokio::spawn(inbox.answer(incoming.match_bits, bytes));
            }
            return Ok(());
        }
        if let Ok(message) = Message::parse(&bytes)
            && message.cksum == 0
        {
            self.replies.lock().insert(incoming.match_bits, message);
            self.arrived.notify_one();
        }
        Ok(())
    }

    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
