//! Replays this client's locks after a restart of the server (docs/protocol.md, "Locks (LDLM)").
//!
//! The new server knows no lock. The client claims each cached lock as granted, and each request
//! that waits for its completion AST as waiting; other requests are resent by the import after the
//! recovery. Each replay brings the lock's new handle.
//!
//! Until then the lock stays in the cache ([`CachedLock::replaying`]), because the client cannot
//! cancel it: the old handle is void, and the new one unknown. That holds even if the connection is
//! lost and all locks are replayed again. If a waiting request is dropped meanwhile, the client
//! cancels the lock by the handle in the reply.

use super::cache::CachedLock;
use super::enqueue::{EarlyCallbacks, QueuedLock, Wait, closed_error};
use super::{CookieState, LockClient, LockCookie};
use crate::mode::LockMode;
use crate::policy::Policy;
use crate::request::{dlm_req, requested_desc};
use cpt::JoinSet;
use lnet::warn_rate_limited;
use rpc::{Replay, Request, RpcError};
use std::sync::Arc;
use wire::format::bufs;
use wire::{Errno, LdlmLockDesc, LdlmReply, LdlmResId};

/// Maximum number of replays in flight.
const IN_FLIGHT_MAX: usize = 32;

/// The results of [`LockClient::begin_replay`].
#[derive(Default)]
struct Found {
    /// The locks to replay.
    to_replay: Vec<LockCookie>,
    /// The locks that are lost.
    lost: Vec<LockCookie>,
    /// The requests that are processing their completion.
    completing: Vec<LockCookie>,
}

impl LockClient {
    /// Claims all locks again at a server that has restarted, for `ImportOwner::replay_locks`.
    /// Drops the locks that the server refuses, as after an eviction.
    ///
    /// # Errors
    ///
    /// The error of the RPC if the connection was lost: the locks must be replayed again.
    pub async fn replay(&self) -> Result<(), RpcError> {
        let client = self.me.upgrade().ok_or_else(closed_error)?;
        let mut running = JoinSet::new();
        for cookie in client.begin_replay().await {
            if running.len() >= IN_FLIGHT_MAX
                && let Some(replayed) = running.join_next().await
            {
                replayed.unwrap_or_else(|_| Err(closed_error()))?;
            }
            let client = client.clone();
            running.spawn(async move { client.replay_lock(cookie).await });
        }
        while let Some(replayed) = running.join_next().await {
            replayed.unwrap_or_else(|_| Err(closed_error()))?;
        }
        Ok(())
    }

    /// Claims a granted flock again. Returns whether the server has granted it; otherwise the lock
    /// is lost. The caller keeps the flocks, because this client does not cache them.
    ///
    /// # Errors
    ///
    /// As [`LockClient::replay`].
    pub async fn replay_flock(
        &self,
        res: LdlmResId,
        mode: LockMode,
        policy: Policy,
    ) -> Result<bool, RpcError> {
        let desc = lock_desc(res, mode, policy);
        let handle = self
            .send_replay(self.new_cookie(), desc, wire::LDLM_FL_BLOCK_GRANTED)
            .await?;
        Ok(handle.is_some())
    }

    /// Begins the replay of all locks, and returns their cookies.
    async fn begin_replay(&self) -> Vec<LockCookie> {
        let mut found = Found::default();
        for cookies in &self.cookies {
            for (cookie, state) in cookies.lock().iter_mut() {
                self.begin_replay_of(*cookie, state, &mut found);
            }
        }
        while let Some(cookie) = found.completing.pop() {
            tokio::task::yield_now().await;
            if let Some(state) = self.cookie_shard(cookie).lock().get_mut(&cookie) {
                self.begin_replay_of(cookie, state, &mut found);
            }
        }
        found.lost.into_iter().for_each(|cookie| self.lose(cookie));
        found.to_replay
    }

    fn begin_replay_of(&self, cookie: LockCookie, state: &mut CookieState, found: &mut Found) {
        match state {
            CookieState::Pending(pending) => {
                match pending.wait {
                    Wait::Unknown => {}
                    Wait::Queued(_) => found.to_replay.push(cookie),
                    Wait::Ended => return found.completing.push(cookie),
                }
                // Forget the callbacks of the former server.
                **pending = EarlyCallbacks {
                    wait: std::mem::take(&mut pending.wait),
                    waiter: pending.waiter.take(),
                    ..EarlyCallbacks::default()
                };
            }
            CookieState::Cached(res) => {
                self.with_lock(res, cookie, |lock| {
                    if lock.ended {
                        // Another task is removing the lock from the cache.
                    } else if lock.cancel_on_block {
                        // The former server may have dropped the lock, and the AST was lost.
                        found.lost.push(cookie);
                    } else {
                        lock.replaying = true;
                        found.to_replay.push(cookie);
                    }
                });
            }
        }
    }

