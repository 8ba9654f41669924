//! The cached locks by resource, and references to them.

use super::{CookieState, LockClient, LockCookie, LockInfo};
use crate::mode::LockMode;
use crate::policy::Policy;
use cpt::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use wire::LdlmResId;

/// All bits of an inode-bits lock; for other types, the whole lock.
pub(super) const ALL_BITS: u64 = u64::MAX;

/// A granted lock.
#[derive(Debug)]
pub(super) struct CachedLock {
    pub(super) cookie: LockCookie,
    /// The server's handle.
    pub(super) handle: u64,
    pub(super) policy: Policy,
    pub(super) mode: LockMode,
    /// Number of [`LockRef`]s.
    pub(super) refs: u32,
    /// Inode bits that the server has revoked or this client gives up, or [`ALL_BITS`]. Unless 0,
    /// only [`LockClient::find_even_revoked`] finds the lock.
    pub(super) revoked_bits: u64,
    /// A task is cancelling the lock; the code that sets this flag must start that task.
    pub(super) cancelling: bool,
    /// The owner has dropped the data under the lock, so no search finds the lock any more.
    pub(super) ended: bool,
    /// The restarted server may not know the lock, or know it by a handle that this client does not
    /// know. The lock stays in the cache until a replay brings the handle.
    pub(super) replaying: bool,
    /// The server waits for the cancel.
    pub(super) server_waits: bool,
    /// The server drops the lock when it sends a blocking AST (`LDLM_FL_CANCEL_ON_BLOCK`), so the
    /// client sends no cancel.
    pub(super) cancel_on_block: bool,
    /// Dirty data under the lock is discarded, because the object is being destroyed.
    pub(super) discard: bool,
    /// The lock's use number, its key in [`Shard::unused`]; 0 while the lock is in use or being
    /// cancelled.
    pub(super) use_number: u64,
}

impl CachedLock {
    pub(super) fn info(&self, res: &LdlmResId) -> LockInfo {
        LockInfo {
            res: *res,
            mode: self.mode,
            policy: self.policy,
            cookie: self.cookie,
            handle: self.handle,
            discard: self.discard,
        }
    }

    /// Whether the lock covers `mode` and `policy`.
    fn includes(&self, mode: LockMode, policy: &Policy) -> bool {
        self.mode.covers(mode) && self.policy.covers(policy)
    }

    /// Whether the caller can begin to cancel the lock: it is unused, and no other task is
    /// cancelling it.
    pub(super) fn can_cancel(&self) -> bool {
        self.refs == 0 && !self.cancelling
    }

    /// Whether the caller can remove the lock from the cache at once and cancel it by its handle.
    pub(super) fn can_remove(&self) -> bool {
        self.can_cancel() && !self.replaying
    }
}

/// An unused lock.
#[derive(Debug)]
pub(super) struct UnusedLock {
    /// When the lock became unused or, if later, was last converted.
    pub(super) since: Instant,
    pub(super) res: LdlmResId,
    pub(super) cookie: LockCookie,
}

/// One shard of resources.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) by_res: HashMap<LdlmResId, Vec<CachedLock>>,
    /// Unused locks by use number ([`LockClient`]'s `next_use`), the least recently used first.
    pub(super) unused: BTreeMap<u64, UnusedLock>,
}

impl Shard {
    /// Number of cached locks.
    pub(super) fn len(&self) -> usize {
        self.by_res.values().map(Vec::len).sum()
    }

    pub(super) fn find(&mut self, res: &LdlmResId, cookie: LockCookie) -> Option<&mut CachedLock> {
        self.by_res.get_mut(res)?.iter_mut().find(|l| l.cookie == cookie)
    }

    pub(super) fn insert(&mut self, res: LdlmResId, lock: CachedLock) {
        // Most resources have one lock.
        self.by_res
            .entry(res)
            .or_insert_with(|| Vec::with_capacity(1))
            .push(lock);
    }

    pub(super) fn remove(&mut self, res: &LdlmResId, cookie: LockCookie) -> Option<CachedLock> {
        let locks = self.by_res.get_mut(res)?;
        let lock = locks.swap_remove(locks.iter().position(|l| l.cookie == cookie)?);
        if locks.is_empty() {
            self.by_res.remove(res);
        }
        self.unused.remove(&lock.use_number);
        Some(lock)
    }
}

/// A reference to a cached lock. The client cancels no lock that has references. An unused lock
/// stays cached until it is revoked, expires or exceeds a limit.
///
/// Do not hold a reference while waiting for a request that takes other locks of the same server
/// (except reads and writes under an extent lock): the server may be waiting for this lock.
#[derive(Debug)]
pub struct LockRef {
    client: Arc<LockClient>,
    info: LockInfo,
}

impl LockRef {
    pub(super) fn new(client: Arc<LockClient>, info: LockInfo) -> LockRef {
        LockRef { client, info }
    }

    /// The lock as it was when this reference was taken.
    pub fn info(&self) -> &LockInfo {
        &self.info
    }

    /// The server's handle.
    pub fn handle(&self) -> u64 {
        self.info.handle
    }

