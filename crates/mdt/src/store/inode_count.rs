//! The number of inodes, for statfs.
//!
//! After the start, a background scan counts the inodes in the order of their keys. Transactions
//! that create or destroy inodes change the count. The scan and a transaction must not both count
//! an inode. So a transaction announces its inodes before it is applied. The scan skips an
//! announced inode that it has not reached yet. Transactions record whether a skipped inode exists,
//! and the end of the scan counts those that exist.

use std::{
    collections::HashMap,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use osd::{check::Progress, prefix_end};
use parking_lot::Mutex;
use wire::{Errno, Fid};

use super::{Store, keys};

/// Maximum number of inodes that the scan reads at once.
const INODES_PER_READ: usize = 1024;

/// The count of a store.
#[derive(Default)]
pub(super) struct InodeCount {
    total: AtomicU64,
    /// Whether the scan counted all inodes; unset until it ends.
    complete: OnceLock<bool>,
    scan: Mutex<Scan>,
}

/// The state of the scan.
#[derive(Default)]
struct Scan {
    ended: bool,
    /// The last inode that the scan reached.
    reached: Option<Fid>,
    /// The announced inodes that the scan skips, and whether they exist.
    skipped: HashMap<Fid, bool>,
}

impl InodeCount {
    /// Announces that a transaction will create or destroy an inode. `exists`: whether the inode
    /// exists now.
    pub(super) fn announce(&self, fid: Fid, exists: bool) {
        if self.complete.get().is_some() {
            return;
        }
        let mut scan = self.scan.lock();
        if !scan.ended && scan.reached.is_none_or(|reached| fid > reached) {
            scan.skipped.entry(fid).or_insert(exists);
        }
    }

    /// Counts an inode that an applied transaction created (`exists`) or destroyed.
    pub(super) fn count_applied(&self, fid: Fid, exists: bool) {
        if self.complete.get().is_none() {
            let mut scan = self.scan.lock();
            if let Some(skipped) = scan.skipped.get_mut(&fid) {
                *skipped = exists;
                return;
            }
        }
        match exists {
            true => self.total.fetch_add(1, Ordering::Relaxed),
            false => self.total.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// The number of inodes; `None` before the scan has ended, and if it failed.
    pub(super) fn total(&self) -> Option<u64> {
        let complete = self.complete.get().copied().unwrap_or_default();
        complete.then(|| self.total.load(Ordering::Relaxed))
    }

    /// Ends the scan: counts the skipped inodes that exist. From now on, transactions announce
    /// nothing.
    fn end(&self, complete: bool) {
        let mut scan = self.scan.lock();
        scan.ended = true;
        let skipped = std::mem::take(&mut scan.skipped);
        let existing = skipped.into_values().filter(|exists| *exists).count();
        self.total.fetch_add(existing as u64, Ordering::Relaxed);
        self.complete.get_or_init(|| complete);
    }
}

impl Store {
    /// The number of inodes; `None` before [`Store::count_inodes`] has ended, and if it failed.
    pub fn inodes_used(&self) -> Option<u64> {
        self.count.total()
    }

    /// Counts the inodes; reads all of them.
    pub(crate) async fn count_inodes(&self, progress: &Progress) -> Result<(), Errno> {
        let result = self.scan_inodes(progress).await;
        self.count.end(result.is_ok());
        result
    }

    async fn scan_inodes(&self, progress: &Progress) -> Result<(), Errno> {
        let (mut from, end) = (keys::INODES.to_vec(), prefix_end(keys::INODES));
        loop {
            // Read without the lock: transactions announce the inodes that they create or destroy
            // after this read, so the count below skips them.
            let rows = self.index.scan(&from, &end, INODES_PER_READ).await?;
            progress.add(rows.len())?;
            let Some((last, _)) = rows.last() else {
                return Ok(());
            };
            {
                let mut scan = self.count.scan.lock();
                let fids = rows.iter().filter_map(|(key, _)| keys::fid(key));
                let counted = fids.filter(|fid| !scan.skipped.contains_key(fid)).count();
                self.count.total.fetch_add(counted as u64, Ordering::Relaxed);
                scan.reached = keys::fid(last);
            }
            from = [last, &b"\0"[..]].concat();
            // Lets the worker's other tasks run, even if memory answers each read.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::check::Progress;
    use testbase::Wait;
    use wire::Fid;

    use crate::namespace::tests::Fixture;

    const ROOT: Fid = Fid::ROOT;

    #[test]
    fn inodes_are_counted_while_others_are_created_and_destroyed() {
        let mut f = Fixture::new();
        for i in 0..3000 {
            f.file(ROOT, &format!("f{i}"));
        }
        assert_eq!(f.store.inodes_used(), None);
        let store = f.store.clone();
        let scan = std::thread::spawn(move || store.count_inodes(&Progress::default()).wait());
        for i in 0..1000 {
            f.unlink(ROOT, &format!("f{}", i * 3)).unwrap();
            f.file(ROOT, &format!("new{i}"));
            f.dir(ROOT, &format!("dir{i}"));
        }
        scan.join().unwrap().unwrap();
        // The root directory counts, too.
        assert_eq!(f.store.inodes_used(), Some(1 + 3000 + 1000));
        f.unlink(ROOT, "new7").unwrap();
        assert_eq!(f.store.inodes_used(), Some(4000));
    }

    #[test]
    fn stopped_scan_gives_no_count_and_keeps_no_skipped_inodes() {
        let mut f = Fixture::new();
        f.file(ROOT, "before");
        let progress = Progress::default();
        progress.stop();
        assert!(f.store.count_inodes(&progress).wait().is_err());
        f.file(ROOT, "after");
        assert_eq!(f.store.inodes_used(), None);
        assert!(f.store.count.scan.lock().skipped.is_empty());
    }
}
