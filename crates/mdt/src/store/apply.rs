//! Applies changes: numbers them, makes them visible, and updates the caches and counts.
//!
//! Nothing here reads the index: a read may wait, and the caller holds locks. The records of the
//! directories come from the cache, or from the operation's stamp.
//!
//! A change gets its transaction number while its inodes are locked and a thread holds the turns of
//! its directories. So the changes of one inode, and those of one directory, have increasing
//! numbers.

use std::{
    mem::take,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use osd::{Batch, SpacePurpose, TransactionGuard};
use wire::{Errno, Fid, Transno};

use super::{
    Change, INLINE_SHARDS, Inode, Mutation, OpenCounts, ReadDir, Stamp, Store, keys, shard_of,
    shards_in_lock_order,
};
use smallvec::SmallVec;

/// Maximum number of directories in which one change adds or removes names: a rename has two.
const DIRS_MAX: usize = 2;

/// An applied change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Applied {
    /// The transaction number.
    pub transno: Transno,
    /// The versions of the directories ([`Change::change_dir`]) before the change, in the order of
    /// the mutations; 0 for unused positions.
    pub dir_versions: [u64; DIRS_MAX],
}

/// The result of a change.
type Outcome = Result<Applied, ApplyError>;

/// A change that waits to be applied.
pub(super) struct PendingChange {
    change: Change,
    /// Directories that the operation has read ([`Stamp`]).
    read_dirs: Vec<ReadDir>,
    /// Set when the change is applied or has failed.
    outcome: Arc<OnceLock<Outcome>>,
}

/// A change in a batch.
struct JoinedChange {
    pending: PendingChange,
    /// In flight until the batch is applied.
    number: TransactionGuard,
    dir_versions: [u64; DIRS_MAX],
}

impl PendingChange {
    /// The cell for the outcome.
    pub(super) fn outcome(&self) -> Arc<OnceLock<Outcome>> {
        self.outcome.clone()
    }

    fn end(&self, outcome: Outcome) {
        // Each outcome is set once, so this does not fail.
        let _ = self.outcome.set(outcome);
    }
}

/// Why a change was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// Another operation has changed a stamped inode: read and plan again.
    Stale,
    /// The cache lacks the record of this directory: read it ([`Store::read_dirs`]), and plan
    /// again.
    Unread(Fid),
    /// The change failed.
    Failed(Errno),
}

impl From<Errno> for ApplyError {
    fn from(errno: Errno) -> ApplyError {
        ApplyError::Failed(errno)
    }
}

impl Store {
    /// Applies a change. The caller ensures that no other operation changes its inodes at the same
    /// time.
    ///
    /// # Errors
    ///
    /// As [`Store::apply_if_current`].
    pub async fn apply(&self, change: Change) -> Result<Applied, Errno> {
        let fids: Vec<Fid> = change.inodes().collect();
        let mut unread = Vec::new();
        loop {
            let mut stamp = self.stamp(&fids);
            self.read_dirs(&mut stamp, &unread).await?;
            match self.apply_if_current(&stamp, Some(change.clone()), None) {
                Ok(applied) => return Ok(applied),
                Err(ApplyError::Failed(errno)) => return Err(errno),
                // A change of another inode of the same shard.
                Err(ApplyError::Stale) => {}
                Err(ApplyError::Unread(dir)) if unread.contains(&dir) => {}
                Err(ApplyError::Unread(dir)) => unread.push(dir),
            }
        }
    }

