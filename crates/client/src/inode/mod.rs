//! What is known of files: attributes, names, directory pages, extended attributes, each exactly as long as a lock covers it.
//!
//! Nothing here says that it is still true: whoever reads asks the lock client for a lock with the right bits first, and
//! whoever writes holds one while doing so. A lock that is called back takes what it covered away ([`Inodes::forget`]),
//! after its last reference is gone; so what was stored under a lock never outlives it.
//!
//! | bits | cover |
//! |---|---|
//! | UPDATE, PERM | attributes (UPDATE also a directory's entries and the names that it does not have) |
//! | LOOKUP | that a name leads to this file |
//! | LAYOUT | a regular file's layout |
//! | DOM | that a file that this client has made is as yet unwritten |
//! | XATTR | extended attributes; a symbolic link's target never changes |

mod changes;
mod listed;
mod names;

pub(crate) use changes::{Changing, Moment, Shown};

use crate::attr::MdAttr;
use crate::dircache::{DirChunk, Kept, Ticket};
use crate::layout::LovLayout;
use bytes::Bytes;
use changes::{Changed, Changes};
use foldhash::{HashMap, fast::RandomState};
use listed::{Listed, Room};
use names::drop_negative;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{
    Fid, MDS_INODELOCK_DOM, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, Time,
};

/// Bits that attributes are covered by.
pub(crate) const ATTR_BITS: u64 = MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM;

const SHARDS: usize = 64;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// To this file, as long as the file's LOOKUP lock is held.
    Is(Fid),
    /// Nowhere, as long as the directory's UPDATE lock with this cookie is held.
    Absent(u64),
}

/// All extended attributes of a file but the ones that are always asked for.
pub(crate) type Xattrs = HashMap<Vec<u8>, Bytes>;

#[derive(Default)]
pub(crate) struct InodeState {
    pub(crate) md: Option<MdAttr>,
    /// What a directory's were, until the lock on them went; and whether a PERM lock still covers who may do what.
    were: Option<(MdAttr, bool)>,
    pub(crate) layout: Option<Arc<LovLayout>>,
    pub(crate) symlink: Option<Bytes>,
    pub(crate) xattrs: Option<Arc<Xattrs>>,
    children: HashMap<Box<[u8]>, Child>,
    negative: usize,
    /// Each with whether the kernel may have kept it.
    names: HashMap<(Fid, Box<[u8]>), bool>,
    /// A directory's entries, by where they start.
    chunks: BTreeMap<u64, (Ticket, Arc<DirChunk>)>,
    /// The names that a directory may have.
    listed: Option<Box<Listed>>,
    /// What this client does to a directory's names.
    changed: Changed,
    /// Who may keep its attributes.
    pub(crate) shown: Shown,
    /// This client has made the file, and nobody has written to it.
    pub(crate) unwritten: bool,
    /// How many times this client has it open in a way that keeps others from opening it.
    denying: u32,
}

/// What is known of one file.
pub(crate) struct Inode {
    pub(crate) state: Mutex<InodeState>,
}

impl InodeState {
    /// A run of entries that spans `hash`.
    pub(crate) fn chunk(&self, hash: u64) -> Option<Arc<DirChunk>> {
        if self.changed.is_under_way() {
            return None;
        }
        let (_, (_, chunk)) = self.chunks.range(..=hash).next_back()?;
        chunk.spans(hash).then(|| chunk.clone())
    }

    /// Whether what was asked for at that moment is as this client has left it.
    pub(crate) fn as_asked(&self, asked: Moment) -> bool {
        self.changed.none_since(asked)
    }

    fn is_empty(&self) -> bool {
        self.md.is_none()
            && self.layout.is_none()
            && self.xattrs.is_none()
            && self.children.is_empty()
            && self.names.is_empty()
            && self.chunks.is_empty()
            && self.listed.is_none()
            && !self.changed.is_under_way()
            && !self.unwritten
            && self.denying == 0
    }
}

/// That this client has a file open in a way that keeps others from opening it, until the server knows that it has not.
pub(crate) struct Denying {
    fid: Fid,
    inodes: Arc<Inodes>,
    inode: Option<Arc<Inode>>,
}

