//! Requesting locks.
//!
//! The client's cookie is registered before the request is sent, because callbacks for the lock can
//! arrive before the reply: a completion, or even a blocking AST. The client waits for a queued
//! lock without a timeout, because the server evicts a holder that does not cancel in time. An
//! eviction of this client ends the wait, too.

use super::cache::{ALL_BITS, CachedLock, LockRef};
use super::{CookieState, LockClient, LockCookie};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::request::{HANDLES_MAX, dlm_req, requested_desc};
use bytes::Bytes;
use rpc::{ReplyMsg, Request, RpcError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::timeout;
use wire::format::bufs;
use wire::{Errno, LdlmIntent, LdlmLockDesc, LdlmReply, LdlmResId, WireStruct};

/// Time without a completion before the first ping that checks whether this client was evicted.
const FIRST_PROBE: Duration = Duration::from_millis(100);
/// Maximum number of such pings. Each pause is twice the previous one: 12.7 s in total.
const PROBES: u32 = 7;

/// The operation that the server executes with the lock request.
#[derive(Clone, Debug)]
pub struct Intent {
    /// `IT_*`.
    pub opc: u64,
    /// The buffers after `LDLM_INTENT`.
    pub bufs: Vec<Bytes>,
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// The resource. With an intent the server may return a lock of another resource.
    pub res: LdlmResId,
    /// The mode.
    pub mode: LockMode,
    /// The part of the resource to lock.
    pub policy: Policy,
    /// `LDLM_FL_*` of the request.
    pub flags: u64,
    /// The intent, which sets `LDLM_FL_HAS_INTENT`.
    pub intent: Option<Intent>,
    /// Server handles of this client's locks to cancel first ([`LockClient::elc`]).
    pub elc: Vec<u64>,
    /// The capability for the object, if the target requires one; not with an intent.
    pub capability: Bytes,
    /// The RPC that carries the lock request; [`LockClient::enqueue`] fills in its buffers.
    pub request: Request,
}

impl Enqueue {
    /// A request without flags and intent.
    pub fn new(res: LdlmResId, mode: LockMode, policy: Policy) -> Enqueue {
        let request = Request::new(wire::LDLM_ENQUEUE, Vec::new());
        Enqueue {
            res,
            mode,
            policy,
            flags: 0,
            intent: None,
            elc: Vec::new(),
            capability: Bytes::new(),
            request,
        }
    }
}

/// The result of a lock request.
#[derive(Debug)]
pub struct EnqueueReply {
    /// The granted lock. `None` if the server granted none, and for flocks, which are not cached.
    pub lock: Option<LockRef>,
    /// `pb_status`, never negative: 0, or an `ELDLM_*` code without a lock (`ELDLM_LOCK_ABORTED`).
    pub status: i32,
    /// The `ldlm_reply`, with the lock as granted.
    pub rep: LdlmReply,
    /// The value block of the reply or, for a queued lock, of the completion AST. Empty in replies
    /// to an intent.
    pub lvb: Bytes,
    /// The whole reply.
    pub msg: ReplyMsg,
}

/// The callbacks that have arrived for a lock request in flight.
#[derive(Debug, Default)]
pub(super) struct EarlyCallbacks {
    /// [`ALL_BITS`] if the server has revoked the lock already, else 0.
    pub(super) revoked_bits: u64,
    /// Dirty data under the lock is discarded.
    pub(super) discard: bool,
    /// The server's handle in the callbacks, or that of the waiting lock; 0 while it is unknown.
    pub(super) handle: u64,
    /// The completion, until the request takes it.
    pub(super) completed: Option<Completion>,
    /// Wakes the request when the completion has arrived.
    pub(super) waiter: Option<oneshot::Sender<()>>,
    /// The wait for the completion.
    pub(super) wait: Wait,
}

impl EarlyCallbacks {
    /// Whether a callback with this handle is for another lock than the waiting one: for that of an
    /// earlier attempt, or of the server before its restart. A handle of 0 matches.
    pub(super) fn is_of_other_lock(&self, handle: u64) -> bool {
        matches!(self.wait, Wait::Queued(_)) && handle != 0 && handle != self.handle
    }
}

/// The state of a request's wait for its completion.
#[derive(Debug, Default)]
pub(super) enum Wait {
    /// No reply has said that the lock waits.
    #[default]
    Unknown,
    /// The lock waits.
    Queued(QueuedLock),
    /// The request has taken the completion, and is about to put the lock into the cache.
    Ended,
}

/// A waiting lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedLock {
    pub(super) desc: LdlmLockDesc,
    /// The `LDLM_FL_*` of the request that still matter.
    pub(super) flags: u64,
}