    /// Applies `change`, and sets an inode's counts of open handles to `opens`; either may be
    /// `None`. Does nothing if a stamped inode has changed since the stamp. The result is visible
    /// when this function returns. The stamp includes all inodes that the change puts or destroys,
    /// and the inode with new counts.
    ///
    /// # Errors
    ///
    /// [`ApplyError::Stale`]; [`ApplyError::Unread`]; `ENOSPC`; `ENOENT` if a directory was
    /// removed; or the error of the index. Then nothing is changed.
    pub fn apply_if_current(
        &self,
        stamp: &Stamp,
        change: Option<Change>,
        opens: Option<(Fid, OpenCounts)>,
    ) -> Result<Applied, ApplyError> {
        // A replayed change was admitted when it was first executed.
        let grows = |change: &Change| change.grows && change.origin.replayed.is_none();
        if change.as_ref().is_some_and(grows) {
            self.index
                .space()
                .check(SpacePurpose::Growth)
                .map_err(Errno::from)?;
        }
        let mut shards: SmallVec<[_; INLINE_SHARDS]> = stamp
            .shards
            .iter()
            .map(|(shard, _)| (*shard, self.shards[*shard].lock()))
            .collect();
        let applied = match change {
            Some(change) => self.apply_locked(stamp, change)?,
            None => {
                self.check_current(stamp)?;
                Applied::default()
            }
        };
        if let Some((fid, counts)) = opens {
            let index = shard_of(fid);
            if let Some((_, shard)) = shards.iter_mut().find(|(i, _)| *i == index) {
                shard.set_open_counts(fid, counts);
                self.note_change(fid);
            }
        }
        Ok(applied)
    }

    /// Applies a change; the caller has locked the stamped shards.
    fn apply_locked(&self, stamp: &Stamp, change: Change) -> Result<Applied, ApplyError> {
        let dirs = change.dir_changes().map(|(dir, _)| dir);
        let changes_one_dir = change.dirs_changed() == 1 && change.replaced_dirs().next().is_none();
        let turns = shards_in_lock_order(dirs.chain(change.replaced_dirs()));
        let pending = PendingChange {
            change,
            read_dirs: stamp.dirs.clone(),
            outcome: Arc::default(),
        };
        let outcome = pending.outcome();
        if changes_one_dir {
            self.check_current(stamp)?;
            self.announce(&pending.change);
            self.dirs.apply_in_group(self, turns[0], pending);
        } else {
            let _turns = self.dirs.hold(&turns);
            // Check while holding the turns: no operation on names can change a stamped directory
            // meanwhile.
            self.check_current(stamp)?;
            self.announce(&pending.change);
            self.apply_together(vec![pending]);
        }
        // Unset only if the thread with the turn panicked.
        outcome.get().copied().unwrap_or(Err(Errno::EIO.into()))
    }

    /// Fails if a stamped shard has changed since.
    fn check_current(&self, stamp: &Stamp) -> Result<(), ApplyError> {
        let mut shards = stamp.shards.iter();
        match shards.all(|(shard, changes)| self.changes[*shard].load(Ordering::Acquire) == *changes) {
            true => Ok(()),
            false => Err(ApplyError::Stale),
        }
    }

    /// Counts a change of an inode, after it is visible and before its shard, or its turn, is
    /// released.
    fn note_change(&self, fid: Fid) {
        self.changes[shard_of(fid)].fetch_add(1, Ordering::Release);
    }

    /// Announces the inodes that a change creates and destroys ([`super::inode_count`]).
    fn announce(&self, change: &Change) {
        for mutation in &change.mutations {
            match mutation {
                Mutation::InodeMade { fid, .. } => self.count.announce(*fid, false),
                Mutation::InodeDestroyed { fid, .. } => self.count.announce(*fid, true),
                _ => {}
            }
        }
    }

    /// Applies changes in one batch; the caller has the turns of their directories.
    pub(super) fn apply_together(&self, all: Vec<PendingChange>) {
        let mut batch = Batch::new();
        let mut dirs: Vec<(Fid, Inode)> = Vec::new();
        let mut joined = Vec::with_capacity(all.len());
        for mut pending in all {
            match self.join(&mut pending, &mut dirs, &mut batch) {
                Ok((number, dir_versions)) => joined.push(JoinedChange {
                    pending,
                    number,
                    dir_versions,
                }),
                Err(error) => pending.end(Err(error)),
            }
        }
        if joined.is_empty() {
            return;
        }
        for (fid, dir) in &dirs {
            batch.put(keys::inode(*fid), dir.encode());
        }
        let applied = self.index.apply(batch).map_err(|e| Errno::from(e).into());
        if applied.is_ok() {
            for (fid, dir) in dirs {
                self.inode_cache.update(fid, Some(dir));
                self.note_change(fid);
            }
        }
        for JoinedChange {
            mut pending,
            number,
            dir_versions,
        } in joined
        {
            let transno = number.transno();
            if applied.is_ok() {
                self.run_effects(take(&mut pending.change), transno);
            }
            // Ends the transaction: its changes are visible.
            drop(number);
            pending.end(applied.map(|()| Applied {
                transno,
                dir_versions,
            }));
        }
    }

