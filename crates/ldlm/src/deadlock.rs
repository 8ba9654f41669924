//! Deadlock detection among flocks: owners that wait for each other in a cycle.
//!
//! A client numbers the owners of its flocks. A process that locks through two mounts has an owner
//! in each, so two processes can wait for each other although no owner waits for itself. The search
//! therefore continues from an owner to the waits of its process through other clients. It finds
//! these by node and process id. As in Lustre, it is no deadlock if a process waits directly for
//! its own lock of another mount: another thread may release that lock. So a cycle back to the
//! starting process counts only if it includes a second wait.

use crate::conflict::conflict;
use crate::lock::{Holder, Lock, LockId};
use crate::namespace::Namespace;
use crate::policy::Policy;
use cpt::{HashSeed, SeededMap, SeededSet};
use wire::Nid;

/// A process: its node and its process id.
type Process = (Nid, u32);

/// The owner of a flock, or of a request for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlockOwner {
    holder: Holder,
    owner: u64,
    /// `None` if the client's node or the process id is unknown.
    process: Option<Process>,
}

impl FlockOwner {
    fn is_same_owner(&self, other: &FlockOwner) -> bool {
        (self.holder, self.owner) == (other.holder, other.owner)
    }

    /// Whether both are owners of one process, but through different clients.
    fn is_same_process_elsewhere(&self, other: &FlockOwner) -> bool {
        self.holder != other.holder && self.process.is_some() && self.process == other.process
    }
}

/// The waiting flocks, and the nodes of the clients that request flocks.
#[derive(Debug)]
pub(crate) struct FlockWaits {
    /// The waiting flocks by owner: the owner's client, and the client's number of the owner.
    by_owner: SeededMap<(Holder, u64), Vec<LockId>>,
    by_process: SeededMap<Process, Vec<LockId>>,
    nodes: SeededMap<Holder, Nid>,
}

impl FlockWaits {
    /// No waits.
    pub(crate) fn new(seed: HashSeed) -> FlockWaits {
        FlockWaits {
            by_owner: SeededMap::with_hasher(seed.clone()),
            by_process: SeededMap::with_hasher(seed.clone()),
            nodes: SeededMap::with_hasher(seed),
        }
    }

    fn owner_set(&self) -> SeededSet<FlockOwner> {
        SeededSet::with_hasher(self.nodes.hasher().clone())
    }

    /// Records the node of a client. Later calls change nothing, because the client's waiting locks
    /// are indexed by the first node.
    pub(crate) fn set_node(&mut self, holder: Holder, node: Nid) {
        self.nodes.entry(holder).or_insert(node);
    }

    /// Forgets a client that disconnected or was evicted.
    pub(crate) fn drop_holder(&mut self, holder: Holder) {
        self.nodes.remove(&holder);
    }

    /// Adds a waiting flock.
    pub(crate) fn add(&mut self, lock: &Lock) {
        let Some(owner) = self.owner_of(lock) else { return };
        let waits = self.by_owner.entry((owner.holder, owner.owner));
        waits.or_default().push(lock.id);
        if let Some(process) = owner.process {
            self.by_process.entry(process).or_default().push(lock.id);
        }
    }

    /// Removes a lock that no longer waits; does nothing for other locks.
    pub(crate) fn remove(&mut self, lock: &Lock) {
        let Some(owner) = self.owner_of(lock) else { return };
        remove_wait(&mut self.by_owner, &(owner.holder, owner.owner), lock.id);
        if let Some(process) = owner.process {
            remove_wait(&mut self.by_process, &process, lock.id);
        }
    }

    /// The owner of a flock; `None` for other locks.
    fn owner_of(&self, lock: &Lock) -> Option<FlockOwner> {
        let Policy::Flock(flock) = lock.policy else {
            return None;
        };
        let node = self.nodes.get(&lock.holder).filter(|_| flock.pid != 0);
        Some(FlockOwner {
            holder: lock.holder,
            owner: flock.owner,
            process: node.map(|node| (*node, flock.pid)),
        })
    }