    /// The lock's mode.
    pub fn mode(&self) -> LockMode {
        self.info.mode
    }

    /// The locked part of the resource when this reference was taken.
    pub fn policy(&self) -> &Policy {
        &self.info.policy
    }

    /// Whether the client still has the lock; false after an eviction.
    pub fn is_valid(&self) -> bool {
        self.client
            .with_lock(&self.info.res, self.info.cookie, |_| ())
            .is_some()
    }

    /// Whether the lock is revoked or gone, so that work under the lock should end soon.
    pub fn is_revoked(&self) -> bool {
        self.client
            .with_lock(&self.info.res, self.info.cookie, |l| l.revoked_bits != 0)
            .unwrap_or(true)
    }
}

impl Clone for LockRef {
    fn clone(&self) -> LockRef {
        self.client
            .with_lock(&self.info.res, self.info.cookie, |l| l.refs += 1);
        LockRef {
            client: self.client.clone(),
            info: self.info,
        }
    }
}

impl Drop for LockRef {
    fn drop(&mut self) {
        self.client.release(&self.info.res, self.info.cookie);
    }
}

impl LockClient {
    /// A cached lock that includes `mode` and `policy` and is not revoked.
    pub fn find(&self, res: &LdlmResId, mode: LockMode, policy: Policy) -> Option<LockRef> {
        self.find_if(res, mode, policy, |lock| lock.revoked_bits == 0)
    }

    /// Whether a cached lock includes `mode` and `policy` and is not revoked at this moment. Costs
    /// less than [`LockClient::find`], and does not count as a use of the lock.
    pub fn has(&self, res: &LdlmResId, mode: LockMode, policy: Policy) -> bool {
        let shard = self.cache_shard(res).lock();
        let mut locks = shard.by_res.get(res).into_iter().flatten();
        locks.any(|l| l.revoked_bits == 0 && l.includes(mode, &policy))
    }

    /// Whether a lock is cached, revoked or not, with at least these inode bits.
    pub fn has_bits(&self, res: &LdlmResId, cookie: LockCookie, bits: u64) -> bool {
        self.with_lock(res, cookie, |l| l.policy.bits() & bits == bits)
            .unwrap_or(false)
    }

    /// A cached lock that includes `mode` and `policy`, revoked or not: for work that must finish
    /// before the cancel, because [`super::LockOwner::blocking`] may wait for it. The cancel waits
    /// for this work too, so such work must be rare, or it delays the cancel for ever.
    pub fn find_even_revoked(&self, res: &LdlmResId, mode: LockMode, policy: Policy) -> Option<LockRef> {
        // The server has already dropped a revoked lock with `cancel_on_block`.
        self.find_if(res, mode, policy, |lock| {
            lock.revoked_bits == 0 || !(lock.ended || lock.cancel_on_block)
        })
    }

    fn find_if(
        &self,
        res: &LdlmResId,
        mode: LockMode,
        policy: Policy,
        is_usable: impl Fn(&CachedLock) -> bool,
    ) -> Option<LockRef> {
        let client = self.me.upgrade()?;
        let mut shard = self.cache_shard(res).lock();
        let locks = shard.by_res.get_mut(res)?;
        let serves = |l: &&mut CachedLock| is_usable(l) && l.includes(mode, &policy);
        let lock = locks.iter_mut().find(serves)?;
        lock.refs += 1;
        let info = lock.info(res);
        let use_number = std::mem::take(&mut lock.use_number);
        if use_number != 0 && shard.unused.remove(&use_number).is_some() {
            self.uncount_unused(1);
        }
        drop(shard);
        Some(LockRef::new(client, info))
    }

    /// All cached locks of a resource.
    pub fn locks_of(&self, res: &LdlmResId) -> Vec<LockInfo> {
        let shard = self.cache_shard(res).lock();
        shard
            .by_res
            .get(res)
            .into_iter()
            .flatten()
            .map(|l| l.info(res))
            .collect()
    }

