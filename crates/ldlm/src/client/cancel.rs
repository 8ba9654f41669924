//! Cancels locks when the server revokes them, when there are too many, when they expire, together
//! with other requests, and at unmount. Drops them after an eviction.

use super::cache::{ALL_BITS, CachedLock};
use super::{CookieState, LockClient, LockCookie, LockInfo};
use crate::mode::LockMode;
use crate::policy::Policy;
use crate::request::{cancel_req, dlm_req};
use cpt::JoinSet;
use parking_lot::Mutex;
use rpc::Request;
use std::sync::Arc;
use tokio::sync::Notify;
use wire::{LdlmLockDesc, LdlmResId};

/// Maximum number of handles in one `LDLM_CANCEL`.
const HANDLES_PER_RPC: usize = 256;
/// Number of deferred handles at which the client sends them without waiting for another request.
const DEFERRED_MAX: usize = 64;
/// Maximum number of locks that one call of [`LockClient::cancel_locks`] writes back concurrently.
const CONCURRENT_MAX: usize = 64;

/// The queue of handles to cancel. Handles that are added while a request is in flight go with the
/// next one.
#[derive(Debug, Default)]
pub(super) struct Canceller {
    state: Mutex<Cancels>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct Cancels {
    /// Handles to send at once.
    handles: Vec<u64>,
    /// Handles of unneeded locks, which the client sends with the next enqueue or cancel.
    deferred: Vec<u64>,
    /// A task is sending cancels.
    sending: bool,
}

/// How the client gives up a revoked lock.
enum CancelKind {
    /// The whole lock is cancelled.
    Cancel,
    /// The lock is converted to these bits.
    Convert(u64),
}

/// The inode bits of those `locks` that cover `mode` and satisfy `condition`, and that are neither
/// revoked nor being cancelled.
fn covered_bits(locks: &[CachedLock], mode: LockMode, condition: impl Fn(&CachedLock) -> bool) -> u64 {
    locks
        .iter()
        .filter(|l| l.revoked_bits == 0 && !l.cancelling && l.mode.covers(mode) && condition(l))
        .fold(0, |bits, l| bits | l.policy.bits())
}

impl LockClient {
    /// Early lock cancel: removes the unused inode-bits locks with any of `bits` from the cache,
    /// because the caller's request would revoke them. Returns their server handles for that
    /// request's `DLM_REQ`, which saves a callback and a cancel. A lock with further bits is
    /// removed only with `whole`, if other locks have those bits, or if the server cannot convert
    /// locks; otherwise a later conversion is cheaper. A lock that also protects data stays unless
    /// `bits` includes the DOM bit: the owner cannot wait here until others have dropped the data.
    pub fn elc(&self, res: &LdlmResId, bits: u64, whole: bool) -> Vec<u64> {
        let whole = whole || !self.can_convert();
        let mut removed: Vec<LockInfo> = Vec::new();
        let mut shard = self.cache_shard(res).lock();
        let locks = shard.by_res.get(res).map_or(&[][..], Vec::as_slice);
        let is_removable = |l: &&CachedLock| {
            let further = l.policy.bits() & !bits;
            l.can_remove()
                && l.policy.bits() & bits != 0
                && further & wire::MDS_INODELOCK_DOM == 0
                && (whole || further & !covered_bits(locks, l.mode, |o| o.policy.bits() & bits == 0) == 0)
        };
        let cookies: Vec<LockCookie> = locks.iter().filter(is_removable).map(|l| l.cookie).collect();
        for cookie in cookies {
            self.remove_unused(&mut shard, res, cookie);
            removed.extend(shard.remove(res, cookie).map(|l| l.info(res)));
        }
        let remaining = shard.by_res.get(res).map_or(&[][..], Vec::as_slice);
        let uncovered: Vec<u64> = removed
            .iter()
            .map(|info| info.policy.bits() & !covered_bits(remaining, info.mode, |_| true))
            .collect();
        drop(shard);
        for (info, bits) in removed.iter().zip(uncovered) {
            self.cookie_shard(info.cookie).lock().remove(&info.cookie);
            self.owner.dropped(*info, bits);
        }
        if !removed.is_empty() {
            self.removed.notify_waiters();
        }
        removed.iter().map(|info| info.handle).collect()
    }

