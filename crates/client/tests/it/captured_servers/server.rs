//! Simulated servers: all portals of an MGS, an MDT and OSTs on one node, which answer from
//! captures.
//!
//! The servers translate each request of our client to the captured client's identifiers, look it
//! up by its keys ([`crate::captured_servers::key`]) and compare it with the captured request. Then
//! they answer with the captured reply, translated back.

use crate::captured_servers::answer::{self, Answer};
use crate::captured_servers::compare::Counts;
use crate::captured_servers::generic;
use crate::captured_servers::ids::{Ids, Side};
use crate::captured_servers::key;
use crate::captured_servers::library::{Exchange, Library};
use bytes::Bytes;
use lnet::{BoxFuture, IncomingPut, Lnet, Payload, PortalGuard, PutSink, SinkFull};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use wire::format::{Portal, Rqf};
use wire::msg::EARLY_REPLY_SIZE;
use wire::{
    LdlmLockDesc, LdlmReply, LustreHandle, MSGHDR_AT_SUPPORT, MdtRecCreate, Message, Nid,
    OBD_CONNECT2_REP_MBITS, ObdConnectData, PtlrpcBody,
};

/// The request portals.
const PORTALS: [u32; 9] = [
    wire::MGS_REQUEST_PORTAL,
    wire::MDS_REQUEST_PORTAL,
    wire::MDS_READPAGE_PORTAL,
    wire::SEQ_METADATA_PORTAL,
    wire::FLD_REQUEST_PORTAL,
    wire::OST_REQUEST_PORTAL,
    wire::OST_IO_PORTAL,
    wire::OST_CREATE_PORTAL,
    wire::LDLM_CANCEL_REQUEST_PORTAL,
];

/// The simulated servers.
pub struct SimulatedServers {
    pub lnet: Arc<Lnet>,
    pub library: &'static Library,
    pub state: Mutex<State>,
    /// Notified when our client cancels a lock.
    pub cancelled: Notify,
    inbox: mpsc::Sender<IncomingPut>,
}

/// The state of the servers.
#[derive(Default)]
pub struct State {
    /// The current capture.
    pub capture: String,
    /// Whether requests are compared.
    pub comparing: bool,
    pub ids: Ids,
    pub counts: Counts,
    /// Number of requests of our client about names and attributes.
    pub metadata_requests: usize,
    /// Unanswered requests and other failures.
    pub failures: Vec<String>,
    /// Captured exchanges that were used, by index.
    pub used: HashSet<usize>,
    /// Capture time of the last change that our client has repeated, in microseconds since 1970.
    /// The servers prefer replies captured after this time.
    pub changed_us: u64,
    /// The XIDs of the captured callbacks that were sent.
    pub callbacks_sent: HashSet<u64>,
    /// The handles of the locks that our client has cancelled.
    pub cancelled_locks: HashSet<u64>,
    /// The locks of our client.
    pub locks: Vec<Lock>,
    /// Our client's handle of a connection, by the server's handle.
    pub clients: HashMap<u64, u64>,
    /// Whether `OBD_CONNECT2_REP_MBITS` was granted, by the server's handle of the connection.
    rep_mbits: HashMap<u64, bool>,
    /// Number of transaction numbers given out.
    transno: u64,
    /// Number of handles made for our client.
    fresh_handles: u64,
    /// Distinguishes the XIDs of callbacks.
    pub xid: u64,
}

/// A lock of our client.
#[derive(Clone, Copy)]
pub struct Lock {
    /// The client's handle.
    pub cookie: u64,
    /// The server's handle.
    pub handle: u64,
    pub desc: LdlmLockDesc,
    /// The server's handle of the connection that the lock was requested on.
    pub connection: u64,
}

struct Inbox(mpsc::Sender<IncomingPut>);

impl PutSink for Inbox {
    fn put(&self, incoming: IncomingPut) -> Result<(), SinkFull> {
        self.0.try_send(incoming).map_err(|e| match e {
            mpsc::error::TrySendError::Full(unsent) | mpsc::error::TrySendError::Closed(unsent) => {
                SinkFull(unsent)
            }
        })
    }

    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.0.reserve().await;
        })
    }
}