    fn waits_of_owner(&self, owner: &FlockOwner) -> impl Iterator<Item = LockId> {
        let own = self.by_owner.get(&(owner.holder, owner.owner));
        own.into_iter().flatten().copied()
    }

    fn waits_of_process(&self, owner: &FlockOwner) -> impl Iterator<Item = LockId> {
        let all = owner.process.and_then(|process| self.by_process.get(&process));
        all.into_iter().flatten().copied()
    }
}

fn remove_wait<K: std::hash::Hash + Eq>(waits: &mut SeededMap<K, Vec<LockId>>, key: &K, id: LockId) {
    if let Some(ids) = waits.get_mut(key) {
        ids.retain(|one| *one != id);
        if ids.is_empty() {
            waits.remove(key);
        }
    }
}

impl Namespace {
    /// Whether the owner of a waiting flock waits, through other owners, for itself or its process:
    /// the search goes from a waiting flock to the owners of the granted flocks that block it, and
    /// from each owner to the flocks that it waits for.
    pub(crate) fn would_deadlock(&self, id: LockId) -> bool {
        let Some(start) = self
            .locks
            .get(id)
            .and_then(|lock| self.flock_waits.owner_of(lock))
        else {
            return false;
        };
        let (mut seen, mut pending) = (self.flock_waits.owner_set(), Vec::new());
        for blocker in self.blocking_owners(id) {
            self.add_blockers(&blocker, !blocker.is_same_process_elsewhere(&start), &mut pending);
        }
        while let Some(next) = pending.pop() {
            if next.is_same_owner(&start) || next.is_same_process_elsewhere(&start) {
                return true;
            }
            if seen.insert(next) {
                self.add_blockers(&next, true, &mut pending);
            }
        }
        false
    }

    /// Adds the owners that block the waits of `owner` and, with `whole_process`, the waits of its
    /// process through other clients.
    fn add_blockers(&self, owner: &FlockOwner, whole_process: bool, pending: &mut Vec<FlockOwner>) {
        let waits = &self.flock_waits;
        let is_of_process = |wait: &LockId| {
            let waiter = self.locks.get(*wait).and_then(|lock| waits.owner_of(lock));
            waiter.is_some_and(|waiter| waiter.is_same_process_elsewhere(owner))
        };
        let process_waits = waits
            .waits_of_process(owner)
            .filter(|wait| whole_process && is_of_process(wait));
        for wait in waits.waits_of_owner(owner).chain(process_waits) {
            pending.extend(self.blocking_owners(wait));
        }
    }

