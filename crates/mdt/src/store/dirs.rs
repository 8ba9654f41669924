//! What operations on names do to their directory: times, links and size.
//!
//! Operations on different names of one directory go on side by side, but each puts the directory's record. So each
//! prepares its own part beforehand, and then whoever has the directory's turn applies what has gathered meanwhile, in one
//! batch with one record of the directory. Who waited finds it done. Times only move on, links are counted: in which order
//! the changes are made does not matter to what comes out.
//!
//! Whoever changes a directory otherwise keeps the turn for as long ([`super::Store::hold`]). Turns come after the mutexes of
//! inodes, and among themselves in the order of their shards.

use std::sync::{Arc, OnceLock};

use osd::{Batch, InFlight};
use parking_lot::{Condvar, Mutex};
use wire::{Errno, Fid, Time, Transno};

use super::{
    DIR_BLOCK, Held, Inode, S_IFDIR, SHARDS, Store, keys, shard_of,
    tx::{Parts, Tx},
};

/// What an operation on a name does to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirChange {
    /// When it is done.
    pub time: Time,
    /// How many links there are more: subdirectories come and go.
    pub links: i32,
    /// How many bytes its entries take more.
    pub bytes: i64,
}

/// Bytes that a name takes in its directory: those of an entry in a page of its listing.
fn entry_bytes(name: &[u8]) -> i64 {
    const HEAD: usize = 32;
    const KIND: usize = 2;
    (HEAD + name.len() + KIND).next_multiple_of(8) as i64
}

impl DirChange {
    /// A change that is made at this time, as yet of no name.
    pub fn at(time: Time) -> DirChange {
        DirChange {
            time,
            links: 0,
            bytes: 0,
        }
    }

    /// With a name more, of an inode of this kind (`S_IFMT`).
    pub fn add(self, name: &[u8], kind: u32) -> DirChange {
        DirChange {
            links: self.links + i32::from(kind == S_IFDIR),
            bytes: self.bytes + entry_bytes(name),
            ..self
        }
    }

    /// With a name less, of an inode of this kind.
    pub fn remove(self, name: &[u8], kind: u32) -> DirChange {
        DirChange {
            links: self.links - i32::from(kind == S_IFDIR),
            bytes: self.bytes - entry_bytes(name),
            ..self
        }
    }

    /// Makes it.
    pub(crate) fn apply(self, dir: &mut Inode, transno: Transno) {
        dir.modified(self.time);
        dir.nlink = dir.nlink.saturating_add_signed(self.links);
        // Entries of earlier versions were not counted when they were made.
        dir.size = dir.size.saturating_add_signed(self.bytes).max(DIR_BLOCK);
        dir.version = dir.version.max(transno.0);
    }
}

/// The version that the directory had before, or why nothing was done.
type Outcome = Result<u64, Errno>;

/// An operation that is prepared, and waits for the directory's turn.
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
    /// The turn is over: what waited is done, or somebody may do it.
    over: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Somebody has the turn.
    taken: bool,
    /// As many as there are threads at most: each waits for its own.
    waiting: Vec<Prepared>,
}

/// The turn of a shard's directories, until it is dropped.
struct Turn<'a>(&'a Shard);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.taken = false;
        // Under the lock: so they come in the order in which they have waited.
        self.0.over.notify_all();
    }
}

/// The directories' turns.
pub(super) struct Dirs {
    shards: Vec<Shard>,
}

/// Turns that are kept.
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
    /// Keeps others from changing the directories of these shards, which are in order.
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
    /// Applies everything, together with what it does to a directory: its transaction number, and the version that the
    /// directory had before. Nothing is done if the directory was removed. The directory may be held; if it is not, no
    /// other is.
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
        // Set unless whoever had the turn broke off.
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

    /// Who finds it done goes on, whoever has the turn by then.
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
    /// Applies all in one batch; the turns of the directories are kept.
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

    /// The directory as it is with the changes so far, if it is still there.
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
    // Once only: nobody else has it.
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

    /// The n-th of some operations that each put an entry.
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

    /// Lets so many begin while the directory is held, and lets go of it when all wait.
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
    fn what_gathers_while_a_directory_is_held_is_one_batch() {
        let (index, store) = with_dir();
        let before = (index.batches.load(SeqCst), store.inode(DIR).unwrap().version);
        let mut done: Vec<(Transno, u64)> = gathered(&store, 6, || {})
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(index.batches.load(SeqCst), before.0 + 1);
        let dir = store.inode(DIR).unwrap();
        // The latest time, whoever came last.
        assert_eq!((dir.nlink, dir.mtime), (2 + 6, Time::secs(100)));
        // Each name of five bytes takes 40.
        assert_eq!(dir.size, DIR_BLOCK + 6 * 40);
        assert!((0..6).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_some()));
        // All are finished, and each was told a version of before.
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
    fn who_waited_hears_that_nothing_was_done() {
        let (index, store) = with_dir();
        let before = store.inode(DIR).unwrap();
        let done = gathered(&store, 3, || index.broken.store(true, SeqCst));
        assert_eq!(done, [Err(Errno::ENOSPC); 3]);
        assert_eq!(store.inode(DIR).unwrap(), before);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }

    #[test]
    fn a_directory_that_goes_meanwhile_takes_no_name() {
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
