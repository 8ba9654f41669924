//! Exports: a target's side of a client's connection, and callbacks to the client.

use super::active::{ActiveCount, ActiveGuard};
use super::claims::Claims;
use super::recovery::TargetRecovery;
use super::reply_cache::ReplyCache;
use super::request::Execution;
use super::target_stats::TargetStats;
use super::{EndReason, Role, Target, TargetExports};
use crate::exchange::{ReplyBuffer, ReplyEvent, request_body};
use crate::fail::Stage;
use crate::granted::Granted;
use crate::{FailPoints, Ptlrpc, RpcError, at, opcode};
use arc_swap::ArcSwap;
use bytes::Bytes;
use lnet::Link;
use params::StatsTable;
use parking_lot::Mutex;
use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use wire::{
    Errno, LockTerms, LustreHandle, MSG_RESENT, MSGHDR_AT_SUPPORT, MSGHDR_CKSUM_INCOMPAT18, Message, Nid,
    OBD_CONNECT_RDONLY, ObdConnectData, Precision, PtlrpcBody,
};

/// Pause before a callback is sent again because the client was unreachable or its connection was
/// lost. Also the interval of reports that a client blocks others.
const CALLBACK_PAUSE: Duration = Duration::from_secs(1);
/// Time without a reply after which the server sends a callback again. Clients expect the same xid,
/// and answer each copy.
const CALLBACK_RESEND: Duration = Duration::from_secs(10);

/// Space for the reply to a callback, in bytes.
const CALLBACK_REPLY_MAX: u32 = 1024;

/// The state from the last connect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub(super) peer: Nid,
    pub(super) role: Role,
    /// The client's import handle, for callbacks.
    cookie: u64,
    /// Identifies the boot of the client's node; 0 if unknown.
    incarnation: u64,
}

/// The state of the connection that waiters watch.
#[derive(Debug, Clone, Copy)]
struct ConnectionState {
    conn_cnt: u32,
    /// The client has disconnected or was evicted.
    gone: bool,
    /// The target has dropped its state of the client.
    ended: bool,
}

/// The connection of one client to one target.
pub struct Export {
    /// This export's handle: `pb_handle` of the client's requests.
    pub handle: u64,
    /// The client's UUID.
    pub client_uuid: String,
    /// The NID of the client's first connect.
    pub(crate) origin: Nid,
    /// The statistics of all clients with this NID.
    nid_stats: Arc<StatsTable>,
    exports: Arc<TargetExports>,
    connection: ArcSwap<Connection>,
    granted: Granted,
    state_tx: watch::Sender<ConnectionState>,
    /// Whether the client has disconnected or was evicted: its requests are refused.
    gone: AtomicBool,
    /// Requests in execution.
    active: Arc<ActiveCount>,
    /// Changes in progress that rely on the client's locks.
    changes: Arc<ActiveCount>,
    pub(crate) replies: Mutex<ReplyCache<Execution>>,
    /// When the export was created.
    created_at: Instant,
    /// When the client last connected or sent a request, in milliseconds after `created_at`.
    heard_at_ms: AtomicU64,
    /// The target's state for the client, one value for each type.
    ext: ArcSwap<Vec<Arc<dyn Any + Send + Sync>>>,
    /// The records of the parts in which the client may hold something.
    pub(super) claims: Claims,
    fail: Arc<FailPoints>,
    rpc: Weak<Ptlrpc>,
    me: Weak<Export>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Export");
        out.field("target", &self.target_uuid())
            .field("client", &self.client_uuid)
            .finish_non_exhaustive()
    }
}

