//! One request from start to end: wait for a connection, send, wait for the reply. After a
//! reconnection the client sends the request again with the same xid and `MSG_RESENT`, so that the
//! server executes it once (docs/protocol.md, "PtlRPC").

use super::machine::Event;
use super::slots::Slot;
use super::{Core, Import, ImportState, Phase, UncommittedRequest};
use crate::bulk::BulkBuffers;
use crate::exchange::{ReplyBuffer, ReplyEvent, request_body};
use crate::fail::Stage;
use crate::{Executed, Replay, ReplyMsg, Request, RpcError, opcode};
use bytes::Bytes;
use lnet::Payload;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use wire::{
    Errno, LustreHandle, MSG_PACK_PROJID, MSG_PACK_UID_GID, MSG_RESENT, MSGHDR_AT_SUPPORT,
    MSGHDR_CKSUM_INCOMPAT18, Message, Nid, OBD_CONNECT_BULK_MBITS, OBD_CONNECT2_REP_MBITS, PTL_RPC_MSG_ERR,
    PtlrpcBody, Transno, Xid,
};

/// Allowance for the network, added to a request's `pb_timeout`.
pub(super) const NET_LATENCY: Duration = Duration::from_secs(1);
/// The longest pause, in seconds, before retrying a request that the server answered with
/// `-EINPROGRESS`.
const IN_PROGRESS_PAUSE_MAX: u32 = 10;
/// Number of attempts with missing bulk after which the call fails.
const BULK_ATTEMPTS: u32 = 3;

/// The connection that a request is sent on, and the import's state when the request is sent.
#[derive(Debug, Clone, Copy)]
struct Conn {
    peer: Nid,
    /// The server's handle of the client's export.
    handle: u64,
    conn_cnt: u32,
    /// Whether `OBD_CONNECT_BULK_MBITS` is granted.
    bulk_mbits: bool,
    /// Whether `OBD_CONNECT2_REP_MBITS` is granted.
    rep_mbits: bool,
    /// `pb_last_xid`
    last_xid: Xid,
    /// `pb_timeout`
    timeout_secs: u32,
}

/// Why an attempt ended without a reply.
enum WaitEnd {
    /// The import has reconnected: send again.
    Reconnected,
    /// The call fails.
    Failed(RpcError),
}

/// The result of one attempt: the reply, or `None` to send the request again.
type AttemptResult = Option<ReplyMsg>;

struct Call<'a> {
    import: &'a Import,
    req: &'a Request,
    portal: u32,
    slot: Slot<'a>,
    phase: watch::Receiver<Phase>,
    /// Number of evictions when the call began, or [`Request::evictions`]: another eviction fails
    /// the call.
    evictions: u64,
    /// 0 before the first attempt and after the final reply.
    xid: Xid,
    /// Whether the next attempt is a resend: the server may have received the xid.
    resent: bool,
    /// Space for the whole reply, in bytes.
    reply_len: u32,
    /// Number of pauses after `-EINPROGRESS`.
    pauses: u32,
    /// Number of attempts with missing bulk.
    attempts_without_bulk: u32,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.xid != Xid::NONE {
            self.import.core.lock().end_request(self.xid);
        }
    }
}

/// Sends `req` and waits for its reply, resending as needed.
pub(super) async fn call(import: &Import, req: Request) -> Result<ReplyMsg, RpcError> {
    let phase = import.phase.subscribe();
    let evictions = req.evictions.unwrap_or_else(|| phase.borrow().evictions);
    let slot = import.slots.take(&req).await;
    let reply_len = req.reply_len + EMPTY_REPLY_SIZE;
    let portal = req.portal;
    let mut call = Call {
        import,
        req: &req,
        portal: portal.unwrap_or_else(|| opcode::request_portal(req.opc, import.cfg.kind)),
        slot,
        phase,
        evictions,
        xid: Xid::NONE,
        resent: false,
        reply_len,
        pauses: 0,
        attempts_without_bulk: 0,
    };
    loop {
        let conn = call.wait_for_connection().await?;
        if let Some(reply) = call.attempt(conn).await? {
            return Ok(reply);
        }
    }
}

