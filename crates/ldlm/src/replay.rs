//! Replays of locks: after a restart of the server, its clients claim the locks that they held or
//! waited for (docs/protocol.md, "Locks (LDLM)").
//!
//! A granted lock is granted again as it was, without a check for conflicts: the former server had
//! granted all of them together. Until every client has replayed its locks, a granted lock that is
//! still missing may conflict with any replayed waiting one. So the namespace grants no replayed
//! waiting lock until then. It also revokes no replayed lock: a client knows the new handle of a
//! lock only after the reply. Other requests are ordinary. Their sender has made sure that no lock
//! that is still missing conflicts with them.

use crate::action::{Action, LockRequest, Placement, Refusal};
use crate::lock::LockId;
use crate::mode::LockMode;
use crate::namespace::Namespace;
use crate::policy::{LockType, Policy};
use crate::resource::Resource;
use std::time::Instant;
use wire::LdlmResId;

impl Namespace {
    /// Begins to accept replays; ended by [`Namespace::replay_done`]. Locks that exist already
    /// count as replayed.
    pub fn begin_replay(&mut self) {
        self.replaying = true;
        let all = |r: &Resource| r.granted().iter().chain(&r.waiting).copied().collect::<Vec<_>>();
        let ids: Vec<LockId> = self.resources.values().flat_map(all).collect();
        for id in ids {
            if let Some(lock) = self.locks.get_mut(id) {
                lock.replayed = true;
            }
        }
    }

    /// All clients have replayed their locks: processes the queues. Grants the waiting locks that
    /// no lock blocks, and revokes the locks that block the others.
    pub fn replay_done(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.replaying = false;
        let with_queue = self.resources.iter().filter(|(_, r)| !r.waiting.is_empty());
        let queues: Vec<LdlmResId> = with_queue.map(|(res, _)| *res).collect();
        for res in &queues {
            self.reprocess(now, res, out);
        }
    }

    /// Replays a lock. With `granted`, the lock is granted exactly as requested; a flock merges
    /// with its owner's other ranges as usual. Otherwise the lock is queued. If the client repeats
    /// a replay, the result is the lock of the first one. Outside of the time for replays, this is
    /// an ordinary request.
    ///
    /// # Errors
    ///
    /// The reason if the lock is refused.
    pub fn replay(
        &mut self,
        now: Instant,
        request: &LockRequest,
        granted: bool,
        out: &mut Vec<Action>,
    ) -> Result<Placement, Refusal> {
        if !self.replaying {
            return self.enqueue(now, request, out);
        }
        let ty = request.policy.ty();
        if self.resources.get(&request.res).is_some_and(|r| r.ty != ty) {
            return Err(Refusal::WrongType);
        }
        let is_flock = ty == LockType::Flock;
        if is_flock && !matches!(request.mode, LockMode::Pr | LockMode::Pw) {
            return Err(Refusal::WrongMode);
        }
        if let (true, Some(node)) = (is_flock, request.node) {
            self.flock_waits.set_node(request.holder, node);
        }
        // Granting a flock again changes nothing, and merged flocks share a cookie.
        if !(is_flock && granted)
            && let Some(earlier) = self.find(request.holder, request.cookie)
        {
            let id = earlier.id;
            let lock = (earlier.res, earlier.mode, earlier.policy, earlier.granted);
            if lock == (request.res, request.mode, request.policy, granted) {
                return Ok(placement(id, granted));
            }
            self.forget(id);
        }
        let id = self.insert(request)?;
        if let Some(lock) = self.locks.get_mut(id) {
            lock.replayed = true;
        }
        if !granted {
            self.queue(id, now);
            if let (true, Some(lock)) = (is_flock, self.locks.get(id)) {
                self.flock_waits.add(lock);
            }
        } else if is_flock {
            self.grant_flock(id).inspect_err(|_| {
                self.forget(id);
            })?;
        } else {
            self.grant_exactly(id, &request.res);
        }
        Ok(placement(id, granted))
    }

    fn grant_exactly(&mut self, id: LockId, res: &LdlmResId) {
        if let Some(lock) = self.locks.get_mut(id)
            && let Policy::Ibits(held) = lock.policy
        {
            lock.policy = Policy::ibits(held.bits);
        }
        if let Some(resource) = self.resources.get_mut(res) {
            resource.add(id, &mut self.locks);
        }
    }
}

