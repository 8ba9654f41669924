//! Chooses the locks that a shard revokes when there are too many: clients' granted extent and
//! inode-bits locks that block no other lock, except group locks, in table order.

use crate::action::Action;
use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::namespace::Namespace;
use crate::policy::Policy;
use std::time::Instant;

/// The result of one turn of [`Namespace::reclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimResult {
    /// Number of locks revoked.
    pub revoked: usize,
    /// The whole table has been scanned since the last lock was reclaimed or created.
    pub exhausted: bool,
}

/// The position of the scan, kept between turns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReclaimCursor {
    /// The next slot to scan.
    slot: usize,
    /// Slots scanned since the last lock was reclaimed or created.
    pub(crate) skipped: usize,
}

/// Maximum number of slots scanned per turn: other requests wait for the shard meanwhile.
const SCAN_MAX: usize = 1024;

impl Namespace {
    /// Scans a part of the table and revokes up to `max` locks that block no other. The next call
    /// continues after that part. Revokes none while clients replay their locks.
    pub fn reclaim(&mut self, now: Instant, max: usize, out: &mut Vec<Action>) -> ReclaimResult {
        let is_reclaimable = |l: &&Lock| {
            let kind = matches!(l.policy, Policy::Extent(_) | Policy::Ibits(_)) && l.mode != LockMode::Group;
            l.granted && !l.ast_sent && l.holder != Holder::SERVER && kind
        };
        if max == 0 || self.replaying {
            return ReclaimResult {
                revoked: 0,
                exhausted: self.replaying,
            };
        }
        let mut cursor = self.cursor;
        let slots = self.locks.slot_count();
        let scanned = self.locks.slots_from(cursor.slot, SCAN_MAX);
        let chosen: Vec<LockId> = scanned
            .iter()
            .flatten()
            .filter(is_reclaimable)
            .take(max)
            .map(|l| l.id)
            .collect();
        let end = cursor.slot + scanned.len();
        match chosen.last() {
            // The slots after the last chosen lock count as not scanned.
            Some(last) if chosen.len() == max => (cursor.slot, cursor.skipped) = (last.slot() + 1, 0),
            Some(last) => (cursor.slot, cursor.skipped) = (end, end - last.slot() - 1),
            None => (cursor.slot, cursor.skipped) = (end, cursor.skipped + scanned.len()),
        }
        if cursor.slot >= slots {
            cursor.slot = 0;
        }
        self.cursor = cursor;
        for id in &chosen {
            let Some(lock) = self.locks.get_mut(*id) else {
                continue;
            };
            if let Some(resource) = self.resources.get_mut(&lock.res) {
                resource.change(lock, |lock| lock.ast_sent = true);
            }
            let mut blocked = lock.desc();
            (blocked.l_req_mode, blocked.l_granted_mode) = (LockMode::Ex.wire(), 0);
            if let Policy::Ibits(i) = lock.policy {
                blocked.l_policy_data = wire::LdlmPolicyData::inodebits(i.bits, i.bits);
            }
            let drops_lock = lock.cancel_on_block;
            out.push(Action::Blocking {
                lock: lock.clone(),
                blocked,
                discard: false,
            });
            if drops_lock {
                // The lock's client sends no cancel. The lock blocks no other, so no queue changes.
                self.forget(*id);
            } else {
                self.timers.start(*id, now);
            }
        }
        ReclaimResult {
            revoked: chosen.len(),
            exhausted: cursor.skipped >= slots,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::SCAN_MAX;
    use crate::action::{Action, LockRequest, Placement};
    use crate::lock::{Holder, LockId};
    use crate::mode::LockMode::{self, Group, Pr};
    use crate::namespace::Namespace;
    use crate::policy::{Extent, Policy};
    use cpt::HashSeed;
    use std::time::{Duration, Instant};
    use wire::LdlmResId;

    struct Shard {
        ns: Namespace,
        now: Instant,
        out: Vec<Action>,
        created: u64,
    }

    impl Shard {
        fn new() -> Shard {
            Shard {
                ns: Namespace::new(1, 1, HashSeed::fixed(0), Duration::from_secs(100)),
                now: Instant::now(),
                out: Vec::new(),
                created: 0,
            }
        }

        fn grant(&mut self, holder: u64, mode: LockMode) -> LockId {
            self.grant_with(holder, mode, false)
        }

        fn grant_with(&mut self, holder: u64, mode: LockMode, cancel_on_block: bool) -> LockId {
            // Each lock has its own resource, so that they do not conflict.
            self.created += 1;
            let res = LdlmResId {
                name: [self.created, 0, 0, 0],
            };
            let policy = Policy::Extent(Extent::WHOLE);
            let request = LockRequest {
                cancel_on_block,
                ..LockRequest::new(Holder(holder), self.created, res, mode, policy)
            };
            match self.ns.enqueue(self.now, &request, &mut self.out) {
                Ok(Placement::Granted(id)) => id,
                other => panic!("not granted: {other:?}"),
            }
        }

        fn cancel(&mut self, id: LockId) {
            self.ns.cancel(self.now, id, &mut self.out).unwrap();
        }

        /// The number of locks revoked, and whether none are left to revoke.
        fn reclaim(&mut self, max: usize) -> (usize, bool) {
            let found = self.ns.reclaim(self.now, max, &mut self.out);
            (found.revoked, found.exhausted)
        }
    }

    #[test]
    fn reclaim_revokes_each_lock_once_and_never_group_locks() {
        let mut shard = Shard::new();
        let held: Vec<LockId> = (1..=4).map(|n| shard.grant(n, Pr)).collect();
        assert_eq!(shard.reclaim(2), (2, false));
        assert_eq!((shard.reclaim(9), shard.ns.revoked_count()), ((2, false), 4));
        assert_eq!(shard.reclaim(9), (0, true));
        let revoked: Vec<LockId> = shard
            .out
            .iter()
            .filter_map(|a| match a {
                Action::Blocking { lock, .. } => Some(lock.id),
                _ => None,
            })
            .collect();
        assert_eq!(revoked, held);
        held.into_iter().for_each(|id| shard.cancel(id));
        assert_eq!((shard.ns.lock_count(), shard.ns.revoked_count()), (0, 0));
        shard.grant(9, Group);
        assert_eq!(shard.reclaim(9), (0, true));
    }

    #[test]
    fn reclaim_drops_locks_that_their_clients_do_not_cancel() {
        let mut shard = Shard::new();
        let id = shard.grant_with(1, Pr, true);
        assert_eq!(shard.reclaim(9).0, 1);
        assert!(matches!(&shard.out[..], [Action::Blocking { lock, .. }] if lock.id == id));
        assert_eq!((shard.ns.lock_count(), shard.ns.revoked_count()), (0, 0));
        shard.out.clear();
        shard
            .ns
            .expire(shard.now + Duration::from_secs(1000), &mut shard.out);
        assert!(shard.out.is_empty(), "the client is not evicted");
    }

    #[test]
    fn a_reclaim_turn_scans_a_part_and_the_next_continues_there() {
        let mut shard = Shard::new();
        let held: Vec<LockId> = (0..3 * SCAN_MAX).map(|n| shard.grant(n as u64 + 1, Pr)).collect();
        let (last, others) = held.split_last().unwrap();
        others.iter().for_each(|id| shard.cancel(*id));
        let turns = |shard: &mut Shard| [shard.reclaim(9), shard.reclaim(9), shard.reclaim(9)];
        assert_eq!(turns(&mut shard), [(0, false), (0, false), (1, false)]);
        assert_eq!(turns(&mut shard), [(0, false), (0, false), (0, true)]);
        assert!(shard.ns.get(*last).unwrap().ast_sent);
        shard.grant(1, Pr);
        let found: usize = turns(&mut shard).iter().map(|(revoked, _)| revoked).sum();
        assert_eq!(found, 1, "new locks are found");
    }
}