/// The size of a reply without buffers, in bytes.
const EMPTY_REPLY_SIZE: u32 = wire::msg::EARLY_REPLY_SIZE as u32;

impl Call<'_> {
    fn name(&self) -> String {
        self.import.cfg.name.clone()
    }

    /// Waits until the import is connected, and assigns the xid if the call has none.
    async fn wait_for_connection(&mut self) -> Result<Conn, RpcError> {
        if let Some(replay) = self.req.replay {
            return self.connection_of_recovery(replay);
        }
        loop {
            self.wait_until_full().await?;
            let mut core = self.import.core.lock();
            match core.machine.state() {
                _ if core.machine.evictions() != self.evictions => {
                    return Err(RpcError::Evicted(self.name()));
                }
                ImportState::Idle => {}
                _ => {
                    // From here on the request counts as in flight, which keeps the import from
                    // disconnecting when idle.
                    if self.xid == Xid::NONE {
                        self.xid = core.begin_request(self.import.rpc.xids());
                    }
                    return Ok(self.conn(&mut core));
                }
            }
        }
    }

    /// The connection for a part of the import's recovery.
    fn connection_of_recovery(&mut self, replay: Replay) -> Result<Conn, RpcError> {
        let mut core = self.import.core.lock();
        if !replay.is_sent_in(core.machine.state()) {
            return Err(self.not_connected());
        }
        self.evictions = core.machine.evictions();
        self.xid = match replay {
            Replay::Request(executed) => executed.xid,
            _ if self.xid != Xid::NONE => self.xid,
            _ => core.begin_request(self.import.rpc.xids()),
        };
        Ok(self.conn(&mut core))
    }

    fn not_connected(&self) -> RpcError {
        let (peer, why) = (
            self.import.cfg.target_uuid.clone(),
            "not connected now".to_owned(),
        );
        RpcError::Net { peer, why }
    }

    /// Waits until the import is connected; makes an idle import reconnect.
    async fn wait_until_full(&mut self) -> Result<(), RpcError> {
        let no_delay = self.req.no_delay;
        let evictions = self.evictions;
        // `New` is also the state of an import that was just started, before its driver runs.
        let started = self.import.driver_started.load(Ordering::Acquire);
        let is_settled = |p: &Phase| {
            let cannot_connect = p.state == ImportState::Closed || (p.state == ImportState::New && !started);
            // With `no_delay` a call does not wait for an absent server, but it waits for the first
            // round of attempts.
            let absent = p.failed_rounds > 0
                || p.state.is_replaying()
                || matches!(p.state, ImportState::Discon | ImportState::Evicted);
            let idle = p.state == ImportState::Idle;
            p.state == ImportState::Full
                || idle
                || cannot_connect
                || (no_delay && absent)
                || p.evictions != evictions
        };
        let closed = |_| RpcError::Closed(self.import.cfg.name.clone());
        let phase = loop {
            let phase = *self.phase.wait_for(is_settled).await.map_err(closed)?;
            if phase.state != ImportState::Idle {
                break phase;
            }
            self.import.event(Event::Open);
            let awake = self.phase.wait_for(|p| p.state != ImportState::Idle).await;
            awake.map_err(closed)?;
        };
        if phase.evictions != self.evictions {
            return Err(RpcError::Evicted(self.name()));
        }
        match phase.state {
            ImportState::Full => Ok(()),
            ImportState::New | ImportState::Closed => Err(self.import.last_error()),
            _ => Err(self.not_connected()),
        }
    }

    fn conn(&self, core: &mut Core) -> Conn {
        let import = self.import;
        Conn {
            peer: core.peer(),
            handle: core.machine.handle(),
            conn_cnt: core.machine.conn_cnt(),
            bulk_mbits: import.has(OBD_CONNECT_BULK_MBITS),
            rep_mbits: import.has2(OBD_CONNECT2_REP_MBITS),
            last_xid: core.unreplied.last_xid(),
            timeout_secs: import.timeout_secs(core, self.portal),
        }
    }

    /// Assigns a new xid to the request. Returns `pb_last_xid`.
    fn renew_xid(&mut self) -> Xid {
        let mut core = self.import.core.lock();
        core.end_request(self.xid);
        self.xid = core.begin_request(self.import.rpc.xids());
        core.unreplied.last_xid()
    }

    /// Sends the request on `conn` and waits for its reply.
    async fn attempt(&mut self, conn: Conn) -> Result<AttemptResult, RpcError> {
        let (import, req) = (self.import, self.req);
        let lnet = import.rpc.lnet();
        let mds = req.bulk.as_ref().map_or(0, |b| b.mds());
        // Without BULK_MBITS the server derives the bulk's match bits from the xid, which is then
        // the match bits of the last MD.
        let xid_is_mbits = mds > 0 && !conn.bulk_mbits;
        let last_xid = match xid_is_mbits && self.resent {
            true => self.renew_xid(),
            false => conn.last_xid,
        };
        // A replay's xid has been used for bulk before the restart.
        let repeats = self.resent || req.replay.is_some();
        let base = if repeats && !xid_is_mbits {
            import.rpc.xids().next()
        } else {
            self.xid
        };
        let mbits = base.0 + (mds as u64).saturating_sub(1);
        let xid = if xid_is_mbits { mbits } else { self.xid.0 };

        let (portal, timeout_secs) = (self.portal, conn.timeout_secs);
        let reply_portal = opcode::reply_portal(portal);
        let body = PtlrpcBody {
            pb_handle: LustreHandle { cookie: conn.handle },
            pb_conn_cnt: conn.conn_cnt,
            pb_last_xid: last_xid.0,
            pb_tag: self.tag(),
            pb_timeout: timeout_secs,
            pb_mbits: mbits,
            ..self.body()
        };
        let msg = self.message(&body);

        let reply_bits = if conn.rep_mbits { mbits } else { xid };
        let mut buffer = ReplyBuffer::attach(lnet, conn.peer, reply_portal, reply_bits, self.reply_len, true);
        let bulk_portal = opcode::bulk_portal(req.opc);
        let mut bulk = BulkBuffers::attach(lnet, conn.peer, bulk_portal, base.0, req.bulk.as_ref());
        let sent_at = Instant::now();
        let mut deadline = Some(sent_at + Duration::from_secs(timeout_secs.into()) + NET_LATENCY);

        let put = async {
            match import.rpc.fail().loses(Stage::Send, &body).await {
                true => Ok(()),
                false => lnet
                    .put(conn.peer, portal, xid, 0, 0, msg.into(), false)
                    .await
                    .map(drop),
            }
        };
        let sent = tokio::select! {
            biased;
            sent = put => sent,
            end = self.wait_for_interruption(conn) => return self.after_interruption(end),
        };
        if let Err(e) = sent {
            self.report_broken(conn, RpcError::net(conn.peer, &e))?;
            deadline = None;
        }
        loop {
            let arrived = tokio::select! {
                biased;
                arrived = buffer.next() => arrived,
                end = self.wait_for_interruption(conn) => return self.after_interruption(end),
                () = sleep_until_deadline(deadline) => {
                    import.stats.note_timeout();
                    self.report_broken(conn, RpcError::Timeout(self.name()))?;
                    deadline = None;
                    continue;
                }
            };
            match arrived {
                None => return Err(RpcError::Closed(self.name())),
                Some(ReplyEvent::Early { timeout_secs }) => {
                    import.silence.note_heard();
                    let extended = sent_at + Duration::from_secs(timeout_secs.into()) + NET_LATENCY;
                    deadline = deadline.map(|d| d.max(extended));
                }
                Some(ReplyEvent::Truncated { msg_len }) => {
                    self.reply_len = msg_len;
                    self.resent = true;
                    return Ok(None);
                }
                Some(ReplyEvent::Final(reply)) => {
                    let (reply, body) = *reply;
                    import.rpc.fail().loses(Stage::Received, &body).await;
                    let mut reply = ReplyMsg {
                        status: body.pb_status,
                        msg: reply,
                        body,
                        bulk: Vec::new(),
                        uncommitted_guard: None,
                    };
                    self.record_reply(&mut reply, bulk.has_no_sinks());
                    return self.process_reply(conn, reply, &mut bulk, deadline).await;
                }
            }
        }
    }

    /// The execution before the restart, if the request is replayed.
    fn executed(&self) -> Option<Executed> {
        match self.req.replay {
            Some(Replay::Request(executed)) => Some(executed),
            _ => None,
        }
    }

    /// `pb_tag`
    fn tag(&self) -> u16 {
        self.executed().map_or(self.slot.tag(), |e| e.tag)
    }

    /// The fields of the body that do not depend on the connection.
    fn body(&self) -> PtlrpcBody {
        let req = self.req;
        let mut flags = req.flags | req.replay.map_or(0, |replay| replay.flags());
        if self.resent {
            flags |= MSG_RESENT;
        }
        let executed = self.executed();
        if req.uid.is_some() || req.gid.is_some() {
            flags |= MSG_PACK_UID_GID;
        }
        if req.projid.is_some() {
            flags |= MSG_PACK_PROJID;
        }
        PtlrpcBody {
            pb_flags: flags,
            pb_uid: req.uid.unwrap_or(0),
            pb_gid: req.gid.unwrap_or(0),
            pb_projid: req.projid.unwrap_or(0),
            pb_jobid: req.jobid,
            pb_transno: executed.map_or(0, |e| e.transno.0),
            pb_pre_versions: executed.map_or([0; 4], |e| e.pre_versions),
            ..request_body(req.opc)
        }
    }

    fn message(&self, body: &PtlrpcBody) -> Bytes {
        let head = Message {
            secflvr: self.import.cfg.kind.secflvr(),
            flags: MSGHDR_AT_SUPPORT | MSGHDR_CKSUM_INCOMPAT18,
            repsize: self.reply_len,
            ..Message::default()
        };
        head.build_with(body, &self.req.bufs)
    }

    /// Resolves when no reply can arrive on `conn` any more.
    async fn wait_for_interruption(&self, conn: Conn) -> WaitEnd {
        let mut phase = self.phase.clone();
        let evictions = self.evictions;
        let has_ended = |p: &Phase| {
            let reconnected = p.state == ImportState::Full && p.conn_cnt != conn.conn_cnt;
            reconnected || p.state == ImportState::Closed || p.evictions != evictions
        };
        let phase = phase.wait_for(has_ended).await.map(|p| *p);
        match phase {
            Ok(p) if p.evictions != evictions => WaitEnd::Failed(RpcError::Evicted(self.name())),
            Ok(p) if p.state == ImportState::Full => WaitEnd::Reconnected,
            _ => WaitEnd::Failed(self.import.last_error()),
        }
    }

    /// Fails the call, or makes the next attempt a resend.
    fn after_interruption(&mut self, why: WaitEnd) -> Result<AttemptResult, RpcError> {
        match why {
            WaitEnd::Failed(e) => Err(e),
            WaitEnd::Reconnected if self.req.no_resend => Err(RpcError::Timeout(self.name())),
            WaitEnd::Reconnected => {
                self.resent = true;
                Ok(None)
            }
        }
    }

    /// Reports that the connection is broken, which makes the import reconnect. Returns `why` as
    /// the call's error if the request must not be resent.
    fn report_broken(&self, conn: Conn, why: RpcError) -> Result<(), RpcError> {
        tracing::debug!(import = %self.name(), opc = self.req.opc, xid = %self.xid, error = %why, "request not answered");
        self.import.event(Event::Broken {
            conn_cnt: conn.conn_cnt,
        });
        if self.req.no_resend { Err(why) } else { Ok(()) }
    }

    /// Records that the server is alive, and the reply's service time, transno and
    /// `last_committed`. Ends the request if no other attempt can follow this reply.
    fn record_reply(&mut self, reply: &mut ReplyMsg, has_no_bulk: bool) {
        let body = reply.body;
        let now = cpt::now();
        self.import.silence.note_heard();
        let mut core = self.import.core.lock();
        if body.pb_timeout > 0 {
            self.import
                .estimate(&mut core, self.portal, now)
                .record(now, body.pb_timeout);
        }
        if body.pb_transno != 0 && self.req.replay.is_none() {
            let request = Arc::new(self.request_to_replay(reply));
            let entry = UncommittedRequest::new(self.xid, self.slot.tag(), body.pb_pre_versions, request);
            reply.uncommitted_guard = core.uncommitted.add(Transno(body.pb_transno), entry);
        }
        core.uncommitted.note_committed(Transno(body.pb_last_committed));
        if has_no_bulk && body.pb_status == 0 {
            core.end_request(std::mem::replace(&mut self.xid, Xid::NONE));
        }
        let wake = core.process(Event::Reply {
            ping: self.req.opc == wire::OBD_PING,
        });
        drop(core);
        if wake {
            self.import.wake.notify_one();
        }
    }

    /// The request, as the client replays it after a restart of the server.
    fn request_to_replay(&self, reply: &ReplyMsg) -> Request {
        let mut replay = self.req.clone();
        replay.portal = Some(self.portal);
        if let Some(edit) = replay.edit_replay {
            edit(&mut replay.bufs, reply);
        }
        replay
    }

    /// Returns the reply with its bulk; `None` to send the request again.
    async fn process_reply(
        &mut self,
        conn: Conn,
        reply: ReplyMsg,
        bulk: &mut BulkBuffers,
        deadline: Option<Instant>,
    ) -> Result<AttemptResult, RpcError> {
        let errno = Errno::from_status(reply.status);
        match errno {
            Some(e @ (Errno::ENOTCONN | Errno::ENODEV)) if reply.body.pb_type == PTL_RPC_MSG_ERR => {
                self.report_broken(conn, RpcError::Status(e))?;
                self.resent = true;
                return match self.wait_for_interruption(conn).await {
                    WaitEnd::Failed(e) => Err(e),
                    WaitEnd::Reconnected => Ok(None),
                };
            }
            Some(Errno::EINPROGRESS) if !self.req.no_resend => {
                self.pauses += 1;
                sleep(Duration::from_secs(self.pauses.min(IN_PROGRESS_PAUSE_MAX).into())).await;
                self.renew_xid();
                self.resent = false;
                return Ok(None);
            }
            Some(e) if !self.req.return_error_replies => return Err(RpcError::Status(e)),
            _ => {}
        }
        let bulk = match errno {
            Some(_) => Vec::new(),
            None => match self.collect(conn, bulk, deadline).await? {
                Some(bulk) => bulk,
                None => return Ok(None),
            },
        };
        Ok(Some(ReplyMsg { bulk, ..reply }))
    }

    /// The bulk that the server sent before the reply; `None` to send the request again.
    async fn collect(
        &mut self,
        conn: Conn,
        bulk: &mut BulkBuffers,
        deadline: Option<Instant>,
    ) -> Result<Option<Vec<Payload>>, RpcError> {
        if bulk.has_no_sinks() {
            return Ok(Some(Vec::new()));
        }
        let deadline = deadline.unwrap_or_else(|| Instant::now() + NET_LATENCY);
        if let Ok(bulk) = tokio::time::timeout_at(deadline, bulk.collect()).await {
            return Ok(Some(bulk));
        }
        self.attempts_without_bulk += 1;
        self.resent = true;
        if self.attempts_without_bulk < BULK_ATTEMPTS && !self.req.no_resend {
            return Ok(None);
        }
        let (expected, found) = ("one bulk PUT per MD before the reply", "fewer".to_owned());
        Err(RpcError::Protocol {
            peer: conn.peer.to_string(),
            expected,
            found,
        })
    }
}

/// Resolves at `deadline`; never without one.
async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