impl Export {
    pub(crate) fn new(
        rpc: &Arc<Ptlrpc>,
        exports: &Arc<TargetExports>,
        client_uuid: &str,
        origin: Nid,
        nid_stats: Arc<StatsTable>,
    ) -> Arc<Export> {
        Arc::new_cyclic(|me| Export {
            handle: rpc.new_handle(),
            client_uuid: client_uuid.to_owned(),
            origin,
            nid_stats,
            exports: exports.clone(),
            granted: Granted::default(),
            connection: ArcSwap::from_pointee(Connection {
                peer: Nid::LO,
                role: Role::Client,
                cookie: 0,
                incarnation: 0,
            }),
            state_tx: watch::Sender::new(ConnectionState {
                conn_cnt: 0,
                gone: false,
                ended: false,
            }),
            gone: AtomicBool::new(false),
            active: Arc::default(),
            changes: Arc::default(),
            replies: Mutex::default(),
            created_at: Instant::now(),
            heard_at_ms: AtomicU64::new(0),
            ext: ArcSwap::default(),
            claims: Claims::default(),
            fail: rpc.fail().clone(),
            rpc: Arc::downgrade(rpc),
            me: me.clone(),
        })
    }

    /// Records that the client has connected or reconnected.
    pub(crate) fn record_connect(
        &self,
        peer: Nid,
        role: Role,
        data: ObdConnectData,
        cookie: u64,
        conn_cnt: u32,
    ) {
        let link = self.rpc().and_then(|rpc| rpc.lnet().link(peer));
        self.connection.store(Arc::new(Connection {
            peer,
            role,
            cookie,
            incarnation: link.map_or(0, |link| link.incarnation),
        }));
        self.granted.set(data);
        self.replies.lock().reset_last_xid();
        self.note_heard();
        self.state_tx.send_modify(|g| g.conn_cnt = conn_cnt);
    }

    /// The state from the last connect.
    pub(super) fn connection(&self) -> Connection {
        **self.connection.load()
    }

    pub(super) fn me(&self) -> Option<Arc<Export>> {
        self.me.upgrade()
    }

    /// Whether a request is in execution.
    pub(super) fn is_busy(&self) -> bool {
        self.active.count() > 0
    }

    /// The NID of the last connect.
    pub fn peer(&self) -> Nid {
        self.connection.load().peer
    }

    /// Whether the target admitted the client as a server of the same file system.
    pub fn is_server(&self) -> bool {
        self.connection.load().role == Role::Server
    }

    /// The granted connect data.
    pub fn data(&self) -> ObdConnectData {
        self.granted.data()
    }

    /// Granted `ocd_connect_flags`.
    pub fn flags(&self) -> u64 {
        self.granted.flags()
    }

    /// Granted `ocd_connect_flags2`.
    pub fn flags2(&self) -> u64 {
        self.granted.flags2()
    }

    /// The precision of times that the client and the target agreed on.
    pub fn precision(&self) -> Precision {
        self.granted.precision()
    }

    /// The terms of the client's locks that the client and the target agreed on.
    pub fn lock_terms(&self) -> LockTerms {
        self.granted.lock_terms()
    }

    /// Whether `flag` of `ocd_connect_flags` is granted.
    pub fn has(&self, flag: u64) -> bool {
        self.flags() & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is granted.
    pub fn has2(&self, flag: u64) -> bool {
        self.flags2() & flag == flag
    }

    /// Changes whether the client is mounted read-only (`OBD_CONNECT_RDONLY`).
    pub fn set_read_only(&self, read_only: bool) {
        self.granted.change(|mut data| {
            match read_only {
                true => data.ocd_connect_flags |= OBD_CONNECT_RDONLY,
                false => data.ocd_connect_flags &= !OBD_CONNECT_RDONLY,
            }
            data
        });
    }

    /// The target's UUID.
    pub fn target_uuid(&self) -> &str {
        self.exports.target().uuid()
    }

    /// The target's recovery, unless it is complete.
    pub(super) fn recovery(&self) -> Option<&Arc<TargetRecovery>> {
        self.exports.recovery()
    }

    /// The target's own state of type `T` for this client, created on first use.
    pub fn ext<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let find = |all: &[Arc<dyn Any + Send + Sync>]| {
            let found = all.iter().find(|ext| ext.is::<T>());
            found.and_then(|ext| ext.clone().downcast::<T>().ok())
        };
        if let Some(found) = find(&self.ext.load()) {
            return found;
        }
        let new = Arc::<T>::default();
        // Another thread may have added its value meanwhile.
        let before = self.ext.rcu(|all| match find(all) {
            Some(_) => all.clone(),
            None => Arc::new(all.iter().cloned().chain([new.clone() as _]).collect()),
        });
        find(&before).unwrap_or(new)
    }