    /// Cancels the unused inode-bits locks that [`LockClient::elc`] would remove, because a request
    /// to another server will revoke them. The client sends the cancels later.
    pub fn cancel_early(&self, res: &LdlmResId, bits: u64, whole: bool) {
        for handle in self.elc(res, bits, whole) {
            self.defer_cancel(handle);
        }
    }

    /// Cancels the unused locks of a resource without writing back, because the object will be
    /// destroyed. The client sends the cancels later. If the server revokes such a lock before
    /// that, the client replies that it does not know the lock, and the server drops it.
    pub fn cancel_unused_of(&self, res: &LdlmResId) {
        let mut removed: Vec<CachedLock> = Vec::new();
        {
            let mut shard = self.cache_shard(res).lock();
            let locks = shard.by_res.get(res).into_iter().flatten();
            let unused: Vec<LockCookie> = locks.filter(|l| l.can_remove()).map(|l| l.cookie).collect();
            for cookie in unused {
                self.remove_unused(&mut shard, res, cookie);
                removed.extend(shard.remove(res, cookie));
            }
        }
        for lock in removed {
            self.cookie_shard(lock.cookie).lock().remove(&lock.cookie);
            self.owner.dropped(lock.info(res), lock.policy.bits());
            if !lock.cancel_on_block {
                self.defer_cancel(lock.handle);
            }
        }
        self.removed.notify_waiters();
    }

    /// Cancels all locks, those in use after their last reference is dropped. Returns when all are
    /// cancelled and the cancels are sent.
    pub async fn cancel_all(&self) {
        let mut cancelling = Vec::new();
        for shard in &self.cache {
            let mut shard = shard.lock();
            let all: Vec<(LdlmResId, LockCookie)> = shard
                .by_res
                .iter()
                .flat_map(|(res, locks)| locks.iter().map(|l| (*res, l.cookie)))
                .collect();
            for (res, cookie) in all {
                cancelling.extend(
                    self.mark_cancelling(&mut shard, &res, cookie)
                        .then_some((res, cookie)),
                );
            }
        }
        self.cancel_locks(cancelling).await;
        loop {
            let removed = self.removed.notified();
            tokio::pin!(removed);
            removed.as_mut().enable();
            if self.lock_count() == 0 {
                break;
            }
            removed.await;
        }
        self.cancel_handles(&[]);
        self.wait_until_sent().await;
    }

    /// Drops all locks and lock requests after the server has evicted this client.
    pub fn clear(&self) {
        let mut dropped = Vec::new();
        for cookies in &self.cookies {
            // Dropping the senders wakes the tasks that wait for a completion.
            cookies.lock().clear();
        }
        for shard in &self.cache {
            let mut shard = shard.lock();
            for (res, locks) in shard.by_res.drain() {
                dropped.extend(locks.iter().map(|l| l.info(&res)));
            }
            self.uncount_unused(shard.unused.len());
            shard.unused.clear();
        }
        {
            let mut state = self.canceller.state.lock();
            state.handles.clear();
            state.deferred.clear();
        }
        dropped
            .into_iter()
            .for_each(|info| self.owner.dropped(info, info.policy.bits()));
        self.removed.notify_waiters();
        self.unreferenced.notify_waiters();
    }

    /// Marks a whole lock as revoked. Returns true if the caller has to start the cancel. Otherwise
    /// the release of the last reference starts it, or a task is cancelling the lock already.
    pub(super) fn mark_cancelling(
        &self,
        shard: &mut super::cache::Shard,
        res: &LdlmResId,
        cookie: LockCookie,
    ) -> bool {
        let Some(lock) = shard.find(res, cookie) else {
            return false;
        };
        lock.revoked_bits = ALL_BITS;
        let begin_cancel = lock.can_cancel();
        lock.cancelling |= begin_cancel;
        self.remove_unused(shard, res, cookie);
        begin_cancel
    }

    /// Cancels locks that the caller has marked ([`CachedLock::cancelling`]), in a separate task.
    pub(super) fn start_cancelling(&self, locks: Vec<(LdlmResId, LockCookie)>) {
        let Some(client) = self.me.upgrade() else { return };
        self.tasks.spawn(async move { client.cancel_locks(locks).await });
    }

