//! Changes of a directory's record by operations on its names: times, links and size.
//!
//! Operations on different names of a directory run concurrently, but each must write the
//! directory's record: a case for group commit. An operation first prepares its other changes, and
//! queues them. Then one of the waiting threads takes the turn of the shard: the right to change
//! the records of the shard's directories, which one thread has at a time. This thread applies all
//! queued operations of the shard in one batch, with one record of each directory, and wakes the
//! others. Times only increase and links are counted, so the order of the operations does not
//! matter.
//!
//! An operation that changes a directory in another way holds the turn while it runs
//! ([`super::Store::hold`]). A thread takes turns after the mutexes of inodes, and in the order of
//! the shards.

use std::sync::{Arc, OnceLock};

use osd::{Batch, TransactionGuard};
use parking_lot::{Condvar, Mutex};
use wire::{Errno, Fid, Time, Transno};

use super::{
    DIR_BLOCK, HeldInodes, Inode, S_IFDIR, SHARDS, Store, keys, shard_of,
    tx::{Tx, TxParts},
};

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

/// The result of an operation: the version of the directory before the change.
type Outcome = Result<u64, Errno>;

/// An operation that waits for the turn of its directory's shard.
struct PendingOperation {
    dir: Fid,
    change: DirChange,
    /// The operation's other changes.
    batch: Batch,
    /// The transaction number, in flight until the batch is applied.
    number: TransactionGuard,
    /// Set when the operation is done.
    outcome: Arc<OnceLock<Outcome>>,
}

#[derive(Default)]
struct Shard {
    queue: Mutex<Queue>,
    /// Signalled when a turn ends: the operation of a waiting thread is done, or the thread can
    /// take the turn.
    turn_ended: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Whether a thread has the turn.
    turn_taken: bool,
    /// The queued operations; at most one of each thread, because the thread waits for its outcome.
    waiting: Vec<PendingOperation>,
}

/// The turn of a shard's directories; ends when dropped.
struct Turn<'a>(&'a Shard);

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
pub(super) struct DirTurns {
    shards: Vec<Shard>,
}

/// The turns that an operation holds, with the indices of their shards.
#[derive(Default)]
pub(super) struct HeldTurns<'a> {
    turns: Vec<(usize, Turn<'a>)>,
}

impl Default for DirTurns {
    fn default() -> DirTurns {
        DirTurns {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
        }
    }
}

impl DirTurns {
    /// Takes the turns of these shards, which must be in order.
    pub(super) fn hold(&self, shards: &[usize]) -> HeldTurns<'_> {
        HeldTurns {
            turns: shards.iter().map(|s| (*s, self.shards[*s].turn())).collect(),
        }
    }
}

impl HeldTurns<'_> {
    fn has(&self, shard: usize) -> bool {
        self.turns.iter().any(|(s, _)| *s == shard)
    }
}

impl Tx<'_> {
    /// Applies the transaction together with its change of a directory. Returns the transaction
    /// number and the directory's version before the change. A caller that does not hold the
    /// directory's turn must hold no turn at all.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the directory was removed, or the error of the index; then nothing is changed.
    pub fn commit_in(
        self,
        held: &HeldInodes<'_>,
        dir: Fid,
        change: DirChange,
    ) -> Result<(Transno, u64), Errno> {
        let shard = shard_of(dir);
        debug_assert!(held.dirs.turns.is_empty() || held.dirs.has(shard));
        let TxParts {
            store,
            batch,
            number,
            effects,
        } = self.into_parts();
        let transno = number.transno();
        let outcome = Arc::new(OnceLock::new());
        let prepared = PendingOperation {
            dir,
            change,
            batch,
            number,
            outcome: outcome.clone(),
        };
        if held.dirs.has(shard) {
            store.apply_together(vec![prepared]);
        } else {
            store.dirs.shards[shard].apply_in_turn(store, prepared, &outcome);
        }
        // Unset only if the thread with the turn panicked.
        let before = outcome.get().copied().unwrap_or(Err(Errno::EIO))?;
        effects.run(store, transno);
        Ok((transno, before))
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

    /// Waits until another thread has applied the operation; or takes the turn, and applies all
    /// queued operations.
    fn apply_in_turn(&self, store: &Store, prepared: PendingOperation, outcome: &OnceLock<Outcome>) {
        let mut queue = self.queue.lock();
        queue.waiting.push(prepared);
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

impl Store {
    /// Applies operations in one batch; the caller has the turns of their directories.
    fn apply_together(&self, all: Vec<PendingOperation>) {
        let mut batch = Batch::new();
        let mut dirs: Vec<(Fid, Inode)> = Vec::with_capacity(1);
        let mut joined = Vec::with_capacity(all.len());
        for PendingOperation {
            dir,
            change,
            batch: own,
            number,
            outcome,
        } in all
        {
            match self.dir_in_batch(&mut dirs, dir) {
                Ok(inode) => {
                    joined.push((outcome, inode.version, number));
                    change.apply(inode, own.transno.unwrap_or_default());
                    batch.join(own);
                }
                Err(e) => set_outcome(&outcome, Err(e)),
            }
        }
        for (fid, dir) in &dirs {
            batch.put(keys::inode(*fid), dir.encode());
        }
        let applied = match dirs.is_empty() {
            true => Ok(()),
            false => self.index.apply(batch).map_err(Errno::from),
        };
        if applied.is_ok() {
            for (fid, dir) in dirs {
                self.inode_cache.update(fid, Some(dir));
            }
        }
        for (outcome, before, number) in joined {
            // Ends the transaction: its changes are visible.
            drop(number);
            set_outcome(&outcome, applied.map(|()| before));
        }
    }

    /// The directory with the changes of this batch so far; reads it from the store at its first
    /// change. `ENOENT` if it was removed.
    fn dir_in_batch<'a>(&self, dirs: &'a mut Vec<(Fid, Inode)>, fid: Fid) -> Result<&'a mut Inode, Errno> {
        let position = match dirs.iter().position(|(f, _)| *f == fid) {
            Some(position) => position,
            None => {
                let dir = self.inode(fid)?;
                if dir.nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                dirs.push((fid, dir));
                dirs.len() - 1
            }
        };
        dirs.get_mut(position).map(|(_, dir)| dir).ok_or(Errno::EIO)
    }
}