/// The data of a completion AST.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) desc: LdlmLockDesc,
    pub(super) lvb: Bytes,
    pub(super) flags: u64,
}

impl LockClient {
    /// Requests a lock, and waits while the lock is queued. If the caller drops the future, the
    /// client cancels the lock.
    ///
    /// # Errors
    ///
    /// [`RpcError::Status`] with the server's errno, such as `EAGAIN` or `EDEADLK`, or an error of
    /// the RPC.
    pub async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueReply, RpcError> {
        let client = self.me.upgrade().ok_or_else(closed_error)?;
        // On the heap: the futures of all operations contain this one, and each move copies it.
        match enqueue.policy.ty() {
            LockType::Flock => Box::pin(client.enqueue_flock(enqueue)).await,
            _ => Box::pin(client.enqueue_in_place(enqueue)).await,
        }
    }

    async fn enqueue_in_place(self: Arc<Self>, enqueue: Enqueue) -> Result<EnqueueReply, RpcError> {
        let mut pending = PendingEnqueue::begin(self, &enqueue);
        let reply = pending.send(enqueue).await?;
        pending.finish(reply).await
    }

    /// Requests a flock in a separate task, because the client has to cancel the flock if the
    /// caller stops waiting: the server never revokes it.
    async fn enqueue_flock(self: Arc<Self>, enqueue: Enqueue) -> Result<EnqueueReply, RpcError> {
        let (mut tx, rx) = oneshot::channel();
        let client = self.clone();
        let mut pending = PendingEnqueue::begin(client.clone(), &enqueue);
        self.tasks.spawn(async move {
            let reply = match pending.send(enqueue).await {
                Ok(reply) => reply,
                // After an error there is no lock to cancel, so a dropped receiver does not matter.
                Err(why) => return drop(tx.send(Err(why))),
            };
            let finished = tokio::select! {
                // The first poll of `finish` records the lock, so that it can be cancelled.
                biased;
                finished = pending.finish(reply) => finished,
                () = tx.closed() => return,
            };
            if let Err(Ok(unwanted)) = tx.send(finished) {
                client.cancel_handles(&[unwanted.rep.lock_handle.cookie]);
            }
        });
        rx.await.unwrap_or_else(|_| Err(closed_error()))
    }
}

pub(super) fn closed_error() -> RpcError {
    RpcError::Closed("lock client".to_owned())
}

/// A lock request in flight. If dropped before it is finished, it cancels a granted or queued lock.
pub(super) struct PendingEnqueue {
    client: Arc<LockClient>,
    cookie: LockCookie,
    /// No reply has arrived.
    unanswered: bool,
    /// The deferred cancels in the request, until its reply arrives: the server may not have
    /// received them.
    cancels: Vec<u64>,
    /// The server's handle; 0 before the reply, and after the end of the request.
    handle: u64,
    cancel_on_block: bool,
    has_intent: bool,
}

