//! One resource: which locks are granted, which wait, in order.
//!
//! Locks live in the shard's table; a resource lists their handles. A resource that many hold counts its granted locks
//! by mode and inode bit, so that who reads a directory that thousands read, or makes a file in it, need not look at each
//! of them.

use crate::conflict::conflict;
use crate::lock::{Lock, LockId, LockTable};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::tally::Tally;
use std::collections::VecDeque;

/// From so many granted locks on, they are counted.
const COUNTED_FROM: usize = 8;

#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) ty: LockType,
    granted: Vec<LockId>,
    pub(crate) waiting: VecDeque<LockId>,
    counts: Option<Box<Tally>>,
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
            Some(counts) => counts.add(lock.mode, &lock.policy),
            None if self.granted.len() >= COUNTED_FROM => {
                let mut counts = Box::<Tally>::default();
                for lock in self.granted.iter().filter_map(|id| locks.get(*id)) {
                    counts.add(lock.mode, &lock.policy);
                }
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
            counts.remove(lock.mode, &lock.policy);
        }
        if self.granted.len() < COUNTED_FROM / 2 {
            self.counts = None;
        }
    }

    /// A granted lock that was of the first policy is of the second now.
    pub(crate) fn converted(&mut self, mode: LockMode, before: &Policy, now: &Policy) {
        if let Some(counts) = &mut self.counts {
            counts.remove(mode, before);
            counts.add(mode, now);
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
        let granted = if self.may_block(want) {
            self.granted.as_slice()
        } else {
            &[]
        };
        granted
            .iter()
            .filter_map(|id| locks.get(*id))
            .filter(move |held| conflict(held, want))
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
        self.counts.as_ref().is_none_or(|counts| counts.may_block(want))
    }
}
