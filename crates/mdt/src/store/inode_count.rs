//! The number of inodes, for statfs.
//!
//! A scan after the start counts the inodes in the order of their keys, in the background.
//! Transactions that create or destroy inodes change the count. The scan and a transaction must not
//! both count an inode. So a transaction announces its inodes before it is applied. The scan skips
//! an announced inode that it has not reached yet, and its transactions track it instead.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use osd::{check::Progress, prefix_end};
use parking_lot::Mutex;
use wire::{Errno, Fid};

use super::{Store, keys};

/// Inodes that the scan counts at once, while transactions wait.
const PAGE: usize = 1024;

/// The count of a store.
#[derive(Default)]
pub(super) struct InodeCount {
    total: AtomicU64,
    /// Whether the scan has ended.
    scanned: AtomicBool,
    scan: Mutex<Scan>,
}

/// The state of the scan.
#[derive(Default)]
struct Scan {
    ended: bool,
    /// The last inode that it reached.
    reached: Option<Fid>,
    /// The announced inodes that it skips, and whether they exist.
    skipped: HashMap<Fid, bool>,
}

impl InodeCount {
    /// Announces that a transaction will create or destroy an inode, which `exists` now or not.
    pub(super) fn announce(&self, fid: Fid, exists: bool) {
        if self.scanned.load(Ordering::Acquire) {
            return;
        }
        let mut scan = self.scan.lock();
        if !scan.ended && scan.reached.is_none_or(|reached| fid > reached) {
            scan.skipped.entry(fid).or_insert(exists);
        }
    }

    /// Counts an inode that an applied transaction created (`exists`) or destroyed.
    pub(super) fn applied(&self, fid: Fid, exists: bool) {
        if !self.scanned.load(Ordering::Acquire) {
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

    /// The number of inodes; `None` before the scan has ended.
    pub(super) fn total(&self) -> Option<u64> {
        let scanned = self.scanned.load(Ordering::Acquire);
        scanned.then(|| self.total.load(Ordering::Relaxed))
    }
}

impl Store {
    /// The number of inodes; `None` before [`Store::count_inodes`] has ended.
    pub fn inodes_used(&self) -> Option<u64> {
        self.count.total()
    }

    /// Counts the inodes. Reads all of them: not for a worker of the runtime.
    pub(crate) fn count_inodes(&self, progress: &Progress) -> Result<(), Errno> {
        let prefix = b"i";
        let (mut from, end) = (prefix.to_vec(), prefix_end(prefix));
        loop {
            let mut scan = self.count.scan.lock();
            let rows = self.index.scan(&from, &end, PAGE)?;
            progress.add(rows.len())?;
            let fids = rows.iter().filter_map(|(key, _)| keys::fid(key));
            let counted = fids.filter(|fid| !scan.skipped.contains_key(fid)).count();
            self.count.total.fetch_add(counted as u64, Ordering::Relaxed);
            let Some((last, _)) = rows.last() else {
                let kept = scan.skipped.drain().filter(|(_, exists)| *exists).count();
                self.count.total.fetch_add(kept as u64, Ordering::Relaxed);
                scan.ended = true;
                self.count.scanned.store(true, Ordering::Release);
                return Ok(());
            };
            scan.reached = keys::fid(last);
            from = [last, &b"\0"[..]].concat();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::check::Progress;
    use wire::Fid;

    use crate::namespace::tests::Fixture;

    const ROOT: Fid = Fid::ROOT;

    #[test]
    fn inodes_are_counted_while_they_come_and_go() {
        let mut f = Fixture::new();
        for i in 0..3000 {
            f.file(ROOT, &format!("f{i}"));
        }
        assert_eq!(f.store.inodes_used(), None);
        let store = f.store.clone();
        let scan = std::thread::spawn(move || store.count_inodes(&Progress::default()));
        for i in 0..1000 {
            f.unlink(ROOT, &format!("f{}", i * 3)).unwrap();
            f.file(ROOT, &format!("new{i}"));
            f.dir(ROOT, &format!("dir{i}"));
        }
        scan.join().unwrap().unwrap();
        // The root directory too.
        assert_eq!(f.store.inodes_used(), Some(1 + 3000 + 1000));
        f.unlink(ROOT, "new7").unwrap();
        assert_eq!(f.store.inodes_used(), Some(4000));
    }
}
