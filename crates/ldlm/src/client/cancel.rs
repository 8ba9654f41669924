//! Giving locks back: on the server's wish, for room, for age, at the end; and losing them.

use super::cache::{Cached, EVERYTHING};
use super::{LockClient, LockHandle, LockInfo, Name};
use crate::mode::LockMode;
use crate::policy::Policy;
use crate::request::{cancel_req, dlm_req};
use parking_lot::Mutex;
use rpc::Request;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use wire::{LdlmLockDesc, LdlmResId};

/// Handles that one `LDLM_CANCEL` takes.
const HANDLES_PER_RPC: usize = 256;
/// Handles that nobody is in a hurry about wait for a request of at least so many.
const LATER_MAX: usize = 64;
/// Locks whose owners write back at once when many are given back.
const AT_ONCE: usize = 64;

/// Handles on their way to the server: those that come while a request is under way leave together with the next.
#[derive(Debug, Default)]
pub(super) struct Canceller {
    state: Mutex<Cancels>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct Cancels {
    handles: Vec<u64>,
    /// Of locks that another one made superfluous: they go with the next request that has room.
    later: Vec<u64>,
    sending: bool,
}

/// What to do with a lock that is asked back.
enum Way {
    /// Give all of it back.
    Cancel,
    /// Keep these bits.
    Convert(u64),
}

/// The inode bits that those of `locks` cover that stay, serve `mode` and pass `which`.
fn covered(locks: &[Cached], mode: LockMode, which: impl Fn(&Cached) -> bool) -> u64 {
    locks
        .iter()
        .filter(|l| l.must_go == 0 && !l.leaving && l.mode.covers(mode) && which(l))
        .fold(0, |bits, l| bits | l.policy.bits())
}

impl LockClient {
    /// Takes own unused locks of inode bits out of the cache that stand in the way of something that takes `bits` of
    /// the resource. Their handles go into that request's `DLM_REQ`, which saves a callback and a cancel. A lock that
    /// has other bits as well goes only if `whole`, or if another lock has those: where the server takes back single
    /// bits it is better asked to.
    pub fn elc(&self, res: &LdlmResId, bits: u64, whole: bool) -> Vec<u64> {
        let whole = whole || !self.can_convert();
        let mut gone: Vec<LockInfo> = Vec::new();
        let mut shard = self.cache_shard(res).lock();
        let locks = shard.by_res.get(res).map_or(&[][..], Vec::as_slice);
        let leaves = |l: &&Cached| {
            let others = l.policy.bits() & !bits;
            l.can_leave()
                && l.policy.bits() & bits != 0
                && (whole || others & !covered(locks, l.mode, |o| o.policy.bits() & bits == 0) == 0)
        };
        let cookies: Vec<LockHandle> = locks.iter().filter(leaves).map(|l| l.cookie).collect();
        for cookie in cookies {
            self.no_more_unused(&mut shard, res, cookie);
            gone.extend(shard.remove(res, cookie).map(|l| l.info(res)));
        }
        let stay = shard.by_res.get(res).map_or(&[][..], Vec::as_slice);
        let uncovered: Vec<u64> = gone
            .iter()
            .map(|info| info.policy.bits() & !covered(stay, info.mode, |_| true))
            .collect();
        drop(shard);
        for (info, bits) in gone.iter().zip(uncovered) {
            self.name_shard(info.cookie).lock().remove(&info.cookie);
            self.owner.dropped(*info, bits);
        }
        if !gone.is_empty() {
            self.left.notify_waiters();
        }
        gone.iter().map(|info| info.handle).collect()
    }

    /// Gives the unused locks of a resource back that will not be again. There is no hurry: the server asks whoever has such
    /// a lock anyway, and what it hears of first it need not ask for.
    pub fn give_up(&self, res: &LdlmResId) {
        let mut gone: Vec<Cached> = Vec::new();
        {
            let mut shard = self.cache_shard(res).lock();
            let locks = shard.by_res.get(res).into_iter().flatten();
            let unused: Vec<LockHandle> = locks.filter(|l| l.can_leave()).map(|l| l.cookie).collect();
            for cookie in unused {
                self.no_more_unused(&mut shard, res, cookie);
                gone.extend(shard.remove(res, cookie));
            }
        }
        for lock in gone {
            self.name_shard(lock.cookie).lock().remove(&lock.cookie);
            self.owner.dropped(lock.info(res), lock.policy.bits());
            if !lock.cancel_on_block {
                self.cancel_later(lock.handle);
            }
        }
        self.left.notify_waiters();
    }

