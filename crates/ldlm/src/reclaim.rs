//! Chooses the locks that a shard revokes when there are too many: those that block no other lock,
//! in table order.

use crate::action::Action;
use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::namespace::Namespace;
use crate::policy::Policy;
use std::time::Instant;

/// The result of one turn of [`Namespace::reclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// Number of locks revoked.
    pub asked: usize,
    /// The whole table has been scanned without finding a lock to revoke.
    pub exhausted: bool,
}

/// The position of the scan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    slot: usize,
    /// Slots scanned since the last lock was found or created.
    pub(crate) in_vain: usize,
}

/// Slots scanned per turn, because other requests wait for the shard meanwhile.
const LOOK_MAX: usize = 1024;

impl Namespace {
    /// Revokes up to `most` locks that block no other, because there are too many. Scans a part of
    /// the table; the next turn continues there.
    pub fn reclaim(&mut self, now: Instant, most: usize, out: &mut Vec<Action>) -> Reclaimed {
        let spare = |l: &&Lock| {
            let kind = matches!(l.policy, Policy::Extent(_) | Policy::Ibits(_)) && l.mode != LockMode::Group;
            l.granted && !l.ast_sent && l.holder != Holder::SERVER && kind
        };
        if most == 0 {
            return Reclaimed {
                asked: 0,
                exhausted: false,
            };
        }
        let mut hand = self.hand;
        let slots = self.locks.slot_count();
        let looked_at = self.locks.window(hand.slot, LOOK_MAX);
        let chosen: Vec<LockId> = looked_at
            .iter()
            .flatten()
            .filter(spare)
            .take(most)
            .map(|l| l.id)
            .collect();
        let end = hand.slot + looked_at.len();
        match chosen.last() {
            // The slots after the last one were not scanned.
            Some(last) if chosen.len() == most => (hand.slot, hand.in_vain) = (last.slot() + 1, 0),
            Some(last) => (hand.slot, hand.in_vain) = (end, end - last.slot() - 1),
            None => (hand.slot, hand.in_vain) = (end, hand.in_vain + looked_at.len()),
        }
        if hand.slot >= slots {
            hand.slot = 0;
        }
        self.hand = hand;
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
            out.push(Action::Blocking {
                lock: lock.clone(),
                blocked,
                discard: false,
            });
            self.timers.arm(*id, now);
        }
        Reclaimed {
            asked: chosen.len(),
            exhausted: hand.in_vain >= slots,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::LOOK_MAX;
    use crate::action::{Action, NewLock, Placed};
    use crate::lock::{Holder, LockId};
    use crate::mode::LockMode::{self, Group, Pr};
    use crate::namespace::Namespace;
    use crate::policy::{Extent, Policy};
    use std::time::{Duration, Instant};
    use wire::LdlmResId;

    struct Shard {
        ns: Namespace,
        now: Instant,
        out: Vec<Action>,
        made: u64,
    }

    impl Shard {
        fn new() -> Shard {
            Shard {
                ns: Namespace::new(1, 1, Duration::from_secs(100)),
                now: Instant::now(),
                out: Vec::new(),
                made: 0,
            }
        }

        fn granted(&mut self, holder: u64, mode: LockMode) -> LockId {
            // Each has its own resource, so that they do not conflict.
            self.made += 1;
            let res = LdlmResId {
                name: [self.made, 0, 0, 0],
            };
            let new = NewLock::new(
                Holder(holder),
                self.made,
                res,
                mode,
                Policy::Extent(Extent::WHOLE),
            );
            match self.ns.enqueue(self.now, &new, &mut self.out) {
                Ok(Placed::Granted(id)) => id,
                other => panic!("not granted: {other:?}"),
            }
        }

        fn cancel(&mut self, id: LockId) {
            self.ns.cancel(self.now, id, &mut self.out).unwrap();
        }

        /// The number of locks revoked, and whether none are left to revoke.
        fn reclaim(&mut self, most: usize) -> (usize, bool) {
            let found = self.ns.reclaim(self.now, most, &mut self.out);
            (found.asked, found.exhausted)
        }
    }

    #[test]
    fn locks_that_are_too_many_are_asked_back_in_turn_but_for_groups_and_what_is_asked_already() {
        let mut s = Shard::new();
        let held: Vec<LockId> = (1..=4).map(|n| s.granted(n, Pr)).collect();
        assert_eq!(s.reclaim(2), (2, false));
        assert_eq!((s.reclaim(9), s.ns.asked_count()), ((2, false), 4));
        assert_eq!(s.reclaim(9), (0, true));
        let asked: Vec<LockId> = s
            .out
            .iter()
            .filter_map(|a| match a {
                Action::Blocking { lock, .. } => Some(lock.id),
                _ => None,
            })
            .collect();
        assert_eq!(asked, held);
        held.into_iter().for_each(|id| s.cancel(id));
        assert_eq!((s.ns.lock_count(), s.ns.asked_count()), (0, 0));
        s.granted(9, Group);
        assert_eq!(s.reclaim(9), (0, true));
    }

    #[test]
    fn a_turn_of_asking_back_looks_at_a_part_of_the_locks_and_the_next_goes_on_there() {
        let mut s = Shard::new();
        let held: Vec<LockId> = (0..3 * LOOK_MAX).map(|n| s.granted(n as u64 + 1, Pr)).collect();
        let (last, gone) = held.split_last().unwrap();
        gone.iter().for_each(|id| s.cancel(*id));
        let turns = |s: &mut Shard| [s.reclaim(9), s.reclaim(9), s.reclaim(9)];
        assert_eq!(turns(&mut s), [(0, false), (0, false), (1, false)]);
        assert_eq!(turns(&mut s), [(0, false), (0, false), (0, true)]);
        assert!(s.ns.get(*last).unwrap().ast_sent);
        s.granted(1, Pr);
        let found: usize = turns(&mut s).iter().map(|(asked, _)| asked).sum();
        assert_eq!(found, 1, "what is new is looked for");
    }
}
