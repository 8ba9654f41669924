//! The cache of recently used objects (open files and attributes), and the set of dirty objects.
//! The number of entries is limited, except while more are in use at the same time.

use cpt::HashMap;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use wire::Fid;

use super::ObjectFile;
use crate::{ObjAttr, OsdError, SetAttr};

const SHARDS: usize = 16;
/// Maximum number of a store's entries, over all shards: the process's limit of file descriptors
/// divided by this. Each entry can have an open file, and a process can have many stores.
const ENTRIES_DIVISOR: u64 = 128;
/// Bounds of the maximum number of entries.
const ENTRIES_MIN: u64 = 64;
const ENTRIES_MAX: u64 = 1024;

/// One object. No object ever has two entries.
pub(super) struct Entry {
    pub(super) fid: Fid,
    pub(super) path: PathBuf,
    /// The generation in the name of the file.
    pub(super) generation: u32,
    /// Never held while waiting for the disk.
    pub(super) state: Mutex<State>,
    /// Held while the file is created or removed. A worker locks it only if it is free. Locked
    /// before `state`.
    pub(super) create_lock: Mutex<()>,
    /// Held while the file's data or size changes: local file systems serialise the writers of a
    /// file, and waiting writers would spin.
    pub(super) write_lock: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
pub(super) struct State {
    /// The object exists: it has a record or a file.
    pub(super) exists: bool,
    /// The open file; `None` if the object has none, for example before the first write.
    pub(super) file: Option<Arc<dyn ObjectFile>>,
    pub(super) attr: ObjAttr,
    /// The first change of a new file is in progress, or its record is not written yet.
    pub(super) is_new: bool,
    /// The record in the index is older than `attr` or `durable_size`.
    pub(super) record_stale: bool,
    /// Minimum size of the file on disk, bytes, as in the record; `None` if no sync of the file is
    /// recorded.
    pub(super) durable_size: Option<u64>,
    /// The reason why the file does not match its record.
    pub(super) damage: Option<String>,
    /// The object was destroyed; a remaining reference to the entry sees an empty object.
    pub(super) destroyed: bool,
}

impl State {
    /// Changes attributes; the object exists from now on.
    pub(super) fn set_attr(&mut self, attr: &SetAttr) {
        let before = self.attr;
        attr.apply_to(&mut self.attr);
        self.exists = true;
        self.record_stale |= self.attr != before;
    }

    /// Reads size and blocks from the file.
    pub(super) fn measure(&mut self, path: &Path) -> Result<(), OsdError> {
        if let Some(file) = &self.file {
            (self.attr.size, self.attr.blocks) = file.measure().map_err(OsdError::io("stat", path))?;
        }
        Ok(())
    }
}

/// Entries by FID.
pub(super) struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Maximum number of entries per shard; more only while all of them are in use.
    capacity: usize,
    /// The next generation of a dirty object.
    generations: AtomicU64,
    /// Directories in which files were removed since their last sync, with the number of removals.
    removed_in: Mutex<HashMap<PathBuf, u64>>,
}

#[derive(Default)]
struct Shard {
    /// Each entry with the clock at its last use.
    entries: HashMap<Fid, (Arc<Entry>, u64)>,
    /// Objects with data that is not on disk.
    dirty: HashMap<Fid, DirtyState>,
    /// Counts the uses of entries.
    clock: u64,
}

/// The unsynced changes of one object. A change stays listed until a sync that started after it has
/// ended. So a second sync of the object that runs during the first also waits for the disk.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DirtyState {
    /// The file is new: its directory entry is not on disk either.
    pub(super) new: bool,
    /// Number of changes.
    changes: u64,
    /// The file's size after the last change, bytes.
    pub(super) size: u64,
    /// A clean object that becomes dirty gets a new generation, and so does a truncated one: within
    /// one generation the file only grows.
    generation: u64,
}

impl DirtyState {
    /// Whether the file was not truncated between this state and a later one.
    pub(super) fn only_grew_until(&self, later: &DirtyState) -> bool {
        self.generation == later.generation
    }
}

