//! Flocks: byte ranges of a file that owners lock, as with `fcntl` and `flock`.
//!
//! Ranges of one owner never conflict. A new range merges with the owner's overlapping and adjacent
//! ranges of the same mode, and replaces the covered parts of ranges of the other mode. A request
//! of mode NL unlocks. A request that would wait for an owner that waits, directly or indirectly,
//! for the requesting owner fails as a deadlock (module `deadlock`). Owners wait across files, so
//! all flocks of a target are in one shard.

use crate::action::{Action, LockRequest, Placement, Refusal};
use crate::conflict::conflict;
use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::namespace::Namespace;
use crate::policy::{Flock, LockType, Policy};
use crate::resource::Resource;
use std::time::Instant;
use wire::LdlmResId;

/// An owner: its client, and the client's number of the owner.
type Owner = (Holder, u64);

impl Namespace {
    pub(crate) fn enqueue_flock(
        &mut self,
        now: Instant,
        request: &LockRequest,
        out: &mut Vec<Action>,
    ) -> Result<Placement, Refusal> {
        if !matches!(request.mode, LockMode::Pr | LockMode::Pw | LockMode::Nl) {
            return Err(Refusal::WrongMode);
        }
        if let Some(node) = request.node {
            self.flock_waits.set_node(request.holder, node);
        }
        if request.test {
            return self.test_flock(request);
        }
        if request.mode == LockMode::Nl {
            let id = self.locks.transient_id();
            if self.adjust_owner_ranges(request, None)?.gave_up_range {
                self.reprocess(now, &request.res, out);
            }
            return Ok(Placement::Unlocked(id));
        }
        let id = self.insert(request)?;
        if self.is_blocked(id) {
            let refusal = match request.no_wait {
                true => Some(Refusal::WouldBlock),
                false if self.would_deadlock(id) => Some(Refusal::Deadlock),
                false => None,
            };
            if let Some(refusal) = refusal {
                self.forget(id);
                return Err(refusal);
            }
            self.queue(id, now);
            if let Some(lock) = self.locks.get(id) {
                self.flock_waits.add(lock);
            }
            return Ok(Placement::Queued {
                id,
                granted_conflict: true,
            });
        }
        let gave_up_range = self.grant_flock(id).inspect_err(|_| {
            self.forget(id);
        })?;
        if gave_up_range {
            self.reprocess(now, &request.res, out);
        }
        Ok(Placement::Granted(id))
    }

    /// Grants the waiting flocks that no granted flock blocks, in the order of waiting. A grant may
    /// close a cycle of waiting owners. Then the server drops a waiting flock of the cycle and
    /// reports the deadlock to its client, if the client accepts such reports.
    pub(crate) fn reprocess_flocks(&mut self, now: Instant, res: &LdlmResId, out: &mut Vec<Action>) {
        let mut granted_any = true;
        while std::mem::take(&mut granted_any) {
            for id in self.waiting_ids(res) {
                if self.is_blocked(id) {
                    continue;
                }
                if let Ok(gave_up_range) = self.grant_flock(id) {
                    self.notify_waiter(now, id, false, out);
                    // An owner that changed from write to read may have unblocked locks that wait
                    // ahead of it.
                    granted_any |= gave_up_range;
                }
            }
        }
        for id in self.waiting_ids(res) {
            if self.locks.get(id).is_some_and(|l| l.report_deadlock) && self.would_deadlock(id) {
                self.notify_waiter(now, id, true, out);
                self.forget(id);
            }
        }
    }

    fn test_flock(&mut self, request: &LockRequest) -> Result<Placement, Refusal> {
        let id = self.insert(request)?;
        // Report the conflict with the lowest start, as other file systems do for `F_GETLK`.
        let start = |held: &&Lock| match held.policy {
            Policy::Flock(flock) => flock.start,
            _ => u64::MAX,
        };
        let conflict = self.locks.get(id).and_then(|want| {
            let held = self.granted(&request.res).filter(|held| conflict(held, want));
            held.min_by_key(start).cloned()
        });
        self.forget(id);
        Ok(Placement::Tested {
            id: self.locks.transient_id(),
            conflict,
        })
    }

