//! Requests on the server: as they arrive, and as their target handles them.

use super::Export;
use crate::bulk::{first_match_bits, try_join_all};
use crate::fail::Stage;
use cpt::CptId;
use lnet::{Lnet, LnetError, Payload, warn_rate_limited};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use wire::{
    Errno, MSG_REPLAY, MSG_RESENT, MSGHDR_AT_SUPPORT, Message, Nid, OBD_CONNECT_BULK_MBITS,
    OBD_CONNECT2_REP_MBITS, PtlrpcBody, Transno, WireStruct, Xid,
};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) from: Nid,
    pub(crate) portal: u32,
    pub(crate) xid: Xid,
    pub(crate) msg: Message,
    pub(crate) body: PtlrpcBody,
    /// The partition that handles it.
    pub(crate) cpt: CptId,
    /// When it arrived.
    pub(crate) arrived_at: Instant,
    /// When the client stops waiting, unless it gets an early reply.
    pub(crate) deadline: Instant,
    /// The service time estimate when execution began: `pb_timeout` of the reply.
    pub(crate) estimate_secs: u32,
}

impl Arrival {
    /// Whether the client takes early replies, with the final reply behind them in its buffer.
    pub(crate) fn takes_early(&self) -> bool {
        self.msg.flags & MSGHDR_AT_SUPPORT != 0
    }

    /// Moves the buffers out for the handler; the header stays for the reply.
    pub(crate) fn take_message(&mut self) -> Message {
        Message {
            bufs: std::mem::take(&mut self.msg.bufs),
            ..self.msg
        }
    }

    /// The reply's route without negotiated flags.
    pub(crate) fn route(&self) -> Route {
        Route {
            peer: self.from,
            reply_bits: self.xid.0,
            bulk_bits: self.xid.0,
            deadline: self.deadline,
        }
    }

    /// The reply's route with the flags negotiated for `export`.
    pub(crate) fn negotiated_route(&self, export: &Export) -> Route {
        let mbits = |granted: bool| if granted { self.body.pb_mbits } else { self.xid.0 };
        Route {
            reply_bits: mbits(export.has2(OBD_CONNECT2_REP_MBITS)),
            bulk_bits: mbits(export.has(OBD_CONNECT_BULK_MBITS)),
            ..self.route()
        }
    }
}

/// The destination of a request's reply and bulk. A resent request replaces it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) peer: Nid,
    pub(crate) reply_bits: u64,
    /// Match bits of the last MD.
    pub(crate) bulk_bits: u64,
    /// When the client stops waiting.
    pub(crate) deadline: Instant,
}

/// A request in execution.
#[derive(Debug)]
pub(crate) struct Execution {
    route: Mutex<Route>,
    /// Whether bulk has started with the match bits of the current route.
    bulk_begun: AtomicBool,
    /// Whether bulk has failed; then there is no reply.
    bulk_failed: AtomicBool,
    /// Whether the execution has ended.
    done: AtomicBool,
    /// Notified when the execution ends.
    ended: Notify,
}

impl Execution {
    pub(crate) fn new(route: Route) -> Execution {
        Execution {
            route: Mutex::new(route),
            bulk_begun: AtomicBool::new(false),
            bulk_failed: AtomicBool::new(false),
            done: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    pub(crate) fn route(&self) -> Route {
        *self.route.lock()
    }

    /// Redirects the reply to the resent request's `route`. Returns false if bulk has already
    /// started with the old match bits.
    pub(crate) fn take_over(&self, route: Route) -> bool {
        let mut current = self.route.lock();
        if self.bulk_begun.load(Ordering::Acquire) {
            return false;
        }
        *current = route;
        true
    }

    /// Records that an early reply extends the client's deadline.
    pub(crate) fn extend(&self, deadline: Instant) {
        let mut route = self.route.lock();
        route.deadline = route.deadline.max(deadline);
    }

    pub(crate) fn used_bulk(&self) -> bool {
        self.bulk_begun.load(Ordering::Acquire)
    }

    pub(crate) fn bulk_failed(&self) -> bool {
        self.bulk_failed.load(Ordering::Acquire)
    }

    fn begin_bulk(&self) -> Route {
        let route = self.route.lock();
        self.bulk_begun.store(true, Ordering::Release);
        *route
    }

    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Resolves when the execution has ended.
    pub(crate) async fn wait_until_done(&self) {
        let ended = self.ended.notified();
        if !self.done.load(Ordering::Acquire) {
            ended.await;
        }
    }
}

/// A request as its target handles it.
pub struct ServerRequest {
    /// The xid.
    pub xid: Xid,
    /// The opcode.
    pub opc: u32,
    /// The parsed `ptlrpc_body`.
    pub body: PtlrpcBody,
    /// The message.
    pub msg: Message,
    /// The sender's NID.
    pub peer: Nid,
    /// The portal that it arrived on.
    pub portal: u32,
    /// The partition that handles it.
    pub cpt: CptId,
    /// The client's export.
    pub export: Arc<Export>,
    /// When it arrived.
    pub arrived: Instant,
    pub(crate) lnet: Arc<Lnet>,
    pub(crate) execution: Arc<Execution>,
    /// A value that the server holds until the client has the reply.
    pub(crate) held: Mutex<Option<Box<dyn Any + Send>>>,
}

impl fmt::Debug for ServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ServerRequest");
        out.field("xid", &self.xid)
            .field("opc", &self.opc)
            .field("peer", &self.peer);
        out.field("client", &self.export.client_uuid)
            .finish_non_exhaustive()
    }
}

