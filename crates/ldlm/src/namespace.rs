//! The lock manager's state machine: one shard of a target's locks.
//!
//! A [`Namespace`] owns all locks of its resources, granted and waiting, and decides about grants.
//! It does no I/O and has no clock: the caller passes events and the time, and carries out the
//! returned [`Action`]s. The rules are the protocol's: a request is granted if no granted lock and
//! no lock that waits longer conflicts. Otherwise it is queued or, if it must not wait, refused.
//! Each holder of a granted lock that blocks a queued one gets one blocking AST. But flocks are
//! never revoked, and group locks only when their object is destroyed.

use crate::action::{Action, LockRequest, Placement, Refusal};
use crate::deadlock::FlockWaits;
use crate::extent;
use crate::lock::{Holder, Lock, LockId, LockTable, Waiter};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::reclaim::ReclaimCursor;
use crate::resource::Resource;
use crate::timers::Timers;
use crate::waits::LockWaits;
use cpt::Bug;
use cpt::{HashSeed, SeededMap};
use params::Sums;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::LdlmResId;

/// One shard of the locks of a target.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) locks: LockTable,
    pub(crate) resources: SeededMap<LdlmResId, Resource>,
    /// Each client's locks: the client, its cookie for the lock, and the lock.
    pub(crate) by_client: BTreeSet<(Holder, u64, LockId)>,
    /// The waiting flocks, for deadlock detection.
    pub(crate) flock_waits: FlockWaits,
    pub(crate) timers: Timers,
    pub(crate) waits: LockWaits,
    pub(crate) cursor: ReclaimCursor,
    /// Clients replay their locks: no replayed lock leaves the queue or is revoked.
    pub(crate) replaying: bool,
}

impl Namespace {
    /// An empty shard. `seed` should be a new random number after each restart of the server, so
    /// that old handles name no new locks. `hash` is for the hash functions of the tables, because
    /// clients choose some of the keys. `timeout_min` is the minimum time that a holder has to
    /// cancel a revoked lock (`ldlm_enqueue_min`).
    pub fn new(shard: u8, seed: u64, hash: HashSeed, timeout_min: Duration) -> Namespace {
        Namespace {
            locks: LockTable::new(shard, seed),
            resources: SeededMap::with_hasher(hash.clone()),
            by_client: BTreeSet::new(),
            flock_waits: FlockWaits::new(hash.clone()),
            timers: Timers::new(timeout_min, hash.clone()),
            waits: LockWaits::new(hash),
            cursor: ReclaimCursor::default(),
            replaying: false,
        }
    }

    /// Requests a lock, and adds the resulting actions to `out`.
    ///
    /// # Errors
    ///
    /// The reason if the lock is refused.
    pub fn enqueue(
        &mut self,
        now: Instant,
        request: &LockRequest,
        out: &mut Vec<Action>,
    ) -> Result<Placement, Refusal> {
        let ty = request.policy.ty();
        if self.resources.get(&request.res).is_some_and(|r| r.ty != ty) {
            return Err(Refusal::WrongType);
        }
        if ty == LockType::Flock {
            return self.enqueue_flock(now, request, out);
        }
        let id = self.insert(request)?;
        let mut queued = false;
        loop {
            let granted_conflict = self.has_granted_blocker(id) && !Bug::LockGrantedTooEarly.is_planted();
            if !granted_conflict && !self.has_waiting_blocker(id) {
                if self.grant(id) {
                    if queued {
                        self.waits.discard(id);
                    }
                    if request.mode == LockMode::Group {
                        // The lock may have joined its group ahead of waiting locks, which it
                        // blocks now.
                        self.reprocess(now, &request.res, out);
                    }
                    return Ok(Placement::Granted(id));
                }
                self.forget(id);
                return Err(Refusal::WouldBlock);
            }
            if request.no_wait || (request.no_group_wait && self.has_group_blocker(id)) {
                self.forget(id);
                return Err(Refusal::WouldBlock);
            }
            if !queued {
                self.queue(id, now);
                queued = true;
            }
            if !self.revoke_blockers(now, id, out) {
                return Ok(Placement::Queued { id, granted_conflict });
            }
        }
    }