    fn is_blocked(&self, id: LockId) -> bool {
        self.locks
            .get(id)
            .is_some_and(|want| self.granted(&want.res).any(|held| conflict(held, want)))
    }

    /// Grants a flock and adjusts the owner's other ranges. Returns whether ranges of the other
    /// mode were removed or reduced: waiting locks may then be granted.
    pub(crate) fn grant_flock(&mut self, id: LockId) -> Result<bool, Refusal> {
        let Some(lock) = self.locks.get(id) else {
            return Ok(false);
        };
        let (holder, cookie, res, mode) = (lock.holder, lock.cookie, lock.res, lock.mode);
        let request = LockRequest {
            report_deadlock: lock.report_deadlock,
            ..LockRequest::new(holder, cookie, res, mode, lock.policy)
        };
        let adjusted = self.adjust_owner_ranges(&request, Some(id))?;
        if let Some(lock) = self.locks.get_mut(id) {
            let wait = lock.clone();
            lock.policy = Policy::Flock(adjusted.range);
            self.flock_waits.remove(&wait);
        }
        // Merging may have removed the resource's last lock, and the resource with it.
        let resource = self
            .resources
            .entry(res)
            .or_insert_with(|| Resource::new(LockType::Flock));
        resource.leave_queue(id);
        resource.add(id, &mut self.locks);
        Ok(adjusted.gave_up_range)
    }

    /// Adjusts the granted ranges of an owner, except lock `id`, for a new range: merges
    /// overlapping and adjacent ranges of the same mode, removes the covered parts of the others.
    fn adjust_owner_ranges(
        &mut self,
        request: &LockRequest,
        id: Option<LockId>,
    ) -> Result<RangeAdjustment, Refusal> {
        let Policy::Flock(want) = request.policy else {
            return Err(Refusal::WrongType);
        };
        if !self.locks.has_free_slot() {
            return Err(Refusal::Full);
        }
        let mut out = RangeAdjustment {
            range: want,
            gave_up_range: false,
        };
        let own: Vec<(LockId, LockMode, Flock)> = self
            .granted(&request.res)
            .filter(|l| Some(l.id) != id && owner(l.holder, &l.policy) == Some((request.holder, want.owner)))
            .filter_map(|l| match l.policy {
                Policy::Flock(f) => Some((l.id, l.mode, f)),
                _ => None,
            })
            .collect();
        for (held, mode, range) in own {
            if mode == request.mode {
                if range.start <= want.end.saturating_add(1) && want.start <= range.end.saturating_add(1) {
                    out.range.start = out.range.start.min(range.start);
                    out.range.end = out.range.end.max(range.end);
                    self.forget(held);
                }
                continue;
            }
            if !range.overlaps(&want) {
                continue;
            }
            out.gave_up_range = true;
            let below = (range.start < want.start).then(|| Flock {
                end: want.start - 1,
                ..range
            });
            let above = (range.end > want.end).then(|| Flock {
                start: want.end + 1,
                ..range
            });
            match (below, above) {
                (Some(rest), None) | (None, Some(rest)) => self.set_range(held, rest),
                (Some(below), Some(above)) => {
                    self.set_range(held, below);
                    self.split_off(held, above)?;
                }
                (None, None) => drop(self.forget(held)),
            }
        }
        Ok(out)
    }

    fn set_range(&mut self, id: LockId, range: Flock) {
        if let Some(lock) = self.locks.get_mut(id) {
            lock.policy = Policy::Flock(range);
        }
    }

    /// Creates a second lock for the upper part of a range that was split. The ranges of an owner
    /// are disjoint, so a request splits at most one, and one free slot suffices.
    fn split_off(&mut self, from: LockId, range: Flock) -> Result<(), Refusal> {
        let Some(lock) = self.locks.get(from) else {
            return Ok(());
        };
        let request = LockRequest::new(
            lock.holder,
            lock.cookie,
            lock.res,
            lock.mode,
            Policy::Flock(range),
        );
        let id = self.insert(&request)?;
        if let Some(resource) = self.resources.get_mut(&request.res) {
            resource.add(id, &mut self.locks);
        }
        Ok(())
    }
}

