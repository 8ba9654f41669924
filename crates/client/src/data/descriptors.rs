//! The open descriptors of a mount by file. Descriptors with lost data or locks fail.
//!
//! A failed descriptor returns `EIO` permanently: the data that its program wrote is not in the
//! file. A new open of the file works. While a file has a failed descriptor, the client reads no
//! page of the file for a mapping: all mappings share the kernel's pages, and the bytes of an
//! existing mapping must not change.

use cpt::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wire::{Errno, Fid};

/// Number of shards of the table. The object ID in the file's FID selects the shard.
const SHARDS: usize = 16;

/// All open descriptors of a mount.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// For each file, a flag for each descriptor: data was lost.
    shards: [Mutex<HashMap<Fid, Vec<Arc<AtomicBool>>>>; SHARDS],
    /// Number of open descriptors that have lost data.
    failed_count: AtomicUsize,
}

/// An open descriptor.
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

    /// Adds a descriptor of a file.
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

    /// Fails all current descriptors of a file after a loss of data. Returns the number that newly
    /// failed.
    pub(super) fn fail_descriptors(&self, file: Fid) -> usize {
        let shard = self.shard(file).lock();
        let open = shard.get(&file).into_iter().flatten();
        let newly = open.filter(|lost| !lost.swap(true, Ordering::AcqRel)).count();
        self.failed_count.fetch_add(newly, Ordering::AcqRel);
        newly
    }

    /// Whether the file has an open descriptor that lost data.
    pub(super) fn has_lost_data(&self, file: Fid) -> bool {
        self.failed_count.load(Ordering::Acquire) > 0 && {
            let shard = self.shard(file).lock();
            let mut open = shard.get(&file).into_iter().flatten();
            open.any(|lost| lost.load(Ordering::Acquire))
        }
    }
}

impl Descriptor {
    /// Fails with `EIO` after a loss of data or of a lock.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.lost_data.load(Ordering::Acquire) || self.lost_lock.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Fails this descriptor after the loss of a lock taken through it.
    pub(crate) fn mark_lock_lost(&self) {
        self.lost_lock.store(true, Ordering::Release);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut shard = self.all.shard(self.file).lock();
        if let Some(open) = shard.get_mut(&self.file) {
            open.retain(|lost_data| !Arc::ptr_eq(lost_data, &self.lost_data));
            if open.is_empty() {
                shard.remove(&self.file);
            }
        }
        if self.lost_data.load(Ordering::Acquire) {
            self.all.failed_count.fetch_sub(1, Ordering::AcqRel);
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
    fn descriptors_open_at_a_loss_fail_permanently_and_later_ones_do_not() {
        let all = Arc::new(Descriptors::default());
        let (one, two, other) = (all.open(FILE), all.open(FILE), all.open(OTHER));
        assert_eq!(all.fail_descriptors(FILE), 2);
        assert_eq!(all.fail_descriptors(FILE), 0);
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
        one.mark_lock_lost();
        assert_eq!((one.check(), two.check()), (Err(Errno::EIO), Ok(())));
        assert!(!all.has_lost_data(FILE));
    }
}
