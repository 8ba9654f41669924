//! Deadlocks among flocks: owners that wait for each other in a circle.
//!
//! For conflicts, an owner is a number of one client. A process that locks through two mounts has an owner in each, and waits
//! for what it holds through the other for ever: so in this search, owners of different clients are one if the node (NID) and the
//! process id agree. Owners of one client stay apart, since the client knows that they are different: two threads that lock
//! by `flock` through two descriptors may release each other.

use crate::conflict::conflict;
use crate::lock::{Holder, Lock, LockId};
use crate::namespace::Namespace;
use crate::policy::Policy;
use foldhash::{HashMap, HashSet};
use wire::Nid;

/// A process of a node.
type Process = (Nid, u32);

/// Who has a flock or waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Party {
    holder: Holder,
    owner: u64,
    process: Option<Process>,
}

impl Party {
    fn is_same(&self, other: &Party) -> bool {
        if self.holder == other.holder {
            self.owner == other.owner
        } else {
            self.process.is_some() && self.process == other.process
        }
    }
}

/// The flocks that wait, and the nodes of the clients that ask for flocks.
#[derive(Debug, Default)]
pub(crate) struct FlockWaits {
    of_owner: HashMap<(Holder, u64), Vec<LockId>>,
    of_process: HashMap<Process, Vec<LockId>>,
    nodes: HashMap<Holder, Nid>,
}

impl FlockWaits {
    /// A client is at this node. It keeps its first one, by which its waiting locks are found again.
    pub(crate) fn is_at(&mut self, holder: Holder, node: Nid) {
        self.nodes.entry(holder).or_insert(node);
    }

    /// A client is gone, and so are its locks.
    pub(crate) fn drop_holder(&mut self, holder: Holder) {
        self.nodes.remove(&holder);
    }

    /// A flock waits.
    pub(crate) fn add(&mut self, lock: &Lock) {
        let Some(party) = self.party(lock) else { return };
        let by_owner = self.of_owner.entry((party.holder, party.owner));
        by_owner.or_default().push(lock.id);
        if let Some(process) = party.process {
            self.of_process.entry(process).or_default().push(lock.id);
        }
    }

    /// A lock waits no more, if it did.
    pub(crate) fn remove(&mut self, lock: &Lock) {
        let Some(party) = self.party(lock) else { return };
        take_out(&mut self.of_owner, &(party.holder, party.owner), lock.id);
        if let Some(process) = party.process {
            take_out(&mut self.of_process, &process, lock.id);
        }
    }

    fn party(&self, lock: &Lock) -> Option<Party> {
        let Policy::Flock(flock) = lock.policy else {
            return None;
        };
        let node = self.nodes.get(&lock.holder).filter(|_| flock.pid != 0);
        Some(Party {
            holder: lock.holder,
            owner: flock.owner,
            process: node.map(|node| (*node, flock.pid)),
        })
    }

    /// What a party waits for, through all its clients.
    fn waits_of(&self, party: &Party) -> impl Iterator<Item = LockId> {
        let own = self.of_owner.get(&(party.holder, party.owner));
        let of_process = party.process.and_then(|process| self.of_process.get(&process));
        own.into_iter().chain(of_process).flatten().copied()
    }
}

fn take_out<K: std::hash::Hash + Eq>(waits: &mut HashMap<K, Vec<LockId>>, key: &K, id: LockId) {
    if let Some(ids) = waits.get_mut(key) {
        ids.retain(|one| *one != id);
        if ids.is_empty() {
            waits.remove(key);
        }
    }
}

impl Namespace {
    /// Whether the owner of a waiting flock, through the holders in its way and what they wait for, waits for itself.
    pub(crate) fn deadlocks(&self, id: LockId) -> bool {
        let Some(start) = self.locks.get(id).and_then(|lock| self.flock_waits.party(lock)) else {
            return false;
        };
        let mut seen: HashSet<Party> = HashSet::default();
        let mut todo = self.parties_in_the_way(id);
        while let Some(next) = todo.pop() {
            if next.is_same(&start) {
                return true;
            }
            if !seen.insert(next) {
                continue;
            }
            for wait in self.flock_waits.waits_of(&next) {
                let waiter = self.locks.get(wait).and_then(|lock| self.flock_waits.party(lock));
                if waiter.is_some_and(|waiter| waiter.is_same(&next)) {
                    todo.extend(self.parties_in_the_way(wait));
                }
            }
        }
        false
    }

