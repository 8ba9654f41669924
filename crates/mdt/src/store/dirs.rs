//! Changes of a directory's record by operations on its names: times, links and size; and the turns
//! of directories.
//!
//! Operations on different names of a directory run concurrently, but each must write the
//! directory's record, so the store applies them in groups. An operation first plans its change and
//! queues it. Then one of the waiting threads takes the turn of the shard: the right to change the
//! records of the shard's directories, which one thread has at a time. This thread applies all
//! queued changes of the shard in one batch, with one record of each directory, and wakes the
//! others. A change adds to the links and the size and never decreases the times, so the order of
//! the operations does not matter.
//!
//! A change that replaces or removes a directory's record, or changes two directories, holds the
//! turns while it is applied. A thread locks the mutexes of inodes before it takes turns, and takes
//! turns in the order of the shards. A wait for a turn is short: the thread with the turn applies a
//! batch in memory.

use parking_lot::{Condvar, Mutex};
use wire::{Time, Transno};

use super::{DIR_BLOCK, Inode, S_IFDIR, SHARDS, Store, apply::PendingChange};

/// The change of a directory by an operation on names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirChange {
    /// The time of the operation.
    pub time: Time,
    /// Change of the link count: subdirectories added, minus those removed.
    pub links: i32,
    /// Change of the size of the directory's entries, bytes.
    pub bytes: i64,
}

/// Size of the entry with this name in a directory page, bytes.
fn entry_bytes(name: &[u8]) -> i64 {
    /// Bytes before the name.
    const HEAD: usize = 32;
    /// Bytes of the type, after the name.
    const KIND: usize = 2;
    (HEAD + name.len() + KIND).next_multiple_of(8) as i64
}

impl DirChange {
    /// A change at `time` that adds and removes no name.
    pub fn at(time: Time) -> DirChange {
        DirChange {
            time,
            links: 0,
            bytes: 0,
        }
    }

    /// Adds a name of an inode of this type (`S_IFMT`).
    pub fn add(self, name: &[u8], kind: u32) -> DirChange {
        DirChange {
            links: self.links + i32::from(kind == S_IFDIR),
            bytes: self.bytes + entry_bytes(name),
            ..self
        }
    }

    /// Removes a name of an inode of this type.
    pub fn remove(self, name: &[u8], kind: u32) -> DirChange {
        DirChange {
            links: self.links - i32::from(kind == S_IFDIR),
            bytes: self.bytes - entry_bytes(name),
            ..self
        }
    }

    /// The sum of this change and another one of the same directory.
    pub fn combine(self, other: DirChange) -> DirChange {
        DirChange {
            time: self.time.max(other.time),
            links: self.links + other.links,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Applies the change to the directory's inode.
    pub(crate) fn apply(self, dir: &mut Inode, transno: Transno) {
        dir.record_modification(self.time);
        dir.nlink = dir.nlink.saturating_add_signed(self.links);
        // Earlier versions of Nacre did not count the size of entries, so the sum may be too low.
        dir.size = dir.size.saturating_add_signed(self.bytes).max(DIR_BLOCK);
        dir.version = dir.version.max(transno.0);
    }
}

#[derive(Default)]
struct Shard {
    queue: Mutex<Queue>,
    /// Signalled when a turn ends: the change of a waiting thread is done, or the thread can take
    /// the turn.
    turn_ended: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Whether a thread has the turn.
    turn_taken: bool,
    /// The queued changes; at most one of each thread, because the thread waits for its outcome.
    waiting: Vec<PendingChange>,
}

/// The turn of a shard's directories; ends when dropped.
pub(super) struct Turn<'a>(&'a Shard);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.turn_taken = false;
        // Notified under the lock: otherwise a thread could take the turn before the notification,
        // and the notified threads would wake in vain.
        self.0.turn_ended.notify_all();
    }
}

/// The turns of all shards.
pub(super) struct DirCommits {
    shards: Vec<Shard>,
}

impl Default for DirCommits {
    fn default() -> DirCommits {
        DirCommits {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
        }
    }
}

impl DirCommits {
    /// Takes the turns of these shards, which must be in order.
    pub(super) fn hold(&self, shards: &[usize]) -> Vec<Turn<'_>> {
        shards.iter().map(|shard| self.shards[*shard].turn()).collect()
    }

    /// Waits until another thread has applied the change; or takes the turn of the change's shard,
    /// and applies all queued changes of the shard.
    pub(super) fn apply_in_group(&self, store: &Store, shard: usize, pending: PendingChange) {
        self.shards[shard].apply_in_group(store, pending);
    }

    /// The number of changes that wait for the turn of a shard.
    #[cfg(test)]
    pub(super) fn waiting(&self, shard: usize) -> usize {
        self.shards[shard].queue.lock().waiting.len()
    }
}

impl Shard {
    /// Waits for the turn and takes it.
    fn turn(&self) -> Turn<'_> {
        let mut queue = self.queue.lock();
        self.turn_ended.wait_while(&mut queue, |q| q.turn_taken);
        queue.turn_taken = true;
        Turn(self)
    }

    fn apply_in_group(&self, store: &Store, pending: PendingChange) {
        let outcome = pending.outcome();
        let mut queue = self.queue.lock();
        queue.waiting.push(pending);
        self.turn_ended
            .wait_while(&mut queue, |q| q.turn_taken && outcome.get().is_none());
        if outcome.get().is_some() {
            return;
        }
        queue.turn_taken = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        let _turn = Turn(self);
        store.apply_together(waiting);
    }
}
