//! An export: one client's connection to one target, and the way back to the client.

use super::active::{Active, Busy};
use super::once::Once;
use super::request::Running;
use super::{Role, Target, TargetExports};
use crate::exchange::{Arrived, ReplyBuffer, request_body};
use crate::{Ptlrpc, RpcError, at, opcode};
use bytes::Bytes;
use lnet::Link;
use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use wire::{
    Errno, LustreHandle, MSG_RESENT, MSGHDR_AT_SUPPORT, MSGHDR_CKSUM_INCOMPAT18, Message, Nid,
    OBD_CONNECT_FLAGS2, OBD_CONNECT_RDONLY, ObdConnectData, PtlrpcBody,
};

/// How long a callback waits before it tries again to reach a client that it could not be sent to, or whose connection was
/// lost with it.
const CALLBACK_PAUSE: Duration = Duration::from_secs(1);

/// What the last connect said.
#[derive(Debug, Clone, Copy)]
struct Connection {
    peer: Nid,
    role: Role,
    data: ObdConnectData,
    /// The client's handle, for callbacks.
    cookie: u64,
    /// Which boot of the client's node it came from; 0 when that is not known.
    incarnation: u64,
}

/// The connection's generation, for those who wait on it.
#[derive(Debug, Clone, Copy)]
struct Generation {
    conn_cnt: u32,
    /// Requests and callbacks end.
    gone: bool,
    /// The target has dropped what it had for the client.
    ended: bool,
}