    fn parties_in_the_way(&self, id: LockId) -> Vec<Party> {
        let Some(want) = self.locks.get(id) else {
            return Vec::new();
        };
        let held = self.granted(&want.res).filter(|held| conflict(held, want));
        held.filter_map(|lock| self.flock_waits.party(lock)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::action::{NewLock, Placed, Refusal};
    use crate::lock::Holder;
    use crate::mode::LockMode;
    use crate::namespace::Namespace;
    use crate::policy::{Flock, Policy};
    use std::time::{Duration, Instant};
    use wire::{LdlmResId, Nid};

    const HERE: Nid = Nid(0x0002_0000_0000_0001);
    const THERE: Nid = Nid(0x0002_0000_0000_0002);

    /// A client, its node, and one of its owners, which belongs to a process.
    type Who = (u64, Nid, u64, u32);

    fn ask(ns: &mut Namespace, file: u64, (client, node, owner, pid): Who) -> Result<bool, Refusal> {
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
        let new = NewLock {
            node: Some(node),
            ..NewLock::new(Holder(client), owner, res, LockMode::Pw, policy)
        };
        let placed = ns.enqueue(Instant::now(), &new, &mut Vec::new())?;
        Ok(matches!(placed, Placed::Granted(_)))
    }

    /// One locks file 1, the other file 2, then each asks for the other's: what the last one hears.
    fn crossed(first: [Who; 2], second: [Who; 2]) -> Result<bool, Refusal> {
        let mut ns = Namespace::new(0, 1, Duration::from_secs(100));
        assert_eq!(ask(&mut ns, 1, first[0]), Ok(true));
        assert_eq!(ask(&mut ns, 2, second[0]), Ok(true));
        assert_eq!(ask(&mut ns, 2, first[1]), Ok(false));
        ask(&mut ns, 1, second[1])
    }

    #[test]
    fn a_process_that_locks_through_two_mounts_is_one() {
        let (a1, a2) = ((1, HERE, 11, 70), (2, HERE, 12, 70));
        let (b1, b2) = ((1, HERE, 21, 80), (2, HERE, 22, 80));
        assert_eq!(crossed([a1, a2], [b2, b1]), Err(Refusal::Deadlock));
        // Each process through one mount.
        assert_eq!(crossed([a1, a1], [b2, b2]), Err(Refusal::Deadlock));
        // A process waits for itself.
        let mut ns = Namespace::new(0, 1, Duration::from_secs(100));
        assert_eq!(ask(&mut ns, 1, a1), Ok(true));
        assert_eq!(ask(&mut ns, 1, a2), Err(Refusal::Deadlock));
    }

    #[test]
    fn processes_of_other_nodes_and_owners_of_one_client_are_apart() {
        let (a1, elsewhere) = ((1, HERE, 11, 70), (2, THERE, 12, 70));
        let (b1, b2) = ((1, HERE, 21, 80), (2, THERE, 22, 81));
        assert_eq!(crossed([a1, elsewhere], [b2, b1]), Ok(false));
        // Two descriptors of one process, which two of its threads may lock and release.
        let (one, other) = ((1, HERE, 11, 70), (1, HERE, 12, 70));
        let mut ns = Namespace::new(0, 1, Duration::from_secs(100));
        assert_eq!(ask(&mut ns, 1, one), Ok(true));
        assert_eq!(ask(&mut ns, 1, other), Ok(false));
        // Nothing is known of a process without an id.
        let (first, second) = ((1, HERE, 11, 0), (2, HERE, 12, 0));
        let mut ns = Namespace::new(0, 1, Duration::from_secs(100));
        assert_eq!(ask(&mut ns, 1, first), Ok(true));
        assert_eq!(ask(&mut ns, 1, second), Ok(false));
    }

    #[test]
    fn nothing_is_left_of_waits_that_end() {
        let mut ns = Namespace::new(0, 1, Duration::from_secs(100));
        let (a, b) = ((1, HERE, 11, 70), (2, HERE, 12, 80));
        assert_eq!(ask(&mut ns, 1, a), Ok(true));
        assert_eq!(ask(&mut ns, 1, b), Ok(false));
        assert_eq!(ns.drop_holder(Instant::now(), Holder(1), &mut Vec::new()), 1);
        ns.drop_holder(Instant::now(), Holder(2), &mut Vec::new());
        let waits = &ns.flock_waits;
        assert!(waits.of_owner.is_empty() && waits.of_process.is_empty() && waits.nodes.is_empty());
    }
}
