//! The lock manager's state machine: one shard of a target's locks.
//!
//! A [`Namespace`] owns all locks of its resources, granted and waiting, and decides about grants.
//! It does no I/O and has no clock: the caller passes events and the time, and carries out the
//! returned [`Action`]s. The rules are the protocol's: a request is granted if no granted lock and
//! no lock that waits longer conflicts. Otherwise it is queued or, if it must not wait, refused.
//! The holder of each granted lock that blocks a queued one gets one blocking AST, except for
//! flocks, which are never revoked.

use crate::action::{Action, LockRequest, Placement, Refusal};
use crate::deadlock::FlockWaits;
use crate::extent;
use crate::lock::{Holder, Lock, LockId, LockTable, Waiter};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::reclaim::ReclaimCursor;
use crate::resource::Resource;
use crate::timers::Timers;
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::LdlmResId;

/// One shard of the locks of a target.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) locks: LockTable,
    pub(crate) resources: HashMap<LdlmResId, Resource>,
    /// The locks of each client, by the client's cookies.
    pub(crate) by_client: BTreeSet<(Holder, u64, LockId)>,
    /// The waiting flocks, for deadlock detection.
    pub(crate) flock_waits: FlockWaits,
    pub(crate) timers: Timers,
    pub(crate) cursor: ReclaimCursor,
}

