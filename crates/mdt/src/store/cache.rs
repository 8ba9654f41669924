//! Inodes as they were last read or written: the parents and the root that every operation looks at.
//!
//! Two generations: what is used lives in the young one; when that is full it becomes the old one, and what nobody used
//! meanwhile is forgotten. A miss is read from the index under the shard's lock, and a change is entered after it was
//! applied, so that an old value never stays behind a new one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use foldhash::HashMap;
use parking_lot::Mutex;
use wire::{Errno, Fid};

use super::{Inode, SHARDS, shard_of};

/// Memory that an inode takes here at most, unless it has many names or stripes: the unit in which the cache is bounded.
const INODE_BYTES: u64 = 1024;
/// Part of the process's memory that the cache may take, unless it is set.
const MEMORY_SHARE: u64 = 256;
/// Inodes that are kept at most, unless it is set.
const DEFAULT_MAX: u64 = 128 << 10;

#[derive(Default)]
struct Shard {
    young: HashMap<Fid, Arc<Inode>>,
    old: HashMap<Fid, Arc<Inode>>,
}

impl Shard {
    fn get(&mut self, fid: Fid, generation: usize) -> Option<Arc<Inode>> {
        if let Some(inode) = self.young.get(&fid) {
            return Some(inode.clone());
        }
        let inode = self.old.remove(&fid)?;
        self.put(fid, inode.clone(), generation);
        Some(inode)
    }

    fn put(&mut self, fid: Fid, inode: Arc<Inode>, generation: usize) {
        if self.young.len() >= generation {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(fid, inode);
    }
}

/// The cache.
pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// Inodes that it keeps at most.
    max: Arc<AtomicU64>,
}

impl InodeCache {
    /// An empty one, as large as suits the memory that the process may use.
    pub(super) fn new() -> InodeCache {
        let share = cpt::memory_bytes() / MEMORY_SHARE / INODE_BYTES;
        InodeCache {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            max: Arc::new(share.min(DEFAULT_MAX).into()),
        }
    }

    /// How many inodes it keeps at most. (With fewer than two for each shard it has two.)
    pub(crate) fn max(&self) -> &Arc<AtomicU64> {
        &self.max
    }

    /// How many inodes it has now.
    pub(crate) fn len(&self) -> usize {
        let count = |s: &Mutex<Shard>| {
            let s = s.lock();
            s.young.len() + s.old.len()
        };
        self.shards.iter().map(count).sum()
    }

    /// Forgets everything, for one that is to be smaller.
    pub(crate) fn forget(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }

    /// Inodes of one generation of one shard.
    fn generation(&self) -> usize {
        (self.max.load(Relaxed) as usize / (2 * SHARDS)).max(1)
    }

    /// An inode, read by `read` if it is not here.
    pub(super) fn get(
        &self,
        fid: Fid,
        read: impl FnOnce() -> Result<Option<Inode>, Errno>,
    ) -> Result<Option<Inode>, Errno> {
        let mut shard = self.shards[shard_of(fid)].lock();
        let inode = match shard.get(fid, self.generation()) {
            Some(inode) => inode,
            None => {
                let Some(inode) = read()?.map(Arc::new) else {
                    return Ok(None);
                };
                shard.put(fid, inode.clone(), self.generation());
                inode
            }
        };
        drop(shard);
        Ok(Some(Inode::clone(&inode)))
    }

    /// An inode was changed, or (`None`) removed.
    pub(super) fn changed(&self, fid: Fid, inode: Option<Inode>) {
        let mut shard = self.shards[shard_of(fid)].lock();
        shard.old.remove(&fid);
        match inode {
            Some(inode) => shard.put(fid, Arc::new(inode), self.generation()),
            None => {
                shard.young.remove(&fid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, atomic::Ordering::Relaxed};

    use bytes::Bytes;
    use wire::Fid;

    use super::{INODE_BYTES, InodeCache};
    use crate::store::{Inode, links};

    fn fid(n: u32) -> Fid {
        Fid::new(0x2_0000_0400, n, 0)
    }

    fn inode(size: u64) -> Inode {
        Inode {
            size,
            ..Inode::default()
        }
    }

    #[test]
    fn what_is_known_is_not_read_again() {
        let cache = InodeCache::new();
        assert_eq!(cache.get(fid(1), || Ok(None)).unwrap(), None);
        assert_eq!(cache.get(fid(1), || Ok(Some(inode(1)))).unwrap().unwrap().size, 1);
        assert_eq!(
            cache.get(fid(1), || panic!("it is known")).unwrap().unwrap().size,
            1
        );
        cache.changed(fid(1), Some(inode(2)));
        assert_eq!(
            cache.get(fid(1), || panic!("it is known")).unwrap().unwrap().size,
            2
        );
        cache.changed(fid(1), None);
        assert_eq!(cache.get(fid(1), || Ok(None)).unwrap(), None);
    }

    #[test]
    fn it_keeps_what_is_used_and_no_more_than_it_may() {
        let cache = InodeCache::new();
        for max in [16_384, 4096] {
            cache.max().store(max, Relaxed);
            cache.forget();
            for n in 0..100_000 {
                cache.get(fid(n), || Ok(Some(inode(n.into())))).unwrap();
                cache.get(fid(7), || Ok(Some(inode(7)))).unwrap();
            }
            assert!(cache.get(fid(7), || panic!("it is used")).unwrap().is_some());
            let kept = cache.len() as u64;
            assert!(max / 4 < kept && kept <= max, "{kept} of {max}");
        }
    }

    /// A table has room for up to 16/7 of what is in it, and a byte for each place. An inode that was read has its record's
    /// bytes, of which its parts are slices; one that was changed has the parts apart.
    #[test]
    fn an_inode_takes_less_than_a_kibibyte() {
        let parent = Fid::new(0x2_0000_0400, 1, 0);
        let name = [b'n'; 64];
        let mut inode = Inode {
            lov: Bytes::from(vec![0; 32 + 4 * 24]),
            som: Some((1, 1)),
            ..inode(1)
        };
        inode.links = links::add(&inode.links, parent, &name, 1);
        // What an allocation takes besides, and the counter that a shared one has.
        let besides = 64;
        let place = (size_of::<(Fid, Arc<Inode>)>() + 1) * 16 / 7 + size_of::<Inode>() + besides;
        let read = inode.encode().len() + besides;
        let changed = inode.lov.len() + inode.links.len() + 2 * besides;
        assert!(
            place + read.max(changed) < INODE_BYTES as usize,
            "{place} + {read} or {changed}"
        );
    }
}