/// One client of one target.
pub struct Export {
    /// Our handle for it: `pb_handle` of its requests.
    pub handle: u64,
    /// Who it is.
    pub client_uuid: String,
    /// Where it connected from at first.
    pub(crate) origin: Nid,
    exports: Arc<TargetExports>,
    connection: RwLock<Connection>,
    generation: watch::Sender<Generation>,
    retired: AtomicBool,
    active: Arc<Active>,
    /// What is being changed on the strength of the client's locks.
    changes: Arc<Active>,
    pub(crate) once: Mutex<Once<Running>>,
    heard_at: Mutex<Instant>,
    ext: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
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
    ) -> Arc<Export> {
        Arc::new_cyclic(|me| Export {
            handle: rpc.new_handle(),
            client_uuid: client_uuid.to_owned(),
            origin,
            exports: exports.clone(),
            connection: RwLock::new(Connection {
                peer: Nid::LO,
                role: Role::Client,
                data: ObdConnectData::default(),
                cookie: 0,
                incarnation: 0,
            }),
            generation: watch::Sender::new(Generation {
                conn_cnt: 0,
                gone: false,
                ended: false,
            }),
            retired: AtomicBool::new(false),
            active: Arc::default(),
            changes: Arc::default(),
            once: Mutex::default(),
            heard_at: Mutex::new(Instant::now()),
            ext: Mutex::default(),
            rpc: Arc::downgrade(rpc),
            me: me.clone(),
        })
    }

    /// The client has connected, for the first time or again.
    pub(crate) fn connected(&self, peer: Nid, role: Role, data: ObdConnectData, cookie: u64, conn_cnt: u32) {
        let link = self.rpc().and_then(|rpc| rpc.lnet().link(peer));
        *self.connection.write() = Connection {
            peer,
            role,
            data,
            cookie,
            incarnation: link.map_or(0, |link| link.incarnation),
        };
        self.once.lock().connected();
        self.heard();
        self.generation.send_modify(|g| g.conn_cnt = conn_cnt);
    }

    /// Where it connected from.
    pub fn peer(&self) -> Nid {
        self.connection.read().peer
    }

    /// Whether the target found it to be a server of the same file system when it connected.
    pub fn is_server(&self) -> bool {
        self.connection.read().role == Role::Server
    }

    /// What it was granted.
    pub fn data(&self) -> ObdConnectData {
        self.connection.read().data
    }

    /// Granted `ocd_connect_flags`.
    pub fn flags(&self) -> u64 {
        self.connection.read().data.ocd_connect_flags
    }

    /// Granted `ocd_connect_flags2`.
    pub fn flags2(&self) -> u64 {
        let data = &self.connection.read().data;
        if data.ocd_connect_flags & OBD_CONNECT_FLAGS2 == 0 {
            0
        } else {
            data.ocd_connect_flags2
        }
    }

    /// Whether `flag` of `ocd_connect_flags` is granted.
    pub fn has(&self, flag: u64) -> bool {
        self.flags() & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is granted.
    pub fn has2(&self, flag: u64) -> bool {
        self.flags2() & flag == flag
    }

    /// The client mounts read-only from now on, or not any more (`OBD_CONNECT_RDONLY`).
    pub fn set_read_only(&self, read_only: bool) {
        let flags = &mut self.connection.write().data.ocd_connect_flags;
        match read_only {
            true => *flags |= OBD_CONNECT_RDONLY,
            false => *flags &= !OBD_CONNECT_RDONLY,
        }
    }

    /// The target it is of.
    pub fn target_uuid(&self) -> &str {
        self.exports.target().uuid()
    }

    /// The target's own state of this client; made when first asked for.
    pub fn ext<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let mut all = self.ext.lock();
        if let Some(found) = all.iter().find_map(|ext| ext.clone().downcast::<T>().ok()) {
            return found;
        }
        let new = Arc::<T>::default();
        all.push(new.clone());
        new
    }

    /// Whether the client has disconnected or was evicted.
    pub fn is_gone(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// How long nothing has been heard of the client.
    pub fn silent_for(&self) -> Duration {
        self.heard_at.lock().elapsed()
    }

    /// Ends the connection without asking the client: it learns of it by its next request, and drops all it cached.
    pub async fn evict(self: &Arc<Self>, why: &str) {
        if self.retire_because(why) {
            self.drop_retired(true).await;
        }
    }

    /// The same, but only the connection has ended when this returns: a task of its own has the target drop the client's state.
    pub(crate) fn evict_soon(self: &Arc<Self>, why: &str) {
        if let Some(rpc) = self.rpc()
            && self.retire_because(why)
        {
            let export = self.clone();
            rpc.cpt_of(self.peer())
                .spawn(async move { export.drop_retired(true).await });
        }
    }

    fn retire_because(&self, why: &str) -> bool {
        let first = self.retire();
        if first {
            let (target_uuid, client) = (self.target_uuid(), &self.client_uuid);
            lnet::warn_seldom!(target_uuid, %client, peer = %self.peer(), why, "evicting");
        }
        first
    }

    /// Whether it comes from a boot of the client's node before the one that is connected.
    pub(crate) fn is_of_former_boot(&self, link: &Link) -> bool {
        let known = self.connection.read().incarnation;
        known != 0 && link.incarnation != 0 && known != link.incarnation
    }

    pub(super) fn rpc(&self) -> Option<Arc<Ptlrpc>> {
        self.rpc.upgrade()
    }

    /// Asks the client something: a lock callback. Tries until the client answers, for at most `timeout`.
    pub async fn callback(&self, opc: u32, bufs: Vec<Bytes>, timeout: Duration) -> Result<Message, RpcError> {
        let name = || format!("{} at {}", self.client_uuid, self.peer());
        tokio::select! {
            biased;
            () = self.gone() => Err(RpcError::Closed(name())),
            never = self.keeps_others_waiting() => match never {},
            result = tokio::time::timeout(timeout, self.ask(opc, &bufs, timeout)) => {
                result.unwrap_or_else(|_| Err(RpcError::Timeout(name())))
            }
        }
    }

    /// Says so while a callback is not answered.
    async fn keeps_others_waiting(&self) -> Infallible {
        loop {
            sleep(CALLBACK_PAUSE).await;
            self.blocks_others();
        }
    }

    async fn ask(&self, opc: u32, bufs: &[Bytes], limit: Duration) -> Result<Message, RpcError> {
        let rpc = self
            .rpc
            .upgrade()
            .ok_or_else(|| RpcError::Closed(self.client_uuid.clone()))?;
        let portal = wire::LDLM_CB_REQUEST_PORTAL;
        let xid = rpc.xids().next();
        let mut flags = 0;
        loop {
            let Connection { peer, cookie, .. } = *self.connection.read();
            let conn_cnt = self.conn_cnt();
            let body = PtlrpcBody {
                pb_handle: LustreHandle { cookie },
                pb_timeout: at::wire_secs(limit),
                pb_flags: flags,
                pb_mbits: xid,
                ..request_body(opc)
            };
            let head = Message {
                flags: MSGHDR_AT_SUPPORT | MSGHDR_CKSUM_INCOMPAT18,
                repsize: wire::msg::EARLY_REPLY_SIZE as u32,
                ..Message::default()
            };
            let msg = head.build_of(&body, bufs);
            let mut buffer =
                ReplyBuffer::attach(rpc.lnet(), peer, opcode::reply_portal(portal), xid, 1024, true);
            let sent = rpc.lnet().put(peer, portal, xid, 0, 0, msg.into(), false).await;
            let by = sent.ok().map(|_| rpc.lnet().link(peer));
            flags = MSG_RESENT;
            tokio::select! {
                reply = final_reply(&mut buffer) => return reply_of(peer, reply),
                () = self.connection_changed(conn_cnt) => {}
                () = undelivered(&rpc, peer, by) => {}
            }
        }
    }

    pub(crate) fn heard(&self) {
        *self.heard_at.lock() = Instant::now();
    }

    pub(crate) fn conn_cnt(&self) -> u32 {
        self.generation.borrow().conn_cnt
    }

    pub(crate) fn client_cookie(&self) -> u64 {
        self.connection.read().cookie
    }

    pub(crate) fn target(&self) -> &dyn Target {
        self.exports.target()
    }

    /// Resolves when the client has connected again after `conn_cnt`, or is gone.
    pub(crate) async fn connection_changed(&self, conn_cnt: u32) {
        // An error means that the sender is gone, which is `self`.
        let _ = self
            .generation
            .subscribe()
            .wait_for(|g| g.gone || g.conn_cnt > conn_cnt)
            .await;
    }

    /// Resolves when the client has disconnected or was evicted.
    pub async fn gone(&self) {
        // An error means that the sender is gone, which is `self`.
        let _ = self.generation.subscribe().wait_for(|g| g.gone).await;
    }

    /// Ends the connection, once, and lets the target drop what it has for the client.
    pub(crate) async fn end(&self, evicted: bool) {
        if self.retire() {
            self.drop_retired(evicted).await;
        }
    }

    /// Refuses the client's requests from now on. False if that is so already.
    fn retire(&self) -> bool {
        let first = !self.retired.swap(true, Ordering::SeqCst);
        if first {
            self.generation.send_modify(|g| g.gone = true);
            if let Some(rpc) = self.rpc() {
                rpc.exports().remove(self.handle);
            }
        }
        first
    }

    /// Lets the target drop what it has for a client whose connection has ended.
    async fn drop_retired(&self, evicted: bool) {
        let (Some(rpc), Some(me)) = (self.rpc(), self.me.upgrade()) else {
            return;
        };
        // In a task of its own: it comes to its end even if the caller does not wait.
        let ending = rpc.cpt_of(self.peer()).spawn(me.drop_state(evicted));
        if let Err(e) = ending.await {
            tracing::error!(client = %self.client_uuid, error = %e, "a target did not drop a client's state");
            self.state_dropped();
        }
    }

    /// Lets the target drop what it has for the client; what is just being changed under the client's locks first comes to
    /// its end.
    async fn drop_state(self: Arc<Self>, evicted: bool) {
        self.changes.idle().await;
        self.target().export_gone(&self, evicted).await;
        self.state_dropped();
        if self.active.count() > 0 {
            tokio::spawn(async move {
                self.active.idle().await;
                self.target().last_request_done(&self).await;
            });
        }
    }

    /// The client's name is free for a new connection.
    fn state_dropped(&self) {
        self.exports.forget(self);
        self.generation.send_modify(|g| g.ended = true);
    }

    /// Resolves when a client that is gone has left nothing behind.
    pub(crate) async fn ended(&self) {
        // An error means that the sender is gone, which is `self`.
        let _ = self.generation.subscribe().wait_for(|g| g.ended).await;
    }

    /// Something is about to be changed on the strength of the client's locks: they stay until the result is dropped.
    /// `ENOTCONN` when the client is gone, and with it its locks, whatever it had asked for before. Not to be held while
    /// waiting for a client.
    pub fn change(&self) -> Result<Busy, Errno> {
        let change = self.changes.begin();
        if self.is_gone() {
            Err(Errno::ENOTCONN)
        } else {
            Ok(change)
        }
    }

    /// A request of the client is being handled; `None` when the client is gone.
    pub(crate) fn begin(&self) -> Option<(Busy, Busy)> {
        let busy = (self.active.begin(), self.exports.active().begin());
        (!self.is_gone()).then_some(busy)
    }
}

/// Resolves when the client may not have got what was sent to it over the connections `by`; `None`: it was not sent.
async fn undelivered(rpc: &Ptlrpc, peer: Nid, by: Option<Option<Link>>) {
    let lost = |then: Option<Link>, now: Option<Link>| match (then, now) {
        (Some(then), Some(now)) => !then.up || !now.up || then.generation != now.generation,
        // Behind a router, or this node itself.
        _ => false,
    };
    loop {
        sleep(CALLBACK_PAUSE).await;
        if by.is_none_or(|then| lost(then, rpc.lnet().link(peer))) {
            return;
        }
    }
}

async fn final_reply(buffer: &mut ReplyBuffer) -> Option<(Message, PtlrpcBody)> {
    loop {
        match buffer.next().await? {
            Arrived::Final(reply) => return Some(*reply),
            Arrived::Early { .. } => {}
            Arrived::Truncated { .. } => return None,
        }
    }
}

fn reply_of(peer: Nid, reply: Option<(Message, PtlrpcBody)>) -> Result<Message, RpcError> {
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
