//! The queue of a resource: grants and blocking ASTs.
//!
//! A request is granted if no granted lock and no lock ahead in the queue conflicts. (A request for
//! a group that already holds the object may overtake waiting locks.) Group locks wait ahead of all
//! other locks. When a lock is removed or reduced, the queue is processed in order. The holder of a
//! conflicting lock gets one blocking AST. If the completion AST that grants the conflicting lock
//! is not sent yet, it also revokes the lock (`LDLM_FL_AST_SENT`), and there is no blocking AST.

use crate::action::Action;
use crate::extent;
use crate::lock::{Holder, Lock, LockId, Waiter};
use crate::mode::LockMode;
use crate::namespace::Namespace;
use crate::policy::{Ibits, LockType, Policy};
use crate::resource::Resource;
use std::time::Instant;
use wire::LdlmResId;

impl Namespace {
    /// Puts a lock into its resource's queue.
    pub(crate) fn queue(&mut self, id: LockId, now: Instant) {
        let Some((want, resource)) = self.lock_and_resource(id) else {
            return;
        };
        let (res, position) = (want.res, resource.queue_position(want, &self.locks));
        if let Some(resource) = self.resources.get_mut(&res) {
            resource.waiting.insert(position, id);
            self.waits.start(id, now);
        }
    }

    /// A lock and its resource.
    fn lock_and_resource(&self, id: LockId) -> Option<(&Lock, &Resource)> {
        let want = self.locks.get(id)?;
        Some((want, self.resources.get(&want.res)?))
    }

    /// Whether any granted lock conflicts.
    pub(crate) fn has_granted_blocker(&self, id: LockId) -> bool {
        self.lock_and_resource(id)
            .is_some_and(|(want, resource)| resource.blockers(want, &self.locks).next().is_some())
    }

    /// Whether any lock ahead in the queue conflicts and must be granted first.
    pub(crate) fn has_waiting_blocker(&self, id: LockId) -> bool {
        let Some((want, resource)) = self.lock_and_resource(id) else {
            return false;
        };
        // A request for the group that holds the object must not wait for locks that the group
        // blocks.
        let joins_group = want.mode == LockMode::Group
            && self.granted(&want.res).any(|l| l.mode == LockMode::Group)
            && !self.has_granted_blocker(id);
        !joins_group && resource.blockers_ahead(want, &self.locks).next().is_some()
    }

    /// Whether a group lock, granted or ahead in the queue, conflicts.
    pub(crate) fn has_group_blocker(&self, id: LockId) -> bool {
        let Some((want, resource)) = self.lock_and_resource(id) else {
            return false;
        };
        let granted = resource.blockers(want, &self.locks);
        let mut blockers = granted.chain(resource.blockers_ahead(want, &self.locks));
        blockers.any(|l| l.mode == LockMode::Group)
    }

    /// Grants a lock without conflicts, with as many optional bits as are free. Returns false if an
    /// inode-bits lock would get no bits.
    pub(crate) fn grant(&mut self, id: LockId) -> bool {
        let Some((want, resource)) = self.lock_and_resource(id) else {
            return false;
        };
        let policy = match want.policy {
            Policy::Extent(requested) => {
                let others = resource
                    .granted()
                    .iter()
                    .chain(&resource.waiting)
                    .filter_map(|o| self.locks.get(*o));
                if resource.waiting.iter().all(|w| *w == id) && !resource.may_block(want) {
                    Policy::Extent(extent::expanded_extent(want, &requested, std::iter::empty()))
                } else {
                    Policy::Extent(extent::expanded_extent(want, &requested, others))
                }
            }
            Policy::Ibits(requested) => {
                Policy::ibits(requested.bits | self.free_bits(want, &requested, resource))
            }
            other => other,
        };
        if policy == Policy::ibits(0) {
            return false;
        }
        let res = want.res;
        if let Some(lock) = self.locks.get_mut(id) {
            lock.policy = policy;
        }
        if let Some(resource) = self.resources.get_mut(&res) {
            resource.leave_queue(id);
            resource.add(id, &mut self.locks);
        }
        true
    }

    /// The optional bits without conflicting locks.
    fn free_bits(&self, want: &Lock, requested: &Ibits, resource: &Resource) -> u64 {
        let optional = requested.try_bits & !requested.bits;
        if optional == 0 {
            return 0;
        }
        let probe = Lock {
            policy: Policy::ibits(optional),
            ..want.clone()
        };
        let blockers = resource
            .blockers(&probe, &self.locks)
            .chain(resource.blockers_ahead(&probe, &self.locks));
        optional & !blockers.fold(0, |bits, l| bits | l.policy.bits())
    }

