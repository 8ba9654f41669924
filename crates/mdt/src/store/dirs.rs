//! Changes of a directory by operations on its names: times, links and size.
//!
//! Operations on different names of a directory run concurrently, but each must write the
//! directory's record. So each operation prepares its own part first. Then one of them gets the
//! directory's turn, and applies all prepared operations in one batch with one record of the
//! directory; the others find theirs done. Times only increase and links are counted, so the order
//! of the changes does not matter.
//!
//! An operation that changes a directory in another way holds the turn meanwhile
//! ([`super::Store::hold`]). Turns are taken after the mutexes of inodes, and in the order of their
//! shards.

use std::sync::{Arc, OnceLock};

use osd::{Batch, InFlight};
use parking_lot::{Condvar, Mutex};
use wire::{Errno, Fid, Time, Transno};

use super::{
    DIR_BLOCK, Held, Inode, S_IFDIR, SHARDS, Store, keys, shard_of,
    tx::{Parts, Tx},
};

/// The change of a directory by an operation on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirChange {
    /// The time of the operation.
    pub time: Time,
    /// Change of the link count: subdirectories are added or removed.
    pub links: i32,
    /// Change of the size of its entries, bytes.
    pub bytes: i64,
}

/// Size of a name in its directory, bytes: that of an entry in a directory page.
fn entry_bytes(name: &[u8]) -> i64 {
    const HEAD: usize = 32;
    const KIND: usize = 2;
    (HEAD + name.len() + KIND).next_multiple_of(8) as i64
}

impl DirChange {
    /// A change at `time` without any name yet.
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

    /// With another change of the same directory.
    pub fn and(self, other: DirChange) -> DirChange {
        DirChange {
            time: self.time.max(other.time),
            links: self.links + other.links,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Applies the change to the directory's inode.
    pub(crate) fn apply(self, dir: &mut Inode, transno: Transno) {
        dir.modified(self.time);
        dir.nlink = dir.nlink.saturating_add_signed(self.links);
        // Earlier versions did not count the size of entries.
        dir.size = dir.size.saturating_add_signed(self.bytes).max(DIR_BLOCK);
        dir.version = dir.version.max(transno.0);
    }
}

/// The version of the directory before the change, or the error.
type Outcome = Result<u64, Errno>;

/// A prepared operation that waits for the directory's turn.
struct Prepared {
    dir: Fid,
    change: DirChange,
    batch: Batch,
    number: InFlight,
    outcome: Arc<OnceLock<Outcome>>,
}

#[derive(Default)]
struct Shard {
    queue: Mutex<Queue>,
    /// Signalled when a turn ends: waiting operations are done, or one of them can take the turn.
    over: Condvar,
}

#[derive(Default)]
struct Queue {
    /// A thread has the turn.
    taken: bool,
    /// At most one per thread: each waits for its own.
    waiting: Vec<Prepared>,
}

/// The turn of a shard's directories; ends when dropped.
struct Turn<'a>(&'a Shard);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.taken = false;
        // Under the lock, so waiting threads proceed in order.
        self.0.over.notify_all();
    }
}

/// The turns of all shards.
pub(super) struct Dirs {
    shards: Vec<Shard>,
}

/// Turns that are held.
#[derive(Default)]
pub(super) struct HeldDirs<'a> {
    turns: Vec<(usize, Turn<'a>)>,
}

impl Default for Dirs {
    fn default() -> Dirs {
        Dirs {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
        }
    }
}

impl Dirs {
    /// Takes the turns of these shards, which must be in order.
    pub(super) fn hold(&self, shards: &[usize]) -> HeldDirs<'_> {
        HeldDirs {
            turns: shards.iter().map(|s| (*s, self.shards[*s].turn())).collect(),
        }
    }
}

impl HeldDirs<'_> {
    fn has(&self, shard: usize) -> bool {
        self.turns.iter().any(|(s, _)| *s == shard)
    }
}

impl Tx<'_> {
    /// Applies the transaction together with its change of a directory. Returns the transaction
    /// number and the directory's version before. The directory may be held; if it is not, no other
    /// directory may be.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the directory was removed, and then nothing is changed; or the error of the
    /// index.
    pub fn commit_in(self, held: &Held<'_>, dir: Fid, change: DirChange) -> Result<(Transno, u64), Errno> {
        let shard = shard_of(dir);
        debug_assert!(held.dirs.turns.is_empty() || held.dirs.has(shard));
        let Parts {
            store,
            batch,
            number,
            after,
        } = self.into_parts();
        let transno = number.transno();
        let outcome = Arc::new(OnceLock::new());
        let prepared = Prepared {
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
        after.applied(store, transno);
        Ok((transno, before))
    }
}

impl Shard {
    fn turn(&self) -> Turn<'_> {
        let mut queue = self.queue.lock();
        self.over.wait_while(&mut queue, |q| q.taken);
        queue.taken = true;
        Turn(self)
    }

    /// Returns when the operation is done, by this thread or by another one with the turn.
    fn apply_in_turn(&self, store: &Store, prepared: Prepared, outcome: &OnceLock<Outcome>) {
        let mut queue = self.queue.lock();
        queue.waiting.push(prepared);
        self.over
            .wait_while(&mut queue, |q| q.taken && outcome.get().is_none());
        if outcome.get().is_some() {
            return;
        }
        queue.taken = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        let _turn = Turn(self);
        store.apply_together(waiting);
    }
}

