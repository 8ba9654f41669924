//! How much space a store may still use, and what for.
//!
//! A part of what is free is a reserve: nothing may grow into it, so that on a full target files can still be removed,
//! truncated and changed, and commits reach the disk. Data that a client was promised space for may take up to a half
//! of it (the promise was made before somebody else filled the disk), everything else works until a sixteenth is left.
//! Below that nothing is begun any more, so that the index's engine never meets a full disk, which would end its
//! service; when there is space again everything goes on by itself.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;

use crate::{OsdError, StatFs};

/// The reserve on a local file system is a share of it, within these bounds, but not more than a quarter. The lower one
/// is what an index needs for its journals (two of up to 72 MiB) and for sorting its files.
const RESERVED_SHARE: u64 = 256;
const RESERVED_MIN: u64 = 256 << 20;
const RESERVED_MAX: u64 = 1 << 30;
/// In memory it is for a few small records only.
const RESERVED_SHARE_OF_MEMORY: u64 = 64;
/// Files of the local file system that are kept for the index, whose own number is small; but not more than a sixteenth.
const RESERVED_FILES: u64 = 256;
/// How old an answer of the local file system may be while much is free.
const AGE_MAX_NS: u64 = 100_000_000;
/// With less than so many times the reserve free, every change asks anew.
const NEAR: u64 = 4;
/// Blocks of a store in memory.
const MEMORY_BLOCK: u32 = 4096;

/// What space is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Something that was not there before: a new name or inode, data that nobody was promised space for.
    Growth,
    /// Data that a client was promised space for.
    Promised,
    /// What removes, replaces or commits.
    Upkeep,
}

/// The space of one target: its index and its objects share it.
#[derive(Debug)]
pub struct Space {
    below: Below,
    reserved_bytes: AtomicU64,
}

#[derive(Debug)]
enum Below {
    /// A local file system, which others use too.
    Host { dir: PathBuf, known: Known },
    /// This process's memory, so much of it.
    Memory {
        size_bytes: AtomicU64,
        used_bytes: AtomicU64,
        files: AtomicU64,
    },
}

/// What the local file system said last; without a lock, since every change looks at it.
#[derive(Debug)]
struct Known {
    begun: Instant,
    /// When it is too old, nanoseconds after `begun`; 0: it is to be asked anew.
    until: AtomicU64,
    bytes: AtomicU64,
    files: AtomicU64,
}

/// What is free, the reserve not taken off.
#[derive(Clone, Copy)]
struct Free {
    bytes: u64,
    /// Files that can be made, and the part of them that is kept.
    files: u64,
    files_reserved: u64,
}

impl Space {
    /// The space of a target in this directory.
    pub fn of_host(dir: impl Into<PathBuf>) -> Result<Arc<Space>, OsdError> {
        let space = Space {
            below: Below::Host {
                dir: dir.into(),
                known: Known {
                    begun: Instant::now(),
                    until: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    files: AtomicU64::new(0),
                },
            },
            reserved_bytes: AtomicU64::new(0),
        };
        let s = space.now()?;
        let total = s.blocks * u64::from(s.bsize);
        let reserved = (total / RESERVED_SHARE).clamp(RESERVED_MIN, RESERVED_MAX);
        space.reserved_bytes.store(reserved.min(total / 4), Relaxed);
        Ok(Arc::new(space))
    }

    /// So much memory.
    pub fn of_memory(bytes: u64) -> Arc<Space> {
        Arc::new(Space {
            below: Below::Memory {
                size_bytes: AtomicU64::new(bytes),
                used_bytes: AtomicU64::new(0),
                files: AtomicU64::new(0),
            },
            reserved_bytes: AtomicU64::new(bytes / RESERVED_SHARE_OF_MEMORY),
        })
    }