    /// Whether the client has disconnected or was evicted.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Time since the client's last request or connect.
    pub fn silent_for(&self) -> Duration {
        let heard_at_ms = self.heard_at_ms.load(Ordering::Relaxed);
        self.created_at
            .elapsed()
            .saturating_sub(Duration::from_millis(heard_at_ms))
    }

    /// Ends the connection from the server's side. The client learns of the eviction by its next
    /// request and drops all locks and caches.
    pub async fn evict(self: &Arc<Self>, why: &str) {
        if self.retire_for(why) {
            self.drop_state_in_task(EndReason::Evicted).await;
        }
    }

    /// Like `evict`, but returns as soon as the client's requests are refused; a separate task
    /// makes the target drop the client's state.
    pub(crate) fn evict_soon(self: &Arc<Self>, why: &str) {
        if let Some(rpc) = self.rpc()
            && self.retire_for(why)
        {
            let export = self.clone();
            rpc.cpt_of(self.peer())
                .spawn(async move { export.drop_state_in_task(EndReason::Evicted).await });
        }
    }

    /// Retires the export for an eviction, and logs the reason. Returns false if it is retired
    /// already.
    fn retire_for(&self, why: &str) -> bool {
        let newly_retired = self.retire(EndReason::Evicted);
        if newly_retired {
            self.target_stats().evictions.fetch_add(1, Ordering::Relaxed);
            let (target_uuid, client) = (self.target_uuid(), &self.client_uuid);
            lnet::warn_rate_limited!(target_uuid, %client, peer = %self.peer(), why, "evicting client");
        }
        newly_retired
    }

    /// Whether the client connected before its node's last restart.
    pub(crate) fn is_of_earlier_boot(&self, link: &Link) -> bool {
        let incarnation = self.connection.load().incarnation;
        incarnation != 0 && link.incarnation != 0 && incarnation != link.incarnation
    }

    pub(super) fn rpc(&self) -> Option<Arc<Ptlrpc>> {
        self.rpc.upgrade()
    }

    /// Sends a lock callback and waits for the reply. Resends the callback after a lost connection
    /// and every 10 s, until `timeout` has passed.
    ///
    /// # Errors
    ///
    /// [`RpcError::Status`] if the client refuses the callback, [`RpcError::Timeout`],
    /// [`RpcError::Protocol`] if the reply does not fit its buffer, or [`RpcError::Closed`] if the
    /// client has disconnected or was evicted.
    pub async fn callback(&self, opc: u32, bufs: Vec<Bytes>, timeout: Duration) -> Result<Message, RpcError> {
        let name = || format!("{} at {}", self.client_uuid, self.peer());
        tokio::select! {
            biased;
            () = self.gone() => Err(RpcError::Closed(name())),
            never = self.report_blocking_until_reply() => match never {},
            result = tokio::time::timeout(timeout, self.send_callback(opc, &bufs, timeout)) => {
                result.unwrap_or_else(|_| Err(RpcError::Timeout(name())))
            }
        }
    }

    /// Reports once a second that the client blocks others, while a callback has no reply.
    async fn report_blocking_until_reply(&self) -> Infallible {
        loop {
            sleep(CALLBACK_PAUSE).await;
            self.report_blocking();
        }
    }