impl Drop for Denying {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        let empty = {
            let mut s = inode.state.lock();
            s.denying -= 1;
            s.is_empty()
        };
        if empty {
            self.inodes.prune(self.fid, inode);
        }
    }
}

/// What is known of all files, by FID.
pub(crate) struct Inodes {
    shards: Vec<Mutex<HashMap<Fid, Arc<Inode>>>>,
    hash: RandomState,
    /// Of names.
    names: RandomState,
    kept: Kept,
    room: Arc<Room>,
    changes: Changes,
    /// When a directory that is not here any more was last changed: a [`Moment`].
    forgotten: AtomicU64,
}

impl Inodes {
    pub(crate) fn new(kept: Kept) -> Inodes {
        Inodes {
            kept,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hash: RandomState::default(),
            names: RandomState::default(),
            room: Arc::default(),
            changes: Changes::default(),
            forgotten: AtomicU64::default(),
        }
    }

    fn shard(&self, fid: Fid) -> &Mutex<HashMap<Fid, Arc<Inode>>> {
        &self.shards[self.hash.hash_one(fid) as usize % SHARDS]
    }

    /// What is known of a file, if anything.
    pub(crate) fn get(&self, fid: Fid) -> Option<Arc<Inode>> {
        self.shard(fid).lock().get(&fid).cloned()
    }

    /// A file was read, and will be known to have been: what is kept of it says so, too.
    pub(crate) fn accessed(&self, fid: Fid, at: Time) {
        if let Some(inode) = self.get(fid)
            && let Some(md) = &mut inode.state.lock().md
        {
            md.attr.atime = md.attr.atime.max(at);
        }
    }

    /// The place to keep what is learnt of a file. Called with a lock on it held.
    pub(crate) fn entry(&self, fid: Fid) -> Arc<Inode> {
        self.shard(fid)
            .lock()
            .entry(fid)
            .or_insert_with(|| {
                let state = InodeState {
                    changed: Changed::since(Moment(self.forgotten.load(Ordering::Acquire))),
                    ..InodeState::default()
                };
                Arc::new(Inode {
                    state: Mutex::new(state),
                })
            })
            .clone()
    }

    /// This client is about to write to a file that it has made.
    pub(crate) fn written(&self, fid: Fid) {
        if let Some(inode) = self.get(fid) {
            inode.state.lock().unwritten = false;
        }
    }

    /// A file was opened in a way that keeps others from opening it.
    pub(crate) fn denying(self: &Arc<Inodes>, fid: Fid) -> Denying {
        let inode = self.entry(fid);
        inode.state.lock().denying += 1;
        Denying {
            fid,
            inodes: self.clone(),
            inode: Some(inode),
        }
    }

    /// Whether this client itself keeps others from opening a file.
    pub(crate) fn denies(&self, fid: Fid) -> bool {
        self.get(fid).is_some_and(|inode| inode.state.lock().denying > 0)
    }

    /// To be remembered with a question, so that its answer is kept only where it may be.
    pub(crate) fn now(&self) -> Moment {
        self.changes.now()
    }

    /// The attributes of a file, of which size and times may be old: enough to decide which group of a caller matters.
    pub(crate) fn last_seen(&self, fid: Fid) -> Option<MdAttr> {
        let inode = self.get(fid)?;
        let s = inode.state.lock();
        let were = || s.were.as_ref().filter(|(_, covered)| *covered);
        s.md.clone().or_else(|| were().map(|(md, _)| md.clone()))
    }

    /// The layout of a file, as far as known.
    pub(crate) fn layout(&self, fid: Fid) -> Option<Arc<LovLayout>> {
        self.get(fid)?.state.lock().layout.clone()
    }

    /// What a file is and was: its attributes, or those of a directory before its lock went. Its type is the same.
    pub(crate) fn looked_like(&self, fid: Fid) -> Option<MdAttr> {
        let inode = self.get(fid)?;
        let s = inode.state.lock();
        s.md.clone().or_else(|| s.were.as_ref().map(|(md, _)| md.clone()))
    }