    /// The owners of the granted locks that conflict with a waiting lock.
    fn blocking_owners(&self, id: LockId) -> Vec<FlockOwner> {
        let Some(want) = self.locks.get(id) else {
            return Vec::new();
        };
        let held = self.granted(&want.res).filter(|held| conflict(held, want));
        held.filter_map(|lock| self.flock_waits.owner_of(lock)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::action::{LockRequest, Placement, Refusal};
    use crate::lock::Holder;
    use crate::mode::LockMode;
    use crate::namespace::Namespace;
    use crate::policy::{Flock, Policy};
    use cpt::HashSeed;
    use std::time::{Duration, Instant};
    use wire::{LdlmResId, Nid};

    const NODE_A: Nid = Nid(0x0002_0000_0000_0001);
    const NODE_B: Nid = Nid(0x0002_0000_0000_0002);

    /// A client, its node, the number of one of its owners, and that owner's process id.
    type TestOwner = (u64, Nid, u64, u32);

    /// Requests a flock. Returns true if it is granted, false if it waits.
    fn enqueue(
        ns: &mut Namespace,
        file: u64,
        (client, node, owner, pid): TestOwner,
    ) -> Result<bool, Refusal> {
        let (start, end) = (0, 9);
        let res = LdlmResId {
            name: [file, 0, 0, 12],
        };
        let policy = Policy::Flock(Flock {
            start,
            end,
            owner,
            pid,
        });
        let request = LockRequest {
            node: Some(node),
            ..LockRequest::new(Holder(client), owner, res, LockMode::Pw, policy)
        };
        let placement = ns.enqueue(Instant::now(), &request, &mut Vec::new())?;
        Ok(matches!(placement, Placement::Granted(_)))
    }

    /// `first` locks file 1 and `second` file 2. Then each requests the other's file, with its
    /// second owner. Returns the result of the last request.
    fn request_crosswise(first: [TestOwner; 2], second: [TestOwner; 2]) -> Result<bool, Refusal> {
        let mut ns = Namespace::new(0, 1, HashSeed::fixed(0), Duration::from_secs(100));
        assert_eq!(enqueue(&mut ns, 1, first[0]), Ok(true));
        assert_eq!(enqueue(&mut ns, 2, second[0]), Ok(true));
        assert_eq!(enqueue(&mut ns, 2, first[1]), Ok(false));
        enqueue(&mut ns, 1, second[1])
    }

    #[test]
    fn owners_of_one_process_in_two_mounts_are_matched() {
        let (a1, a2) = ((1, NODE_A, 11, 70), (2, NODE_A, 12, 70));
        let (b1, b2) = ((1, NODE_A, 21, 80), (2, NODE_A, 22, 80));
        assert_eq!(request_crosswise([a1, a2], [b2, b1]), Err(Refusal::Deadlock));
        // Each process through one mount.
        assert_eq!(request_crosswise([a1, a1], [b2, b2]), Err(Refusal::Deadlock));
    }

    #[test]
    fn a_process_may_wait_for_a_lock_of_another_thread() {
        let (a1, a2) = ((1, NODE_A, 11, 70), (2, NODE_A, 12, 70));
        let mut ns = Namespace::new(0, 1, HashSeed::fixed(0), Duration::from_secs(100));
        assert_eq!(enqueue(&mut ns, 1, a1), Ok(true));
        assert_eq!(enqueue(&mut ns, 2, a2), Ok(true));
        assert_eq!(enqueue(&mut ns, 1, a2), Ok(false));
        // But it is a deadlock if both threads wait for each other.
        assert_eq!(enqueue(&mut ns, 2, a1), Err(Refusal::Deadlock));
    }

    #[test]
    fn owners_of_other_nodes_or_of_one_client_are_not_matched() {
        let (a1, elsewhere) = ((1, NODE_A, 11, 70), (2, NODE_B, 12, 70));
        let (b1, b2) = ((1, NODE_A, 21, 80), (2, NODE_B, 22, 81));
        assert_eq!(request_crosswise([a1, elsewhere], [b2, b1]), Ok(false));
        // Two descriptors of one process: different threads may lock and release them.
        let (one, other) = ((1, NODE_A, 11, 70), (1, NODE_A, 12, 70));
        let mut ns = Namespace::new(0, 1, HashSeed::fixed(0), Duration::from_secs(100));
        assert_eq!(enqueue(&mut ns, 1, one), Ok(true));
        assert_eq!(enqueue(&mut ns, 1, other), Ok(false));
        // Without process ids, owners of different clients are not known to be one process.
        let (a1, a2) = ((1, NODE_A, 11, 0), (2, NODE_A, 12, 0));
        let (b1, b2) = ((1, NODE_A, 21, 0), (2, NODE_A, 22, 0));
        assert_eq!(request_crosswise([a1, a2], [b2, b1]), Ok(false));
    }

    #[test]
    fn ended_waits_are_forgotten() {
        let mut ns = Namespace::new(0, 1, HashSeed::fixed(0), Duration::from_secs(100));
        let (a, b) = ((1, NODE_A, 11, 70), (2, NODE_A, 12, 80));
        assert_eq!(enqueue(&mut ns, 1, a), Ok(true));
        assert_eq!(enqueue(&mut ns, 1, b), Ok(false));
        assert_eq!(ns.drop_holder(Instant::now(), Holder(1), &mut Vec::new()), 1);
        ns.drop_holder(Instant::now(), Holder(2), &mut Vec::new());
        let waits = &ns.flock_waits;
        assert!(waits.by_owner.is_empty() && waits.by_process.is_empty() && waits.nodes.is_empty());
    }
}