    /// Cancels locks that the caller has marked. Returns when their owner has written back and
    /// dropped the data under them.
    async fn cancel_locks(&self, locks: Vec<(LdlmResId, LockCookie)>) {
        let Some(client) = self.me.upgrade() else { return };
        if let [(res, cookie)] = locks[..] {
            // A lock that was only converted needs no cancel.
            if client.clone().cancel_lock(res, cookie).await {
                self.cancel_handles(&[]);
            }
            return;
        }
        let mut running = JoinSet::new();
        for (res, cookie) in locks {
            if running.len() >= CONCURRENT_MAX {
                running.join_next().await;
            }
            let client = client.clone();
            running.spawn(async move { client.cancel_lock(res, cookie).await });
        }
        while running.join_next().await.is_some() {}
        self.cancel_handles(&[]);
    }

    /// Cancels a lock: its owner writes back, then the client sends the cancel, at once if the
    /// server waits for it. If only some bits of the lock are revoked, converts the lock to the
    /// others, and cancels it only if the conversion fails. Returns whether the lock is gone.
    async fn cancel_lock(self: Arc<Self>, res: LdlmResId, cookie: LockCookie) -> bool {
        while let Some((info, revoked_bits, kind)) = self.cancel_kind(&res, cookie) {
            self.owner.blocking(info, revoked_bits).await;
            if let CancelKind::Convert(keep) = kind {
                // Reduced before the server reduces it, because a replay must not claim the other
                // bits: the server may grant them to another client at once.
                let reduce = |lock: &mut CachedLock| lock.policy = Policy::ibits(keep);
                if !self.end(&res, cookie, reduce).await {
                    continue;
                }
                let Some(handle) = self.with_lock(&res, cookie, |lock| lock.handle) else {
                    return true;
                };
                if self.convert(info.mode, handle, keep).await {
                    if self.finish_convert(&res, cookie, keep) {
                        return false;
                    }
                    // More bits were revoked in the meantime.
                    continue;
                }
                self.owner.blocking(info, keep).await;
            }
            if !self.end(&res, cookie, |lock| lock.ended = true).await {
                continue;
            }
            // Defer the cancel before the removal, because `cancel_all` waits until the cache is
            // empty and then sends the deferred cancels.
            let handle = self.with_lock(&res, cookie, |l| (!l.cancel_on_block).then_some(l.handle));
            if let Some(Some(handle)) = handle {
                self.defer_cancel(handle);
            }
            let removed = self.remove(&res, cookie);
            if let Some(lock) = removed.filter(|lock| lock.server_waits && !lock.cancel_on_block) {
                self.cancel_deferred_now(lock.handle);
            }
            return true;
        }
        true
    }

    /// Whether the server supports conversion.
    fn can_convert(&self) -> bool {
        self.import
            .get()
            .is_some_and(|i| i.has2(wire::OBD_CONNECT2_LOCK_CONVERT))
    }

    /// The lock, the bits to pass to [`super::LockOwner::blocking`], and how to cancel the lock;
    /// `None` if the lock is gone. The bits are those that the client gives up and that no other
    /// lock covers; [`ALL_BITS`] for locks without inode bits.
    fn cancel_kind(&self, res: &LdlmResId, cookie: LockCookie) -> Option<(LockInfo, u64, CancelKind)> {
        let shard = self.cache_shard(res).lock();
        let locks = shard.by_res.get(res)?;
        let lock = locks.iter().find(|l| l.cookie == cookie)?;
        let info = lock.info(res);
        let Policy::Ibits(held) = lock.policy else {
            return Some((info, ALL_BITS, CancelKind::Cancel));
        };
        let uncovered = !covered_bits(locks, lock.mode, |o| o.cookie != cookie);
        let keep = held.bits & !lock.revoked_bits;
        Some(if keep != 0 && self.can_convert() {
            (
                info,
                held.bits & lock.revoked_bits & uncovered,
                CancelKind::Convert(keep),
            )
        } else {
            (info, held.bits & uncovered, CancelKind::Cancel)
        })
    }

