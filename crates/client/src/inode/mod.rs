//! Cached state of files: attributes, names, layouts, directory entries, extended attributes. Locks
//! cover the state.
//!
//! This cache does not check its own validity. A reader first gets a lock with the right bits from
//! the lock client; a writer holds such a lock while it stores. When the server revokes a lock and
//! no task uses it any more, [`Inodes::forget`] drops the state that the lock covered. So cached
//! state does not outlive its lock, with two exceptions: a symbolic link's target, which never
//! changes, and a directory's last known attributes, for callers that need only the type or check
//! the attributes again.
//!
//! | bits | covered state |
//! |---|---|
//! | UPDATE, PERM | attributes; UPDATE also a directory's entries, negative entries and name set |
//! | LOOKUP | the names that lead to this file |
//! | LAYOUT | a regular file's layout |
//! | DOM | data on the MDT ([`crate::data`] caches it) |
//! | unwritten ([`wire::INODELOCK_UNWRITTEN`]) | the mark that this client created the file and no client has written to it |
//! | XATTR | extended attributes |

mod changes;
mod name_set;
mod names;
mod striping;

pub(crate) use changes::{AttrReaders, ChangeStamp, DirChange};

use crate::attr::MdAttr;
use crate::dircache::{ChunkId, DirChunk, DirChunkFifo};
use crate::layout::FileLayout;
use bytes::Bytes;
use changes::{ChangeClock, DirChangeState};
use cpt::{HashMap, HashState};
use ldlm::LockCookie;
use name_set::{DirNameSet, NameSetLimit};
use names::drop_negative;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use striping::StripingMarks;
use wire::{
    Fid, INODELOCK_UNWRITTEN, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, Time,
};

/// Lock bits that cover attributes.
pub(crate) const ATTR_BITS: u64 = MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM;

/// Number of shards of the inode table, by the FID's hash.
const SHARDS: usize = 64;

/// The result of a name's lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// This file, while the file's LOOKUP lock is held.
    File(Fid),
    /// A negative entry, while the directory's UPDATE lock with this cookie is held.
    Absent(LockCookie),
}

/// All extended attributes of a file except those that arrive with the attributes.
pub(crate) type Xattrs = HashMap<Vec<u8>, Bytes>;

#[derive(Default)]
pub(crate) struct InodeState {
    /// Attributes; valid under a lock with [`ATTR_BITS`].
    pub(crate) md: Option<MdAttr>,
    /// A directory's attributes from before its lock was lost or its last change began, and whether
    /// a PERM lock has covered its permissions since then.
    last_known: Option<(MdAttr, bool)>,
    pub(crate) layout: Option<Arc<FileLayout>>,
    /// The target of a symbolic link.
    pub(crate) symlink: Option<Bytes>,
    pub(crate) xattrs: Option<Arc<Xattrs>>,
    /// A directory's cached names.
    children: HashMap<Box<[u8]>, Child>,
    /// Number of negative entries in `children`.
    negative: usize,
    /// The file's cached names, each with its directory or stripe. The value, if the kernel may
    /// cache the name, is the directory as the kernel knows it.
    names: HashMap<(Fid, Box<[u8]>), Option<Fid>>,
    /// A directory's chunks of entries, by the hash at which each starts.
    chunks: BTreeMap<u64, (ChunkId, Arc<DirChunk>)>,
    /// The names that a directory may have, as far as the client has listed them.
    name_set: Option<Box<DirNameSet>>,
    /// This client's own changes to a directory's names.
    changed: DirChangeState,
    /// The tasks that have received the directory's attributes since the last change.
    pub(crate) kernel_viewers: AttrReaders,
    /// This client created the file, and no client has written to it. Valid under a lock on the
    /// bit of unwritten files.
    pub(crate) unwritten: bool,
    /// This client created the file, and no client has changed its attributes. Valid under a lock
    /// with [`ATTR_BITS`].
    pub(crate) has_first_attrs: bool,
    /// Number of this client's opens for writing or execution, until the server has closed them.
    deny_count: u32,
    /// Whether a directory is striped, when last seen.
    striped: Option<bool>,
    /// The striped directory that has this stripe.
    stripe_of: Option<Fid>,
    /// The number of directories from the root to this directory, when last found by name.
    depth: Option<u16>,
}