    /// Gives every lock back, those in use as soon as they are let go; returns when all are gone and the server has been
    /// told.
    pub async fn cancel_all(&self) {
        let mut leaving = Vec::new();
        for shard in &self.cache {
            let mut shard = shard.lock();
            let all: Vec<(LdlmResId, LockHandle)> = shard
                .by_res
                .iter()
                .flat_map(|(res, locks)| locks.iter().map(|l| (*res, l.cookie)))
                .collect();
            for (res, cookie) in all {
                leaving.extend(self.mark(&mut shard, &res, cookie).then_some((res, cookie)));
            }
        }
        self.give_back_all(leaving).await;
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.lock_count() == 0 {
                break;
            }
            left.await;
        }
        self.cancel_handles(&[]);
        self.all_sent().await;
    }

    /// The server has evicted this client: every lock is gone, and so is what waits for one.
    pub fn clear(&self) {
        let mut gone = Vec::new();
        for names in &self.names {
            // Whoever waits for a completion learns of it by losing the sender.
            names.lock().clear();
        }
        for shard in &self.cache {
            let mut shard = shard.lock();
            for (res, locks) in shard.by_res.drain() {
                gone.extend(locks.iter().map(|l| l.info(&res)));
            }
            self.less_unused(shard.unused.len());
            shard.unused.clear();
        }
        {
            let mut state = self.canceller.state.lock();
            state.handles.clear();
            state.later.clear();
        }
        gone.into_iter()
            .for_each(|info| self.owner.dropped(info, info.policy.bits()));
        self.left.notify_waiters();
    }

    /// Marks a lock as wanted back. True when the caller is to carry it out.
    pub(super) fn mark(&self, shard: &mut super::cache::Shard, res: &LdlmResId, cookie: LockHandle) -> bool {
        let Some(lock) = shard.find(res, cookie) else {
            return false;
        };
        lock.must_go = EVERYTHING;
        let leave = lock.can_leave();
        lock.leaving |= leave;
        self.no_more_unused(shard, res, cookie);
        leave
    }

    /// Gives locks back, in a task of its own. They are marked as leaving.
    pub(super) fn start_giving_back(&self, locks: Vec<(LdlmResId, LockHandle)>) {
        let Some(client) = self.me.upgrade() else { return };
        self.tasks.spawn(async move { client.give_back_all(locks).await });
    }

    async fn give_back_all(&self, locks: Vec<(LdlmResId, LockHandle)>) {
        let Some(client) = self.me.upgrade() else { return };
        if let [(res, cookie)] = locks[..] {
            // One of which only some bits went has told the server so.
            if client.clone().give_back(res, cookie).await {
                self.cancel_handles(&[]);
            }
            return;
        }
        let mut under_way = JoinSet::new();
        for (res, cookie) in locks {
            if under_way.len() >= AT_ONCE {
                under_way.join_next().await;
            }
            let client = client.clone();
            under_way.spawn(async move { client.give_back(res, cookie).await });
        }
        while under_way.join_next().await.is_some() {}
        self.cancel_handles(&[]);
    }

    /// Carries a lock out: its owner writes back, then the server is to be told: at once if it waits for the lock. A lock of
    /// which only some bits must go stays with the others. Whether it is gone.
    async fn give_back(self: Arc<Self>, res: LdlmResId, cookie: LockHandle) -> bool {
        while let Some((info, must_go, way)) = self.way_out(&res, cookie) {
            self.owner.blocking(info, must_go).await;
            if let Way::Convert(keep) = way {
                if self.convert(&info, keep).await {
                    if self.stays(&res, cookie, keep) {
                        return false;
                    }
                    // More bits were asked for meanwhile.
                    continue;
                }
                self.owner.blocking(info, keep).await;
            }
            // Noted first: who waits for the cache to be empty then waits for this to be sent as well.
            let cancel_on_block = self.with_lock(&res, cookie, |l| l.cancel_on_block);
            if cancel_on_block == Some(false) {
                self.cancel_later(info.handle);
            }
            if self.remove(&res, cookie).is_some_and(|lock| lock.wanted) {
                self.cancel_handles(&[]);
            }
            return true;
        }
        true
    }