    /// Revokes the granted locks that block a waiting lock: adds blocking ASTs for their holders.
    /// Drops the locks with `cancel_on_block`, and returns whether there were any. (The caller need
    /// not try again to grant the locks ahead in the queue: a dropped lock blocked none of them, or
    /// it would have been dropped earlier.) Revokes no replayed lock while clients replay.
    pub(crate) fn revoke_blockers(&mut self, now: Instant, id: LockId, out: &mut Vec<Action>) -> bool {
        let Some((want, resource)) = self.lock_and_resource(id) else {
            return false;
        };
        let unrevoked: Vec<LockId> = resource
            .unrevoked_blockers(want, &self.locks)
            // Group locks are revoked only if the object is destroyed: a program may hold them for
            // any time.
            .filter(|l| l.mode != LockMode::Group || want.discard)
            .filter(|l| !(self.replaying && l.replayed))
            .map(|l| l.id)
            .collect();
        if unrevoked.is_empty() {
            return false;
        }
        let (res, mut blocked, discard) = (want.res, want.desc(), want.discard);
        if let Policy::Ibits(i) = want.policy {
            // In a blocking AST the second word holds the bits to cancel.
            blocked.l_policy_data = wire::LdlmPolicyData::inodebits(i.bits, i.bits);
        }
        let mut cancelled = false;
        for held in unrevoked {
            let (Some(lock), Some(resource)) = (self.locks.get_mut(held), self.resources.get_mut(&res))
            else {
                continue;
            };
            resource.change(lock, |lock| lock.ast_sent = true);
            if lock.holder == Holder::SERVER {
                continue;
            }
            if lock.cancel_on_block {
                out.push(Action::Blocking {
                    lock: lock.clone(),
                    blocked,
                    discard,
                });
                self.forget(held);
                cancelled = true;
                continue;
            }
            match pending_completion(held, out) {
                Some(ast_sent) => *ast_sent = true,
                None => out.push(Action::Blocking {
                    lock: lock.clone(),
                    blocked,
                    discard,
                }),
            }
            self.timers.start(held, now);
        }
        cancelled
    }

    /// Processes the queue after a lock has gone or was reduced: grants locks in the order of
    /// the queue, and revokes the granted locks that block the remaining ones. While clients replay
    /// their locks, skips the replayed ones, and all flocks.
    pub(crate) fn reprocess(&mut self, now: Instant, res: &LdlmResId, out: &mut Vec<Action>) {
        let Some(resource) = self.resources.get(res) else {
            return;
        };
        if resource.waiting.is_empty() {
            return;
        }
        if resource.ty == LockType::Flock {
            if !self.replaying {
                self.reprocess_flocks(now, res, out);
            }
            return;
        }
        while self.process_queue(now, res, out) {}
    }

    /// Processes the queue once. Returns true if this granted a group lock. That lock may have
    /// overtaken waiting locks and block them now, so the queue needs another pass.
    fn process_queue(&mut self, now: Instant, res: &LdlmResId, out: &mut Vec<Action>) -> bool {
        let mut granted_group_lock = false;
        for id in self.waiting_ids(res) {
            if self.replaying && self.locks.get(id).is_some_and(|l| l.replayed) {
                continue;
            }
            loop {
                // Check the queue first: most waiting locks conflict with one ahead, and there may
                // be many granted locks.
                if !self.has_waiting_blocker(id) && !self.has_granted_blocker(id) && self.grant(id) {
                    granted_group_lock |= self.locks.get(id).is_some_and(|l| l.mode == LockMode::Group);
                    self.notify_waiter(now, id, false, out);
                    break;
                }
                if !self.revoke_blockers(now, id, out) {
                    break;
                }
            }
        }
        granted_group_lock
    }

    /// The waiting locks of a resource, in order.
    pub(crate) fn waiting_ids(&self, res: &LdlmResId) -> Vec<LockId> {
        self.resources
            .get(res)
            .map(|r| r.waiting.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Reports to the waiter that its lock is granted or, with `deadlock`, dropped.
    pub(crate) fn notify_waiter(&mut self, now: Instant, id: LockId, deadlock: bool, out: &mut Vec<Action>) {
        self.waits.end(id, now);
        let Some(lock) = self.locks.get(id) else { return };
        match lock.waiter {
            Waiter::Client => out.push(Action::Completion {
                lock: lock.clone(),
                ast_sent: false,
                deadlock,
            }),
            Waiter::Local => out.push(Action::Wake {
                id,
                granted: !deadlock,
            }),
        }
    }
}

/// The `ast_sent` of a completion AST that is not sent yet.
fn pending_completion(id: LockId, out: &mut [Action]) -> Option<&mut bool> {
    out.iter_mut().rev().find_map(|a| match a {
        Action::Completion { lock, ast_sent, .. } if lock.id == id => Some(ast_sent),
        _ => None,
    })
}