/// A file, and those of its names that the kernel may cache, each with its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelCopies {
    /// The file as the kernel knows it: a striped directory, not its stripe.
    pub(crate) fid: Fid,
    pub(crate) names: Vec<(Fid, Box<[u8]>)>,
}

impl KernelCopies {
    /// The file without names.
    pub(crate) fn of(fid: Fid) -> KernelCopies {
        KernelCopies {
            fid,
            names: Vec::new(),
        }
    }
}

/// The cached state of one file.
pub(crate) struct Inode {
    pub(crate) state: Mutex<InodeState>,
}

impl InodeState {
    /// The chunk of entries that spans `hash`.
    pub(crate) fn chunk(&self, hash: u64) -> Option<Arc<DirChunk>> {
        if self.changed.is_in_progress() {
            return None;
        }
        let (_, (_, chunk)) = self.chunks.range(..=hash).next_back()?;
        chunk.spans(hash).then(|| chunk.clone())
    }

    /// Whether this client has not changed the directory since `sent_at`. The reply to a request
    /// sent at that stamp is then still right.
    pub(crate) fn unchanged_since(&self, sent_at: ChangeStamp) -> bool {
        self.changed.unchanged_since(sent_at)
    }

    /// Whether the entry can be dropped: it holds no state that a lock covers, no change is in
    /// progress, and no open of this client excludes others.
    fn is_empty(&self) -> bool {
        self.md.is_none()
            && self.layout.is_none()
            && self.xattrs.is_none()
            && self.children.is_empty()
            && self.names.is_empty()
            && self.chunks.is_empty()
            && self.name_set.is_none()
            && !self.changed.is_in_progress()
            && !self.unwritten
            && self.deny_count == 0
    }
}

/// Guard of an open for writing or execution: while a file is open for one of them, an open for the
/// other fails with `ETXTBSY`. Lives until the server has closed the handle.
pub(crate) struct OpenDenyGuard {
    fid: Fid,
    inodes: Arc<Inodes>,
    inode: Option<Arc<Inode>>,
}

impl Drop for OpenDenyGuard {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        let empty = {
            let mut state = inode.state.lock();
            state.deny_count -= 1;
            state.is_empty()
        };
        if empty {
            self.inodes.prune(self.fid, inode);
        }
    }
}

/// The cached state of all files, by FID.
pub(crate) struct Inodes {
    shards: Vec<Mutex<HashMap<Fid, Arc<Inode>>>>,
    fid_hasher: HashState,
    name_hasher: HashState,
    chunk_fifo: DirChunkFifo,
    name_limit: Arc<NameSetLimit>,
    changes: ChangeClock,
    /// The largest [`ChangeStamp`] of a change of a directory that is no longer cached.
    last_forgotten_change: AtomicU64,
    stripings: StripingMarks,
}

impl Inodes {
    pub(crate) fn new(chunk_fifo: DirChunkFifo) -> Inodes {
        Inodes {
            chunk_fifo,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            fid_hasher: HashState::default(),
            name_hasher: HashState::default(),
            name_limit: Arc::default(),
            changes: ChangeClock::default(),
            last_forgotten_change: AtomicU64::default(),
            stripings: StripingMarks::default(),
        }
    }

    fn shard(&self, fid: Fid) -> &Mutex<HashMap<Fid, Arc<Inode>>> {
        &self.shards[self.fid_hasher.hash_one(fid) as usize % SHARDS]
    }

    /// The cached state of a file, if any.
    pub(crate) fn get(&self, fid: Fid) -> Option<Arc<Inode>> {
        self.shard(fid).lock().get(&fid).cloned()
    }