    async fn send_callback(&self, opc: u32, bufs: &[Bytes], limit: Duration) -> Result<Message, RpcError> {
        let rpc = self
            .rpc
            .upgrade()
            .ok_or_else(|| RpcError::Closed(self.client_uuid.clone()))?;
        let portal = wire::LDLM_CB_REQUEST_PORTAL;
        let xid = rpc.xids().next();
        let mut flags = 0;
        loop {
            let Connection { peer, cookie, .. } = **self.connection.load();
            let conn_cnt = self.conn_cnt();
            let body = PtlrpcBody {
                pb_handle: LustreHandle { cookie },
                pb_timeout: at::wire_secs(limit),
                pb_flags: flags,
                pb_mbits: xid.0,
                ..request_body(opc)
            };
            let head = Message {
                flags: MSGHDR_AT_SUPPORT | MSGHDR_CKSUM_INCOMPAT18,
                repsize: wire::msg::EARLY_REPLY_SIZE as u32,
                ..Message::default()
            };
            if self.fail.loses(Stage::SendCallback, &body).await {
                sleep(CALLBACK_RESEND).await;
                continue;
            }
            let msg = head.build_with(&body, bufs);
            let reply_portal = opcode::reply_portal(portal);
            let mut buffer =
                ReplyBuffer::attach(rpc.lnet(), peer, reply_portal, xid.0, CALLBACK_REPLY_MAX, true);
            let sent = rpc.lnet().put(peer, portal, xid.0, 0, 0, msg.into(), false).await;
            let sent_on = sent.ok().map(|_| rpc.lnet().link(peer));
            flags = MSG_RESENT;
            tokio::select! {
                biased;
                reply = final_reply(&mut buffer) => return callback_result(peer, reply),
                () = self.connection_changed(conn_cnt) => {}
                () = wait_for_loss(&rpc, peer, sent_on) => {}
                // A router may have lost the callback or its reply without a trace.
                () = sleep(CALLBACK_RESEND) => {}
            }
        }
    }

    /// The faults that the administrator injects.
    pub(crate) fn fail(&self) -> &FailPoints {
        &self.fail
    }

