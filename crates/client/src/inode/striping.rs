//! Which directories are striped, as far as the client remembers.
//!
//! A caller learns the FID of a directory from this client, which has then seen the directory's
//! layout. The client forgets the layout with the directory's other state, and remembers only that
//! it has forgotten a striped directory. From then on it asks for the layout of each directory that
//! it has no state of. A mount that never sees a striped directory never asks.

use super::{InodeState, Inodes};
use crate::attr::Striping;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::Fid;

/// Whether this mount has seen striped directories.
#[derive(Debug, Default)]
pub(super) struct StripingMarks {
    seen: AtomicBool,
    forgotten: AtomicBool,
}

impl StripingMarks {
    /// Records that a directory that may be striped is no longer cached.
    pub(super) fn note_forgotten(&self) {
        if self.seen.load(Ordering::Acquire) {
            self.forgotten.store(true, Ordering::Release);
        }
    }
}

impl Inodes {
    /// Whether a directory may be striped; the caller then needs its layout.
    pub(crate) fn may_be_striped(&self, dir: Fid) -> bool {
        if !self.stripings.seen.load(Ordering::Acquire) {
            return false;
        }
        let known = self.get(dir).and_then(|inode| inode.state.lock().striped);
        known.unwrap_or_else(|| self.stripings.forgotten.load(Ordering::Acquire))
    }

    /// Records the layout of a directory.
    pub(crate) fn note_striping(&self, state: &mut InodeState, striping: &Striping) {
        let striped = *striping != Striping::None;
        state.striped = Some(striped);
        if striped {
            self.stripings.seen.store(true, Ordering::Release);
        }
    }

    /// Records that some directory is or may be striped, without state for it.
    pub(crate) fn note_unknown_striped(&self) {
        self.stripings.seen.store(true, Ordering::Release);
        self.stripings.note_forgotten();
    }

    /// The number of directories from the root to a directory; `None`: unknown.
    pub(crate) fn depth(&self, dir: Fid) -> Option<u16> {
        match dir.is_root() {
            true => Some(0),
            false => self.get(dir)?.state.lock().depth,
        }
    }

    /// Records that a directory was found in another one, or in a stripe of it.
    pub(crate) fn note_parent(&self, dir: Fid, parent: Fid) {
        let depth = self.depth(self.whole_dir(parent));
        self.entry(dir).state.lock().depth = depth.map(|depth| depth.saturating_add(1));
    }

    /// The striped directory that has a stripe; another directory itself.
    pub(crate) fn whole_dir(&self, dir: Fid) -> Fid {
        let whole = self.get(dir).and_then(|inode| inode.state.lock().stripe_of);
        whole.unwrap_or(dir)
    }

    /// Records that a directory is a stripe of another one.
    pub(crate) fn note_stripe(&self, stripe: Fid, of: Fid) {
        self.entry(stripe).state.lock().stripe_of = Some(of);
    }
}

#[cfg(test)]
mod tests {
    use super::Striping;
    use crate::dircache::DirChunkFifo;
    use crate::inode::Inodes;
    use wire::{Fid, MDS_INODELOCK_UPDATE};

    const DIR: Fid = Fid::new(0x400, 1, 0);
    const OTHER: Fid = Fid::new(0x400, 2, 0);

    #[test]
    fn only_forgotten_directories_are_asked_for_and_only_after_one_was_striped() {
        let inodes = Inodes::new(DirChunkFifo::default());
        assert!(!inodes.may_be_striped(DIR));
        let note = |dir, striping| inodes.note_striping(&mut inodes.entry(dir).state.lock(), &striping);
        note(OTHER, Striping::None);
        note(DIR, Striping::Unusable);
        assert!(inodes.may_be_striped(DIR) && !inodes.may_be_striped(OTHER));
        assert!(
            !inodes.may_be_striped(Fid::ROOT),
            "no striped directory was forgotten"
        );
        inodes.forget(DIR, MDS_INODELOCK_UPDATE);
        assert!(inodes.may_be_striped(DIR) && inodes.may_be_striped(Fid::ROOT));
        assert!(!inodes.may_be_striped(OTHER));
    }

    #[test]
    fn the_loss_of_a_stripes_lock_invalidates_the_whole_directory_in_the_kernel() {
        let inodes = Inodes::new(DirChunkFifo::default());
        inodes.note_stripe(DIR, OTHER);
        assert_eq!(inodes.forget(DIR, MDS_INODELOCK_UPDATE).fid, OTHER);
    }
}