impl Namespace {
    /// An empty shard. `seed` must differ after each restart of the server, so that old handles
    /// name no new locks. `timeout_min` is the minimum time that a holder has to cancel a revoked
    /// lock (`ldlm_enqueue_min`).
    pub fn new(shard: u8, seed: u64, timeout_min: Duration) -> Namespace {
        Namespace {
            locks: LockTable::new(shard, seed),
            resources: HashMap::default(),
            by_client: BTreeSet::new(),
            flock_waits: FlockWaits::default(),
            timers: Timers::new(timeout_min),
            cursor: ReclaimCursor::default(),
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
            let granted_conflict = self.has_granted_blocker(id);
            if !granted_conflict && !self.has_waiting_blocker(id) {
                if self.grant(id) {
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
                self.queue(id);
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
            self.timers.stop(*id, now);
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

    /// The waiting locks of a resource, the longest wait first.
    pub fn waiting<'a>(&'a self, res: &LdlmResId) -> impl Iterator<Item = &'a Lock> + 'a {
        self.resources
            .get(res)
            .into_iter()
            .flat_map(|r| r.waiting.iter())
            .filter_map(|id| self.locks.get(*id))
    }

    /// The locks to send glimpse ASTs for, one for each client that may have written beyond `size`,
    /// the object's size as the server knows it, bytes.
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
        self.resources.values().map(|r| r.waiting.len()).sum()
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Namespace;
    use crate::action::{Action, LockRequest, Placement, Refusal};
    use crate::lock::{Holder, LockId};
    use crate::mode::LockMode::{self, Cr, Cw, Ex, Group, Pr, Pw};
    use crate::policy::{Extent, Ibits, Policy};
    use std::time::{Duration, Instant};
    use wire::LdlmResId;

    const RES: LdlmResId = LdlmResId { name: [1, 2, 3, 4] };
    const TIMEOUT: Duration = Duration::from_secs(100);

    struct Shard {
        ns: Namespace,
        now: Instant,
        out: Vec<Action>,
        cookie: u64,
    }

    impl Shard {
        fn new() -> Shard {
            Shard {
                ns: Namespace::new(1, 1, TIMEOUT),
                now: Instant::now(),
                out: Vec::new(),
                cookie: 0,
            }
        }

        fn enqueue(&mut self, holder: u64, mode: LockMode, policy: Policy) -> Result<Placement, Refusal> {
            self.cookie += 1;
            let request = LockRequest::new(Holder(holder), self.cookie, RES, mode, policy);
            self.ns.enqueue(self.now, &request, &mut self.out)
        }

        fn grant(&mut self, holder: u64, mode: LockMode, policy: Policy) -> LockId {
            match self.enqueue(holder, mode, policy) {
                Ok(Placement::Granted(id)) => id,
                other => panic!("not granted: {other:?}"),
            }
        }

        fn queue(&mut self, holder: u64, mode: LockMode, policy: Policy) -> LockId {
            match self.enqueue(holder, mode, policy) {
                Ok(Placement::Queued { id, .. }) => id,
                other => panic!("not queued: {other:?}"),
            }
        }

        fn cancel(&mut self, id: LockId) {
            self.ns.cancel(self.now, id, &mut self.out).unwrap();
        }

        fn completions(&mut self) -> Vec<(LockId, bool)> {
            let completed = self.out.iter().filter_map(|a| match a {
                Action::Completion { lock, ast_sent, .. } => Some((lock.id, *ast_sent)),
                _ => None,
            });
            completed.collect()
        }
    }

    fn optional(bits: u64, try_bits: u64) -> Policy {
        Policy::Ibits(Ibits { bits, try_bits })
    }

    #[test]
    fn disjoint_bits_do_not_conflict() {
        let mut shard = Shard::new();
        shard.grant(1, Ex, Policy::ibits(1));
        shard.grant(2, Ex, Policy::ibits(2));
        shard.queue(3, Pr, Policy::ibits(3));
    }

    #[test]
    fn only_locks_with_bits_in_common_are_revoked() {
        const OTHERS: u64 = 0x13 & !2 | 0x100;
        let mut shard = Shard::new();
        for holder in 0..20 {
            shard.grant(holder, Pr, Policy::ibits(OTHERS));
        }
        shard.grant(20, Cw, Policy::ibits(2));
        let held = shard.grant(21, Cr, Policy::ibits(3));
        let writer = shard.queue(22, Ex, Policy::ibits(2 | 0x200));
        let blocking_asts: Vec<_> = shard
            .out
            .iter()
            .filter(|a| matches!(a, Action::Blocking { .. }))
            .collect();
        assert_eq!(blocking_asts.len(), 2, "{blocking_asts:?}");
        let first = shard.ns.granted(&RES).find(|l| l.mode == Cw).unwrap().id;
        shard.cancel(first);
        assert!(shard.completions().is_empty());
        let left = shard.ns.convert(shard.now, held, 1, &mut shard.out);
        assert_eq!((left, shard.completions()), (Some(1), vec![(writer, false)]));
        shard.queue(23, Cw, Policy::ibits(1));
        shard.cancel(held);
        shard.queue(24, Cw, Policy::ibits(2));
    }

    #[test]
    fn many_holders_get_one_ast_each_and_another_for_kept_bits() {
        let mut shard = Shard::new();
        let held: Vec<LockId> = (0..20)
            .map(|h| shard.grant(h + 1, Pr, Policy::ibits(3)))
            .collect();
        let first = shard.queue(30, Pw, Policy::ibits(1));
        shard.queue(31, Pw, Policy::ibits(1));
        assert_eq!(shard.out.len(), 20);
        shard.out.clear();
        for id in &held {
            shard.ns.convert(shard.now, *id, 2, &mut shard.out);
        }
        assert_eq!(shard.completions(), [(first, true)]);
        shard.out.clear();
        shard.queue(32, Pw, Policy::ibits(2));
        shard.queue(33, Pw, Policy::ibits(2));
        assert_eq!(shard.out.len(), 20);
    }

    #[test]
    fn the_blocking_ast_is_sent_once_with_the_bits_to_cancel() {
        let mut shard = Shard::new();
        let held = shard.grant(1, Pr, Policy::ibits(0x13));
        shard.queue(2, Pw, Policy::ibits(2));
        shard.queue(3, Pw, Policy::ibits(2));
        let [Action::Blocking { lock, blocked, .. }] = &shard.out[..] else {
            panic!("{:?}", shard.out)
        };
        assert_eq!(lock.id, held);
        assert_eq!(
            (blocked.l_req_mode, blocked.l_policy_data.cancel_bits()),
            (wire::LCK_PW, 2)
        );
    }

    #[test]
    fn a_lock_on_behalf_of_a_client_does_not_conflict_with_its_locks() {
        let mut shard = Shard::new();
        let own = shard.grant(1, Pr, Policy::ibits(2));
        let others = shard.grant(2, Pr, Policy::ibits(2));
        let request = LockRequest::local(Holder::SERVER, 0, RES, Pw, Policy::ibits(2));
        let request = LockRequest {
            on_behalf: Holder(1),
            ..request
        };
        let placement = shard.ns.enqueue(shard.now, &request, &mut shard.out).unwrap();
        assert!(matches!(placement, Placement::Queued { .. }), "{placement:?}");
        let revoked = |shard: &Shard| {
            let revoked = shard.out.iter().filter_map(|a| match a {
                Action::Blocking { lock, .. } => Some(lock.id),
                _ => None,
            });
            revoked.collect::<Vec<_>>()
        };
        assert_eq!(revoked(&shard), [others]);
        shard.cancel(others);
        assert!(matches!(
            shard.out.last(),
            Some(Action::Wake { granted: true, .. })
        ));
        // The lock does not block that client's new locks; other clients wait.
        shard.grant(1, Pr, Policy::ibits(2));
        shard.queue(2, Pr, Policy::ibits(2));
        assert_eq!(revoked(&shard), [others]);
        assert!(shard.ns.get(own).is_some());
    }

    #[test]
    fn optional_bits_are_granted_only_if_free() {
        let mut shard = Shard::new();
        shard.grant(1, Ex, Policy::ibits(8));
        let id = shard.grant(2, Pr, optional(1, 2 | 8));
        assert_eq!(shard.ns.get(id).unwrap().policy, Policy::ibits(3));
        assert_eq!(
            shard.enqueue(3, Pr, optional(0, 8)).err(),
            Some(Refusal::WouldBlock)
        );
        assert!(shard.out.is_empty(), "optional bits revoke no lock");
    }

    #[test]
    fn locks_are_granted_in_the_order_of_waiting() {
        let mut shard = Shard::new();
        let reader = shard.grant(1, Pr, Policy::Plain);
        let writer = shard.queue(2, Ex, Policy::Plain);
        let late = shard.queue(3, Pr, Policy::Plain);
        shard.cancel(reader);
        assert_eq!(
            shard.completions(),
            [(writer, true)],
            "it already blocks the next one"
        );
        shard.out.clear();
        shard.cancel(writer);
        assert_eq!(shard.completions(), [(late, false)]);
    }

    #[test]
    fn converting_a_lock_grants_waiting_ones() {
        let mut shard = Shard::new();
        let held = shard.grant(1, Pr, Policy::ibits(3));
        let first = shard.queue(2, Pw, Policy::ibits(2));
        shard.queue(3, Pw, Policy::ibits(1));
        shard.out.clear();
        assert_eq!(shard.ns.convert(shard.now, held, 1, &mut shard.out), Some(1));
        assert_eq!(shard.completions(), [(first, false)]);
        let revoked_again = shard
            .out
            .iter()
            .any(|a| matches!(a, Action::Blocking { lock, .. } if lock.id == held));
        assert!(revoked_again, "the remaining bits block another lock");
    }

    #[test]
    fn cancel_on_block_drops_the_lock_at_once() {
        let mut shard = Shard::new();
        shard.cookie += 1;
        let droppable = LockRequest {
            cancel_on_block: true,
            ..LockRequest::new(Holder(1), 1, RES, Pr, Policy::Plain)
        };
        shard.ns.enqueue(shard.now, &droppable, &mut shard.out).unwrap();
        shard.grant(2, Ex, Policy::Plain);
        assert!(matches!(&shard.out[..], [Action::Blocking { .. }]));
        assert!(!shard.ns.has_revoked(), "no timer runs");
        assert_eq!(shard.ns.lock_count(), 1);
    }

    #[test]
    fn a_group_lock_joins_its_group_ahead_of_waiting_locks() {
        let group = |gid| Policy::Extent(Extent { gid, ..Extent::WHOLE });
        let mut shard = Shard::new();
        shard.grant(1, Group, group(7));
        shard.queue(2, Group, group(8));
        shard.queue(3, Pr, Policy::extent(0, 0));
        shard.grant(4, Group, group(7));
    }

    #[test]
    fn a_holder_is_evicted_after_the_timeout() {
        let mut shard = Shard::new();
        let held = shard.grant(1, Pw, Policy::extent(0, 0));
        shard.queue(2, Pw, Policy::extent(0, 0));
        shard
            .ns
            .expire(shard.now + TIMEOUT - Duration::from_millis(1), &mut shard.out);
        assert_eq!(shard.out.len(), 1);
        shard.ns.expire(shard.now + TIMEOUT, &mut shard.out);
        assert!(matches!(&shard.out[1..], [Action::Evict { holder: Holder(1), id, .. }] if *id == held));
        shard.ns.drop_holder(shard.now, Holder(1), &mut shard.out);
        assert_eq!(shard.completions().len(), 1);
        assert!(!shard.ns.has_revoked());
    }

    #[test]
    fn a_resource_has_locks_of_one_type() {
        let mut shard = Shard::new();
        shard.grant(1, Pr, Policy::Plain);
        assert_eq!(
            shard.enqueue(1, Pr, Policy::ibits(1)).err(),
            Some(Refusal::WrongType)
        );
    }

    #[test]
    fn a_stale_handle_is_unknown() {
        let mut shard = Shard::new();
        let old = shard.grant(1, Pr, Policy::Plain);
        shard.cancel(old);
        let current = shard.grant(1, Pr, Policy::Plain);
        assert_ne!(old, current);
        assert!(shard.ns.get(old).is_none());
        assert_eq!(current.shard(), 1);
    }

    #[test]
    fn a_writer_waits_for_the_last_of_many_readers() {
        let mut shard = Shard::new();
        let readers: Vec<LockId> = (0..100)
            .map(|i| shard.grant(i + 1, Pr, Policy::ibits(2)))
            .collect();
        shard.grant(200, Pr, Policy::ibits(2));
        shard.queue(201, Ex, Policy::ibits(2));
        assert_eq!(shard.out.len(), 101);
        shard.out.clear();
        readers.into_iter().for_each(|id| shard.cancel(id));
        assert!(shard.out.is_empty());
        shard.ns.drop_holder(shard.now, Holder(200), &mut shard.out);
        assert_eq!(shard.completions().len(), 1);
    }
}
