//! One resource: which locks are granted, which wait, in order.
//!
//! Locks live in the shard's table; a resource lists their handles. A resource that many hold counts its granted locks
//! by mode and inode bit, so that who reads a directory that thousands read, or makes a file in it, need not look at each
//! of them; those whose holders have not been told yet once more, so that of many who wait each need not look for them.

use crate::conflict::conflict;
use crate::lock::{Lock, LockId, LockTable};
use crate::policy::LockType;
use crate::tally::Tally;
use std::collections::VecDeque;

/// From so many granted locks on, they are counted.
const COUNTED_FROM: usize = 8;

#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) ty: LockType,
    granted: Vec<LockId>,
    pub(crate) waiting: VecDeque<LockId>,
    counts: Option<Box<Counts>>,
}

/// The granted locks, and of these the ones whose holders were not told that they are in the way.
#[derive(Debug, Default)]
struct Counts {
    all: Tally,
    untold: Tally,
}

impl Counts {
    fn add(&mut self, lock: &Lock) {
        self.all.add(lock.mode, &lock.policy);
        if !lock.ast_sent {
            self.untold.add(lock.mode, &lock.policy);
        }
    }

    fn remove(&mut self, lock: &Lock) {
        self.all.remove(lock.mode, &lock.policy);
        if !lock.ast_sent {
            self.untold.remove(lock.mode, &lock.policy);
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

    /// Lists a lock as granted.
    pub(crate) fn add(&mut self, id: LockId, locks: &mut LockTable) {
        let place = self.granted.len() as u32;
        let Some(lock) = locks.get_mut(id) else { return };
        lock.granted = true;
        lock.place = place;
        self.granted.push(id);
        match &mut self.counts {
            Some(counts) => counts.add(lock),
            None if self.granted.len() >= COUNTED_FROM => {
                let mut counts = Box::<Counts>::default();
                let granted = self.granted.iter().filter_map(|id| locks.get(*id));
                granted.for_each(|lock| counts.add(lock));
                self.counts = Some(counts);
            }
            None => {}
        }
    }

    /// Takes a lock, which has just left the table, off the lists.
    pub(crate) fn remove(&mut self, lock: &Lock, locks: &mut LockTable) {
        if !lock.granted {
            return self.leave_queue(lock.id);
        }
        let place = lock.place as usize;
        if self.granted.get(place) != Some(&lock.id) {
            return;
        }
        self.granted.swap_remove(place);
        if let Some(moved) = self.granted.get(place).and_then(|id| locks.get_mut(*id)) {
            moved.place = lock.place;
        }
        if let Some(counts) = &mut self.counts {
            counts.remove(lock);
        }
        if self.granted.len() < COUNTED_FROM / 2 {
            self.counts = None;
        }
    }

    /// Changes a granted lock in what it is counted by.
    pub(crate) fn change(&mut self, lock: &mut Lock, how: impl FnOnce(&mut Lock)) {
        if let Some(counts) = &mut self.counts {
            counts.remove(lock);
        }
        how(lock);
        if let Some(counts) = &mut self.counts {
            counts.add(lock);
        }
    }

    /// Takes a lock out of the queue, where it mostly is the first.
    pub(crate) fn leave_queue(&mut self, id: LockId) {
        if self.waiting.front() == Some(&id) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|w| *w != id);
        }
    }

    /// The granted locks that exclude `want`.
    pub(crate) fn blockers<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let any = self.may_block(want);
        self.granted_if(any, locks)
            .filter(move |held| conflict(held, want))
    }

    /// The granted locks that exclude `want` and whose holders were not told of anybody yet.
    pub(crate) fn untold_blockers<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let any = self.counts.as_ref().is_none_or(|c| c.untold.may_block(want));
        self.granted_if(any, locks)
            .filter(move |held| !held.ast_sent && conflict(held, want))
    }

    /// The granted locks, or none.
    fn granted_if<'a>(&'a self, any: bool, locks: &'a LockTable) -> impl Iterator<Item = &'a Lock> + 'a {
        let granted = if any { self.granted.as_slice() } else { &[] };
        granted.iter().filter_map(|id| locks.get(*id))
    }

    /// The waiting locks, up to `want` itself, that exclude it.
    pub(crate) fn blockers_ahead<'a>(
        &'a self,
        want: &'a Lock,
        locks: &'a LockTable,
    ) -> impl Iterator<Item = &'a Lock> + 'a {
        let ahead = self.waiting.iter().take_while(|id| **id != want.id);
        ahead
            .filter_map(|id| locks.get(*id))
            .filter(move |other| conflict(other, want))
    }

    /// Whether any granted lock may exclude `want`.
    pub(crate) fn may_block(&self, want: &Lock) -> bool {
        self.counts.as_ref().is_none_or(|c| c.all.may_block(want))
    }
}
