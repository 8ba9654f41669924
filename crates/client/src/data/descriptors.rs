//! The open files of a mount, each under its file, so that those fail whose data or locks were lost.
//!
//! A descriptor that has failed answers `EIO` for good: what its program believes to be in the file is not there. A new
//! open works. As long as a descriptor of a file has failed, no page of the file is read for a mapping: the kernel has one set
//! of pages for all mappings of a file, and those of before must not show other bytes than they did.

use foldhash::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wire::{Errno, Fid};

const SHARDS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// Of each open file whether data was lost.
    shards: [Mutex<HashMap<Fid, Vec<Arc<AtomicBool>>>>; SHARDS],
    /// How many have lost data.
    lost_data: AtomicUsize,
}

/// An open file among those of its mount.
#[derive(Debug)]
pub(crate) struct Descriptor {
    all: Arc<Descriptors>,
    file: Fid,
    lost_data: Arc<AtomicBool>,
    lost_lock: AtomicBool,
}

impl Descriptors {
    fn shard(&self, file: Fid) -> &Mutex<HashMap<Fid, Vec<Arc<AtomicBool>>>> {
        &self.shards[file.f_oid as usize % SHARDS]
    }

    /// A file is opened.
    pub(super) fn open(self: &Arc<Self>, file: Fid) -> Descriptor {
        let lost_data = Arc::<AtomicBool>::default();
        let mut shard = self.shard(file).lock();
        shard.entry(file).or_default().push(lost_data.clone());
        drop(shard);
        Descriptor {
            all: self.clone(),
            file,
            lost_data,
            lost_lock: AtomicBool::new(false),
        }
    }

    /// Data of a file is lost: all descriptors that it has now fail. How many had not lost data before.
    pub(super) fn data_lost(&self, file: Fid) -> usize {
        let shard = self.shard(file).lock();
        let open = shard.get(&file).into_iter().flatten();
        let newly = open.filter(|lost| !lost.swap(true, Ordering::AcqRel)).count();
        self.lost_data.fetch_add(newly, Ordering::AcqRel);
        newly
    }

    /// Whether a descriptor of the file is open that had lost data.
    pub(super) fn has_lost_data(&self, file: Fid) -> bool {
        self.lost_data.load(Ordering::Acquire) > 0 && {
            let shard = self.shard(file).lock();
            let mut open = shard.get(&file).into_iter().flatten();
            open.any(|lost| lost.load(Ordering::Acquire))
        }
    }
}

impl Descriptor {
    /// `EIO` once data or a lock was lost.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.lost_data.load(Ordering::Acquire) || self.lost_lock.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// A lock that was taken through it is lost: it fails from now on.
    pub(crate) fn lock_lost(&self) {
        self.lost_lock.store(true, Ordering::Release);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut shard = self.all.shard(self.file).lock();
        if let Some(open) = shard.get_mut(&self.file) {
            open.retain(|one| !Arc::ptr_eq(one, &self.lost_data));
            if open.is_empty() {
                shard.remove(&self.file);
            }
        }
        if self.lost_data.load(Ordering::Acquire) {
            self.all.lost_data.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Descriptors;
    use std::sync::Arc;
    use wire::{Errno, Fid};

    const FILE: Fid = Fid::new(0x400, 1, 0);
    const OTHER: Fid = Fid::new(0x400, 17, 0);

    #[test]
    fn descriptors_that_are_open_at_a_loss_fail_for_good_and_later_ones_do_not() {
        let all = Arc::new(Descriptors::default());
        let (one, two, other) = (all.open(FILE), all.open(FILE), all.open(OTHER));
        assert_eq!(all.data_lost(FILE), 2);
        assert_eq!(all.data_lost(FILE), 0);
        let later = all.open(FILE);
        assert_eq!((one.check(), two.check()), (Err(Errno::EIO), Err(Errno::EIO)));
        assert_eq!((other.check(), later.check()), (Ok(()), Ok(())));
        assert!(all.has_lost_data(FILE) && !all.has_lost_data(OTHER));
        drop(one);
        assert!(all.has_lost_data(FILE));
        drop(two);
        assert!(!all.has_lost_data(FILE), "only the later one is open");
        drop((later, other));
        assert!(all.shards.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn a_descriptor_that_lost_a_lock_fails_alone() {
        let all = Arc::new(Descriptors::default());
        let (one, two) = (all.open(FILE), all.open(FILE));
        one.lock_lost();
        assert_eq!((one.check(), two.check()), (Err(Errno::EIO), Ok(())));
        assert!(!all.has_lost_data(FILE));
    }
}