    /// Sends `LDLM_CONVERT`. Returns whether the server reduced the lock to the bits in `keep`.
    async fn convert(&self, mode: LockMode, handle: u64, keep: u64) -> bool {
        let Some(import) = self.import.get() else {
            return false;
        };
        let desc = LdlmLockDesc {
            l_req_mode: mode.wire(),
            l_granted_mode: mode.wire(),
            l_policy_data: wire::LdlmPolicyData::inodebits(keep, 0),
            ..LdlmLockDesc::default()
        };
        let req = dlm_req(0, 1, desc, [handle].into_iter());
        let reply = import.call(Request::new(wire::LDLM_CONVERT, vec![req])).await;
        reply.is_ok_and(|r| r.status == 0)
    }

    /// Updates a converted lock. Returns false only if more bits of the lock were revoked in the
    /// meantime.
    fn finish_convert(&self, res: &LdlmResId, cookie: LockCookie, keep: u64) -> bool {
        let mut shard = self.cache_shard(res).lock();
        let Some(lock) = shard.find(res, cookie) else {
            return true;
        };
        lock.policy = Policy::ibits(keep);
        if lock.revoked_bits & keep != 0 {
            return false;
        }
        lock.revoked_bits = 0;
        (lock.cancelling, lock.server_waits) = (false, false);
        if lock.refs == 0 {
            self.add_unused(&mut shard, res, cookie);
        }
        true
    }

    /// Sends the cancels of these handles, and all deferred ones.
    pub(super) fn cancel_handles(&self, handles: &[u64]) {
        let Some(client) = self.me.upgrade() else { return };
        let mut state = self.canceller.state.lock();
        state.handles.extend_from_slice(handles);
        if state.handles.is_empty() && state.deferred.is_empty() {
            return;
        }
        if !std::mem::replace(&mut state.sending, true) {
            self.tasks.spawn(async move { client.send_cancels().await });
        }
    }

    /// Adds a handle to the deferred ones: the client sends them with the next enqueue or cancel.
    /// If the server revokes the lock before that, the client replies `EINVAL`.
    pub(super) fn defer_cancel(&self, handle: u64) {
        let mut state = self.canceller.state.lock();
        state.deferred.push(handle);
        let must_send = state.deferred.len() >= DEFERRED_MAX;
        drop(state);
        if must_send {
            self.cancel_handles(&[]);
        }
    }

    /// Sends the cancel of a deferred handle at once, because the server waits for it. An enqueue
    /// may have taken the handle already. The cancel does not rely on that request, which may wait
    /// for a slot behind requests that wait for this very lock; a second cancel is harmless.
    fn cancel_deferred_now(&self, handle: u64) {
        self.canceller.state.lock().deferred.retain(|h| *h != handle);
        self.cancel_handles(&[handle]);
    }

    /// Takes up to `max` deferred handles to send with another request.
    pub(super) fn take_deferred(&self, max: usize) -> Vec<u64> {
        let deferred = &mut self.canceller.state.lock().deferred;
        deferred.split_off(deferred.len() - max.min(deferred.len()))
    }

    async fn send_cancels(self: Arc<Self>) {
        loop {
            let batch: Vec<u64> = {
                let mut state = self.canceller.state.lock();
                let state = &mut *state;
                state.handles.append(&mut state.deferred);
                let n = state.handles.len().min(HANDLES_PER_RPC);
                if n == 0 {
                    state.sending = false;
                    self.canceller.idle.notify_waiters();
                    return;
                }
                state.handles.drain(..n).collect()
            };
            let Some(import) = self.import.get() else { continue };
            if let Err(why) = import
                .call(Request::new(wire::LDLM_CANCEL, vec![cancel_req(&batch)]))
                .await
            {
                // After an eviction or disconnect the server has dropped the locks itself.
                tracing::debug!(
                    import = import.name(),
                    locks = batch.len(),
                    "cannot cancel locks: {why}"
                );
            }
        }
    }

    /// Waits until [`LockClient::send_cancels`] has ended, if it runs.
    async fn wait_until_sent(&self) {
        loop {
            let idle = self.canceller.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if !self.canceller.state.lock().sending {
                return;
            }
            idle.await;
        }
    }

    /// Whether a request with this cookie is in flight, or its lock is queued; for tests.
    pub fn is_pending(&self, cookie: LockCookie) -> bool {
        matches!(
            self.cookie_shard(cookie).lock().get(&cookie),
            Some(CookieState::Pending(_))
        )
    }
}