    /// Keeps a run of a directory's entries, asked for at that moment; others may leave for it. Called with the directory's
    /// UPDATE lock held.
    pub(crate) fn keep_chunk(&self, dir: Fid, chunk: Arc<DirChunk>, asked: Moment) {
        let inode = self.entry(dir);
        let leaving = {
            let mut s = inode.state.lock();
            if !s.changed.none_since(asked) {
                return;
            }
            let Some((ticket, leaving)) = self.kept.add(dir, chunk.entries.len()) else {
                return;
            };
            if let Some((old, _)) = s.chunks.insert(chunk.start, (ticket, chunk)) {
                self.kept.remove(old);
            }
            leaving
        };
        for (dir, ticket) in leaving {
            let Some(inode) = self.get(dir) else { continue };
            let empty = {
                let mut s = inode.state.lock();
                s.chunks.retain(|_, (held, _)| *held != ticket);
                s.is_empty()
            };
            if empty {
                self.prune(dir, inode);
            }
        }
    }

    fn drop_chunks(&self, s: &mut InodeState) {
        for (ticket, _) in std::mem::take(&mut s.chunks).into_values() {
            self.kept.remove(ticket);
        }
    }

    /// Forgets what these bits of a lock on a file covered; returns the names that the kernel may have for it.
    pub(crate) fn forget(&self, fid: Fid, bits: u64) -> Vec<(Fid, Box<[u8]>)> {
        let Some(inode) = self.get(fid) else {
            return Vec::new();
        };
        let mut names = HashMap::default();
        let empty = {
            let mut s = inode.state.lock();
            if bits & (MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM) != 0
                && let Some(md) = s.md.take().filter(|md| md.attr.is_dir())
            {
                s.were = Some((md, true));
            }
            if bits & (MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM) != 0 {
                // The kernel is about to be told.
                s.shown = Shown::default();
            }
            if bits & MDS_INODELOCK_PERM != 0
                && let Some((_, covered)) = &mut s.were
            {
                *covered = false;
            }
            if bits & MDS_INODELOCK_UPDATE != 0 {
                self.drop_chunks(&mut s);
                drop_negative(&mut s);
                s.listed = None;
            }
            if bits & MDS_INODELOCK_DOM != 0 {
                s.unwritten = false;
            }
            if bits & MDS_INODELOCK_LAYOUT != 0 {
                s.layout = None;
                // Attributes stay; which objects the size is asked of does not.
                if let Some(md) = &mut s.md {
                    md.layout = None;
                }
            }
            if bits & MDS_INODELOCK_XATTR != 0 {
                s.xattrs = None;
            }
            if bits & MDS_INODELOCK_LOOKUP != 0 {
                names = std::mem::take(&mut s.names);
            }
            s.is_empty()
        };
        for (parent, name) in names.keys() {
            self.remove_name(*parent, name, fid);
        }
        if empty {
            self.prune(fid, inode);
        }
        let shown = names.into_iter().filter(|(_, shown)| *shown);
        shown.map(|(name, _)| name).collect()
    }

    /// Drops an entry that knows nothing, if nobody is about to fill it.
    fn prune(&self, fid: Fid, inode: Arc<Inode>) {
        drop(inode);
        let mut shard = self.shard(fid).lock();
        if let Some(inode) = shard.get(&fid)
            && Arc::strong_count(inode) == 1
        {
            let s = inode.state.lock();
            if s.is_empty() {
                let last = s.changed.last();
                drop(s);
                self.forgotten.fetch_max(last.0, Ordering::AcqRel);
                shard.remove(&fid);
            }
        }
    }

    /// Forgets everything (the client was evicted: all locks are gone); returns what there was.
    pub(crate) fn clear(&self) -> Vec<Fid> {
        self.forgotten.fetch_max(self.changes.next().0, Ordering::AcqRel);
        let drain = |s: &Mutex<HashMap<Fid, Arc<Inode>>>| s.lock().drain().collect::<Vec<_>>();
        let gone = self.shards.iter().flat_map(drain);
        gone.map(|(fid, inode)| {
            self.drop_chunks(&mut inode.state.lock());
            fid
        })
        .collect()
    }

    /// Number of files that something is known of.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Child, DirChunk, Inodes, Kept};
    use crate::attr::MdAttr;
    use bytes::Bytes;
    use std::sync::Arc;
    use wire::dirpage::DirEntry;
    use wire::{Fid, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE, MdtBody, Precision};

