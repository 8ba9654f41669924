//! Which names lead to which files, and which names a directory does not have.

use super::changes::Moment;
use super::listed::Listed;
use super::{Child, InodeState, Inodes};
use crate::dircache::DirChunk;
use std::hash::BuildHasher;
use wire::Fid;

/// Names that a directory is known not to have, each by itself, at most.
pub(super) const NEGATIVE_MAX: usize = 4096;

impl Inodes {
    /// Where a name leads, as far as known.
    pub(crate) fn child(&self, parent: Fid, name: &[u8]) -> Option<Child> {
        self.get(parent)?.state.lock().children.get(name).copied()
    }

    /// Learns that a name leads to a file. Called with the file's LOOKUP lock held. (The directory first, the file's list
    /// of names second: a lock that is called back in between is not the one that is held, and the held one still comes.)
    pub(crate) fn add_name(&self, parent: Fid, name: &[u8], child: Fid) {
        {
            let dir = self.entry(parent);
            let mut dir = dir.state.lock();
            let old = dir.children.insert(name.into(), Child::Is(child));
            if matches!(old, Some(Child::Absent(_))) {
                dir.negative -= 1;
            }
        }
        let file = self.entry(child);
        file.state.lock().names.entry((parent, name.into())).or_default();
    }

    /// Whether a name is known to lead to a file: then the kernel will keep it. Called with the file's LOOKUP lock held.
    pub(crate) fn show_name(&self, parent: Fid, name: &[u8], child: Fid) -> bool {
        let known = self.child(parent, name) == Some(Child::Is(child));
        if known {
            let file = self.entry(child);
            file.state.lock().names.insert((parent, name.into()), true);
        }
        known
    }

    /// The names of a file that the kernel may have kept; it is about to be told.
    pub(crate) fn take_shown(&self, fid: Fid) -> Vec<(Fid, Box<[u8]>)> {
        let Some(inode) = self.get(fid) else {
            return Vec::new();
        };
        let mut s = inode.state.lock();
        let take = |(name, shown): (&_, &mut bool)| std::mem::take(shown).then(|| Clone::clone(name));
        s.names.iter_mut().filter_map(take).collect()
    }

    /// Learns that a directory does not have a name, as was asked for at that moment, under its UPDATE lock with this cookie.
    /// From which place on it is to be listed now, if at all.
    pub(crate) fn add_negative(&self, parent: Fid, name: &[u8], cookie: u64, asked: Moment) -> Option<u64> {
        let dir = self.entry(parent);
        let mut dir = dir.state.lock();
        if !dir.changed.none_since(asked) {
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
        if dir.listed.as_ref().is_none_or(|listed| listed.cookie() != cookie) {
            dir.listed = Some(Box::new(Listed::new(cookie, self.room.clone())));
        }
        dir.listed.as_mut().and_then(|listed| listed.missed())
    }

    /// Learns a part of the names that a directory has. Called with its UPDATE lock with this cookie held, which was held
    /// all the while.
    pub(crate) fn add_listed(&self, dir: Fid, cookie: u64, part: &DirChunk, last: bool) {
        let Some(inode) = self.get(dir) else { return };
        let mut s = inode.state.lock();
        let Some(listed) = s.listed.as_mut().filter(|listed| listed.cookie() == cookie) else {
            return;
        };
        let names = part.entries.iter().map(|e| self.names.hash_one(&e.name[..]));
        listed.add_part(part.start, (!last).then_some(part.next), names);
    }

    /// A name is about to be made.
    pub(super) fn may_be_there(&self, s: &mut InodeState, name: &[u8]) {
        if let Some(Child::Absent(_)) = s.children.get(name) {
            s.children.remove(name);
            s.negative -= 1;
        }
        if let Some(listed) = &mut s.listed {
            listed.add(self.names.hash_one(name));
        }
    }

    /// Under which UPDATE lock of a directory it is known not to have a name, if it is.
    pub(crate) fn lacks(&self, dir: Fid, name: &[u8]) -> Option<u64> {
        let inode = self.get(dir)?;
        let s = inode.state.lock();
        match s.children.get(name) {
            Some(Child::Absent(cookie)) => Some(*cookie),
            Some(Child::Is(_)) => None,
            None => {
                let listed = s.listed.as_ref()?;
                listed.lacks(self.names.hash_one(name)).then(|| listed.cookie())
            }
        }
    }

    /// A name is about to be removed by way of the kernel, which then forgets it by itself: it need not be told when the
    /// lock goes.
    pub(crate) fn leave_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(inode) = self.get(child) else { return };
        {
            let mut s = inode.state.lock();
            s.names.remove(&(parent, name.into()));
        }
        self.remove_name(parent, name, child);
    }

    pub(super) fn remove_name(&self, parent: Fid, name: &[u8], child: Fid) {
        let Some(dir) = self.get(parent) else { return };
        let empty = {
            let mut s = dir.state.lock();
            if s.children.get(name) == Some(&Child::Is(child)) {
                s.children.remove(name);
            }
            s.is_empty()
        };
        if empty {
            self.prune(parent, dir);
        }
    }
}

/// Forgets the names that a directory does not have.
pub(super) fn drop_negative(s: &mut InodeState) {
    if s.negative > 0 {
        s.children.retain(|_, c| matches!(c, Child::Is(_)));
        s.negative = 0;
    }
}
