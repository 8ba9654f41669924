//! The space of a target's stores, and which changes may still use it.
//!
//! A part of the free space is a reserve. New data without a grant may not use it, so that on a
//! full target files can still be removed, truncated and changed, and commits reach the disk. Data
//! for which a client holds a grant may use up to half of the reserve, because the OST granted the
//! space before the disk filled up. Upkeep ([`SpacePurpose`]) works until a sixteenth of the
//! reserve is left. Below that no change begins, so the index's engine never meets a full disk,
//! which would stop it. When space is free again, changes succeed again.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;

use crate::{OsdError, StatFs};

/// The reserve on a local file system is the file system's size divided by this, within the bounds
/// below, but at most a quarter of the size.
const RESERVED_DIVISOR: u64 = 256;
/// Lower bound of the reserve, bytes: the need of an index for its journals (two of up to 72 MiB:
/// the engine's limit of 64 MiB and one memory table) and for compaction.
const RESERVED_MIN: u64 = 256 << 20;
/// Upper bound of the reserve, bytes.
const RESERVED_MAX: u64 = 1 << 30;
/// The reserve in memory is the size divided by this: it only serves a few small records.
const RESERVED_DIVISOR_OF_MEMORY: u64 = 64;
/// Number of inodes of the local file system that are kept for the index; at most a sixteenth of
/// all.
const RESERVED_FILES: u64 = 256;
/// Maximum age of the cached `statvfs` result while much space is free, nanoseconds.
const AGE_MAX_NS: u64 = 100_000_000;
/// Space is short if at most this multiple of the reserve is free. Then the index reclaims the
/// space of deleted records. While space or inodes are short, every check calls `statvfs`.
const SHORT_FACTOR: u64 = 4;
/// [`SpacePurpose::Upkeep`] must leave free the reserve divided by this.
const UPKEEP_DIVISOR: u64 = 16;
/// Block size of a store in memory, bytes.
const MEMORY_BLOCK: u32 = 4096;

/// The purpose of a request for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpacePurpose {
    /// New data: a new name or inode, or data without a grant.
    Growth,
    /// Data for which a client holds a grant.
    Granted,
    /// Changes that remove, replace or commit.
    Upkeep,
}

/// The space of one target, shared by its index and objects.
#[derive(Debug)]
pub struct Space {
    backing: Backing,
    reserved_bytes: AtomicU64,
    /// The first failure after which a store of the target refuses changes.
    failure: OnceLock<String>,
    /// The first failed operation of the target's disk.
    disk_error: OnceLock<String>,
}

#[derive(Debug)]
enum Backing {
    /// A local file system, shared with other users.
    Host { dir: PathBuf, cache: StatfsCache },
    /// Memory of this process, up to a limit.
    Memory {
        size_bytes: AtomicU64,
        used_bytes: AtomicU64,
        /// Number of objects.
        files: AtomicU64,
    },
}

/// The last result of `statvfs`; without a lock, because every change reads it.
#[derive(Debug)]
struct StatfsCache {
    /// The origin of `expiry`.
    begun: Instant,
    /// Expiry, nanoseconds after `begun`; 0: expired.
    expiry: AtomicU64,
    /// Free space, bytes.
    bytes: AtomicU64,
    /// Number of free inodes.
    files: AtomicU64,
}

/// Free space, including the reserve.
#[derive(Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    /// Number of free inodes.
    files: u64,
    /// Number of inodes in reserve.
    files_reserved: u64,
}

impl Space {
    /// The space of a target in a directory of the local file system.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if `statvfs` fails.
    pub fn of_host(dir: impl Into<PathBuf>) -> Result<Arc<Space>, OsdError> {
        let space = Space {
            backing: Backing::Host {
                dir: dir.into(),
                cache: StatfsCache {
                    begun: Instant::now(),
                    expiry: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    files: AtomicU64::new(0),
                },
            },
            reserved_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
            disk_error: OnceLock::new(),
        };
        let s = space.measure()?;
        let total = s.blocks * u64::from(s.bsize);
        let reserved = (total / RESERVED_DIVISOR).clamp(RESERVED_MIN, RESERVED_MAX);
        space.reserved_bytes.store(reserved.min(total / 4), Relaxed);
        Ok(Arc::new(space))
    }

    /// The space of a target in memory, `bytes` large.
    pub fn of_memory(bytes: u64) -> Arc<Space> {
        Arc::new(Space {
            backing: Backing::Memory {
                size_bytes: AtomicU64::new(bytes),
                used_bytes: AtomicU64::new(0),
                files: AtomicU64::new(0),
            },
            reserved_bytes: AtomicU64::new(bytes / RESERVED_DIVISOR_OF_MEMORY),
            failure: OnceLock::new(),
            disk_error: OnceLock::new(),
        })
    }