impl Cache {
    /// Creates an empty cache. `open_files_max` is the process's limit of file descriptors.
    pub(super) fn new(open_files_max: u64) -> Cache {
        let entries = (open_files_max / ENTRIES_DIVISOR).clamp(ENTRIES_MIN, ENTRIES_MAX) as usize;
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            capacity: entries / SHARDS,
            generations: AtomicU64::new(0),
            removed_in: Mutex::default(),
        }
    }

    fn shard(&self, fid: &Fid) -> &Mutex<Shard> {
        // Objects with adjacent ids are often written together.
        &self.shards[fid.f_oid as usize % SHARDS]
    }

    pub(super) fn find(&self, fid: &Fid) -> Option<Arc<Entry>> {
        let mut shard = self.shard(fid).lock();
        shard.clock += 1;
        let clock = shard.clock;
        let (entry, last_use) = shard.entries.get_mut(fid)?;
        *last_use = clock;
        Some(entry.clone())
    }

    /// Adds an entry, or returns the existing one. At the limit evicts the least recently used
    /// entry that is not in use. If the record of that entry is stale, returns that entry as the
    /// second value instead: the caller writes the record and calls [`Cache::evict`].
    pub(super) fn add(&self, entry: Arc<Entry>) -> (Arc<Entry>, Option<Arc<Entry>>) {
        let mut shard = self.shard(&entry.fid).lock();
        shard.clock += 1;
        let clock = shard.clock;
        if let Some((existing, _)) = shard.entries.get(&entry.fid) {
            return (existing.clone(), None);
        }
        let oldest = if shard.entries.len() >= self.capacity {
            shard.oldest_unused()
        } else {
            None
        };
        let stale = oldest.and_then(|fid| shard.evict(&fid));
        shard.entries.insert(entry.fid, (entry.clone(), clock));
        (entry, stale)
    }

    /// Evicts an entry unless it is in use or its record is stale again.
    pub(super) fn evict(&self, fid: &Fid) {
        self.shard(fid).lock().evict(fid);
    }

    pub(super) fn remove(&self, fid: &Fid) {
        let mut shard = self.shard(fid).lock();
        shard.entries.remove(fid);
        shard.dirty.remove(fid);
    }

    /// Records a change of an object; `size` is the file's new size.
    pub(super) fn mark_dirty(&self, fid: &Fid, new: bool, size: u64) {
        let mut shard = self.shard(fid).lock();
        let dirty = shard.dirty.entry(*fid).or_insert_with(|| self.new_dirty());
        dirty.new |= new;
        dirty.changes += 1;
        dirty.size = size;
    }

    /// Records that an object's file is about to be truncated to `size`.
    pub(super) fn mark_truncated(&self, fid: &Fid, size: u64) {
        let mut shard = self.shard(fid).lock();
        let dirty = shard.dirty.entry(*fid).or_default();
        *dirty = DirtyState {
            new: dirty.new,
            changes: dirty.changes + 1,
            size,
            ..self.new_dirty()
        };
    }

    fn new_dirty(&self) -> DirtyState {
        DirtyState {
            generation: self.generations.fetch_add(1, Relaxed),
            ..DirtyState::default()
        }
    }

    pub(super) fn dirty(&self, fid: &Fid) -> Option<DirtyState> {
        self.shard(fid).lock().dirty.get(fid).copied()
    }

    /// The dirty objects. This list and those below are sorted, so that syncs of a simulated disk
    /// have the same order in each run.
    pub(super) fn all_dirty(&self) -> Vec<(Fid, DirtyState)> {
        let list = |s: &Mutex<Shard>| s.lock().dirty.iter().map(|(f, d)| (*f, *d)).collect::<Vec<_>>();
        let mut dirty: Vec<_> = self.shards.iter().flat_map(list).collect();
        dirty.sort_unstable_by_key(|(fid, _)| *fid);
        dirty
    }

    /// Marks synced objects clean, except those that changed after `synced` was listed.
    pub(super) fn mark_clean(&self, synced: &[(Fid, DirtyState)]) {
        for (fid, dirty) in synced {
            let mut shard = self.shard(fid).lock();
            if shard.dirty.get(fid) == Some(dirty) {
                shard.dirty.remove(fid);
            }
        }
    }

    /// Records the removal of a file: its directory needs a sync.
    pub(super) fn mark_removed(&self, dir: &Path) {
        *self.removed_in.lock().entry(dir.to_owned()).or_default() += 1;
    }

    /// The directories with removed files, with the number of removals.
    pub(super) fn removed_in(&self) -> Vec<(PathBuf, u64)> {
        self.removed_in
            .lock()
            .iter()
            .map(|(dir, n)| (dir.clone(), *n))
            .collect()
    }

    /// Marks synced directories clean, except those with removals after `synced` was listed.
    pub(super) fn mark_dirs_clean(&self, synced: &[(PathBuf, u64)]) {
        let mut removed_in = self.removed_in.lock();
        for (dir, removals) in synced {
            if removed_in.get(dir) == Some(removals) {
                removed_in.remove(dir);
            }
        }
    }

    /// Entries with stale records.
    pub(super) fn stale_entries(&self) -> Vec<Arc<Entry>> {
        let list =
            |s: &Mutex<Shard>| -> Vec<_> { s.lock().entries.values().map(|(e, _)| e.clone()).collect() };
        let mut stale: Vec<_> = self.shards.iter().flat_map(list).collect();
        stale.retain(|e| e.state.lock().record_stale);
        stale.sort_unstable_by_key(|e| e.fid);
        stale
    }
}

impl Shard {
    /// The least recently used entry that only the cache refers to.
    fn oldest_unused(&self) -> Option<Fid> {
        let unused = self
            .entries
            .iter()
            .filter(|(_, (e, _))| Arc::strong_count(e) == 1);
        unused
            .min_by_key(|(_, (_, last_use))| *last_use)
            .map(|(fid, _)| *fid)
    }

    /// Removes an unused entry; an entry with a stale record stays and is returned.
    fn evict(&mut self, fid: &Fid) -> Option<Arc<Entry>> {
        let (entry, _) = self.entries.get(fid).filter(|(e, _)| Arc::strong_count(e) == 1)?;
        if entry.state.lock().record_stale {
            return Some(entry.clone());
        }
        self.entries.remove(fid);
        None
    }
}