    /// Whether the server takes single bits of a lock back.
    fn can_convert(&self) -> bool {
        self.import
            .get()
            .is_some_and(|i| i.has2(wire::OBD_CONNECT2_LOCK_CONVERT))
    }

    fn way_out(&self, res: &LdlmResId, cookie: LockHandle) -> Option<(LockInfo, u64, Way)> {
        let shard = self.cache_shard(res).lock();
        let locks = shard.by_res.get(res)?;
        let lock = locks.iter().find(|l| l.cookie == cookie)?;
        let info = lock.info(res);
        let Policy::Ibits(held) = lock.policy else {
            return Some((info, EVERYTHING, Way::Cancel));
        };
        let uncovered = !covered(locks, lock.mode, |o| o.cookie != cookie);
        let keep = held.bits & !lock.must_go;
        Some(if keep != 0 && self.can_convert() {
            (info, held.bits & lock.must_go & uncovered, Way::Convert(keep))
        } else {
            (info, held.bits & uncovered, Way::Cancel)
        })
    }

    async fn convert(&self, info: &LockInfo, keep: u64) -> bool {
        let Some(import) = self.import.get() else {
            return false;
        };
        let desc = LdlmLockDesc {
            l_req_mode: info.mode.wire(),
            l_granted_mode: info.mode.wire(),
            l_policy_data: wire::LdlmPolicyData::inodebits(keep, 0),
            ..LdlmLockDesc::default()
        };
        let req = dlm_req(0, 1, desc, [info.handle].into_iter());
        let reply = import.call(Request::new(wire::LDLM_CONVERT, vec![req])).await;
        reply.is_ok_and(|r| r.status == 0)
    }

    /// A lock was converted. True when it stays as it is now; false when the server wants more of it.
    fn stays(&self, res: &LdlmResId, cookie: LockHandle, keep: u64) -> bool {
        let mut shard = self.cache_shard(res).lock();
        let Some(lock) = shard.find(res, cookie) else {
            return true;
        };
        lock.policy = Policy::ibits(keep);
        if lock.must_go & keep != 0 {
            return false;
        }
        lock.must_go = 0;
        (lock.leaving, lock.wanted) = (false, false);
        if lock.refs == 0 {
            self.now_unused(&mut shard, res, cookie);
        }
        true
    }

    /// Tells the server that these locks are free, together with what else is to be told.
    pub(super) fn cancel_handles(&self, handles: &[u64]) {
        let Some(client) = self.me.upgrade() else { return };
        let mut state = self.canceller.state.lock();
        state.handles.extend_from_slice(handles);
        if state.handles.is_empty() && state.later.is_empty() {
            return;
        }
        if !std::mem::replace(&mut state.sending, true) {
            self.tasks.spawn(async move { client.send_cancels().await });
        }
    }

    /// A lock that stands in nobody's way is free: the server is told when there is something else to tell it. If it wants
    /// the lock back first, it hears that there is none.
    pub(super) fn cancel_later(&self, handle: u64) {
        let mut state = self.canceller.state.lock();
        state.later.push(handle);
        let many = state.later.len() >= LATER_MAX;
        drop(state);
        if many {
            self.cancel_handles(&[]);
        }
    }

    /// Handles that a request takes along, so many at most.
    pub(super) fn taken_along(&self, most: usize) -> Vec<u64> {
        let later = &mut self.canceller.state.lock().later;
        later.split_off(later.len() - most.min(later.len()))
    }

    async fn send_cancels(self: Arc<Self>) {
        loop {
            let batch: Vec<u64> = {
                let mut state = self.canceller.state.lock();
                let state = &mut *state;
                state.handles.append(&mut state.later);
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
                // Evicted or closed: the server has let them go by itself.
                tracing::debug!(import = import.name(), locks = batch.len(), "cancel: {why}");
            }
        }
    }

    /// Waits until the server has been told everything.
    async fn all_sent(&self) {
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

    /// Whether a request for the cookie is under way; for tests and messages.
    pub fn is_pending(&self, cookie: LockHandle) -> bool {
        matches!(
            self.name_shard(cookie).lock().get(&cookie),
            Some(Name::Pending(_))
        )
    }
}