    /// Records that a store of the target refuses changes from now on. Later calls have no effect.
    pub fn set_failure(&self, why: &str) {
        let _ = self.failure.set(why.to_owned());
    }

    /// The reason for which a store of the target refuses changes; empty without a failure.
    pub fn failure(&self) -> &str {
        self.failure.get().map_or("", String::as_str)
    }

    /// Records an error of the disk, after which the target should get no new files until its
    /// restart. Other errors ([`OsdError::is_disk_error`]) and later calls have no effect.
    pub fn note_error(&self, e: &OsdError) {
        if e.is_disk_error() {
            let _ = self.disk_error.set(e.to_string());
        }
    }

    /// The first error of the disk since the target's start; empty without one, and after a
    /// failure of a store, which implies it.
    pub fn disk_error(&self) -> &str {
        let error = self.disk_error.get().filter(|_| self.failure.get().is_none());
        error.map_or("", String::as_str)
    }

    /// The reserve, bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Relaxed)
    }

    /// Sets the reserve, bytes.
    pub fn set_reserved_bytes(&self, bytes: u64) {
        self.reserved_bytes.store(bytes, Relaxed);
    }

    /// The size of a store in memory, bytes; `None` for a local file system.
    pub fn size_bytes(&self) -> Option<u64> {
        match &self.backing {
            Backing::Memory { size_bytes, .. } => Some(size_bytes.load(Relaxed)),
            Backing::Host { .. } => None,
        }
    }

    /// Changes the size of a store in memory; its data stays. Returns false for a local file
    /// system.
    pub fn set_size_bytes(&self, bytes: u64) -> bool {
        let Backing::Memory { size_bytes, .. } = &self.backing else {
            return false;
        };
        size_bytes.store(bytes, Relaxed);
        self.set_reserved_bytes(bytes / RESERVED_DIVISOR_OF_MEMORY);
        true
    }

    /// Space for users: the reserve counts as not available.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if `statvfs` fails.
    pub fn statfs(&self) -> Result<StatFs, OsdError> {
        let mut s = self.measure()?;
        let reserved = self.reserved_bytes().div_ceil(u64::from(s.bsize.max(1)));
        s.bavail = s.bavail.saturating_sub(reserved);
        s.ffree = s.ffree.saturating_sub(files_in_reserve(&s));
        Ok(s)
    }

    /// Counts this target among the process's targets on the same disk, until the result is
    /// dropped.
    pub fn share(&self) -> DiskShare {
        let disk = match &self.backing {
            Backing::Host { dir, .. } => rustix::fs::stat(dir).ok().map(|s| s.st_dev),
            Backing::Memory { .. } => None,
        };
        if let Some(disk) = disk {
            *SHARES.lock().entry(disk).or_default() += 1;
        }
        DiskShare { disk }
    }

    /// Bytes available for growth; 0 if `statvfs` fails.
    pub fn avail_bytes(&self) -> u64 {
        self.free()
            .map_or(0, |f| f.bytes.saturating_sub(self.reserved_bytes()))
    }

    /// Whether so little space is free that reclaiming deleted records is worthwhile.
    pub(crate) fn is_short(&self) -> bool {
        self.free()
            .is_ok_and(|f| f.bytes <= self.reserved_bytes().saturating_mul(SHORT_FACTOR))
    }

    /// The part of the reserve that upkeep must leave, bytes.
    pub fn upkeep_reserve_bytes(&self) -> u64 {
        self.reserved_bytes() / UPKEEP_DIVISOR
    }

    /// Bytes available for [`SpacePurpose::Upkeep`]; 0 if `statvfs` fails.
    pub(crate) fn upkeep_bytes(&self) -> u64 {
        self.free()
            .map_or(0, |f| f.bytes.saturating_sub(self.upkeep_reserve_bytes()))
    }

    /// Checks that there is space for a purpose.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] if there is none, [`OsdError::Io`] if `statvfs` fails.
    pub fn check(&self, purpose: SpacePurpose) -> Result<(), OsdError> {
        let free = self.free()?;
        let reserved = self.reserved_bytes();
        let (keep_bytes, keep_files) = match purpose {
            SpacePurpose::Growth => (reserved, 0),
            SpacePurpose::Granted => (reserved / 2, 0),
            SpacePurpose::Upkeep => (reserved / UPKEEP_DIVISOR, free.files_reserved / UPKEEP_DIVISOR),
        };
        match free.bytes > keep_bytes && free.files >= keep_files {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// Checks that there is space to start a target with a store in `path`.
    ///
    /// # Errors
    ///
    /// [`OsdError::Full`] with the needed space.
    pub fn check_start(&self, path: &Path) -> Result<(), OsdError> {
        let needed_mib = (self.upkeep_reserve_bytes() >> 20) + 1;
        self.check(SpacePurpose::Upkeep).map_err(|_| OsdError::Full {
            path: path.into(),
            needed_mib,
        })
    }

    /// Checks that the local file system has an inode for a new file.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] if it has none beyond the reserve, [`OsdError::Io`] if `statvfs`
    /// fails.
    pub fn check_file(&self) -> Result<(), OsdError> {
        let free = self.free()?;
        match free.files > free.files_reserved {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// Reserves memory. Does nothing for a local file system, which does its own accounting.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] if less than `bytes` is free.
    pub fn reserve(&self, bytes: u64) -> Result<(), OsdError> {
        if let Backing::Memory {
            size_bytes,
            used_bytes,
            ..
        } = &self.backing
        {
            let size = size_bytes.load(Relaxed);
            used_bytes
                .fetch_update(Relaxed, Relaxed, |used| {
                    used.checked_add(bytes).filter(|u| bytes == 0 || *u <= size)
                })
                .map_err(|_| OsdError::NoSpace)?;
        }
        Ok(())
    }

    /// Releases reserved memory.
    pub fn release(&self, bytes: u64) {
        if let Backing::Memory { used_bytes, .. } = &self.backing {
            // Two concurrent replacements of a value may both release it: stop at 0.
            let reduced = |used: u64| Some(used.saturating_sub(bytes));
            let _ = used_bytes.fetch_update(Relaxed, Relaxed, reduced);
        }
    }

    /// Counts a created object of a store in memory.
    pub(crate) fn count_created_file(&self) {
        if let Backing::Memory { files, .. } = &self.backing {
            files.fetch_add(1, Relaxed);
        }
    }

    /// Counts a destroyed object of a store in memory.
    pub(crate) fn count_destroyed_file(&self) {
        if let Backing::Memory { files, .. } = &self.backing {
            files.fetch_sub(1, Relaxed);
        }
    }

    /// The present state of the memory or the file system, including the reserve.
    fn measure(&self) -> Result<StatFs, OsdError> {
        match &self.backing {
            Backing::Memory {
                size_bytes,
                used_bytes,
                files,
            } => Ok(memory_statfs(
                size_bytes.load(Relaxed),
                used_bytes.load(Relaxed),
                files.load(Relaxed),
            )),
            Backing::Host { dir, .. } => {
                let s = rustix::fs::statvfs(dir).map_err(|e| OsdError::io("statfs", dir)(e.into()))?;
                // `statvfs` counts blocks in fragments.
                Ok(StatFs {
                    bsize: u32::try_from(s.f_frsize).unwrap_or(4096),
                    blocks: s.f_blocks,
                    bfree: s.f_bfree,
                    bavail: s.f_bavail,
                    files: s.f_files,
                    ffree: s.f_ffree,
                })
            }
        }
    }

    /// Free space. The value is up to [`AGE_MAX_NS`] old while much space is free.
    fn free(&self) -> Result<FreeSpace, OsdError> {
        let cache = match &self.backing {
            Backing::Host { cache, .. } => cache,
            Backing::Memory {
                size_bytes,
                used_bytes,
                ..
            } => {
                return Ok(FreeSpace {
                    bytes: size_bytes.load(Relaxed).saturating_sub(used_bytes.load(Relaxed)),
                    files: u64::MAX,
                    files_reserved: 0,
                });
            }
        };
        let now = u64::try_from(cache.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if now < cache.expiry.load(Relaxed) {
            return Ok(FreeSpace {
                bytes: cache.bytes.load(Relaxed),
                files: cache.files.load(Relaxed),
                files_reserved: RESERVED_FILES,
            });
        }
        let s = self.measure()?;
        let free = FreeSpace {
            bytes: s.bavail * u64::from(s.bsize),
            files: if s.files == 0 { u64::MAX } else { s.ffree },
            files_reserved: files_in_reserve(&s),
        };
        let is_ample = free.bytes > self.reserved_bytes().saturating_mul(SHORT_FACTOR)
            && free.files > SHORT_FACTOR * RESERVED_FILES;
        cache.bytes.store(free.bytes, Relaxed);
        cache.files.store(free.files, Relaxed);
        let expiry = if is_ample { now + AGE_MAX_NS } else { 0 };
        cache.expiry.store(expiry, Relaxed);
        Ok(free)
    }
}

/// Number of inodes in reserve.
fn files_in_reserve(s: &StatFs) -> u64 {
    RESERVED_FILES.min(s.files / 16)
}

/// The state of a store in memory of `size` bytes with `used` bytes in use.
fn memory_statfs(size: u64, used: u64, files: u64) -> StatFs {
    let block = u64::from(MEMORY_BLOCK);
    let free = size.saturating_sub(used) / block;
    StatFs {
        bsize: MEMORY_BLOCK,
        blocks: size / block,
        bfree: free,
        bavail: free,
        files: files + free,
        ffree: free,
    }
}

/// Number of this process's targets on each disk, by device number.
static SHARES: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// A target's claim to an equal share of its disk, among the process's targets on that disk.
#[derive(Debug)]
pub struct DiskShare {
    /// The device number of the disk; `None` for memory.
    disk: Option<u64>,
}

impl DiskShare {
    /// This target's part of a disk's blocks and inodes. Targets on the same disk report equal
    /// parts, so that the client's sum is the size of the disk.
    pub fn part_of(&self, all: StatFs) -> StatFs {
        let shares = self
            .disk
            .and_then(|disk| SHARES.lock().get(&disk).copied())
            .unwrap_or(1);
        StatFs {
            bsize: all.bsize,
            blocks: all.blocks / shares,
            bfree: all.bfree / shares,
            bavail: all.bavail / shares,
            files: all.files / shares,
            ffree: all.ffree / shares,
        }
    }
}

impl Drop for DiskShare {
    fn drop(&mut self) {
        let Some(disk) = self.disk else { return };
        let mut shares = SHARES.lock();
        if let Some(count) = shares.get_mut(&disk) {
            *count -= 1;
            if *count == 0 {
                shares.remove(&disk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Whether there is space for growth, granted data and upkeep.
    fn allowed(space: &Space) -> [bool; 3] {
        [SpacePurpose::Growth, SpacePurpose::Granted, SpacePurpose::Upkeep]
            .map(|purpose| space.check(purpose).is_ok())
    }

    #[test]
    fn reserve_serves_grants_and_upkeep_only() {
        let mib = 1 << 20;
        let space = Space::of_memory(64 * mib);
        assert_eq!(space.reserved_bytes(), mib);
        space.reserve(62 * mib).unwrap();
        assert_eq!(allowed(&space), [true; 3]);
        assert_eq!(space.avail_bytes(), mib);
        space.reserve(mib).unwrap();
        assert_eq!(allowed(&space), [false, true, true]);
        space.reserve(mib / 2).unwrap();
        assert_eq!(allowed(&space), [false, false, true]);
        space.reserve(mib / 2).unwrap();
        assert_eq!(allowed(&space), [false; 3]);
        assert!(space.reserve(1).is_err());
        space.release(63 * mib);
        assert_eq!(allowed(&space), [true; 3]);
        assert!(space.set_size_bytes(mib));
        assert_eq!((space.avail_bytes(), allowed(&space)), (0, [false; 3]));
    }

    #[test]
    fn targets_on_one_disk_report_equal_parts() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::of_host(dir.path()).unwrap();
        let all = space.statfs().unwrap();
        let first = space.share();
        let alone = first.part_of(all);
        let second = space.share();
        let (half, other) = (first.part_of(all), second.part_of(all));
        assert_eq!(
            (half.blocks, half.bavail, half.ffree),
            (other.blocks, other.bavail, other.ffree)
        );
        assert!(half.blocks + other.blocks <= alone.blocks && half.blocks < alone.blocks);
        drop(second);
        assert_eq!(first.part_of(all).blocks, alone.blocks);
        let memory = Space::of_memory(1 << 20);
        let (one, _two) = (memory.share(), memory.share());
        assert_eq!(one.part_of(all).blocks, all.blocks);
    }

    #[test]
    fn statfs_of_a_local_file_system_excludes_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::of_host(dir.path()).unwrap();
        space.set_reserved_bytes(0);
        let all = space.statfs().unwrap();
        space.set_reserved_bytes(u64::MAX);
        let none = space.statfs().unwrap();
        assert!(all.bavail > 0 && none.bavail == 0 && none.blocks == all.blocks);
        assert!(space.check(SpacePurpose::Growth).is_err());
        assert!(!space.set_size_bytes(1));
    }
}
