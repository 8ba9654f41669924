//! Cached names of files: the file that a name leads to, and negative entries of directories.

use super::changes::ChangeStamp;
use super::name_set::DirNameSet;
use super::{Child, InodeState, Inodes};
use crate::dircache::DirChunk;
use ldlm::LockCookie;
use std::hash::BuildHasher;
use wire::Fid;

/// Largest number of negative entries of a directory; the next one replaces them all.
pub(super) const NEGATIVE_MAX: usize = 4096;

impl Inodes {
    /// The file of a name, or its negative entry, if cached.
    pub(crate) fn child(&self, parent: Fid, name: &[u8]) -> Option<Child> {
        self.get(parent)?.state.lock().children.get(name).copied()
    }

    /// Caches a name of a file. The caller holds the file's LOOKUP lock. Stores the name in the
    /// directory first and in the file's list of names second. If the cancellation of an earlier
    /// lock takes the list in between, the cancellation of the held lock still finds the name in
    /// the list.
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

    /// Marks a name as cached by the kernel. Returns false, and marks nothing, if this client has
    /// not cached the name or it leads to another file. The caller holds the file's LOOKUP lock.
    /// `shown`: the directory as the kernel knows it.
    pub(crate) fn mark_in_kernel(&self, parent: Fid, name: &[u8], child: Fid, shown: Fid) -> bool {
        let is_cached = self.child(parent, name) == Some(Child::File(child));
        if is_cached {
            let file = self.entry(child);
            file.state.lock().names.insert((parent, name.into()), Some(shown));
        }
        is_cached
    }

    /// Returns the names of a file that the kernel may cache, and clears their marks. The caller
    /// invalidates them in the kernel.
    pub(crate) fn take_kernel_names(&self, fid: Fid) -> Vec<(Fid, Box<[u8]>)> {
        let Some(inode) = self.get(fid) else {
            return Vec::new();
        };
        let mut state = inode.state.lock();
        let marked = state
            .names
            .iter_mut()
            .filter_map(|((_, name), shown)| Some((shown.take()?, name.clone())));
        marked.collect()
    }

    /// Caches a negative entry from a lookup sent at `sent_at`, under the directory's UPDATE lock
    /// with this cookie. Returns the position from which the caller should list the next part of
    /// the directory now; `None`: not now.
    pub(crate) fn add_negative(
        &self,
        parent: Fid,
        name: &[u8],
        cookie: LockCookie,
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
            .name_set
            .as_ref()
            .is_none_or(|listed| listed.cookie() != cookie)
        {
            dir.name_set = Some(Box::new(DirNameSet::new(cookie, self.name_limit.clone())));
        }
        dir.name_set.as_mut().and_then(|listed| listed.note_miss())
    }

    /// Adds a listed part of a directory's names; `last`: the directory ends with this part. The
    /// caller has held the UPDATE lock with this cookie while the part was listed.
    pub(crate) fn add_listed(&self, dir: Fid, cookie: LockCookie, part: &DirChunk, last: bool) {
        let Some(inode) = self.get(dir) else { return };
        let mut state = inode.state.lock();
        let Some(listed) = state.name_set.as_mut().filter(|listed| listed.cookie() == cookie) else {
            return;
        };
        let names = part
            .entries
            .iter()
            .map(|e| self.name_hasher.hash_one(&e.name[..]));
        listed.add_part(part.start, (!last).then_some(part.next), names);
    }

    /// Records that a name is about to be created.
    pub(super) fn note_created(&self, state: &mut InodeState, name: &[u8]) {
        if let Some(Child::Absent(_)) = state.children.get(name) {
            state.children.remove(name);
            state.negative -= 1;
        }
        if let Some(listed) = &mut state.name_set {
            listed.add(self.name_hasher.hash_one(name));
        }
    }

    /// The cookie of the UPDATE lock under which the cache proves that the directory lacks a name.
    /// `None`: the name may exist. The caller checks that the client still holds this lock.
    pub(crate) fn absence_lock(&self, dir: Fid, name: &[u8]) -> Option<LockCookie> {
        let inode = self.get(dir)?;
        let state = inode.state.lock();
        match state.children.get(name) {
            Some(Child::Absent(cookie)) => Some(*cookie),
            Some(Child::File(_)) => None,
            None => {
                let listed = state.name_set.as_ref()?;
                listed
                    .lacks(self.name_hasher.hash_one(name))
                    .then(|| listed.cookie())
            }
        }
    }

    /// Forgets a name of the file `child` that the caller is about to remove or rename. The kernel
    /// drops or moves its own entry, so the lock's cancellation needs no invalidation.
    pub(crate) fn forget_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(inode) = self.get(child) else { return };
        {
            let mut state = inode.state.lock();
            state.names.remove(&(parent, name.into()));
        }
        self.remove_name(parent, name, child);
    }

    /// Removes a name from its directory if it still leads to this file.
    pub(super) fn remove_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(dir) = self.get(parent) else { return };
        let empty = {
            let mut state = dir.state.lock();
            if state.children.get(name) == Some(&Child::File(child)) {
                state.children.remove(name);
            }
            state.is_empty()
        };
        if empty {
            self.prune(parent, dir);
        }
    }
}

/// Drops the negative entries of a directory.
pub(super) fn drop_negative(state: &mut InodeState) {
    if state.negative > 0 {
        state.children.retain(|_, c| matches!(c, Child::File(_)));
        state.negative = 0;
    }
}