impl PendingEnqueue {
    pub(super) fn begin(client: Arc<LockClient>, enqueue: &Enqueue) -> PendingEnqueue {
        let cookie = client.new_cookie();
        client
            .cookie_shard(cookie)
            .lock()
            .insert(cookie, CookieState::Pending(Box::default()));
        let cancel_on_block = enqueue.flags & wire::LDLM_FL_CANCEL_ON_BLOCK != 0;
        PendingEnqueue {
            client,
            cookie,
            unanswered: true,
            cancels: Vec::new(),
            handle: 0,
            cancel_on_block,
            has_intent: enqueue.intent.is_some(),
        }
    }

    /// Sends the request, with as many deferred cancels as fit.
    async fn send(&mut self, mut enqueue: Enqueue) -> Result<ReplyMsg, RpcError> {
        let import = self.client.import.get().ok_or_else(closed_error)?;
        enqueue.elc.truncate(HANDLES_MAX - 1);
        self.cancels = self.client.take_deferred(HANDLES_MAX - 1 - enqueue.elc.len());
        enqueue.elc.extend(&self.cancels);
        let (bufs, request) = self.pack(enqueue);
        import
            .call(Request {
                bufs,
                return_error_replies: true,
                ..request
            })
            .await
    }

    /// Builds the buffers of the request.
    pub(super) fn pack(&self, enqueue: Enqueue) -> (Vec<Bytes>, Request) {
        let desc = requested_desc(enqueue.res, enqueue.mode, enqueue.policy);
        let mut flags = enqueue.flags;
        let mut bufs = Vec::with_capacity(2 + enqueue.intent.as_ref().map_or(0, |i| i.bufs.len()));
        if enqueue.intent.is_some() {
            flags |= wire::LDLM_FL_HAS_INTENT;
        }
        let mut handles = vec![self.cookie.0];
        handles.extend(enqueue.elc);
        bufs.push(dlm_req(flags, handles.len() as u32, desc, handles.into_iter()));
        if let Some(intent) = enqueue.intent {
            bufs.push(LdlmIntent { opc: intent.opc }.to_bytes());
            bufs.extend(intent.bufs);
        } else if !enqueue.capability.is_empty() {
            // The capability follows an empty intent buffer.
            bufs.extend([Bytes::new(), enqueue.capability]);
        }
        (bufs, enqueue.request)
    }

    /// Handles the reply: waits for the completion AST of a queued lock, and caches the lock unless
    /// it is a flock.
    pub(super) async fn finish(&mut self, msg: ReplyMsg) -> Result<EnqueueReply, RpcError> {
        self.unanswered = false;
        self.cancels.clear();
        if let Some(errno) = Errno::from_status(msg.status) {
            return Err(RpcError::Status(errno));
        }
        let mut rep: LdlmReply = msg
            .get(bufs::DLM_REP)
            .map_err(|_| self.malformed("an ldlm_reply", "a short buffer"))?;
        let mut lvb = if self.has_intent {
            Bytes::new()
        } else {
            msg.bytes(bufs::ENQUEUE_LVB)
        };
        if msg.status != 0 || rep.lock_handle.cookie == 0 {
            return Ok(EnqueueReply {
                lock: None,
                status: msg.status,
                rep,
                lvb,
                msg,
            });
        }
        self.handle = rep.lock_handle.cookie;
        let mut flags = u64::from(rep.lock_flags);
        if flags & wire::LDLM_FL_BLOCKED_MASK != 0 {
            let completion = self.wait_for_completion(rep.lock_desc).await?;
            if completion.flags & wire::LDLM_FL_FLOCK_DEADLOCK != 0 {
                self.handle = 0;
                return Err(RpcError::Status(Errno::EDEADLK));
            }
            rep.lock_desc = completion.desc;
            lvb = completion.lvb;
            flags = flags & !wire::LDLM_FL_BLOCKED_MASK | completion.flags;
        }
        let desc = &rep.lock_desc;
        let ty = LockType::from_wire(desc.l_resource.lr_type);
        let policy = ty.and_then(|ty| Policy::from_wire(ty, &desc.l_policy_data));
        let (Some(policy), Some(mode)) = (policy, LockMode::requested(desc)) else {
            return Err(self.malformed("a lock", &format!("{desc:?}")));
        };
        let policy = match policy {
            Policy::Ibits(i) => Policy::ibits(i.bits),
            other => other,
        };
        let lock = if ty == Some(LockType::Flock) {
            None
        } else {
            let lock = CachedLock {
                cookie: self.cookie,
                handle: self.handle,
                policy,
                mode,
                refs: 0,
                revoked_bits: if flags & wire::LDLM_FL_AST_SENT != 0 {
                    ALL_BITS
                } else {
                    0
                },
                cancelling: false,
                ended: false,
                replaying: false,
                server_waits: false,
                cancel_on_block: self.cancel_on_block,
                discard: false,
                use_number: 0,
            };
            let evicted = || RpcError::Evicted("lock client".to_owned());
            Some(
                self.client
                    .insert(desc.l_resource.lr_name, lock, &lvb)
                    .ok_or_else(evicted)?,
            )
        };
        self.handle = 0;
        Ok(EnqueueReply {
            lock,
            status: msg.status,
            rep,
            lvb,
            msg,
        })
    }

