//! Asking for a lock.
//!
//! The client's cookie is known here before the request leaves, since callbacks for the lock can come before the reply:
//! a completion, or already the wish to have it back. A lock that is queued at the server is waited for without a
//! limit of time: the server evicts whoever is in the way, or this client.

use super::cache::{Cached, EVERYTHING, LockRef};
use super::{LockClient, LockHandle, Name};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::request::{HANDLES_MAX, dlm_req};
use bytes::Bytes;
use rpc::{ReplyMsg, Request, RpcError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::timeout;
use wire::format::bufs;
use wire::{Errno, LdlmIntent, LdlmLockDesc, LdlmReply, LdlmResId, LdlmResourceDesc, WireStruct};

/// After how long without a completion the server is asked for the first time whether it still knows this client.
const FIRST_DOUBT: Duration = Duration::from_millis(100);
/// How often it is asked, each time after twice as long: 12.7 s in all.
const DOUBTS: u32 = 7;

/// What is done along with asking for the lock.
#[derive(Clone, Debug)]
pub struct Intent {
    /// `IT_*`.
    pub opc: u64,
    /// The buffers after `LDLM_INTENT`.
    pub bufs: Vec<Bytes>,
}

/// A lock to ask for.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// Of what. With an intent the server may answer with a lock of something else.
    pub res: LdlmResId,
    /// How.
    pub mode: LockMode,
    /// What it covers.
    pub policy: Policy,
    /// `LDLM_FL_*` of the request.
    pub flags: u64,
    /// What to do along with it. `LDLM_FL_HAS_INTENT` is set for it.
    pub intent: Option<Intent>,
    /// Server handles of own locks that go first ([`LockClient::elc`]).
    pub elc: Vec<u64>,
    /// The capability for the object, where the target requires one; not along with an intent.
    pub capability: Bytes,
    /// The request that carries it; its buffers are put in here.
    pub request: Request,
}

impl Enqueue {
    /// A lock without an intent.
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

/// What came of it.
#[derive(Debug)]
pub struct Enqueued {
    /// The lock, granted and cached; none when the server gave none, and for flocks, which are not cached.
    pub lock: Option<LockRef>,
    /// `pb_status`: 0, or `ELDLM_LOCK_ABORTED` when there is no lock.
    pub status: i32,
    /// The reply, its lock as granted.
    pub rep: LdlmReply,
    /// The lock's value block, as new as the grant.
    pub lvb: Bytes,
    /// The whole reply.
    pub msg: ReplyMsg,
}

/// A request under way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// What the server wants back already.
    pub(super) must_go: u64,
    pub(super) discard: bool,
    /// The completion, when it came before the reply.
    pub(super) completed: Option<Completion>,
    /// Who waits for it, once the reply is here.
    pub(super) waiter: Option<oneshot::Sender<Completion>>,
}

/// What a completion callback says.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) desc: LdlmLockDesc,
    pub(super) lvb: Bytes,
    pub(super) flags: u64,
}

impl LockClient {
    /// Asks for a lock and waits until it is granted. A negative status is an error.
    pub async fn enqueue(&self, e: Enqueue) -> Result<Enqueued, RpcError> {
        let client = self.me.upgrade().ok_or_else(closed)?;
        if e.policy.ty() == LockType::Flock {
            return client.enqueue_flock(e).await;
        }
        let mut attempt = Attempt::begin(client, &e);
        let reply = attempt.send(e).await?;
        attempt.finish(reply).await
    }

    /// A flock is not asked back by the server: one whose request is broken off must be found and taken back, or it
    /// would stay. So the request lives in a task of its own.
    async fn enqueue_flock(self: Arc<Self>, e: Enqueue) -> Result<Enqueued, RpcError> {
        let (mut tx, rx) = oneshot::channel();
        let client = self.clone();
        let mut attempt = Attempt::begin(client.clone(), &e);
        self.tasks.spawn(async move {
            let reply = match attempt.send(e).await {
                Ok(reply) => reply,
                // Who is told an error has no lock; nobody listening does not change that.
                Err(why) => return drop(tx.send(Err(why))),
            };
            let finished = tokio::select! {
                finished = attempt.finish(reply) => finished,
                () = tx.closed() => return,
            };
            if let Err(Ok(unwanted)) = tx.send(finished) {
                client.cancel_handles(&[unwanted.rep.lock_handle.cookie]);
            }
        });
        rx.await.unwrap_or_else(|_| Err(closed()))
    }
}

pub(super) fn closed() -> RpcError {
    RpcError::Closed("lock client".to_owned())
}