fn placement(id: LockId, granted: bool) -> Placement {
    match granted {
        true => Placement::Granted(id),
        false => Placement::Queued {
            id,
            granted_conflict: false,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::action::{Action, LockRequest, Placement, Refusal};
    use crate::lock::{Holder, LockId};
    use crate::mode::LockMode::{self, Nl, Pr, Pw};
    use crate::namespace::Namespace;
    use crate::policy::{Flock, Ibits, Policy};
    use cpt::HashSeed;
    use std::time::{Duration, Instant};
    use wire::LdlmResId;

    const RES: LdlmResId = LdlmResId { name: [1, 2, 3, 4] };

    struct Shard {
        ns: Namespace,
        now: Instant,
        out: Vec<Action>,
    }

    impl Shard {
        fn new() -> Shard {
            let mut ns = Namespace::new(1, 1, HashSeed::fixed(0), Duration::from_secs(100));
            ns.begin_replay();
            Shard {
                ns,
                now: Instant::now(),
                out: Vec::new(),
            }
        }

        /// Replays a lock. Its holder's number is also its cookie.
        fn replay(
            &mut self,
            holder: u64,
            mode: LockMode,
            policy: Policy,
            granted: bool,
        ) -> Result<LockId, Refusal> {
            let request = LockRequest::new(Holder(holder), holder, RES, mode, policy);
            let placement = self.ns.replay(self.now, &request, granted, &mut self.out)?;
            match placement {
                Placement::Granted(id) if granted => Ok(id),
                Placement::Queued { id, .. } if !granted => Ok(id),
                other => panic!("granted: {granted}, but {other:?}"),
            }
        }

        fn replay_done(&mut self) {
            assert!(self.out.is_empty(), "before the end: {:?}", self.out);
            self.ns.replay_done(self.now, &mut self.out);
        }

        fn cancel(&mut self, id: LockId) {
            self.ns.cancel(self.now, id, &mut self.out).unwrap();
        }

        /// The revoked locks and the completed ones.
        fn asts(&mut self) -> (Vec<LockId>, Vec<LockId>) {
            let (mut revoked, mut completed) = (Vec::new(), Vec::new());
            for action in self.out.drain(..) {
                match action {
                    Action::Blocking { lock, .. } => revoked.push(lock.id),
                    Action::Completion { lock, .. } => completed.push(lock.id),
                    other => panic!("{other:?}"),
                }
            }
            (revoked, completed)
        }

        fn granted(&self) -> Vec<(u64, LockMode, Policy)> {
            let mut granted: Vec<_> = self
                .ns
                .granted(&RES)
                .map(|l| (l.holder.0, l.mode, l.policy))
                .collect();
            granted.sort_unstable_by_key(|(holder, ..)| *holder);
            granted
        }
    }

    fn flock(start: u64, end: u64) -> Policy {
        Policy::Flock(Flock {
            start,
            end,
            owner: 7,
            pid: 8,
        })
    }

    #[test]
    fn granted_locks_are_granted_as_they_were() {
        let extents = [
            (1, Pw, Policy::extent(0, 99)),
            (2, Pw, Policy::extent(100, u64::MAX)),
            (3, Pr, Policy::extent(0, 9)),
        ];
        let mut shard = Shard::new();
        for (holder, mode, policy) in extents {
            shard.replay(holder, mode, policy, true).unwrap();
        }
        assert_eq!(shard.granted(), extents);
        let mut shard = Shard::new();
        let optional = Policy::Ibits(Ibits { bits: 3, try_bits: 4 });
        shard.replay(1, Pr, optional, true).unwrap();
        assert_eq!(shard.granted(), [(1, Pr, Policy::ibits(3))]);
        assert_eq!(shard.replay(2, Pr, Policy::Plain, true), Err(Refusal::WrongType));
    }

    #[test]
    fn a_waiting_lock_waits_until_all_locks_are_replayed() {
        let mut shard = Shard::new();
        let waiting = shard.replay(2, Pw, Policy::ibits(1), false).unwrap();
        let reader = shard.replay(3, Pr, Policy::ibits(1), false).unwrap();
        let gone = shard.replay(4, Pr, Policy::ibits(1), true).unwrap();
        shard.cancel(gone);
        shard.replay(5, Pr, Policy::ibits(1), true).unwrap();
        shard.ns.drop_holder(shard.now, Holder(5), &mut shard.out);
        let held = shard.replay(1, Pr, Policy::ibits(3), true).unwrap();
        shard.replay_done();
        assert_eq!(shard.asts(), (vec![held], vec![]));
        shard.cancel(held);
        assert_eq!(shard.asts(), (vec![], vec![waiting]));
        shard.cancel(waiting);
        assert_eq!(shard.asts(), (vec![], vec![reader]));
    }

    #[test]
    fn a_waiting_lock_without_a_holder_is_granted_at_the_end() {
        let mut shard = Shard::new();
        let waiting = shard.replay(2, Pw, Policy::extent(0, 9), false).unwrap();
        shard.replay_done();
        assert_eq!(shard.asts(), (vec![], vec![waiting]));
    }

    #[test]
    fn a_repeated_replay_is_the_same_lock() {
        let mut shard = Shard::new();
        let held = shard.replay(1, Pw, Policy::ibits(3), true).unwrap();
        let waiting = shard.replay(2, Pw, Policy::ibits(3), false).unwrap();
        assert_eq!(shard.replay(1, Pw, Policy::ibits(3), true), Ok(held));
        assert_eq!(shard.replay(2, Pw, Policy::ibits(3), false), Ok(waiting));
        // The client has converted the lock meanwhile.
        shard.replay(1, Pw, Policy::ibits(1), true).unwrap();
        assert_eq!(shard.granted(), [(1, Pw, Policy::ibits(1))]);
        assert_eq!((shard.ns.lock_count(), shard.ns.waiting_count()), (2, 1));
    }

    #[test]
    fn no_lock_is_revoked_meanwhile() {
        let mut shard = Shard::new();
        shard.replay(1, Pw, Policy::ibits(3), true).unwrap();
        let request = LockRequest::local(Holder::SERVER, 0, RES, Pw, Policy::ibits(1));
        let queued = shard.ns.enqueue(shard.now, &request, &mut shard.out);
        assert!(matches!(queued, Ok(Placement::Queued { .. })));
        let found = shard.ns.reclaim(shard.now, 9, &mut shard.out);
        assert_eq!((found.revoked, found.exhausted), (0, true));
        shard.replay_done();
        assert_eq!(shard.asts().0.len(), 1);
    }

    #[test]
    fn flocks_merge_and_waiting_ones_get_the_range_when_it_is_free() {
        let mut shard = Shard::new();
        let waiting = shard.replay(2, Pw, flock(5, 5), false).unwrap();
        for range in [flock(0, 9), flock(10, 19), flock(0, 9)] {
            shard.replay(1, Pr, range, true).unwrap();
        }
        shard.replay(1, Pw, flock(12, 12), true).unwrap();
        let ranges = [
            (1, Pr, flock(0, 11)),
            (1, Pw, flock(12, 12)),
            (1, Pr, flock(13, 19)),
        ];
        assert!(ranges.iter().all(|range| shard.granted().contains(range)));
        assert_eq!(shard.granted().len(), 3, "{:?}", shard.granted());
        assert_eq!(shard.replay(1, Nl, flock(0, 9), true), Err(Refusal::WrongMode));
        shard.replay_done();
        assert_eq!(shard.asts(), (vec![], vec![]));
        let unlock = LockRequest::new(Holder(1), 9, RES, Nl, flock(0, 5));
        shard.ns.enqueue(shard.now, &unlock, &mut shard.out).unwrap();
        assert_eq!(shard.asts(), (vec![], vec![waiting]));
    }

    #[test]
    fn replayed_waits_count_for_deadlocks() {
        let mut shard = Shard::new();
        shard.replay(1, Pw, flock(0, 0), true).unwrap();
        shard.replay(2, Pw, flock(9, 9), true).unwrap();
        let request = |holder, offset| LockRequest::new(Holder(holder), 11, RES, Pw, flock(offset, offset));
        let queued = shard.ns.replay(shard.now, &request(1, 9), false, &mut shard.out);
        assert!(matches!(queued, Ok(Placement::Queued { .. })));
        shard.replay_done();
        let refused = shard.ns.enqueue(shard.now, &request(2, 0), &mut shard.out);
        assert_eq!(refused.err(), Some(Refusal::Deadlock));
    }

    #[test]
    fn outside_of_the_time_for_replays_a_replay_is_an_ordinary_request() {
        let mut shard = Shard::new();
        shard.replay(1, Pw, Policy::ibits(1), true).unwrap();
        shard.replay_done();
        let request = LockRequest::new(Holder(2), 2, RES, Pw, Policy::ibits(1));
        let placement = shard.ns.replay(shard.now, &request, true, &mut shard.out);
        assert!(matches!(placement, Ok(Placement::Queued { .. })), "{placement:?}");
    }
}