    /// Removes a lock, granted or waiting. Returns the lock, or `None` if the handle is unknown.
    pub fn cancel(&mut self, now: Instant, id: LockId, out: &mut Vec<Action>) -> Option<Lock> {
        let lock = self.forget(id)?;
        self.timers.stop(id, now);
        if !lock.granted && lock.waiter == Waiter::Local {
            out.push(Action::Wake { id, granted: false });
        }
        if is_write_extent(&lock) {
            out.push(Action::StaleLvb(lock.res));
        }
        self.reprocess(now, &lock.res, out);
        Some(lock)
    }

    /// Reduces an inode-bits lock to the bits in `keep`, and cancels it if none are left. Returns
    /// the remaining bits, or `None` if there is no such granted inode-bits lock.
    pub fn convert(&mut self, now: Instant, id: LockId, keep: u64, out: &mut Vec<Action>) -> Option<u64> {
        let lock = self.locks.get_mut(id).filter(|l| l.granted)?;
        let Policy::Ibits(held) = lock.policy else {
            return None;
        };
        let bits = held.bits & keep;
        if bits == 0 {
            self.cancel(now, id, out);
            return Some(0);
        }
        let res = lock.res;
        if let Some(resource) = self.resources.get_mut(&res) {
            resource.change(lock, |lock| {
                lock.policy = Policy::ibits(bits);
                lock.ast_sent = false;
            });
        }
        self.timers.stop(id, now);
        self.reprocess(now, &res, out);
        Some(bits)
    }

    /// Removes all locks of a client that disconnected or was evicted. Returns their number.
    pub fn drop_holder(&mut self, now: Instant, holder: Holder, out: &mut Vec<Action>) -> usize {
        let ids: Vec<LockId> = self.ids_of_holder(holder).collect();
        let mut touched: Vec<LdlmResId> = Vec::new();
        for id in &ids {
            let Some(lock) = self.forget(*id) else { continue };
            self.timers.discard(*id);
            if !lock.granted && lock.waiter == Waiter::Local {
                out.push(Action::Wake {
                    id: *id,
                    granted: false,
                });
            }
            if is_write_extent(&lock) {
                out.push(Action::StaleLvb(lock.res));
            }
            touched.push(lock.res);
        }
        self.flock_waits.drop_holder(holder);
        touched.sort_unstable();
        touched.dedup();
        for res in &touched {
            self.reprocess(now, res, out);
        }
        ids.len()
    }

    /// Restarts the timers of a client's revoked locks of a resource, because the client does I/O
    /// under them.
    pub fn prolong(&mut self, now: Instant, holder: Holder, res: &LdlmResId) {
        if self.timers.is_empty() {
            return;
        }
        let Some(resource) = self.resources.get(res) else {
            return;
        };
        for lock in resource.granted().iter().filter_map(|id| self.locks.get(*id)) {
            if lock.holder == holder && lock.ast_sent {
                self.timers.prolong(lock.id, now);
            }
        }
    }

    /// Number of revoked locks that are not cancelled and have unexpired timers.
    pub fn revoked_count(&self) -> usize {
        self.timers.len()
    }

    /// The holders of locks that were revoked before `cutoff`, are not cancelled, and have
    /// unexpired timers.
    pub fn slow_holders(&self, cutoff: Instant) -> impl Iterator<Item = Holder> {
        let revoked = self.timers.revoked_before(cutoff);
        revoked.filter_map(|id| Some(self.locks.get(id)?.holder))
    }

