//! Locks that the server takes itself, and locks that it grants to a client as part of an intent.
//! Requests wait here, in this process, until the conflicting locks are cancelled.
//!
//! Each wait is bounded. It ends when the client of the request is evicted or disconnects, and at
//! the latest after three times a holder's time to cancel. By then the server has evicted a client
//! that blocked the request from the beginning and did no I/O under its lock.

use super::{LockServer, holder};
use crate::action::{LockRequest, Placement, Refusal};
use crate::lock::{Holder, LockId};
use crate::mode::LockMode;
use crate::policy::{Ibits, Policy};
use rpc::Export;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;
use wire::{Errno, LdlmLockDesc, LdlmReply, LdlmResId};

/// Limit of a request's wait, in cancel timeouts: enough for this many holders in sequence.
const WAIT_MAX_CANCEL_TIMEOUTS: u32 = 3;

/// A lock of the server itself. Dropping it releases the lock.
#[derive(Debug)]
pub struct LocalLock {
    server: Arc<LockServer>,
    id: LockId,
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        self.server.cancel_if(self.id, |_| true);
    }
}

impl LocalLock {
    /// Reduces an inode-bits lock to the bits in `keep`, and releases it if none are left.
    pub fn reduce(&self, keep: u64) {
        let (shard, id) = (self.id.shard(), self.id);
        self.server
            .with_shard(shard, |ns, now, out| ns.convert(now, id, keep, out));
    }
}

/// A lock that the reply to an intent returns to the client. All fields are zero without a lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrantedLock {
    /// The server's handle; 0 if no lock was granted.
    pub handle: u64,
    /// The granted inode bits.
    pub bits: u64,
    /// The lock as the reply describes it.
    pub desc: LdlmLockDesc,
}

impl GrantedLock {
    /// Whether a lock was granted.
    pub fn is_some(&self) -> bool {
        self.handle != 0
    }

    /// Writes the lock into an enqueue's reply: description, handle, and `LDLM_FL_LOCK_CHANGED`,
    /// because the server chooses the lock of an intent.
    pub fn put_into(&self, rep: &mut LdlmReply) {
        rep.lock_desc = self.desc;
        rep.lock_handle.cookie = self.handle;
        if self.is_some() {
            rep.lock_flags |= wire::LDLM_FL_LOCK_CHANGED as u32;
        }
    }
}

impl LockServer {
    /// Takes a lock for the server itself after conflicting locks are cancelled. `client` is the
    /// sender of the request that needs the lock, if any.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if that client disconnects while the request waits, `ETIMEDOUT` if the wait takes
    /// too long, `EINVAL` or `ENOLCK` if the lock is refused, `ESHUTDOWN` while the server stops.
    pub async fn lock(
        &self,
        client: Option<&Export>,
        res: LdlmResId,
        mode: LockMode,
        policy: Policy,
    ) -> Result<LocalLock, Errno> {
        let request = LockRequest::local(Holder::SERVER, 0, res, mode, policy);
        if let Some(client) = client {
            self.claim_for(client, &request).await?;
        }
        self.take_lock(client, request).await
    }

    /// Like [`LockServer::lock`], but the client's own locks do not conflict, because the client
    /// updates its cache after its own operation.
    ///
    /// # Errors
    ///
    /// As [`LockServer::lock`].
    pub async fn lock_for(
        &self,
        client: &Export,
        res: LdlmResId,
        mode: LockMode,
        policy: Policy,
    ) -> Result<LocalLock, Errno> {
        let request = LockRequest::local(Holder::SERVER, 0, res, mode, policy);
        self.claim_for(client, &request).await?;
        let request = LockRequest {
            on_behalf: holder(client),
            ..request
        };
        self.take_lock(Some(client), request).await
    }

    /// Takes a PW lock on an object before the object is destroyed. That revokes all conflicting
    /// locks, even group locks, and their holders discard dirty data. `client` is the sender of the
    /// request that destroys the object, if any.
    ///
    /// # Errors
    ///
    /// As [`LockServer::lock`].
    pub async fn lock_to_destroy(&self, client: Option<&Export>, res: LdlmResId) -> Result<LocalLock, Errno> {
        let whole = Policy::Extent(crate::policy::Extent::WHOLE);
        let request = LockRequest::local(Holder::SERVER, 0, res, LockMode::Pw, whole);
        self.take_lock(
            client,
            LockRequest {
                discard: true,
                ..request
            },
        )
        .await
    }