    /// Replays a cached or waiting lock, unless it is gone.
    async fn replay_lock(self: Arc<Self>, cookie: LockCookie) -> Result<(), RpcError> {
        let Some((desc, flags)) = self.describe(cookie) else {
            return Ok(());
        };
        match self.send_replay(cookie, desc, flags).await? {
            Some(handle) if self.set_handle(cookie, handle) => {}
            Some(handle) => self.cancel_handles(&[handle]),
            None => self.lose(cookie),
        }
        Ok(())
    }

    /// The description of a lock for its replay, and the flags.
    fn describe(&self, cookie: LockCookie) -> Option<(LdlmLockDesc, u64)> {
        match self.cookie_shard(cookie).lock().get(&cookie)? {
            CookieState::Pending(pending) => match pending.wait {
                Wait::Queued(QueuedLock { desc, flags }) => Some((desc, flags | wire::LDLM_FL_BLOCK_WAIT)),
                Wait::Unknown | Wait::Ended => None,
            },
            CookieState::Cached(res) => self.with_lock(res, cookie, |lock| {
                let desc = lock_desc(*res, lock.mode, lock.policy);
                (desc, wire::LDLM_FL_BLOCK_GRANTED)
            }),
        }
    }

    /// Sends a replay. Returns the lock's new handle; `None` if the server refuses the lock.
    async fn send_replay(
        &self,
        cookie: LockCookie,
        desc: LdlmLockDesc,
        flags: u64,
    ) -> Result<Option<u64>, RpcError> {
        let import = self.import.get().ok_or_else(closed_error)?;
        let req = dlm_req(flags | wire::LDLM_FL_REPLAY, 1, desc, [cookie.0].into_iter());
        let request = Request {
            replay: Some(Replay::Lock),
            flags: wire::MSG_REQ_REPLAY_DONE,
            // Requests that wait for the end of the recovery hold the slots.
            limited: false,
            return_error_replies: true,
            ..Request::new(wire::LDLM_ENQUEUE, vec![req])
        };
        let reply = import.call(request).await?;
        match Errno::from_status(reply.status) {
            // The target stops again.
            Some(errno @ (Errno::ENOTCONN | Errno::ENODEV | Errno::ESHUTDOWN)) => {
                Err(RpcError::Status(errno))
            }
            Some(errno) => {
                let res = desc.l_resource.lr_name.name;
                warn_rate_limited!(
                    import = import.name(),
                    ?res,
                    "lock lost: the restarted server refused it: {errno}"
                );
                Ok(None)
            }
            None => {
                let handle = reply
                    .get::<LdlmReply>(bufs::DLM_REP)
                    .map(|rep| rep.lock_handle.cookie);
                handle.map(Some).map_err(RpcError::Status)
            }
        }
    }

    /// Stores the new handle of a lock. Returns false if the lock is gone.
    fn set_handle(&self, cookie: LockCookie, handle: u64) -> bool {
        match self.cookie_shard(cookie).lock().get_mut(&cookie) {
            Some(CookieState::Pending(pending)) => {
                pending.handle = handle;
                true
            }
            Some(CookieState::Cached(res)) => {
                let set = |lock: &mut CachedLock| (lock.handle, lock.replaying) = (handle, false);
                let found = self.with_lock(res, cookie, set).is_some();
                // Cancels of replaying locks wait.
                self.unreferenced.notify_waiters();
                found
            }
            None => false,
        }
    }

    /// Drops a lock that the server does not have any more.
    fn lose(&self, cookie: LockCookie) {
        let mut cookies = self.cookie_shard(cookie).lock();
        let res = match cookies.get(&cookie) {
            Some(CookieState::Cached(res)) => *res,
            // The request fails, because this drops the sender of its completion.
            Some(CookieState::Pending(_)) => return drop(cookies.remove(&cookie)),
            None => return,
        };
        drop(cookies);
        if let Some(lock) = self.remove(&res, cookie) {
            self.owner.dropped(lock.info(&res), lock.policy.bits());
            self.unreferenced.notify_waiters();
        }
    }
}

/// A granted lock in a replay.
fn lock_desc(res: LdlmResId, mode: LockMode, policy: Policy) -> LdlmLockDesc {
    LdlmLockDesc {
        l_granted_mode: mode.wire(),
        ..requested_desc(res, mode, policy)
    }
}