    /// Waits for the completion AST, which may have arrived already.
    async fn wait_for_completion(&mut self, desc: LdlmLockDesc) -> Result<Completion, RpcError> {
        let evicted = || RpcError::Evicted("lock client".to_owned());
        loop {
            let rx = {
                let mut cookies = self.client.cookie_shard(self.cookie).lock();
                let Some(CookieState::Pending(pending)) = cookies.get_mut(&self.cookie) else {
                    return Err(evicted());
                };
                if matches!(pending.wait, Wait::Unknown) {
                    let flags = match self.cancel_on_block {
                        true => wire::LDLM_FL_CANCEL_ON_BLOCK,
                        false => 0,
                    };
                    pending.wait = Wait::Queued(QueuedLock { desc, flags });
                    pending.handle = self.handle;
                }
                if let Some(completion) = pending.completed.take() {
                    pending.wait = Wait::Ended;
                    // A replay may have changed it.
                    self.handle = pending.handle;
                    return Ok(completion);
                }
                let (tx, rx) = oneshot::channel();
                pending.waiter = Some(tx);
                rx
            };
            self.wait_with_probes(rx).await.map_err(|_| evicted())?;
        }
    }

    /// Waits for a completion. None comes if the server has evicted this client, and servers do not
    /// notify evicted clients. The client therefore pings a silent server up to [`PROBES`] times,
    /// each time after a longer pause; later the import's regular pings must suffice.
    async fn wait_with_probes(&self, mut rx: oneshot::Receiver<()>) -> Result<(), RecvError> {
        for quiet in (0..PROBES).map(|n| FIRST_PROBE * 2u32.pow(n)) {
            match timeout(quiet, &mut rx).await {
                Ok(completed) => return completed,
                Err(_) => self
                    .client
                    .import
                    .get()
                    .into_iter()
                    .for_each(|i| i.probe_if_silent(quiet)),
            }
        }
        rx.await
    }

    fn malformed(&self, expected: &'static str, found: &str) -> RpcError {
        let peer = self
            .client
            .import
            .get()
            .map_or_else(String::new, |i| i.name().to_owned());
        RpcError::Protocol {
            peer,
            expected,
            found: found.to_owned(),
        }
    }
}

impl Drop for PendingEnqueue {
    fn drop(&mut self) {
        let mut cookies = self.client.cookie_shard(self.cookie).lock();
        let mut handle = self.handle;
        if let Some(CookieState::Pending(pending)) = cookies.get(&self.cookie) {
            if self.unanswered || matches!(pending.wait, Wait::Queued(_)) {
                handle = pending.handle;
            }
            cookies.remove(&self.cookie);
        }
        drop(cookies);
        let mut handles = std::mem::take(&mut self.cancels);
        handles.extend((handle != 0).then_some(handle));
        if !handles.is_empty() {
            self.client.cancel_handles(&handles);
        }
    }
}