    /// Takes a lock for reading for the server itself if no lock conflicts, else returns `None`.
    /// Revokes no lock. `client` is the sender of the request that needs the lock, if any.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOLCK` if the lock is refused, `ESHUTDOWN` while the server stops.
    pub async fn try_lock(
        &self,
        client: Option<&Export>,
        res: LdlmResId,
        policy: Policy,
    ) -> Result<Option<LocalLock>, Errno> {
        let request = LockRequest::local(Holder::SERVER, 0, res, LockMode::Pr, policy);
        if client.is_some_and(|client| self.must_wait_to_claim(client, &request)) {
            return Ok(None);
        }
        match self
            .take_lock(
                None,
                LockRequest {
                    no_wait: true,
                    ..request
                },
            )
            .await
        {
            Ok(lock) => Ok(Some(lock)),
            Err(Errno::EAGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn take_lock(&self, client: Option<&Export>, request: LockRequest) -> Result<LocalLock, Errno> {
        let server = self.me.upgrade().ok_or(Errno::ESHUTDOWN)?;
        let id = self.wait_for(client, &request).await?.ok_or(Errno::EAGAIN)?;
        Ok(LocalLock { server, id })
    }

    /// Grants a client an inode-bits lock as part of an intent: waits until `bits` are free, and
    /// adds those of `try_bits` that are free at the grant. Conflicting locks of the client itself
    /// are revoked, too. If `bits` is 0, no other lock is revoked, and the result may be no lock.
    /// Grants no lock to a client that replays its locks.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected, `ETIMEDOUT` if the wait takes too long, `ENOMEM`
    /// if there are too many locks, `EINVAL` or `ENOLCK` if the lock is refused.
    pub async fn grant_to(
        &self,
        export: &Arc<Export>,
        client_cookie: u64,
        res: LdlmResId,
        mode: LockMode,
        bits: u64,
        try_bits: u64,
    ) -> Result<GrantedLock, Errno> {
        self.register_export(export)?;
        self.cancel_earlier_attempt(export, client_cookie, &res);
        if self.is_replaying_for(export) || (bits == 0 && self.limits.is_full()) {
            return Ok(GrantedLock::default());
        }
        self.wait_below_limit().await?;
        let policy = Policy::Ibits(Ibits { bits, try_bits });
        let request = LockRequest::local(holder(export), client_cookie, res, mode, policy);
        self.claim(export, &request).await?;
        self.grant(export, &request).await
    }

    /// Like [`LockServer::grant_to`] without waiting for other clients: grants no lock if `bits`
    /// are not free at once, if there are too many locks, or if clients that recover may hold a
    /// conflicting lock. Revokes no lock.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected, `EINVAL` or `ENOLCK` if the lock is refused.
    pub async fn try_grant_to(
        &self,
        export: &Arc<Export>,
        client_cookie: u64,
        res: LdlmResId,
        mode: LockMode,
        bits: u64,
        try_bits: u64,
    ) -> Result<GrantedLock, Errno> {
        self.register_export(export)?;
        self.cancel_earlier_attempt(export, client_cookie, &res);
        let policy = Policy::Ibits(Ibits { bits, try_bits });
        let request = LockRequest::local(holder(export), client_cookie, res, mode, policy);
        let must_wait = self.is_replaying_for(export) || self.must_wait_to_claim(export, &request);
        if must_wait || self.limits.is_full() {
            return Ok(GrantedLock::default());
        }
        self.claim(export, &request).await?;
        self.grant(
            export,
            &LockRequest {
                no_wait: true,
                ..request
            },
        )
        .await
    }

    async fn grant(&self, export: &Arc<Export>, request: &LockRequest) -> Result<GrantedLock, Errno> {
        let Some(id) = self.wait_for(Some(export), request).await? else {
            return Ok(GrantedLock::default());
        };
        self.check_connected(export, id)?;
        self.granted(id)
    }

    /// A client's lock as a reply returns it. `ENOTCONN` if it is gone: only the end of its client
    /// drops a lock that the client does not know yet.
    fn granted(&self, id: LockId) -> Result<GrantedLock, Errno> {
        let lock = self.lock_of(id).ok_or(Errno::ENOTCONN)?;
        Ok(GrantedLock {
            handle: id.0,
            bits: lock.policy.bits(),
            desc: lock.desc(),
        })
    }

    /// Reduces a lock that no reply has returned yet to the bits in `keep`, at least one of which
    /// it has.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected.
    pub fn reduce_granted(&self, lock: GrantedLock, keep: u64) -> Result<GrantedLock, Errno> {
        let id = LockId(lock.handle);
        self.with_shard(id.shard(), |ns, now, out| ns.convert(now, id, keep, out));
        self.granted(id)
    }

    /// Cancels the lock, granted or waiting, that an earlier attempt of a resent intent requested,
    /// so that the client's cookie never names two locks.
    fn cancel_earlier_attempt(&self, export: &Arc<Export>, cookie: u64, res: &LdlmResId) {
        let holder = holder(export);
        self.with_shard(
            self.shard_of(res, crate::policy::LockType::Ibits),
            |ns, now, out| {
                if let Some(id) = ns.find(holder, cookie).map(|l| l.id) {
                    ns.cancel(now, id, out);
                }
            },
        );
    }

    /// Waits for a lock that a request of `client` needs. `None` if no lock is available at once,
    /// and the request must not wait or has only optional bits.
    async fn wait_for(
        &self,
        client: Option<&Export>,
        request: &LockRequest,
    ) -> Result<Option<LockId>, Errno> {
        let shard = self.shard_of(&request.res, request.policy.ty());
        let placement = self.with_shard(shard, |ns, now, out| ns.enqueue(now, request, out));
        let id = match placement {
            Ok(Placement::Granted(id)) => return Ok(Some(id)),
            Ok(Placement::Queued { id, .. }) => id,
            Ok(Placement::Unlocked(_) | Placement::Tested { .. }) => return Err(Errno::EINVAL),
            Err(Refusal::WouldBlock) => return Ok(None),
            Err(Refusal::Deadlock) => return Err(Errno::EDEADLK),
            Err(Refusal::Full) => return Err(Errno::ENOLCK),
            Err(Refusal::WrongType | Refusal::WrongMode) => return Err(Errno::EINVAL),
        };
        let mut guard = WaitGuard {
            server: self,
            id,
            abandoned: true,
        };
        let waiter = {
            let mut shard = self.shards[shard].lock();
            match shard.ns.get(id).map(|l| l.granted) {
                // Granted or dropped between the two accesses to the shard.
                Some(true) => None,
                None => return Err(Errno::ENOTCONN),
                Some(false) => {
                    let (tx, rx) = oneshot::channel();
                    shard.waiters.insert(id, tx);
                    Some(rx)
                }
            }
        };
        let granted = match waiter {
            Some(rx) => self.wait_granted(client, request, rx).await?,
            None => true,
        };
        guard.abandoned = false;
        if granted {
            Ok(Some(id))
        } else {
            Err(Errno::ENOTCONN)
        }
    }
}

impl LockServer {
    /// Waits until the lock is granted (true) or cancelled (false).
    async fn wait_granted(
        &self,
        client: Option<&Export>,
        request: &LockRequest,
        granted: oneshot::Receiver<bool>,
    ) -> Result<bool, Errno> {
        let limit = self.wait_max(self.shard_of(&request.res, request.policy.ty()));
        let client_gone = async {
            match client {
                Some(client) => client.gone().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            granted = granted => Ok(granted.unwrap_or(false)),
            () = client_gone => Err(Errno::ENOTCONN),
            () = sleep(limit) => {
                let client = client.map_or("the server itself", |c| &c.client_uuid);
                let (ns, res, mode, secs) = (&self.name, &request.res.name, request.mode, limit.as_secs());
                lnet::warn_rate_limited!(ns, client, ?res, ?mode, secs, "request failed: its lock was not granted in time");
                Err(Errno::ETIMEDOUT)
            }
        }
    }

    /// Limit of a request's wait for a lock of this shard.
    fn wait_max(&self, shard: usize) -> Duration {
        WAIT_MAX_CANCEL_TIMEOUTS * self.shards[shard].lock().ns.cancel_timeout()
    }
}

/// A waiting lock. Dropping the guard cancels the lock unless the wait has ended.
struct WaitGuard<'a> {
    server: &'a LockServer,
    id: LockId,
    abandoned: bool,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.abandoned {
            self.server.cancel_if(self.id, |_| true);
            self.server.shards[self.id.shard()]
                .lock()
                .waiters
                .remove(&self.id);
        }
    }
}