    /// Raises a file's cached access time to the time of a read.
    pub(crate) fn raise_atime(&self, fid: Fid, at: Time) {
        if let Some(inode) = self.get(fid)
            && let Some(md) = &mut inode.state.lock().md
        {
            md.attr.atime = md.attr.atime.max(at);
        }
    }

    /// The entry for a file's state; created if missing.
    pub(crate) fn entry(&self, fid: Fid) -> Arc<Inode> {
        self.shard(fid)
            .lock()
            .entry(fid)
            .or_insert_with(|| {
                let state = InodeState {
                    changed: DirChangeState::since(ChangeStamp(
                        self.last_forgotten_change.load(Ordering::Acquire),
                    )),
                    ..InodeState::default()
                };
                Arc::new(Inode {
                    state: Mutex::new(state),
                })
            })
            .clone()
    }

    /// Clears the unwritten mark: this client is about to write to a file that it created.
    pub(crate) fn clear_unwritten(&self, fid: Fid) {
        if let Some(inode) = self.get(fid) {
            inode.state.lock().unwritten = false;
        }
    }

    /// Whether this client created the file, and no client has changed its attributes.
    pub(crate) fn has_first_attrs(&self, fid: Fid) -> bool {
        self.get(fid)
            .is_some_and(|inode| inode.state.lock().has_first_attrs)
    }

    /// Records an open of a file for writing or execution.
    pub(crate) fn deny_others(self: &Arc<Inodes>, fid: Fid) -> OpenDenyGuard {
        let inode = self.entry(fid);
        inode.state.lock().deny_count += 1;
        OpenDenyGuard {
            fid,
            inodes: self.clone(),
            inode: Some(inode),
        }
    }

    /// Whether this client has a file open for writing or execution, until the server has closed
    /// the last such handle.
    pub(crate) fn denies_others(&self, fid: Fid) -> bool {
        self.get(fid)
            .is_some_and(|inode| inode.state.lock().deny_count > 0)
    }

    /// The current stamp. The sender of a request takes it, and caches the reply only if no change
    /// began or ended meanwhile.
    pub(crate) fn change_stamp(&self) -> ChangeStamp {
        self.changes.now()
    }

    /// A file's attributes with current permissions; size and times may be old. Enough to choose
    /// the supplementary group of a request. `None`: the permissions may be old too.
    pub(crate) fn permission_attr(&self, fid: Fid) -> Option<MdAttr> {
        let inode = self.get(fid)?;
        let state = inode.state.lock();
        let last_known = || state.last_known.as_ref().filter(|(_, covered)| *covered);
        state
            .md
            .clone()
            .or_else(|| last_known().map(|(md, _)| md.clone()))
    }

    /// The cached layout of a file.
    pub(crate) fn layout(&self, fid: Fid) -> Option<Arc<FileLayout>> {
        self.get(fid)?.state.lock().layout.clone()
    }

    /// A file's attributes, or a directory's attributes from before its lock was lost or its last
    /// change began. The type never changes.
    pub(crate) fn last_known_attr(&self, fid: Fid) -> Option<MdAttr> {
        let inode = self.get(fid)?;
        let state = inode.state.lock();
        state
            .md
            .clone()
            .or_else(|| state.last_known.as_ref().map(|(md, _)| md.clone()))
    }

    /// Caches a chunk of a directory's entries that was requested at `sent_at`, unless this client
    /// has changed the directory since. Evicts the oldest chunks if the limit requires it. The
    /// caller holds the directory's UPDATE lock.
    pub(crate) fn add_chunk(&self, dir: Fid, chunk: Arc<DirChunk>, sent_at: ChangeStamp) {
        let inode = self.entry(dir);
        let evicted = {
            let mut state = inode.state.lock();
            if !state.changed.unchanged_since(sent_at) {
                return;
            }
            let Some((id, evicted)) = self.chunk_fifo.add(dir, chunk.entries.len()) else {
                return;
            };
            if let Some((old, _)) = state.chunks.insert(chunk.start, (id, chunk)) {
                self.chunk_fifo.remove(old);
            }
            evicted
        };
        for (dir, id) in evicted {
            let Some(inode) = self.get(dir) else { continue };
            let empty = {
                let mut state = inode.state.lock();
                state.chunks.retain(|_, (held, _)| *held != id);
                state.is_empty()
            };
            if empty {
                self.prune(dir, inode);
            }
        }
    }