    /// Adds a granted lock to the cache, with one reference. Opens and lookups often bring
    /// inode-bits locks that are already cached, as a whole or in part. If a cached lock includes
    /// the new one, the cached lock is used instead. If the new lock includes unused cached ones,
    /// these are cancelled, so that locks do not pile up. `None` if the request no longer exists.
    pub(super) fn insert(&self, res: LdlmResId, lock: CachedLock, lvb: &[u8]) -> Option<LockRef> {
        let client = self.me.upgrade()?;
        if matches!(lock.policy, Policy::Ibits(_))
            && let Some(cached) = self.find(&res, lock.mode, lock.policy)
        {
            // `None`: an eviction in the meantime has removed the request and the cached lock.
            match self.cookie_shard(lock.cookie).lock().remove(&lock.cookie)? {
                // The server has revoked the new lock and waits for its cancel.
                CookieState::Pending(p) if lock.revoked_bits | p.revoked_bits != 0 => {
                    self.cancel_handles(&[lock.handle])
                }
                _ => self.defer_cancel(lock.handle),
            }
            return Some(cached);
        }
        let info = lock.info(&res);
        let mut cookies = self.cookie_shard(lock.cookie).lock();
        // The client was evicted, or the request was dropped, in the meantime.
        let Some(CookieState::Pending(pending)) = cookies.get_mut(&lock.cookie) else {
            return None;
        };
        let revoked_bits = lock.revoked_bits | pending.revoked_bits;
        let discard = lock.discard | pending.discard;
        cookies.insert(lock.cookie, CookieState::Cached(res));
        self.owner.granted(info, lvb);
        let mut shard = self.cache_shard(&res).lock();
        let covered = match revoked_bits {
            0 => self.take_covered(&mut shard, &info),
            _ => Vec::new(),
        };
        let lock = CachedLock {
            refs: 1,
            revoked_bits,
            discard,
            ..lock
        };
        shard.insert(res, lock);
        drop(shard);
        drop(cookies);
        for old in covered {
            self.cookie_shard(old.cookie).lock().remove(&old.cookie);
            self.defer_cancel(old.handle);
        }
        Some(LockRef::new(client, info))
    }

    /// Removes the unused inode-bits locks that a new lock includes.
    fn take_covered(&self, shard: &mut Shard, new: &LockInfo) -> Vec<CachedLock> {
        let Policy::Ibits(_) = new.policy else {
            return Vec::new();
        };
        let locks = shard.by_res.get(&new.res).into_iter().flatten();
        let covered = |l: &&CachedLock| {
            l.can_remove() && l.revoked_bits == 0 && new.mode.covers(l.mode) && new.policy.covers(&l.policy)
        };
        let cookies: Vec<LockCookie> = locks.filter(covered).map(|l| l.cookie).collect();
        let take = |cookie| {
            self.remove_unused(shard, &new.res, cookie);
            shard.remove(&new.res, cookie)
        };
        cookies.into_iter().filter_map(take).collect()
    }

    /// Drops a reference. After the last one, a revoked lock is cancelled, and an unrevoked one
    /// counts as unused.
    fn release(&self, res: &LdlmResId, cookie: LockCookie) {
        let mut shard = self.cache_shard(res).lock();
        let Some(lock) = shard.find(res, cookie) else {
            return;
        };
        lock.refs = lock.refs.saturating_sub(1);
        if !lock.can_cancel() {
            if lock.refs == 0 {
                self.unreferenced.notify_waiters();
            }
            return;
        }
        if lock.revoked_bits != 0 {
            lock.cancelling = true;
            drop(shard);
            return self.start_cancelling(vec![(*res, cookie)]);
        }
        self.add_unused(&mut shard, res, cookie);
        drop(shard);
        self.enforce_limits();
    }

    /// Adds a lock to the unused ones.
    pub(super) fn add_unused(&self, shard: &mut Shard, res: &LdlmResId, cookie: LockCookie) {
        let Some(lock) = shard.find(res, cookie) else {
            return;
        };
        let use_number = self.next_use.fetch_add(1, Ordering::Relaxed);
        lock.use_number = use_number;
        shard.unused.insert(
            use_number,
            UnusedLock {
                since: Instant::now(),
                res: *res,
                cookie,
            },
        );
        self.count_unused();
    }

    /// Removes a lock from the unused ones.
    pub(super) fn remove_unused(&self, shard: &mut Shard, res: &LdlmResId, cookie: LockCookie) {
        let Some(lock) = shard.find(res, cookie) else {
            return;
        };
        let use_number = std::mem::take(&mut lock.use_number);
        if shard.unused.remove(&use_number).is_some() {
            self.uncount_unused(1);
        }
    }

    /// Ends the searches for a lock or for bits of it by `end`, after the owner has dropped the
    /// data. If work under the lock has begun meanwhile ([`LockClient::find_even_revoked`]), waits
    /// for it and returns false: the owner must drop the data again. Also waits for the lock's
    /// replay, during which work may begin.
    pub(super) async fn end(
        &self,
        res: &LdlmResId,
        cookie: LockCookie,
        end: impl Fn(&mut CachedLock),
    ) -> bool {
        let mut is_first_look = true;
        loop {
            let unreferenced = self.unreferenced.notified();
            tokio::pin!(unreferenced);
            unreferenced.as_mut().enable();
            let in_use = self.with_lock(res, cookie, |lock| {
                let in_use = lock.refs > 0 || lock.replaying;
                if is_first_look && !in_use {
                    end(lock);
                }
                in_use
            });
            if in_use != Some(true) {
                return is_first_look;
            }
            is_first_look = false;
            unreferenced.await;
        }
    }

    /// Removes a lock from both tables and from the unused ones.
    pub(super) fn remove(&self, res: &LdlmResId, cookie: LockCookie) -> Option<CachedLock> {
        let mut shard = self.cache_shard(res).lock();
        self.remove_unused(&mut shard, res, cookie);
        let lock = shard.remove(res, cookie);
        drop(shard);
        self.cookie_shard(cookie).lock().remove(&cookie);
        self.removed.notify_waiters();
        lock
    }
}