    /// Adds an [`Action::Evict`] for each lock with an expired timer, once.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<Action>) {
        for (id, after) in self.timers.expired(now) {
            if let Some(lock) = self.locks.get(id) {
                out.push(Action::Evict {
                    holder: lock.holder,
                    id,
                    after,
                });
            }
        }
    }

    /// Whether the timer of any revoked lock runs.
    pub fn has_revoked(&self) -> bool {
        !self.timers.is_empty()
    }

    /// How long a holder has to cancel a lock that is revoked now.
    pub fn cancel_timeout(&self) -> Duration {
        self.timers.cancel_timeout()
    }

    /// The minimum time that a holder has to cancel a revoked lock.
    pub fn timeout_min(&self) -> Duration {
        self.timers.min()
    }

    /// Sets the minimum time that a holder has to cancel a revoked lock.
    pub fn set_timeout_min(&mut self, min: Duration) {
        self.timers.set_min(min);
    }

    /// The lock with this handle.
    pub fn get(&self, id: LockId) -> Option<&Lock> {
        self.locks.get(id)
    }

    /// A client's lock by the client's cookie; the one with the lowest handle if several have it.
    pub fn find(&self, holder: Holder, cookie: u64) -> Option<&Lock> {
        let first = (holder, cookie, LockId(0));
        let last = (holder, cookie, LockId(u64::MAX));
        self.by_client
            .range(first..=last)
            .next()
            .and_then(|(_, _, id)| self.locks.get(*id))
    }

    /// The granted locks of a resource.
    pub fn granted<'a>(&'a self, res: &LdlmResId) -> impl Iterator<Item = &'a Lock> + 'a {
        let ids = self.resources.get(res).map_or(&[][..], Resource::granted);
        ids.iter().filter_map(|id| self.locks.get(*id))
    }

    /// Pairs of granted locks of different clients that conflict; there must be none.
    #[cfg(feature = "sim")]
    pub(crate) fn granted_conflicts(&self) -> Vec<String> {
        let mut found = Vec::new();
        for res in self.resources.keys() {
            let granted: Vec<&Lock> = self.granted(res).collect();
            for (i, a) in granted.iter().enumerate() {
                let others = granted[i + 1..].iter().filter(|b| a.holder != b.holder);
                let conflicting = others.filter(|b| crate::conflict::conflict(a, b));
                found.extend(conflicting.map(|b| format!("{a:?} and {b:?}")));
            }
        }
        found
    }

    /// The waiting locks of a resource, in the order of the queue.
    pub fn waiting<'a>(&'a self, res: &LdlmResId) -> impl Iterator<Item = &'a Lock> + 'a {
        self.resources
            .get(res)
            .into_iter()
            .flat_map(|r| r.waiting.iter())
            .filter_map(|id| self.locks.get(*id))
    }

    /// The locks to send glimpse ASTs for, one for each client that may have written beyond `size`.
    /// `size` is the object's size as the server knows it, in bytes.
    pub fn writers_beyond(&self, res: &LdlmResId, size: u64) -> Vec<Lock> {
        let ids = extent::writers_beyond(size, self.granted(res));
        ids.into_iter()
            .filter_map(|id| self.locks.get(id).cloned())
            .collect()
    }

    /// Number of locks, granted and waiting.
    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }

    /// Number of resources.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Number of waiting locks.
    pub fn waiting_count(&self) -> usize {
        self.waits.len()
    }

    /// The lengths of the waits that ended with a grant or a deadlock, in microseconds.
    pub fn wait_sums(&self) -> Sums {
        self.waits.sums()
    }

    /// The locks of a client, granted and waiting.
    pub(crate) fn locks_of(&self, holder: Holder) -> impl Iterator<Item = &Lock> {
        self.ids_of_holder(holder).filter_map(|id| self.locks.get(id))
    }

    fn ids_of_holder(&self, holder: Holder) -> impl Iterator<Item = LockId> + '_ {
        let range = (holder, 0, LockId(0))..=(holder, u64::MAX, LockId(u64::MAX));
        self.by_client.range(range).map(|(_, _, id)| *id)
    }

    /// Creates a lock that is neither granted nor waiting.
    pub(crate) fn insert(&mut self, request: &LockRequest) -> Result<LockId, Refusal> {
        let id = self
            .locks
            .insert(Lock::from_request(request))
            .ok_or(Refusal::Full)?;
        self.resources
            .entry(request.res)
            .or_insert_with(|| Resource::new(request.policy.ty()));
        if request.holder != Holder::SERVER {
            self.cursor.skipped = 0;
            self.by_client.insert((request.holder, request.cookie, id));
        }
        Ok(id)
    }

    /// Removes a lock from all lists, and its resource if no locks are left. Does not process the
    /// queue or stop the lock's timer.
    pub(crate) fn forget(&mut self, id: LockId) -> Option<Lock> {
        let lock = self.locks.remove(id)?;
        if !lock.granted {
            self.waits.discard(id);
        }
        self.by_client.remove(&(lock.holder, lock.cookie, id));
        if let Some(resource) = self.resources.get_mut(&lock.res) {
            resource.remove(&lock, &mut self.locks);
            if resource.is_empty() {
                self.resources.remove(&lock.res);
            }
        }
        self.flock_waits.remove(&lock);
        Some(lock)
    }
}

fn is_write_extent(lock: &Lock) -> bool {
    lock.granted && matches!(lock.policy, Policy::Extent(_)) && !lock.mode.compatible(LockMode::Pr)
}

#[cfg(test)]
#[path = "namespace_tests.rs"]
mod tests;