/// A request under way, as its maker holds it. Dropped before its end, it takes back what it may have got.
pub(super) struct Attempt {
    client: Arc<LockClient>,
    cookie: LockHandle,
    /// The server's handle, once known.
    handle: u64,
    cancel_on_block: bool,
    has_intent: bool,
}

impl Attempt {
    pub(super) fn begin(client: Arc<LockClient>, e: &Enqueue) -> Attempt {
        let cookie = client.new_cookie();
        client
            .name_shard(cookie)
            .lock()
            .insert(cookie, Name::Pending(Box::default()));
        let cancel_on_block = e.flags & wire::LDLM_FL_CANCEL_ON_BLOCK != 0;
        Attempt {
            client,
            cookie,
            handle: 0,
            cancel_on_block,
            has_intent: e.intent.is_some(),
        }
    }

    async fn send(&mut self, mut e: Enqueue) -> Result<ReplyMsg, RpcError> {
        let import = self.client.import.get().ok_or_else(closed)?;
        e.elc.truncate(HANDLES_MAX - 1);
        e.elc
            .extend(self.client.taken_along(HANDLES_MAX - 1 - e.elc.len()));
        let (bufs, request) = self.pack(e);
        import
            .call(Request {
                bufs,
                any_status: true,
                ..request
            })
            .await
    }

    /// The buffers of the request.
    pub(super) fn pack(&self, e: Enqueue) -> (Vec<Bytes>, Request) {
        let desc = LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type: e.policy.ty().wire(),
                lr_pad: 0,
                lr_name: e.res,
            },
            l_req_mode: e.mode.wire(),
            l_granted_mode: 0,
            l_policy_data: e.policy.to_wire(),
        };
        let mut flags = e.flags;
        let mut bufs = Vec::with_capacity(2 + e.intent.as_ref().map_or(0, |i| i.bufs.len()));
        if e.intent.is_some() {
            flags |= wire::LDLM_FL_HAS_INTENT;
        }
        let mut handles = vec![self.cookie.0];
        handles.extend(e.elc);
        bufs.push(dlm_req(flags, handles.len() as u32, desc, handles.into_iter()));
        if let Some(intent) = e.intent {
            bufs.push(LdlmIntent { opc: intent.opc }.to_bytes());
            bufs.extend(intent.bufs);
        } else if !e.capability.is_empty() {
            // In the place of the intent there is none.
            bufs.extend([Bytes::new(), e.capability]);
        }
        (bufs, e.request)
    }

    pub(super) async fn finish(&mut self, msg: ReplyMsg) -> Result<Enqueued, RpcError> {
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
            return Ok(Enqueued {
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
            let completion = self.completion().await?;
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
            let lock = Cached {
                cookie: self.cookie,
                handle: self.handle,
                policy,
                mode,
                refs: 0,
                must_go: if flags & wire::LDLM_FL_AST_SENT != 0 {
                    EVERYTHING
                } else {
                    0
                },
                leaving: false,
                wanted: false,
                cancel_on_block: self.cancel_on_block,
                discard: false,
                unused_at: 0,
            };
            let evicted = || RpcError::Evicted("lock client".to_owned());
            Some(
                self.client
                    .insert(desc.l_resource.lr_name, lock, &lvb)
                    .ok_or_else(evicted)?,
            )
        };
        self.handle = 0;
        Ok(Enqueued {
            lock,
            status: msg.status,
            rep,
            lvb,
            msg,
        })
    }

    /// Waits for the completion callback, which may have been here first.
    async fn completion(&self) -> Result<Completion, RpcError> {
        let evicted = || RpcError::Evicted("lock client".to_owned());
        let rx = {
            let mut names = self.client.name_shard(self.cookie).lock();
            let Some(Name::Pending(pending)) = names.get_mut(&self.cookie) else {
                return Err(evicted());
            };
            if let Some(completion) = pending.completed.take() {
                return Ok(completion);
            }
            let (tx, rx) = oneshot::channel();
            pending.waiter = Some(tx);
            rx
        };
        self.awaited(rx).await.map_err(|_| evicted())
    }

    /// A server that evicts does not say so, and then no completion comes: whoever waits long asks, ever more seldom until the
    /// import's own pings do. Without that an eviction just after the reply was noticed with the next of those, 7 s later.
    async fn awaited(&self, mut rx: oneshot::Receiver<Completion>) -> Result<Completion, RecvError> {
        for quiet in (0..DOUBTS).map(|n| FIRST_DOUBT * 2u32.pow(n)) {
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

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut names = self.client.name_shard(self.cookie).lock();
        if matches!(names.get(&self.cookie), Some(Name::Pending(_))) {
            names.remove(&self.cookie);
        }
        drop(names);
        if self.handle != 0 {
            self.client.cancel_handles(&[self.handle]);
        }
    }
}
