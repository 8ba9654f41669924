//! Detects a change of a file during a section of code: a sequence lock for any number of
//! concurrent writers.
//!
//! A read gets its bytes and the file's size one after the other. If this mount writes or truncates
//! the file in between, the bytes do not match the size. Other mounts cannot change the file in
//! between, because the read holds its extent locks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the begun changes and the ended changes of a file.
#[derive(Debug, Default)]
pub(super) struct ChangeSeq {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct ChangeGuard<'a>(&'a ChangeSeq);

/// Watches for changes, from the moment of its creation on.
#[derive(Debug)]
pub(super) struct ChangeWatch<'a> {
    seq: &'a ChangeSeq,
    /// Number of changes begun before the watch; `None`: a change was in progress when the watch
    /// began.
    begun: Option<u64>,
}

impl ChangeSeq {
    /// Begins a change.
    pub(super) fn begin(&self) -> ChangeGuard<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        ChangeGuard(self)
    }

    /// Watches for changes from now on.
    pub(super) fn watch(&self) -> ChangeWatch<'_> {
        // In this order: a change that ends between the two loads counts as in progress.
        let ended = self.ended.load(Ordering::SeqCst);
        let begun = self.begun.load(Ordering::SeqCst);
        ChangeWatch {
            seq: self,
            begun: (begun == ended).then_some(begun),
        }
    }
}

impl ChangeWatch<'_> {
    /// Whether no change has been in progress since the watch began.
    pub(super) fn saw_no_change(&self) -> bool {
        self.begun == Some(self.seq.begun.load(Ordering::SeqCst))
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::ChangeSeq;

    #[test]
    fn a_change_that_overlaps_a_section_is_detected() {
        let seq = ChangeSeq::default();
        let before = seq.watch();
        assert!(before.saw_no_change());
        let change = seq.begin();
        let during = seq.watch();
        assert!(!before.saw_no_change() && !during.saw_no_change());
        drop(change);
        assert!(!before.saw_no_change() && !during.saw_no_change());
        assert!(seq.watch().saw_no_change());
    }
}
