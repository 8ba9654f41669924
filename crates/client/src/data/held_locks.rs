//! The locks that an operation holds on objects of a file.

use crate::layout::ObjectIndex;
use ldlm::LockRef;
use wire::Errno;

/// Locks on objects, at most one on each.
pub(super) struct HeldLocks {
    /// In ascending order of the objects.
    locks: Vec<(ObjectIndex, LockRef)>,
}

impl HeldLocks {
    /// No locks, with room for the lock on the only object of an ordinary file.
    pub(super) fn new() -> HeldLocks {
        HeldLocks {
            locks: Vec::with_capacity(1),
        }
    }

    /// Adds the lock on an object; the objects come in ascending order.
    pub(super) fn push(&mut self, object: ObjectIndex, lock: LockRef) {
        self.locks.push((object, lock));
    }

    /// The lock on an object. `EIO`: the operation has not locked it.
    pub(super) fn on(&self, object: ObjectIndex) -> Result<&LockRef, Errno> {
        let found = self.locks.binary_search_by_key(&object, |(object, _)| *object);
        found.map(|at| &self.locks[at].1).map_err(|_| Errno::EIO)
    }
}
