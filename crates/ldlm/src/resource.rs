//! One resource: which locks are granted, which wait, in order.
//!
//! Locks live in the shard's table; a resource lists their handles. A resource that many hold counts its granted locks
//! by mode, so that one more reader of a directory that thousands read need not look at each of them.

use crate::conflict::conflict;
use crate::lock::{Lock, LockId, LockTable};
use crate::mode::LockMode;
use crate::policy::LockType;
use std::collections::VecDeque;

/// From so many granted locks on, they are counted by mode.
const COUNTED_FROM: usize = 8;

#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) ty: LockType,
    granted: Vec<LockId>,
    pub(crate) waiting: VecDeque<LockId>,
    counts: Option<Box<[u32; LockMode::COUNT]>>,
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
        let mode = lock.mode;
        self.granted.push(id);
        match &mut self.counts {
            Some(counts) => counts[mode.index()] += 1,
            None if self.granted.len() >= COUNTED_FROM => {
                let mut counts = Box::new([0; LockMode::COUNT]);
                for lock in self.granted.iter().filter_map(|id| locks.get(*id)) {
                    counts[lock.mode.index()] += 1;
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
            counts[lock.mode.index()] -= 1;
        }
        if self.granted.len() < COUNTED_FROM / 2 {
            self.counts = None;
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
        let granted = if self.may_block(want.mode) {
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

    /// Whether any granted lock has a mode that excludes `mode`.
    pub(crate) fn may_block(&self, mode: LockMode) -> bool {
        let Some(counts) = &self.counts else { return true };
        let held = (0..LockMode::COUNT)
            .filter(|i| counts[*i] > 0)
            .fold(0, |mask, i| mask | 1 << i);
        held & !mode.compat_mask() != 0 || mode == LockMode::Group
    }
}