    fn drop_chunks(&self, state: &mut InodeState) {
        for (id, _) in std::mem::take(&mut state.chunks).into_values() {
            self.chunk_fifo.remove(id);
        }
    }

    /// Drops the state that these bits of a lock on a file covered. Returns what the kernel may
    /// cache of it.
    pub(crate) fn forget(&self, fid: Fid, bits: u64) -> KernelCopies {
        let Some(inode) = self.get(fid) else {
            return KernelCopies::of(fid);
        };
        let mut names = HashMap::default();
        let shown;
        let empty = {
            let mut state = inode.state.lock();
            shown = state.stripe_of.unwrap_or(fid);
            if bits & (MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM) != 0
                && let Some(md) = state.md.take().filter(|md| md.attr.is_dir())
            {
                state.last_known = Some((md, true));
            }
            if bits & (MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM) != 0 {
                // The caller invalidates the kernel's copy.
                state.kernel_viewers = AttrReaders::default();
                state.has_first_attrs = false;
            }
            if bits & MDS_INODELOCK_PERM != 0
                && let Some((_, covered)) = &mut state.last_known
            {
                *covered = false;
            }
            if bits & MDS_INODELOCK_UPDATE != 0 {
                self.drop_chunks(&mut state);
                drop_negative(&mut state);
                state.name_set = None;
            }
            if bits & INODELOCK_UNWRITTEN != 0 {
                state.unwritten = false;
            }
            if bits & MDS_INODELOCK_LAYOUT != 0 {
                state.layout = None;
                // The attributes stay valid, but their size must come from the new objects.
                if let Some(md) = &mut state.md {
                    md.layout = None;
                }
            }
            if bits & MDS_INODELOCK_XATTR != 0 {
                state.xattrs = None;
            }
            if bits & MDS_INODELOCK_LOOKUP != 0 {
                names = std::mem::take(&mut state.names);
            }
            state.is_empty()
        };
        for (parent, name) in names.keys() {
            self.remove_name(*parent, name, fid);
        }
        if empty {
            self.prune(fid, inode);
        }
        let in_kernel = names
            .into_iter()
            .filter_map(|((_, name), shown)| Some((shown?, name)));
        KernelCopies {
            fid: shown,
            names: in_kernel.collect(),
        }
    }

    /// Removes an empty entry unless a task still refers to it.
    fn prune(&self, fid: Fid, inode: Arc<Inode>) {
        drop(inode);
        let mut shard = self.shard(fid).lock();
        if let Some(inode) = shard.get(&fid)
            && Arc::strong_count(inode) == 1
        {
            let state = inode.state.lock();
            if state.is_empty() {
                let last = state.changed.last();
                if state.striped == Some(true) {
                    self.stripings.note_forgotten();
                }
                drop(state);
                self.last_forgotten_change.fetch_max(last.0, Ordering::AcqRel);
                shard.remove(&fid);
            }
        }
    }

    /// Drops all state, after an eviction or at the unmount. Returns the files that had state.
    pub(crate) fn clear(&self) -> Vec<Fid> {
        self.stripings.note_forgotten();
        self.last_forgotten_change
            .fetch_max(self.changes.next().0, Ordering::AcqRel);
        let drain = |shard: &Mutex<HashMap<Fid, Arc<Inode>>>| shard.lock().drain().collect::<Vec<_>>();
        let drained = self.shards.iter().flat_map(drain);
        drained
            .map(|(fid, inode)| {
                self.drop_chunks(&mut inode.state.lock());
                fid
            })
            .collect()
    }

    /// Number of files with cached state.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests;