    const DIR: Fid = Fid::new(0x400, 1, 0);
    const FILE: Fid = Fid::new(0x400, 2, 0);

    /// A run with an entry for each hash from the one to the other.
    fn chunk(start: u64, next: u64) -> Arc<DirChunk> {
        let entry = |hash| DirEntry::new(FILE, hash, Bytes::from_static(b"x"), 0o100_000);
        Arc::new(DirChunk {
            start,
            entries: (start..next).map(entry).collect(),
            next,
        })
    }

    /// The attributes of the directory.
    fn md(mode: u32) -> MdAttr {
        let body = MdtBody {
            mbo_fid1: DIR,
            mbo_mode: mode,
            ..MdtBody::default()
        };
        let none = Bytes::new();
        MdAttr::from_reply(&body, &none, &none, Precision::Nanoseconds)
    }

    #[test]
    fn a_lookup_lock_takes_all_names_of_its_file() {
        let inodes = Inodes::new(Kept::default());
        inodes.add_name(DIR, b"a", FILE);
        inodes.add_name(DIR, b"b", FILE);
        assert_eq!(inodes.child(DIR, b"a"), Some(Child::Is(FILE)));
        assert!(inodes.show_name(DIR, b"b", FILE) && !inodes.show_name(DIR, b"c", FILE));
        let shown = inodes.forget(FILE, MDS_INODELOCK_LOOKUP);
        assert_eq!(shown, [(DIR, (*b"b").into())]);
        assert_eq!((inodes.child(DIR, b"a"), inodes.child(DIR, b"b")), (None, None));
        assert_eq!(inodes.len(), 0);
    }

    #[test]
    fn an_update_lock_takes_absent_names_and_entries_but_not_present_names() {
        let inodes = Inodes::new(Kept::default());
        inodes.add_name(DIR, b"a", FILE);
        inodes.add_negative(DIR, b"x", 7, inodes.now());
        inodes.keep_chunk(DIR, chunk(0, 9), inodes.now());
        assert_eq!(inodes.child(DIR, b"x"), Some(Child::Absent(7)));
        assert!(inodes.forget(DIR, MDS_INODELOCK_UPDATE).is_empty());
        assert_eq!(inodes.child(DIR, b"x"), None);
        assert_eq!(inodes.child(DIR, b"a"), Some(Child::Is(FILE)));
        assert!(inodes.get(DIR).unwrap().state.lock().chunk(0).is_none());
        assert_eq!(inodes.kept.entries(), 0);
    }

    #[test]
    fn who_may_do_what_in_a_directory_is_known_while_it_changes_as_long_as_that_is_locked() {
        let inodes = Inodes::new(Kept::default());
        let md = || md(0o040_750);
        inodes.add_name(FILE, b"dir", DIR);
        inodes.entry(DIR).state.lock().md = Some(md());
        inodes.forget(DIR, MDS_INODELOCK_UPDATE);
        assert!(inodes.get(DIR).unwrap().state.lock().md.is_none());
        assert_eq!(inodes.last_seen(DIR).unwrap().attr.mode, 0o040_750);
        inodes.forget(DIR, MDS_INODELOCK_PERM);
        assert!(inodes.last_seen(DIR).is_none());
        assert!(
            inodes.looked_like(DIR).unwrap().attr.is_dir(),
            "what it is it stays"
        );
        // With the lock on both, both go.
        inodes.entry(DIR).state.lock().md = Some(md());
        inodes.forget(DIR, MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM);
        assert!(inodes.last_seen(DIR).is_none());
    }

    #[test]
    fn what_was_known_of_a_directory_under_a_lock_that_has_gone_is_not_brought_back_by_an_own_change() {
        let inodes = Arc::new(Inodes::new(Kept::default()));
        let state = || inodes.entry(DIR);
        let told = || md(0o040_755).attr;
        // Between the lock of before and the one that is there now, others may have changed who may do what.
        state().state.lock().md = Some(md(0o040_750));
        inodes.forget(DIR, MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM);
        let change = inodes.begin((DIR, 1), Some(b"a"), Some(7));
        assert!(change.is_under(7) && !change.ended_with(told()));
        assert!(state().state.lock().md.is_none());
        // Where it was locked all the while it is kept.
        state().state.lock().md = Some(md(0o040_750));
        assert!(!inodes.begin((DIR, 1), Some(b"b"), Some(8)).ended_with(told()));
        assert_eq!(state().state.lock().md.as_ref().unwrap().attr.mode, 0o040_755);
    }