    /// The reserve, bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Relaxed)
    }

    /// Sets the reserve.
    pub fn set_reserved_bytes(&self, bytes: u64) {
        self.reserved_bytes.store(bytes, Relaxed);
    }

    /// The size of a store in memory; `None` of others.
    pub fn size_bytes(&self) -> Option<u64> {
        match &self.below {
            Below::Memory { size_bytes, .. } => Some(size_bytes.load(Relaxed)),
            Below::Host { .. } => None,
        }
    }

    /// Changes the size of a store in memory; what is in it stays. Of others: false.
    pub fn set_size_bytes(&self, bytes: u64) -> bool {
        let Below::Memory { size_bytes, .. } = &self.below else {
            return false;
        };
        size_bytes.store(bytes, Relaxed);
        self.set_reserved_bytes(bytes / RESERVED_SHARE_OF_MEMORY);
        true
    }

    /// Space as users see it: the reserve is not available to them.
    pub fn statfs(&self) -> Result<StatFs, OsdError> {
        let mut s = self.now()?;
        let reserved = self.reserved_bytes().div_ceil(u64::from(s.bsize.max(1)));
        s.bavail = s.bavail.saturating_sub(reserved);
        s.ffree = s.ffree.saturating_sub(reserved_files(&s));
        Ok(s)
    }

    /// Counts a target among those of this process whose disk this is, until the guard is dropped.
    pub fn share(&self) -> Share {
        let disk = match &self.below {
            Below::Host { dir, .. } => rustix::fs::stat(dir).ok().map(|s| s.st_dev),
            Below::Memory { .. } => None,
        };
        if let Some(disk) = disk {
            *SHARES.lock().entry(disk).or_default() += 1;
        }
        Share { disk }
    }

    /// Bytes that may still be filled; none while the local file system does not tell.
    pub fn avail_bytes(&self) -> u64 {
        self.free()
            .map_or(0, |f| f.bytes.saturating_sub(self.reserved_bytes()))
    }

    /// Whether so little is free that it matters what could be given back.
    pub(crate) fn is_short(&self) -> bool {
        self.free()
            .is_ok_and(|f| f.bytes <= self.reserved_bytes().saturating_mul(NEAR))
    }

    /// Bytes that may be used for [`Need::Upkeep`].
    pub(crate) fn upkeep_bytes(&self) -> u64 {
        self.free()
            .map_or(0, |f| f.bytes.saturating_sub(self.reserved_bytes() / 16))
    }

    /// Whether there is space for something.
    pub fn check(&self, need: Need) -> Result<(), OsdError> {
        let free = self.free()?;
        let bytes = self.reserved_bytes();
        let (keep_bytes, keep_files) = match need {
            Need::Growth => (bytes, 0),
            Need::Promised => (bytes / 2, 0),
            Need::Upkeep => (bytes / 16, free.files_reserved / 16),
        };
        match free.bytes > keep_bytes && free.files >= keep_files {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// Whether there is an inode for a new file of the local file system.
    pub fn check_file(&self) -> Result<(), OsdError> {
        let free = self.free()?;
        match free.files > free.files_reserved {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// Takes memory if there is so much. Local file systems count for themselves.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), OsdError> {
        if let Below::Memory {
            size_bytes,
            used_bytes,
            ..
        } = &self.below
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

    /// Gives memory back.
    pub(crate) fn give_back(&self, bytes: u64) {
        if let Below::Memory { used_bytes, .. } = &self.below {
            // Two who replace the same thing at the same time may both have counted it.
            let less = |used: u64| Some(used.saturating_sub(bytes));
            let _ = used_bytes.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// How many things are in memory has changed.
    pub(crate) fn count_files(&self, more: bool) {
        if let Below::Memory { files, .. } = &self.below {
            match more {
                true => files.fetch_add(1, Relaxed),
                false => files.fetch_sub(1, Relaxed),
            };
        }
    }

    /// What is below, asked now, the reserve not taken off.
    fn now(&self) -> Result<StatFs, OsdError> {
        match &self.below {
            Below::Memory {
                size_bytes,
                used_bytes,
                files,
            } => Ok(of_memory(
                size_bytes.load(Relaxed),
                used_bytes.load(Relaxed),
                files.load(Relaxed),
            )),
            Below::Host { dir, .. } => {
                let s = rustix::fs::statvfs(dir).map_err(|e| OsdError::io("statfs", dir)(e.into()))?;
                // Blocks are counted in fragments.
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

    /// What is free, as it was lately while there is much.
    fn free(&self) -> Result<Free, OsdError> {
        let known = match &self.below {
            Below::Host { known, .. } => known,
            Below::Memory {
                size_bytes,
                used_bytes,
                ..
            } => {
                return Ok(Free {
                    bytes: size_bytes.load(Relaxed).saturating_sub(used_bytes.load(Relaxed)),
                    files: u64::MAX,
                    files_reserved: 0,
                });
            }
        };
        let now = u64::try_from(known.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if now < known.until.load(Relaxed) {
            return Ok(Free {
                bytes: known.bytes.load(Relaxed),
                files: known.files.load(Relaxed),
                files_reserved: RESERVED_FILES,
            });
        }
        let s = self.now()?;
        let free = Free {
            bytes: s.bavail * u64::from(s.bsize),
            files: if s.files == 0 { u64::MAX } else { s.ffree },
            files_reserved: reserved_files(&s),
        };
        let much =
            free.bytes > self.reserved_bytes().saturating_mul(NEAR) && free.files > NEAR * RESERVED_FILES;
        known.bytes.store(free.bytes, Relaxed);
        known.files.store(free.files, Relaxed);
        let until = if much { now + AGE_MAX_NS } else { 0 };
        known.until.store(until, Relaxed);
        Ok(free)
    }
}

fn reserved_files(s: &StatFs) -> u64 {
    RESERVED_FILES.min(s.files / 16)
}

fn of_memory(size: u64, used: u64, files: u64) -> StatFs {
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

/// How many targets of this process share a disk, by its device number.
static SHARES: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// A target's share of its disk.
#[derive(Debug)]
pub struct Share {
    /// The device number of a disk.
    disk: Option<u64>,
}

impl Share {
    /// The part of a disk's space and inodes that this target shows: equal parts for all targets that share it, so that what a
    /// client adds up is what the disk has.
    pub fn of(&self, all: StatFs) -> StatFs {
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

impl Drop for Share {
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

    fn allowed(space: &Space) -> [bool; 3] {
        [Need::Growth, Need::Promised, Need::Upkeep].map(|need| space.check(need).is_ok())
    }

    #[test]
    fn the_reserve_is_for_what_was_promised_and_for_upkeep() {
        let mib = 1 << 20;
        let space = Space::of_memory(64 * mib);
        assert_eq!(space.reserved_bytes(), mib);
        space.take(62 * mib).unwrap();
        assert_eq!(allowed(&space), [true; 3]);
        assert_eq!(space.avail_bytes(), mib);
        space.take(mib).unwrap();
        assert_eq!(allowed(&space), [false, true, true]);
        space.take(mib / 2).unwrap();
        assert_eq!(allowed(&space), [false, false, true]);
        space.take(mib / 2).unwrap();
        assert_eq!(allowed(&space), [false; 3]);
        assert!(space.take(1).is_err());
        space.give_back(63 * mib);
        assert_eq!(allowed(&space), [true; 3]);
        assert!(space.set_size_bytes(mib));
        assert_eq!((space.avail_bytes(), allowed(&space)), (0, [false; 3]));
    }

    #[test]
    fn targets_on_one_disk_show_equal_parts_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::of_host(dir.path()).unwrap();
        let all = space.statfs().unwrap();
        let first = space.share();
        let alone = first.of(all);
        let second = space.share();
        let (half, other) = (first.of(all), second.of(all));
        assert_eq!(
            (half.blocks, half.bavail, half.ffree),
            (other.blocks, other.bavail, other.ffree)
        );
        assert!(half.blocks + other.blocks <= alone.blocks && half.blocks < alone.blocks);
        drop(second);
        assert_eq!(first.of(all).blocks, alone.blocks);
        let memory = Space::of_memory(1 << 20);
        let (one, _two) = (memory.share(), memory.share());
        assert_eq!(one.of(all).blocks, all.blocks);
    }

    #[test]
    fn a_local_file_system_says_what_is_free_without_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::of_host(dir.path()).unwrap();
        space.set_reserved_bytes(0);
        let all = space.statfs().unwrap();
        space.set_reserved_bytes(u64::MAX);
        let none = space.statfs().unwrap();
        assert!(all.bavail > 0 && none.bavail == 0 && none.blocks == all.blocks);
        assert!(space.check(Need::Growth).is_err());
        assert!(!space.set_size_bytes(1));
    }
}