    /// Gives a change its transaction number and adds its records to a batch. Applies its directory
    /// changes to `dirs`, the directories that the batch has changed so far; the caller adds their
    /// records. Returns the number, and the versions of the change's directories before the change.
    fn join(
        &self,
        PendingChange {
            change, read_dirs, ..
        }: &mut PendingChange,
        dirs: &mut Vec<(Fid, Inode)>,
        batch: &mut Batch,
    ) -> Result<(TransactionGuard, [u64; DIRS_MAX]), ApplyError> {
        let mut positions = [0; DIRS_MAX];
        let mut dir_versions = [0; DIRS_MAX];
        for (i, (dir, _)) in change.dir_changes().take(DIRS_MAX).enumerate() {
            let position = self.dir_in_batch(dirs, dir, read_dirs)?;
            (positions[i], dir_versions[i]) = (position, dirs[position].1.version);
        }
        let number = match change.origin.replayed {
            None => self.transactions().begin(),
            Some(transno) => self.transactions().replay(transno),
        };
        let transno = number.transno();
        for (position, (_, dir_change)) in positions.into_iter().zip(change.dir_changes()) {
            dir_change.apply(&mut dirs[position].1, transno);
        }
        if let Some(slot) = change.origin.slot.filter(|_| !change.mutations.is_empty()) {
            slot.keep(transno, change.pre_versions_with(&dir_versions), batch);
        }
        for mutation in &mut change.mutations {
            mutation.set_version(transno);
            mutation.add_records(transno, batch);
        }
        match batch.transno {
            None => batch.transno = Some(transno),
            Some(_) => batch.joined.push(transno),
        }
        Ok((number, dir_versions))
    }

    /// The position of a directory in `dirs`. Its first change in the batch takes its record from
    /// the cache, or from `read_dirs` if no inode of its shard has changed since: the caller has
    /// the turn of the shard. `ENOENT` if the directory was removed.
    fn dir_in_batch(
        &self,
        dirs: &mut Vec<(Fid, Inode)>,
        fid: Fid,
        read_dirs: &[ReadDir],
    ) -> Result<usize, ApplyError> {
        if let Some(position) = dirs.iter().position(|(f, _)| *f == fid) {
            return Ok(position);
        }
        let is_current = |dir: &&ReadDir| {
            dir.fid == fid && self.changes[shard_of(fid)].load(Ordering::Acquire) == dir.changes
        };
        let dir = match self.inode_cache.cached(fid) {
            Some(dir) => Inode::clone(&dir),
            None => match read_dirs.iter().find(is_current) {
                Some(dir) => dir.inode.clone(),
                None => return Err(ApplyError::Unread(fid)),
            },
        };
        if dir.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        dirs.push((fid, dir));
        Ok(dirs.len() - 1)
    }