fn set_outcome(outcome: &OnceLock<Outcome>, value: Outcome) {
    // Each outcome is set once, so this does not fail.
    let _ = outcome.set(value);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{Arc, atomic::Ordering::SeqCst},
        thread,
    };

    use osd::Index;
    use testbase::InstrumentedIndex;
    use wire::{Errno, Fid, Time, Transno};

    use super::DirChange;
    use crate::store::{DIR_BLOCK, Entry, Inode, S_IFDIR, S_IFREG, Store, shard_of};

    const DIR: Fid = Fid::new(0x2_0000_0400, 1, 0);

    fn store_with_dir() -> (Arc<InstrumentedIndex>, Store) {
        let index = Arc::new(InstrumentedIndex::default());
        let store = Store::new(index.clone());
        let mut tx = store.begin();
        let mut dir = Inode {
            mode: S_IFDIR | 0o755,
            nlink: 2,
            size: DIR_BLOCK,
            ..Inode::default()
        };
        tx.put_inode(DIR, &mut dir);
        tx.commit().unwrap();
        (index, store)
    }

    fn name(n: u32) -> String {
        format!("name{n}")
    }

    /// Puts the entry `name(n)`, counted as a subdirectory.
    fn put(store: &Store, n: u32) -> Result<(Transno, u64), Errno> {
        let fid = Fid::new(0x2_0000_0401, n + 1, 0);
        let held = store.hold_files(&[fid]);
        let mut tx = store.begin();
        let entry = Entry { fid, kind: S_IFREG };
        tx.put_entry(DIR, name(n).as_bytes(), entry);
        let change = DirChange {
            time: Time::secs(100 - i64::from(n)),
            ..DirChange::at(Time::default()).add(name(n).as_bytes(), S_IFDIR)
        };
        tx.commit_in(&held, DIR, change)
    }

    /// Starts `count` operations while this thread holds the directory's turn. When all of them
    /// wait, calls `before_release` and releases the turn. Returns their results.
    fn run_together(
        store: &Store,
        count: u32,
        before_release: impl FnOnce(),
    ) -> Vec<Result<(Transno, u64), Errno>> {
        thread::scope(|scope| {
            let held = store.dirs.hold(&[shard_of(DIR)]);
            let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || put(store, n))).collect();
            while store.dirs.shards[shard_of(DIR)].queue.lock().waiting.len() < count as usize {
                thread::yield_now();
            }
            before_release();
            drop(held);
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn waiting_operations_are_applied_in_one_batch() {
        let (index, store) = store_with_dir();
        let (batches, version) = (index.batches.load(SeqCst), store.inode(DIR).unwrap().version);
        let mut results: Vec<(Transno, u64)> = run_together(&store, 6, || {})
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(index.batches.load(SeqCst), batches + 1);
        let dir = store.inode(DIR).unwrap();
        // The latest time counts, in any order of the operations.
        assert_eq!((dir.nlink, dir.mtime), (2 + 6, Time::secs(100)));
        // Each name of five bytes takes 40 bytes.
        assert_eq!(dir.size, DIR_BLOCK + 6 * 40);
        assert!((0..6).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_some()));
        // All transactions are finished, and each result has a version from before its operation.
        results.sort_unstable();
        let last = results.last().unwrap().0;
        assert_eq!(
            (Transno(dir.version), index.transactions().applied()),
            (last, last)
        );
        assert!(results.iter().any(|(_, before)| *before == version));
        assert!(
            results
                .iter()
                .all(|(_, before)| *before >= version && *before <= last.0)
        );
    }

    #[test]
    fn failed_batch_fails_all_waiting_operations() {
        let (index, store) = store_with_dir();
        let before = store.inode(DIR).unwrap();
        let results = run_together(&store, 3, || index.failures.store(usize::MAX, SeqCst));
        assert_eq!(results, [Err(Errno::ENOSPC); 3]);
        assert_eq!(store.inode(DIR).unwrap(), before);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }

    #[test]
    fn waiting_operation_adds_no_name_to_a_removed_directory() {
        let (index, store) = store_with_dir();
        let results = run_together(&store, 3, || {
            let mut tx = store.begin();
            let mut dir = store.inode(DIR).unwrap();
            dir.nlink = 0;
            tx.put_inode(DIR, &mut dir);
            tx.commit().unwrap();
        });
        assert_eq!(results, [Err(Errno::ENOENT); 3]);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }
}