    pub(crate) fn note_heard(&self) {
        let now_ms = self.created_at.elapsed().as_millis() as u64;
        self.heard_at_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(crate) fn conn_cnt(&self) -> u32 {
        self.state_tx.borrow().conn_cnt
    }

    pub(crate) fn client_cookie(&self) -> u64 {
        self.connection.load().cookie
    }

    pub(super) fn target_stats(&self) -> &TargetStats {
        self.exports.stats()
    }

    pub(super) fn nid_stats(&self) -> &StatsTable {
        &self.nid_stats
    }

    pub(crate) fn target(&self) -> &dyn Target {
        self.exports.target()
    }

    /// Resolves when the client has reconnected after `conn_cnt`, disconnected, or was evicted.
    pub(crate) async fn connection_changed(&self, conn_cnt: u32) {
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = self
            .state_tx
            .subscribe()
            .wait_for(|g| g.gone || g.conn_cnt > conn_cnt)
            .await;
    }

    /// Resolves when the client has disconnected or was evicted.
    pub async fn gone(&self) {
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = self.state_tx.subscribe().wait_for(|g| g.gone).await;
    }

    /// Ends the connection and waits until the target has dropped the client's state.
    pub(crate) async fn end(&self, why: EndReason) {
        if self.retire(why) {
            self.drop_state_in_task(why).await;
        }
    }

    /// Refuses the client's requests from now on. Returns false if they are refused already.
    fn retire(&self, why: EndReason) -> bool {
        let newly_retired = !self.gone.swap(true, Ordering::SeqCst);
        if newly_retired {
            self.state_tx.send_modify(|g| g.gone = true);
            // At its next start, a stopping target lets the client recover.
            if let Some(recovery) = self.exports.recovery().filter(|_| why != EndReason::TargetStops) {
                recovery.client_gone(&self.client_uuid);
            }
            if let Some(rpc) = self.rpc() {
                rpc.exports().remove(self.handle);
            }
        }
        newly_retired
    }

    /// Makes the target drop the state of a retired client, in a separate task, and waits for it.
    async fn drop_state_in_task(&self, why: EndReason) {
        let (Some(rpc), Some(me)) = (self.rpc(), self.me.upgrade()) else {
            return;
        };
        // A separate task completes even if the caller stops waiting.
        let ending = rpc.cpt_of(self.peer()).spawn(me.drop_state(why));
        if let Err(e) = ending.await {
            tracing::error!(client = %self.client_uuid, error = %e, "target failed to drop the client's state");
            self.release_uuid();
        }
    }

    /// Makes the target drop its state of the client, once changes in progress under the client's
    /// locks have ended.
    async fn drop_state(self: Arc<Self>, why: EndReason) {
        self.changes.wait_idle().await;
        self.target().export_gone(&self, why).await;
        self.release_uuid();
        if self.active.count() > 0 {
            cpt::spawn(async move {
                self.active.wait_idle().await;
                self.target().last_request_done(&self).await;
            });
        }
    }

    /// Frees the client's UUID for a new connection, and wakes the waiters in [`Export::ended`].
    fn release_uuid(&self) {
        self.exports.forget(self);
        self.state_tx.send_modify(|g| g.ended = true);
    }

    /// Resolves when the target has dropped its state of a retired client.
    pub(crate) async fn ended(&self) {
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = self.state_tx.subscribe().wait_for(|g| g.ended).await;
    }

    /// Begins a change that relies on the client's locks: they stay granted until the guard is
    /// dropped. Do not hold the guard while waiting for a client.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected or was evicted, so that its locks are gone.
    pub fn change(&self) -> Result<ActiveGuard, Errno> {
        let change = self.changes.begin();
        if self.is_gone() {
            Err(Errno::ENOTCONN)
        } else {
            Ok(change)
        }
    }

    /// Number of requests in execution.
    #[cfg(feature = "sim")]
    pub(crate) fn active_requests(&self) -> usize {
        self.active.count()
    }

    /// Begins to handle a request, which the export and the target count until the guards are
    /// dropped. `None` if the client has disconnected or was evicted.
    pub(crate) fn begin(&self) -> Option<(ActiveGuard, ActiveGuard)> {
        let busy = (self.active.begin(), self.exports.active().begin());
        (!self.is_gone()).then_some(busy)
    }
}

/// Resolves when a callback to `peer` must be sent again: after a pause if it was not sent
/// (`None`), or when the link that it was sent on has been lost since. Never resolves for a peer
/// without a link (`Some(None)`).
async fn wait_for_loss(rpc: &Ptlrpc, peer: Nid, sent_on: Option<Option<Link>>) {
    let is_lost = |then: Option<Link>, now: Option<Link>| match (then, now) {
        (Some(then), Some(now)) => !then.up || !now.up || then.generation != now.generation,
        // The peer is behind a router, or is this node.
        _ => false,
    };
    loop {
        sleep(CALLBACK_PAUSE).await;
        if sent_on.is_none_or(|then| is_lost(then, rpc.lnet().link(peer))) {
            return;
        }
    }
}

/// The reply to a callback; `None` if it is too long.
async fn final_reply(buffer: &mut ReplyBuffer) -> Option<(Message, PtlrpcBody)> {
    loop {
        match buffer.next().await? {
            ReplyEvent::Final(reply) => return Some(*reply),
            ReplyEvent::Early { .. } => {}
            ReplyEvent::Truncated { .. } => return None,
        }
    }
}

fn callback_result(peer: Nid, reply: Option<(Message, PtlrpcBody)>) -> Result<Message, RpcError> {
    match reply {
        Some((msg, body)) => match Errno::from_status(body.pb_status) {
            Some(errno) => Err(RpcError::Status(errno)),
            None => Ok(msg),
        },
        None => Err(RpcError::Protocol {
            peer: peer.to_string(),
            expected: "a callback's reply of at most 1 KiB",
            found: "a longer one".into(),
        }),
    }
}