    /// Updates the caches, counts and queues after a change was applied.
    fn run_effects(&self, change: Change, transno: Transno) {
        for mutation in change.mutations {
            match mutation {
                Mutation::InodeMade { fid, inode } => {
                    // A new directory is not cached: other operations may change it as soon as it
                    // is visible, and this late update would replace their changes.
                    match inode.is_dir() {
                        true => self.inode_cache.note_created(fid),
                        false => self.inode_cache.update(fid, Some(*inode)),
                    }
                    self.note_change(fid);
                    self.count.count_applied(fid, true);
                }
                Mutation::InodeChanged { fid, inode } => {
                    self.inode_cache.update(fid, Some(*inode));
                    self.note_change(fid);
                }
                Mutation::InodeDestroyed { fid, .. } => {
                    self.inode_cache.update(fid, None);
                    self.note_change(fid);
                    self.count.count_applied(fid, false);
                }
                // The plan to destroy the file lists the records of its data.
                Mutation::DataChanged { fid, .. } => self.note_change(fid),
                Mutation::ObjectQueued { .. } => {
                    self.announce_work(transno);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{Arc, atomic::Ordering::SeqCst},
        thread,
    };
    use testbase::Wait;

    use osd::{Batch, Index};
    use testbase::InstrumentedIndex;
    use wire::{Errno, Fid, Time, Transno};

    use super::Applied;
    use crate::store::{Change, DIR_BLOCK, DirChange, Entry, Inode, S_IFDIR, S_IFREG, Store, keys, shard_of};

    const DIR: Fid = Fid::new(0x2_0000_0400, 1, 0);

    fn store_with_dir() -> (Arc<InstrumentedIndex>, Store) {
        let index = Arc::new(InstrumentedIndex::default());
        let store = Store::new(index.clone());
        let dir = Inode {
            mode: S_IFDIR | 0o755,
            nlink: 2,
            size: DIR_BLOCK,
            ..Inode::default()
        };
        let mut change = Change::new();
        change.make_inode(DIR, &dir);
        store.apply(change).wait().unwrap();
        (index, store)
    }

    fn name(n: u32) -> String {
        format!("name{n}")
    }

    /// Puts the entry `name(n)`, counted as a subdirectory.
    fn put(store: &Store, n: u32) -> Result<Applied, Errno> {
        let fid = Fid::new(0x2_0000_0401, n + 1, 0);
        let mut change = Change::new();
        let entry = Entry { fid, kind: S_IFREG };
        change.add_entry(DIR, name(n).as_bytes(), entry);
        let dir_change = DirChange {
            time: Time::secs(100 - i64::from(n)),
            ..DirChange::at(Time::default()).add(name(n).as_bytes(), S_IFDIR)
        };
        change.change_dir(DIR, dir_change);
        store.apply(change).wait()
    }

    /// Starts `count` operations while this thread holds the directory's turn. When all of them
    /// wait, calls `before_release` and releases the turn. Returns their results.
    fn run_together(store: &Store, count: u32, before_release: impl FnOnce()) -> Vec<Result<Applied, Errno>> {
        thread::scope(|scope| {
            let turn = store.dirs.hold(&[shard_of(DIR)]);
            let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || put(store, n))).collect();
            while store.dirs.waiting(shard_of(DIR)) < count as usize {
                thread::yield_now();
            }
            before_release();
            drop(turn);
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn waiting_operations_are_applied_in_one_batch() {
        let (index, store) = store_with_dir();
        let (batches, version) = (
            index.batches.load(SeqCst),
            store.inode(DIR).wait().unwrap().version,
        );
        let mut results: Vec<(Transno, u64)> = run_together(&store, 6, || {})
            .into_iter()
            .map(|result| result.map(|a| (a.transno, a.dir_versions[0])).unwrap())
            .collect();
        assert_eq!(index.batches.load(SeqCst), batches + 1);
        let dir = store.inode(DIR).wait().unwrap();
        // The latest time counts, in any order of the operations.
        assert_eq!((dir.nlink, dir.mtime), (2 + 6, Time::secs(100)));
        // Each name of five bytes takes 40 bytes.
        assert_eq!(dir.size, DIR_BLOCK + 6 * 40);
        assert!((0..6).all(|n| store.entry(DIR, name(n).as_bytes()).wait().unwrap().is_some()));
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
        let before = store.inode(DIR).wait().unwrap();
        let results = run_together(&store, 3, || index.failures.store(usize::MAX, SeqCst));
        assert_eq!(results, [Err(Errno::ENOSPC); 3]);
        assert_eq!(store.inode(DIR).wait().unwrap(), before);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).wait().unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }

    #[test]
    fn waiting_operation_adds_no_name_to_a_removed_directory() {
        let (index, store) = store_with_dir();
        let results = run_together(&store, 3, || {
            let mut dir = store.inode(DIR).wait().unwrap();
            dir.nlink = 0;
            // Not with `Store::apply`, which would wait for the turn.
            let mut batch = Batch::new();
            batch.put(keys::inode(DIR), dir.encode());
            index.apply(batch).unwrap();
            store.inode_cache.update(DIR, Some(dir));
        });
        assert_eq!(results, [Err(Errno::ENOENT); 3]);
        assert!((0..3).all(|n| store.entry(DIR, name(n).as_bytes()).wait().unwrap().is_none()));
        assert_eq!(index.transactions().applied(), index.transactions().last());
    }
}
