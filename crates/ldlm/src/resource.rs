//! A resource: its granted and waiting locks, by handle.
//!
//! A resource with many granted locks counts them by mode and inode bit, so that a read of a
//! directory with thousands of readers, or a create in it, need not scan all locks. It also keeps
//! counts of only the unrevoked locks. These often show, without a scan, that no unrevoked lock
//! blocks a waiting one.

use crate::conflict::conflict;
use crate::lock::{Lock, LockId, LockTable};
use crate::mode::LockMode;
use crate::mode_counts::ModeCounts;
use crate::policy::LockType;
use std::collections::VecDeque;

/// Counting begins at this number of granted locks, and ends below half of it.
const COUNT_FROM: usize = 8;

#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) ty: LockType,
    granted: Vec<LockId>,
    pub(crate) waiting: VecDeque<LockId>,
    counts: Option<Box<GrantedCounts>>,
}

/// Counts of all granted locks, and of those that are not revoked ([`Lock::ast_sent`]).
#[derive(Debug, Default)]
struct GrantedCounts {
    all: ModeCounts,
    unrevoked: ModeCounts,
}

impl GrantedCounts {
    fn add(&mut self, lock: &Lock) {
        self.all.add(lock.mode, &lock.policy);
        if !lock.ast_sent {
            self.unrevoked.add(lock.mode, &lock.policy);
        }
    }

    fn remove(&mut self, lock: &Lock) {
        self.all.remove(lock.mode, &lock.policy);
        if !lock.ast_sent {
            self.unrevoked.remove(lock.mode, &lock.policy);
        }
    }
}

impl Resource {
    pub(crate) fn new(ty: LockType) -> Resource {
        Resource {
            ty,
            granted: Vec::new(),
            waiting: VecDeque::new(),
            counts: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn granted(&self) -> &[LockId] {
        &self.granted
    }

    /// Adds a lock to the granted ones.
    pub(crate) fn add(&mut self, id: LockId, locks: &mut LockTable) {
        let granted_index = self.granted.len() as u32;
        let Some(lock) = locks.get_mut(id) else { return };
        lock.granted = true;
        lock.granted_index = granted_index;
        self.granted.push(id);
        match &mut self.counts {
            Some(counts) => counts.add(lock),
            None if self.granted.len() >= COUNT_FROM => {
                let mut counts = Box::<GrantedCounts>::default();
                let granted = self.granted.iter().filter_map(|id| locks.get(*id));
                granted.for_each(|lock| counts.add(lock));
                self.counts = Some(counts);
            }
            None => {}
        }
    }

    /// Removes a lock, which has just left the table, from the lists.
    pub(crate) fn remove(&mut self, lock: &Lock, locks: &mut LockTable) {
        if !lock.granted {
            return self.leave_queue(lock.id);
        }
        let granted_index = lock.granted_index as usize;
        if self.granted.get(granted_index) != Some(&lock.id) {
            return;
        }
        self.granted.swap_remove(granted_index);
        if let Some(moved) = self.granted.get(granted_index).and_then(|id| locks.get_mut(*id)) {
            moved.granted_index = lock.granted_index;
        }
        if let Some(counts) = &mut self.counts {
            counts.remove(lock);
        }
        if self.granted.len() < COUNT_FROM / 2 {
            self.counts = None;
        }
    }

    /// Changes a granted lock's fields and keeps the counts consistent.
    pub(crate) fn change(&mut self, lock: &mut Lock, f: impl FnOnce(&mut Lock)) {
        if let Some(counts) = &mut self.counts {
            counts.remove(lock);
        }
        f(lock);
        if let Some(counts) = &mut self.counts {
            counts.add(lock);
        }
    }

    /// The place in the queue of a lock that has to wait: the end, except for group locks. These
    /// wait ahead of all other locks, and together with their group, so that the server grants the
    /// locks of a group together.
    pub(crate) fn queue_position(&self, want: &Lock, locks: &LockTable) -> usize {
        if want.mode != LockMode::Group {
            return self.waiting.len();
        }
        let is_group = |id: &&LockId| locks.get(**id).is_some_and(|l| l.mode == LockMode::Group);
        let groups = self.waiting.iter().take_while(is_group).count();
        let same_group = |id: &LockId| locks.get(*id).is_some_and(|l| !conflict(l, want));
        let last = self.waiting.iter().take(groups).rposition(same_group);
        last.map_or(groups, |index| index + 1)
    }

    /// Removes a lock from the queue; usually it is the first.
    pub(crate) fn leave_queue(&mut self, id: LockId) {
        if self.waiting.front() == Some(&id) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|w| *w != id);
        }
    }

    /// The granted locks that conflict with `want`.
    pub(crate) fn blockers<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let may_conflict = self.may_block(want);
        self.granted_if(may_conflict, locks)
            .filter(move |held| conflict(held, want))
    }

    /// The granted locks that conflict with `want` and are not revoked.
    pub(crate) fn unrevoked_blockers<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let may_conflict = self.counts.as_ref().is_none_or(|c| c.unrevoked.may_block(want));
        self.granted_if(may_conflict, locks)
            .filter(move |held| !held.ast_sent && conflict(held, want))
    }

    /// All granted locks if `condition`, else no lock.
    fn granted_if<'a>(
        &'a self,
        condition: bool,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let granted = if condition { self.granted.as_slice() } else { &[] };
        granted.iter().filter_map(|id| locks.get(*id))
    }

    /// The waiting locks that conflict with `want` and are ahead of it in the queue, or ahead of
    /// the place that it would get.
    pub(crate) fn blockers_ahead<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let ahead = self.waiting.iter().take(self.queue_position(want, locks));
        ahead
            .take_while(|id| **id != want.id)
            .filter_map(|id| locks.get(*id))
            .filter(move |other| conflict(other, want))
    }

    /// Whether any granted lock can conflict with `want`; always true without counts.
    pub(crate) fn may_block(&self, want: &Lock) -> bool {
        self.counts.as_ref().is_none_or(|c| c.all.may_block(want))
    }
}