impl Store {
    /// Applies prepared operations in one batch; the caller has the turns of their directories.
    fn apply_together(&self, all: Vec<Prepared>) {
        let mut batch = Batch::new();
        let mut dirs: Vec<(Fid, Inode)> = Vec::with_capacity(1);
        let mut joined = Vec::with_capacity(all.len());
        for Prepared {
            dir,
            change,
            batch: own,
            number,
            outcome,
        } in all
        {
            match self.dir_among(&mut dirs, dir) {
                Ok(inode) => {
                    joined.push((outcome, inode.version, number));
                    change.apply(inode, own.transno.unwrap_or_default());
                    batch.join(own);
                }
                Err(e) => settle(&outcome, Err(e)),
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
                self.inodes.changed(fid, Some(dir));
            }
        }
        for (outcome, before, number) in joined {
            // In flight until here.
            drop(number);
            settle(&outcome, applied.map(|()| before));
        }
    }

    /// The directory with the changes of this batch so far, if it still exists.
    fn dir_among<'a>(&self, dirs: &'a mut Vec<(Fid, Inode)>, fid: Fid) -> Result<&'a mut Inode, Errno> {
        let at = match dirs.iter().position(|(f, _)| *f == fid) {
            Some(at) => at,
            None => {
                let dir = self.inode(fid)?;
                if dir.nlink == 0 {
                    return Err(Errno::ENOENT);
                }
                dirs.push((fid, dir));
                dirs.len() - 1
            }
        };
        dirs.get_mut(at).map(|(_, dir)| dir).ok_or(Errno::EIO)
    }
}

fn settle(outcome: &OnceLock<Outcome>, is: Outcome) {
    // Set only once: no other thread has it.
    let _ = outcome.set(is);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{Arc, atomic::Ordering::SeqCst},
        thread,
    };

    use osd::Index;
    use wire::{Errno, Fid, Time, Transno};

    use super::DirChange;
    use crate::store::{DIR_BLOCK, Entry, Inode, S_IFDIR, S_IFREG, Store, shard_of, watched::Watched};

    const DIR: Fid = Fid::new(0x2_0000_0400, 1, 0);

    fn with_dir() -> (Arc<Watched>, Store) {
        let index = Arc::new(Watched::default());
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

    /// Puts the n-th of several entries.
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

    /// Starts `count` operations while the directory is held, and releases it when all wait.
    fn gathered(store: &Store, count: u32, meanwhile: impl FnOnce()) -> Vec<Result<(Transno, u64), Errno>> {
        thread::scope(|scope| {
            let held = store.dirs.hold(&[shard_of(DIR)]);
            let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || put(store, n))).collect();
            while store.dirs.shards[shard_of(DIR)].queue.lock().waiting.len() < count as usize {
                thread::yield_now();
            }
            meanwhile();
            drop(held);
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn waiting_operations_are_applied_in_one_batch() {
        let (index, store) = with_dir();
        let before = (index.batches.load(SeqCst), store.inode(DIR).unwrap().version);
        let mut done: Vec<(Transno, u64)> = gathered(&store, 6, || {})
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(index.batches.load(SeqCst), before.0 + 1);
        let dir = store.inode(DIR).unwrap();
        // The latest time, in any order.
        assert_eq!((dir.nlink, dir.mtime), (2 + 6, Time::secs(100)));
        // Each name of five bytes takes 40 bytes.
        assert_eq!(dir.size, DIR_BLOCK + 6 * 40);
        assert!((0..6).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_some()));
        // All are finished, and each got a version from before.
        done.sort_unstable();
        let last = done.last().unwrap().0;
        assert_eq!(
            (Transno(dir.version), index.transactions().applied()),
            (last, last)
        );
        assert!(done.iter().any(|(_, version)| *version == before.1));
        assert!(
            done.iter()
                .all(|(_, version)| *version >= before.1 && *version <= last.0)
        );
    }

    #[test]
    fn failed_batch_fails_all_waiting_operations() {
        let (index, store) = with_dir();
        let before = store.inode(DIR).unwrap();
        let done = gathered(&store, 3, || index.broken.store(true, SeqCst));
        assert_eq!(done, [Err(Errno::ENOSPC); 3]);
        assert_eq!(store.inode(DIR).unwrap(), before);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }

    #[test]
    fn directory_removed_meanwhile_takes_no_name() {
        let (index, store) = with_dir();
        let done = gathered(&store, 3, || {
            let mut tx = store.begin();
            let mut dir = store.inode(DIR).unwrap();
            dir.nlink = 0;
            tx.put_inode(DIR, &mut dir);
            tx.commit().unwrap();
        });
        assert_eq!(done, [Err(Errno::ENOENT); 3]);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }
}
