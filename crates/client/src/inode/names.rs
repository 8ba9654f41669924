//! Cached names of files: the file that a name leads to, and negative entries of directories.

use super::changes::ChangeStamp;
use super::name_set::DirNameSet;
use super::{Child, InodeState, Inodes};
use crate::dircache::DirChunk;
use ldlm::LockHandle;
use std::hash::BuildHasher;
use wire::Fid;

/// Largest number of negative entries of a directory; the next one replaces them all.
pub(super) const NEGATIVE_MAX: usize = 4096;

impl Inodes {
    /// The file of a name, or its negative entry, if cached.
    pub(crate) fn child(&self, parent: Fid, name: &[u8]) -> Option<Child> {
        self.get(parent)?.state.lock().children.get(name).copied()
    }

    /// Caches a name of a file. The caller holds the file's LOOKUP lock. Stores in the directory
    /// first, in the file's list of names second. An earlier lock's cancellation may take the list
    /// in between; the name is in the list all the same when the held lock is cancelled.
    pub(crate) fn add_name(&self, parent: Fid, name: &[u8], child: Fid) {
        {
            let dir = self.entry(parent);
            let mut dir = dir.state.lock();
            let old = dir.children.insert(name.into(), Child::File(child));
            if matches!(old, Some(Child::Absent(_))) {
                dir.negative -= 1;
            }
        }
        let file = self.entry(child);
        file.state.lock().names.entry((parent, name.into())).or_default();
    }

    /// Marks a name as cached by the kernel. Returns false, and marks nothing, if the name is not
    /// cached here or leads to another file. The caller holds the file's LOOKUP lock.
    pub(crate) fn mark_in_kernel(&self, parent: Fid, name: &[u8], child: Fid) -> bool {
        let is_cached = self.child(parent, name) == Some(Child::File(child));
        if is_cached {
            let file = self.entry(child);
            file.state.lock().names.insert((parent, name.into()), true);
        }
        is_cached
    }

    /// Returns the names of a file that the kernel may cache, and clears their marks. The caller
    /// invalidates them in the kernel.
    pub(crate) fn take_kernel_names(&self, fid: Fid) -> Vec<(Fid, Box<[u8]>)> {
        let Some(inode) = self.get(fid) else {
            return Vec::new();
        };
        let mut s = inode.state.lock();
        let take = |(name, in_kernel): (&_, &mut bool)| std::mem::take(in_kernel).then(|| Clone::clone(name));
        s.names.iter_mut().filter_map(take).collect()
    }

    /// Caches a negative entry from a lookup sent at `sent_at`, under the directory's UPDATE lock
    /// with this cookie. Returns the hash from which the directory should be listed now, if any.
    pub(crate) fn add_negative(
        &self,
        parent: Fid,
        name: &[u8],
        cookie: LockHandle,
        sent_at: ChangeStamp,
    ) -> Option<u64> {
        let dir = self.entry(parent);
        let mut dir = dir.state.lock();
        if !dir.changed.unchanged_since(sent_at) {
            return None;
        }
        if dir.negative >= NEGATIVE_MAX {
            drop_negative(&mut dir);
        }
        if !matches!(
            dir.children.insert(name.into(), Child::Absent(cookie)),
            Some(Child::Absent(_))
        ) {
            dir.negative += 1;
        }
        if dir
            .names_listed
            .as_ref()
            .is_none_or(|listed| listed.cookie() != cookie)
        {
            dir.names_listed = Some(Box::new(DirNameSet::new(cookie, self.name_limit.clone())));
        }
        dir.names_listed.as_mut().and_then(|listed| listed.note_miss())
    }

    /// Adds a listed part of a directory's names; `last`: the directory ends with this part. The
    /// caller has held the UPDATE lock with this cookie while the part was listed.
    pub(crate) fn add_listed(&self, dir: Fid, cookie: LockHandle, part: &DirChunk, last: bool) {
        let Some(inode) = self.get(dir) else { return };
        let mut s = inode.state.lock();
        let Some(listed) = s.names_listed.as_mut().filter(|listed| listed.cookie() == cookie) else {
            return;
        };
        let names = part.entries.iter().map(|e| self.names.hash_one(&e.name[..]));
        listed.add_part(part.start, (!last).then_some(part.next), names);
    }

    /// Records that a name is about to be created.
    pub(super) fn note_created(&self, s: &mut InodeState, name: &[u8]) {
        if let Some(Child::Absent(_)) = s.children.get(name) {
            s.children.remove(name);
            s.negative -= 1;
        }
        if let Some(listed) = &mut s.names_listed {
            listed.add(self.names.hash_one(name));
        }
    }

    /// The cookie of the UPDATE lock under which the directory lacks a name; `None`: unknown.
    pub(crate) fn lacks(&self, dir: Fid, name: &[u8]) -> Option<LockHandle> {
        let inode = self.get(dir)?;
        let s = inode.state.lock();
        match s.children.get(name) {
            Some(Child::Absent(cookie)) => Some(*cookie),
            Some(Child::File(_)) => None,
            None => {
                let listed = s.names_listed.as_ref()?;
                listed.lacks(self.names.hash_one(name)).then(|| listed.cookie())
            }
        }
    }

    /// Forgets a name of the file `child` that the caller is about to remove or rename. The kernel
    /// drops or moves its own entry, so the lock's cancellation needs no invalidation.
    pub(crate) fn forget_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(inode) = self.get(child) else { return };
        {
            let mut s = inode.state.lock();
            s.names.remove(&(parent, name.into()));
        }
        self.remove_name(parent, name, child);
    }

    /// Removes a name from its directory if it still leads to this file.
    pub(super) fn remove_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(dir) = self.get(parent) else { return };
        let empty = {
            let mut s = dir.state.lock();
            if s.children.get(name) == Some(&Child::File(child)) {
                s.children.remove(name);
            }
            s.is_empty()
        };
        if empty {
            self.prune(parent, dir);
        }
    }
}

/// Drops the negative entries of a directory.
pub(super) fn drop_negative(s: &mut InodeState) {
    if s.negative > 0 {
        s.children.retain(|_, c| matches!(c, Child::File(_)));
        s.negative = 0;
    }
}