impl ServerRequest {
    /// The structure at the start of buffer `i`.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the buffer is too short.
    pub fn get<T: WireStruct>(&self, i: usize) -> Result<T, Errno> {
        self.msg.get(i).map_err(|e| {
            warn_rate_limited!(peer = %self.peer, xid = %self.xid, opc = self.opc, buffer = i, error = %e, "malformed request");
            Errno::EPROTO
        })
    }

    /// Buffer `i`; empty if it is missing.
    pub fn buf(&self, i: usize) -> &[u8] {
        self.msg.buf(i)
    }

    /// Buffer `i`, sharing the message's memory.
    pub fn bytes(&self, i: usize) -> bytes::Bytes {
        self.msg.bytes(i)
    }

    /// Whether the client resent the request because it got no reply.
    pub fn is_resent(&self) -> bool {
        self.body.pb_flags & MSG_RESENT != 0
    }

    /// Whether the client replays a request: the server executed it and lost its effect.
    pub fn is_replay(&self) -> bool {
        self.body.pb_flags & MSG_REPLAY != 0
    }

    /// The number under which the request was executed before the target restarted, if the client
    /// replays it. The target executes it under the same number, or finds that it is executed.
    pub fn replayed_transno(&self) -> Option<Transno> {
        self.is_replay().then_some(Transno(self.body.pb_transno))
    }

    /// Keeps a value, such as the locks of a change, until the client's node has acknowledged the
    /// reply, or the change is committed. No other client sees the change before: after a crash,
    /// the client that made the change can repeat it before others repeat what depends on it.
    /// Nothing is kept for a client in this process, which ends with the server, and for a replay:
    /// other replays follow in their order.
    pub fn hold_until_acknowledged(&self, held: impl Any + Send) {
        if !self.peer.is_lo() && !self.is_replay() {
            *self.held.lock() = Some(Box::new(held));
        }
    }

    /// When the client stops waiting; early replies extend it.
    pub fn deadline(&self) -> Instant {
        self.execution.route().deadline
    }

    /// Number of MDs that the client attached. `max_brw` is the maximum, a power of two:
    /// `(ioo_max_brw >> 16) + 1`. The target must transfer to or from each MD, even an empty one.
    pub fn bulk_mds(&self, max_brw: usize) -> usize {
        let mask = (max_brw.max(1).next_power_of_two() - 1) as u64;
        usize::try_from(self.execution.route().bulk_bits & mask).unwrap_or(0) + 1
    }

    /// Fetches the client's data: one GET per MD of at most `md_lens` bytes.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if a transfer fails. The client then gets no reply: it times out and resends the
    /// request.
    pub async fn bulk_get(&self, portal: u32, md_lens: &[u32]) -> Result<Vec<Payload>, Errno> {
        let route = self.execution.begin_bulk();
        let first_bits = first_match_bits(route.bulk_bits, md_lens.len());
        let gets = md_lens
            .iter()
            .zip((0..).map(|i| first_bits.wrapping_add(i)))
            .map(|(&len, bits)| self.lnet.get(route.peer, portal, bits, 0, len));
        self.transfer(Stage::BulkGet, route, gets).await
    }

    /// Sends data to the client: one acknowledged PUT per MD.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if a transfer fails. The client then gets no reply: it times out and resends the
    /// request.
    pub async fn bulk_put(&self, portal: u32, mds: Vec<Payload>) -> Result<(), Errno> {
        let route = self.execution.begin_bulk();
        let first_bits = first_match_bits(route.bulk_bits, mds.len());
        let puts = mds
            .into_iter()
            .zip((0..).map(|i| first_bits.wrapping_add(i)))
            .map(|(data, bits)| self.lnet.put(route.peer, portal, bits, 0, 0, data, true));
        self.transfer(Stage::BulkPut, route, puts).await.map(|_| ())
    }

    /// Runs transfers until the client's deadline or reconnection.
    async fn transfer<T>(
        &self,
        stage: Stage,
        route: Route,
        transfers: impl Iterator<Item = impl Future<Output = Result<T, LnetError>> + Send>,
    ) -> Result<Vec<T>, Errno> {
        if self.export.fail().loses(stage, &self.body).await {
            self.execution.bulk_failed.store(true, Ordering::Release);
            return Err(Errno::ETIMEDOUT);
        }
        let result = tokio::select! {
            // A transfer inside of this process ends in its first poll.
            biased;
            result = timeout_at(route.deadline, try_join_all(transfers)) => result.map_err(|_| Errno::ETIMEDOUT),
            // A reconnected client waits at other match bits.
            () = self.export.connection_changed(self.body.pb_conn_cnt) => Err(Errno::ENOTCONN),
        };
        let why = match result {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        warn_rate_limited!(peer = %route.peer, xid = %self.xid, opc = self.opc, why, "bulk transfer failed");
        self.execution.bulk_failed.store(true, Ordering::Release);
        Err(Errno::ETIMEDOUT)
    }
}