impl State {
    /// A handle that no captured server used.
    pub fn fresh_handle(&mut self) -> u64 {
        self.fresh_handles += 1;
        0x7777_0000_0000_0000 | self.fresh_handles
    }

    pub fn next_transno(&mut self) -> u64 {
        self.transno += 1;
        0x1_0000_0000 + self.transno
    }

    pub fn fail(&mut self, fault: String) {
        self.failures.push(format!("{}: {fault}", self.capture));
    }
}

impl SimulatedServers {
    /// Serves on `lnet` while the guards exist.
    pub fn start(lnet: &Arc<Lnet>, library: &'static Library) -> (Arc<SimulatedServers>, Vec<PortalGuard>) {
        let (inbox, mut requests) = mpsc::channel(4096);
        let server = Arc::new(SimulatedServers {
            lnet: lnet.clone(),
            library,
            state: Mutex::default(),
            cancelled: Notify::new(),
            inbox,
        });
        let sink = Arc::new(Inbox(server.inbox.clone()));
        let guards = PORTALS.map(|p| lnet.serve_portal(p, sink.clone()));
        let task_server = server.clone();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                tokio::spawn(task_server.clone().serve(request));
            }
        });
        (server, guards.into())
    }

    /// Answers one request.
    async fn serve(self: Arc<Self>, incoming: IncomingPut) {
        let (portal, xid) = (incoming.portal, incoming.match_bits);
        let msg = Message::parse(&incoming.payload.into_bytes()).unwrap();
        let body = msg.body().unwrap();
        let Some(format) = wire::format::of_request(body.pb_opc, &msg) else {
            return self
                .state
                .lock()
                .fail(format!("opcode {} has no format", body.pb_opc));
        };
        let req = ClientRequest {
            portal,
            xid,
            format,
            body,
            msg,
        };
        let (answer, exchange) = self.look_up(&req);
        self.record_cancelled_locks(&req);
        if let Some(exchange) = exchange {
            self.send_callbacks_during(exchange).await;
            self.revoke_conflicting_locks(&req).await;
        }
        let bits = self.bulk_bits(&req);
        let bulk_portal = format.bulk_portal.unwrap_or(0);
        if !answer.fetch.is_empty() {
            let base = bits - (answer.fetch.len() as u64 - 1);
            let mut data = Vec::new();
            for (len, bits) in answer.fetch.iter().zip(base..) {
                let fetched = self.lnet.get(Nid::LO, bulk_portal, bits, 0, *len).await;
                data.push(fetched.map_or(Bytes::new(), Payload::into_bytes));
            }
            if let Some(e) = exchange {
                self.compare_bulk(e, &data.concat());
            }
        }
        let base = bits - (answer.bulk.len() as u64).saturating_sub(1);
        for (data, bits) in answer.bulk.iter().zip(base..) {
            let put = self
                .lnet
                .put(Nid::LO, bulk_portal, bits, 0, 0, data.clone().into(), true)
                .await;
            if let Err(e) = put {
                self.state
                    .lock()
                    .fail(format!("{} bulk was not taken: {e}", format.name));
            }
        }
        self.reply(&req, &answer).await;
        if let Some(exchange) = exchange.filter(|_| answer.blocked) {
            self.send_completion(exchange).await;
        }
    }

    /// The match bits of the request's last memory descriptor.
    fn bulk_bits(&self, req: &ClientRequest) -> u64 {
        if req.body.pb_mbits == 0 {
            req.xid
        } else {
            req.body.pb_mbits
        }
    }

    async fn reply(&self, req: &ClientRequest, answer: &Answer) {
        let offset = if req.msg.flags & MSGHDR_AT_SUPPORT != 0 {
            EARLY_REPLY_SIZE as u32
        } else {
            0
        };
        let portal = match (req.format.reply_portal, req.portal) {
            (Portal::Fixed(portal), _) => portal,
            (_, wire::LDLM_CANCEL_REQUEST_PORTAL) => wire::LDLM_CANCEL_REPLY_PORTAL,
            (_, wire::MGS_REQUEST_PORTAL) => wire::MGC_REPLY_PORTAL,
            (_, wire::OST_REQUEST_PORTAL | wire::OST_IO_PORTAL | wire::OST_CREATE_PORTAL) => {
                wire::OSC_REPLY_PORTAL
            }
            _ => wire::MDC_REPLY_PORTAL,
        };
        let by_mbits = self
            .state
            .lock()
            .rep_mbits
            .get(&req.body.pb_handle.cookie)
            .copied();
        let bits = if by_mbits == Some(true) {
            req.body.pb_mbits
        } else {
            req.xid
        };
        let message = answer.message.build().into();
        let sent = self
            .lnet
            .put(Nid::LO, portal, bits, offset, 0, message, true)
            .await;
        if let Err(e) = sent {
            self.state
                .lock()
                .fail(format!("{} reply was not taken: {e}", req.format.name));
        }
    }

    /// The captured exchange for a request, and the answer derived from it.
    fn look_up(&self, req: &ClientRequest) -> (Answer, Option<&'static Exchange>) {
        let mut state = self.state.lock();
        let theirs = state.ids.message(Side::Theirs, req.format, false, &req.msg);
        let connects = req.format.name.ends_with("_CONNECT") && req.format.request.len() > 1;
        let target = if connects {
            theirs.str(1).unwrap_or_default().into()
        } else {
            self.library
                .target_of(req.body.pb_handle.cookie)
                .unwrap_or_default()
        };
        let keys = key::keys(req.format, &target, (&req.body, &theirs), None);
        if [wire::MDS_REQUEST_PORTAL, wire::MDS_READPAGE_PORTAL].contains(&req.portal)
            && req.body.pb_opc != wire::OBD_PING
        {
            state.metadata_requests += 1;
        }
        let Some((index, used_before)) = self.choose(&state, &keys, only_by_this_capture(req.body.pb_opc))
        else {
            let generic = generic::answer(&mut state, (req, &target), self.library);
            return match generic {
                Some(answer) => {
                    if state.comparing && !only_by_this_capture(req.body.pb_opc) {
                        let scenario = state.capture.clone();
                        let key = keys.first().map_or("", String::as_str);
                        state
                            .counts
                            .record_difference(&scenario, req.format, "not-captured", key, "nothing");
                    }
                    (answer, None)
                }
                None => {
                    let fault = format!("{} is in no capture: {keys:?}", req.format.name);
                    state.fail(fault);
                    (generic::refusal(req), None)
                }
            };
        };
        let exchange = &self.library.exchanges[index];
        tracing::debug!(?keys, capture = %exchange.capture, used_before, "request");
        let same_format = exchange.format.name == req.format.name;
        if same_format {
            state.used.insert(index);
        }
        if *exchange.capture == *state.capture && exchange.reply_body.pb_transno != 0 {
            state.changed_us = state.changed_us.max(exchange.request.time_us);
        }
        answer::learn_ids(&mut state.ids, req, exchange);
        if state.comparing && !same_format && !creates_name(req) {
            let scenario = state.capture.clone();
            state.counts.record_difference(
                &scenario,
                req.format,
                "not-captured",
                &keys[0],
                exchange.format.name,
            );
        } else if state.comparing {
            let mut theirs = state.ids.message(Side::Theirs, req.format, false, &req.msg);
            theirs.opc = req.portal;
            let captured = Message {
                opc: exchange.request.portal,
                ..exchange.request.msg.clone()
            };
            let scenario = state.capture.clone();
            state
                .counts
                .compare(&scenario, req.format, false, &theirs, &captured);
        }
        let answer = answer::from_capture(&mut state, self.library, (req, &target), exchange, used_before);
        if connects {
            let granted = answer.message.get::<ObdConnectData>(1).unwrap_or_default();
            let by_mbits = granted.ocd_connect_flags2 & OBD_CONNECT2_REP_MBITS != 0;
            let handle = exchange.reply_body.pb_handle.cookie;
            state.rep_mbits.insert(handle, by_mbits);
            let client = req.msg.get::<LustreHandle>(3).unwrap_or_default().cookie;
            state.clients.insert(handle, client);
        }
        if let Ok(rep) = answer.message.get::<LdlmReply>(1)
            && req.body.pb_opc == wire::LDLM_ENQUEUE
            && rep.lock_handle.cookie != 0
            && let Some(request) = key::lock_request(&req.msg)
        {
            let lock = Lock {
                cookie: request.lock_handle[0],
                handle: rep.lock_handle.cookie,
                desc: rep.lock_desc,
                connection: req.body.pb_handle.cookie,
            };
            state.locks.push(lock);
        }
        (answer, Some(exchange))
    }

    /// Chooses the exchange for these keys: the next unused exchange of this capture, or else the
    /// last of this capture. If this capture has none and `only_here` is false: the last exchange
    /// before this capture, or else the first of all. Also returns whether an answer has used the
    /// exchange before.
    fn choose(&self, state: &State, keys: &[String], only_here: bool) -> Option<(usize, bool)> {
        let here = |i: &&usize| *self.library.exchanges[**i].capture == *state.capture;
        let begin = self.library.begin_us(&state.capture);
        let time = |i: &&usize| self.library.exchanges[**i].request.time_us;
        let fresh = |key: &String| {
            let mut own = self.library.exchanges_with(key).iter().filter(here);
            own.find(|i| !state.used.contains(i) && time(i) >= state.changed_us)
        };
        let used = |key: &String| self.library.exchanges_with(key).iter().rfind(here);
        let other = |key: &String| {
            let all = self.library.exchanges_with(key);
            all.iter().rfind(|i| time(i) < begin).or(all.first())
        };
        let usual = || keys.iter().filter(|key| !key::is_last_resort(key));
        let chosen = usual().find_map(fresh).or_else(|| usual().find_map(used));
        let chosen = match chosen {
            None if !only_here => usual().find_map(other),
            chosen => chosen,
        };
        let last_resort = || keys.iter().filter(|key| key::is_last_resort(key)).find_map(used);
        let chosen = chosen.or_else(last_resort)?;
        Some((*chosen, state.used.contains(chosen)))
    }

    /// Compares the data that our client sends with the captured data.
    fn compare_bulk(&self, exchange: &Exchange, data: &[u8]) {
        let mut state = self.state.lock();
        if state.comparing {
            state.counts.fields += 1;
            let theirs = exchange.bulk.concat();
            if theirs != data {
                let (scenario, ours) = (state.capture.clone(), format!("{} bytes", data.len()));
                let theirs = format!("{} bytes", theirs.len());
                state
                    .counts
                    .record_difference(&scenario, exchange.format, "bulk", &ours, &theirs);
            }
        }
    }

    /// Records the locks that a request cancels.
    fn record_cancelled_locks(&self, req: &ClientRequest) {
        let index = req.format.request_index(wire::format::Rmf::DlmReq).unwrap_or(0);
        if index > 0
            && let Ok(handles) = wire::LdlmRequest::handles(req.msg.buf(index))
        {
            let mut state = self.state.lock();
            state.locks.retain(|l| !handles.contains(&l.handle));
            state.cancelled_locks.extend(handles);
            drop(state);
            self.cancelled.notify_waiters();
        }
    }
}

/// Whether a request creates a name, or is an open that creates a missing name.
pub fn creates_name(req: &ClientRequest) -> bool {
    match req.format.request_index(wire::format::Rmf::RecReint) {
        Some(index) => {
            let rec = req.msg.get::<MdtRecCreate>(index).unwrap_or_default();
            rec.cr_opcode == wire::REINT_CREATE
                || rec.cr_opcode == wire::REINT_OPEN && u64::from(rec.cr_flags_l) & wire::MDS_OPEN_CREAT != 0
        }
        None => false,
    }
}

/// Whether only the current capture can answer a request, because the request is about the
/// connection's own locks and state.
fn only_by_this_capture(opcode: u32) -> bool {
    [
        wire::OBD_PING,
        wire::LDLM_CANCEL,
        wire::MDS_DISCONNECT,
        wire::OST_DISCONNECT,
        wire::MGS_DISCONNECT,
        wire::MDS_CLOSE,
    ]
    .contains(&opcode)
}

/// A request of our client.
pub struct ClientRequest {
    pub portal: u32,
    pub xid: u64,
    pub format: &'static Rqf,
    pub body: PtlrpcBody,
    pub msg: Message,
}