/// The result of `adjust_owner_ranges`.
struct RangeAdjustment {
    /// The requested range, extended by the ranges that were merged into it.
    range: Flock,
    /// A range of another mode was removed or reduced.
    gave_up_range: bool,
}

fn owner(holder: Holder, policy: &Policy) -> Option<Owner> {
    match policy {
        Policy::Flock(f) => Some((holder, f.owner)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::action::{Action, LockRequest, Placement, Refusal};
    use crate::lock::Holder;
    use crate::mode::LockMode::{self, Nl, Pr, Pw};
    use crate::namespace::Namespace;
    use crate::policy::{Flock, Policy};
    use cpt::HashSeed;
    use std::time::{Duration, Instant};
    use wire::LdlmResId;

    struct Files {
        ns: Namespace,
        out: Vec<Action>,
    }

    impl Files {
        fn new() -> Files {
            Files {
                ns: Namespace::new(0, 1, HashSeed::fixed(0), Duration::from_secs(100)),
                out: Vec::new(),
            }
        }

        fn enqueue(
            &mut self,
            file: u64,
            owner: u64,
            mode: LockMode,
            range: (u64, u64),
        ) -> Result<Placement, Refusal> {
            let request = Files::request(file, owner, mode, range);
            self.ns.enqueue(Instant::now(), &request, &mut self.out)
        }

        fn request(file: u64, owner: u64, mode: LockMode, (start, end): (u64, u64)) -> LockRequest {
            let policy = Policy::Flock(Flock {
                start,
                end,
                owner,
                pid: owner as u32,
            });
            LockRequest {
                report_deadlock: true,
                ..LockRequest::new(Holder(1), owner, Files::res(file), mode, policy)
            }
        }

        fn res(file: u64) -> LdlmResId {
            LdlmResId {
                name: [file, 0, 0, 12],
            }
        }

        /// Owner, mode, start and end of each granted range, by start.
        fn granted_ranges(&self, file: u64) -> Vec<(u64, LockMode, u64, u64)> {
            let range = |l: &crate::lock::Lock| match l.policy {
                Policy::Flock(f) => (f.owner, l.mode, f.start, f.end),
                _ => unreachable!("a flock resource"),
            };
            let mut held: Vec<_> = self.ns.granted(&Files::res(file)).map(range).collect();
            held.sort_unstable_by_key(|h| (h.2, h.0));
            held
        }
    }

    #[test]
    fn adjacent_ranges_of_one_mode_merge() {
        let mut files = Files::new();
        files.enqueue(1, 1, Pr, (0, 9)).unwrap();
        files.enqueue(1, 1, Pr, (20, 29)).unwrap();
        files.enqueue(1, 1, Pr, (10, 19)).unwrap();
        assert_eq!(files.granted_ranges(1), [(1, Pr, 0, 29)]);
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends() {
        let mut files = Files::new();
        files.enqueue(1, 1, Pw, (0, 99)).unwrap();
        files.enqueue(1, 1, Nl, (40, 59)).unwrap();
        assert_eq!(files.granted_ranges(1), [(1, Pw, 0, 39), (1, Pw, 60, 99)]);
        files.enqueue(1, 1, Nl, (0, u64::MAX)).unwrap();
        assert_eq!(files.ns.lock_count(), 0);
        assert_eq!(files.ns.resource_count(), 0);
    }

    #[test]
    fn another_mode_replaces_the_covered_part() {
        let mut files = Files::new();
        files.enqueue(1, 1, Pw, (0, 99)).unwrap();
        files.enqueue(1, 1, Pr, (50, 149)).unwrap();
        assert_eq!(files.granted_ranges(1), [(1, Pw, 0, 49), (1, Pr, 50, 149)]);
        files.enqueue(1, 1, Pr, (0, 49)).unwrap();
        assert_eq!(files.granted_ranges(1), [(1, Pr, 0, 149)]);
    }

    #[test]
    fn a_waiting_flock_is_granted_when_its_range_is_free() {
        let mut files = Files::new();
        files.enqueue(1, 1, Pw, (0, 99)).unwrap();
        assert!(matches!(
            files.enqueue(1, 2, Pw, (50, 60)),
            Ok(Placement::Queued { .. })
        ));
        files.enqueue(1, 1, Nl, (0, 49)).unwrap();
        assert!(files.out.is_empty());
        files.enqueue(1, 1, Nl, (50, 70)).unwrap();
        assert!(matches!(
            &files.out[..],
            [Action::Completion { deadlock: false, .. }]
        ));
        assert_eq!(files.granted_ranges(1), [(2, Pw, 50, 60), (1, Pw, 71, 99)]);
    }

    #[test]
    fn a_test_reports_the_conflict_and_changes_nothing() {
        let mut files = Files::new();
        files.enqueue(1, 1, Pw, (10, 19)).unwrap();
        let test = LockRequest {
            test: true,
            ..Files::request(1, 2, Pr, (0, 99))
        };
        let Ok(Placement::Tested {
            conflict: Some(held), ..
        }) = files.ns.enqueue(Instant::now(), &test, &mut files.out)
        else {
            panic!("no conflict found")
        };
        assert_eq!(
            held.policy,
            Policy::Flock(Flock {
                start: 10,
                end: 19,
                owner: 1,
                pid: 1
            })
        );
        let own = LockRequest {
            test: true,
            ..Files::request(1, 1, Pr, (0, 99))
        };
        assert!(matches!(
            files.ns.enqueue(Instant::now(), &own, &mut files.out),
            Ok(Placement::Tested { conflict: None, .. })
        ));
        assert_eq!(files.granted_ranges(1), [(1, Pw, 10, 19)]);
        // Of two conflicts, the test reports the first in the file.
        files.enqueue(1, 3, Pw, (3, 4)).unwrap();
        let Ok(Placement::Tested {
            conflict: Some(held), ..
        }) = files.ns.enqueue(Instant::now(), &test, &mut files.out)
        else {
            panic!("no conflict found")
        };
        let Policy::Flock(first) = held.policy else {
            unreachable!("a flock resource")
        };
        assert_eq!((first.owner, first.start), (3, 3));
    }

    #[test]
    fn a_cycle_of_three_owners_over_three_files_is_refused() {
        let mut files = Files::new();
        for owner in 1..=3 {
            files.enqueue(owner, owner, Pw, (0, 9)).unwrap();
        }
        assert!(matches!(
            files.enqueue(2, 1, Pw, (0, 9)),
            Ok(Placement::Queued { .. })
        ));
        assert!(matches!(
            files.enqueue(3, 2, Pw, (0, 9)),
            Ok(Placement::Queued { .. })
        ));
        assert_eq!(files.enqueue(1, 3, Pw, (0, 9)).err(), Some(Refusal::Deadlock));
        files.enqueue(3, 3, Nl, (0, 9)).unwrap();
        assert_eq!(files.granted_ranges(3), [(2, Pw, 0, 9)]);
    }

    #[test]
    fn a_deadlock_closed_by_a_grant_is_reported_to_the_waiter() {
        let mut files = Files::new();
        // Owner 1 holds file 1, owner 2 file 2. Owners 3 and 1 wait for file 2; owner 3 also waits
        // for file 1, with another thread.
        files.enqueue(1, 1, Pw, (0, 9)).unwrap();
        files.enqueue(2, 2, Pw, (0, 9)).unwrap();
        assert!(matches!(
            files.enqueue(2, 3, Pw, (0, 9)),
            Ok(Placement::Queued { .. })
        ));
        assert!(matches!(
            files.enqueue(2, 1, Pw, (0, 9)),
            Ok(Placement::Queued { .. })
        ));
        assert!(matches!(
            files.enqueue(1, 3, Pw, (0, 9)),
            Ok(Placement::Queued { .. })
        ));
        files.enqueue(2, 2, Nl, (0, 9)).unwrap();
        let deadlocks: Vec<bool> = files
            .out
            .iter()
            .map(|a| matches!(a, Action::Completion { deadlock: true, .. }))
            .collect();
        assert_eq!(deadlocks, [false, true]);
        assert_eq!(files.granted_ranges(2), [(3, Pw, 0, 9)]);
    }
}