    #[test]
    fn a_change_that_comes_to_nothing_leaves_what_was_known() {
        let inodes = Arc::new(Inodes::new(Kept::default()));
        let known = || {
            let inode = inodes.entry(DIR);
            let s = inode.state.lock();
            (s.md.is_some(), s.chunk(0).is_some())
        };
        inodes.entry(DIR).state.lock().md = Some(md(0o040_750));
        inodes.keep_chunk(DIR, chunk(0, 9), inodes.now());
        let one = inodes.begin((DIR, 1), Some(b"a"), Some(7));
        assert_eq!(known(), (false, false));
        one.came_to_nothing(true);
        assert_eq!(known(), (true, true));
        // Not where another one was under way, or where nothing was known.
        let (one, other) = (
            inodes.begin((DIR, 1), Some(b"a"), Some(7)),
            inodes.begin((DIR, 1), Some(b"b"), Some(7)),
        );
        assert!(!one.ended());
        other.came_to_nothing(true);
        assert_eq!(known(), (false, false));
        inodes.begin((DIR, 1), Some(b"a"), Some(7)).came_to_nothing(true);
        assert_eq!(
            known(),
            (false, false),
            "the attributes are older than the first one"
        );
        // Nor when the lock has gone meanwhile.
        inodes.entry(DIR).state.lock().md = Some(md(0o040_750));
        inodes.begin((DIR, 1), Some(b"a"), Some(7)).came_to_nothing(false);
        assert_eq!(known(), (false, false));
    }

    #[test]
    fn a_name_that_moved_to_another_file_is_not_lost_with_the_first() {
        let inodes = Inodes::new(Kept::default());
        let other = Fid::new(0x400, 3, 0);
        inodes.add_name(DIR, b"a", FILE);
        inodes.add_name(DIR, b"a", other);
        inodes.forget(FILE, MDS_INODELOCK_LOOKUP);
        assert_eq!(inodes.child(DIR, b"a"), Some(Child::Is(other)));
    }

    #[test]
    fn a_chunk_answers_for_the_hashes_it_spans() {
        let inodes = Inodes::new(Kept::default());
        let inode = inodes.entry(DIR);
        inodes.keep_chunk(DIR, chunk(10, 20), inodes.now());
        let s = inode.state.lock();
        assert!(s.chunk(9).is_none() && s.chunk(20).is_none());
        assert!(s.chunk(10).is_some() && s.chunk(19).is_some());
    }

    #[test]
    fn entries_are_bounded_over_all_directories_and_the_latest_are_kept() {
        let inodes = Inodes::new(Kept::new(1000));
        let dir = |i: u32| Fid::new(0x500, i, 0);
        let runs = || (0..100).flat_map(|i| [(i, 0), (i, 50)]);
        for (i, start) in runs() {
            inodes.keep_chunk(dir(i), chunk(start, start + 50), inodes.now());
            assert!(inodes.kept.entries() <= 1000);
        }
        let kept = |(i, start)| {
            let inode = inodes.get(dir(i))?;
            inode.state.lock().chunk(start)
        };
        assert!(runs().all(|run| kept(run).is_some() == (run.0 >= 90)));
        assert_eq!(inodes.len(), 10, "what knows nothing any more is gone");
        inodes.clear();
        assert_eq!(inodes.kept.entries(), 0);
    }

    #[test]
    fn absent_names_are_bounded() {
        let inodes = Inodes::new(Kept::default());
        for i in 0..10_000u32 {
            inodes.add_negative(DIR, &i.to_le_bytes(), 1, inodes.now());
        }
        assert!(inodes.get(DIR).unwrap().state.lock().children.len() <= super::names::NEGATIVE_MAX);
    }
}
