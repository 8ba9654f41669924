//! A cache of inodes as last read or written.
//!
//! Each shard has two generations. A read or changed inode enters the young generation. When the
//! young generation is full, it becomes the old one, and the former old one is dropped. After a
//! miss, the reader reads the inode from the index under the shard's lock; a changed inode enters
//! after its transaction was applied. So an old value never replaces a new one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use cpt::HashMap;
use parking_lot::Mutex;
use wire::{Errno, Fid};

use super::{Inode, SHARDS, shard_of};

/// Maximum memory of a cached inode, bytes, unless it has many names or stripes.
const INODE_BYTES: u64 = 1024;
/// By default, the cache may use the memory available to the process, divided by this.
const MEMORY_DIVISOR: u64 = 256;
/// Upper bound of the default limit, a number of inodes.
const DEFAULT_MAX: u64 = 128 << 10;

#[derive(Default)]
struct Shard {
    young: HashMap<Fid, Arc<Inode>>,
    old: HashMap<Fid, Arc<Inode>>,
}

impl Shard {
    /// A cached inode; moves it into the young generation.
    fn get(&mut self, fid: Fid, generation_max: usize) -> Option<Arc<Inode>> {
        if let Some(inode) = self.young.get(&fid) {
            return Some(inode.clone());
        }
        let inode = self.old.remove(&fid)?;
        self.put(fid, inode.clone(), generation_max);
        Some(inode)
    }

    /// Adds an inode to the young generation, which has at most `generation_max` inodes.
    fn put(&mut self, fid: Fid, inode: Arc<Inode>, generation_max: usize) {
        if self.young.len() >= generation_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(fid, inode);
    }
}

/// The cached inodes of a store, in shards.
pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// Maximum number of cached inodes.
    max: Arc<AtomicU64>,
}

impl InodeCache {
    /// An empty cache, sized by the memory that the process may use.
    pub(super) fn new() -> InodeCache {
        let default_max = cpt::memory_bytes() / MEMORY_DIVISOR / INODE_BYTES;
        InodeCache {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            max: Arc::new(default_max.min(DEFAULT_MAX).into()),
        }
    }

    /// Maximum number of cached inodes. Each shard caches at least two inodes, even with a lower
    /// maximum.
    pub(crate) fn max(&self) -> &Arc<AtomicU64> {
        &self.max
    }

    /// Number of cached inodes.
    pub(crate) fn len(&self) -> usize {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(count).sum()
    }

    /// Drops all entries, for example after the limit was lowered.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }

    /// Maximum number of inodes in one generation of one shard.
    fn generation_max(&self) -> usize {
        (self.max.load(Relaxed) as usize / (2 * SHARDS)).max(1)
    }

    /// An inode. On a miss, calls `read` and caches the inode if it exists.
    pub(super) fn get(
        &self,
        fid: Fid,
        read: impl FnOnce() -> Result<Option<Inode>, Errno>,
    ) -> Result<Option<Inode>, Errno> {
        let mut shard = self.shards[shard_of(fid)].lock();
        let inode = match shard.get(fid, self.generation_max()) {
            Some(inode) => inode,
            None => {
                let Some(inode) = read()?.map(Arc::new) else {
                    return Ok(None);
                };
                shard.put(fid, inode.clone(), self.generation_max());
                inode
            }
        };
        drop(shard);
        Ok(Some(Inode::clone(&inode)))
    }

    /// Adds an inode that was created or changed, or drops a destroyed one (`None`).
    pub(super) fn update(&self, fid: Fid, inode: Option<Inode>) {
        let mut shard = self.shards[shard_of(fid)].lock();
        shard.old.remove(&fid);
        match inode {
            Some(inode) => shard.put(fid, Arc::new(inode), self.generation_max()),
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
    fn cached_inode_is_not_read_from_the_index_again() {
        let cache = InodeCache::new();
        assert_eq!(cache.get(fid(1), || Ok(None)).unwrap(), None);
        assert_eq!(cache.get(fid(1), || Ok(Some(inode(1)))).unwrap().unwrap().size, 1);
        assert_eq!(cache.get(fid(1), || panic!("cached")).unwrap().unwrap().size, 1);
        cache.update(fid(1), Some(inode(2)));
        assert_eq!(cache.get(fid(1), || panic!("cached")).unwrap().unwrap().size, 2);
        cache.update(fid(1), None);
        assert_eq!(cache.get(fid(1), || Ok(None)).unwrap(), None);
    }

    #[test]
    fn cache_keeps_used_entries_within_its_limit() {
        let cache = InodeCache::new();
        for max in [16_384, 4096] {
            cache.max().store(max, Relaxed);
            cache.clear();
            for n in 0..100_000 {
                cache.get(fid(n), || Ok(Some(inode(n.into())))).unwrap();
                cache.get(fid(7), || Ok(Some(inode(7)))).unwrap();
            }
            assert!(cache.get(fid(7), || panic!("cached")).unwrap().is_some());
            let kept = cache.len() as u64;
            assert!(max / 4 < kept && kept <= max, "{kept} of {max}");
        }
    }

    /// A hash table has up to 16/7 as many slots as entries, and one byte per slot. The parts of an
    /// inode that was read are slices of its record; a changed inode has separate parts.
    #[test]
    fn cached_inode_takes_less_than_a_kibibyte() {
        let parent = Fid::new(0x2_0000_0400, 1, 0);
        let name = [b'n'; 64];
        let mut inode = Inode {
            lov: Bytes::from(vec![0; 32 + 4 * 24]),
            som: Some((1, 1)),
            ..inode(1)
        };
        inode.links = links::add(&inode.links, parent, &name, 1);
        // Upper bound of an allocation's overhead and the counter of a shared one.
        let overhead = 64;
        let slots = (size_of::<(Fid, Arc<Inode>)>() + 1) * 16 / 7 + size_of::<Inode>() + overhead;
        let parts_read = inode.encode().len() + overhead;
        let parts_changed = inode.lov.len() + inode.links.len() + 2 * overhead;
        assert!(
            slots + parts_read.max(parts_changed) < INODE_BYTES as usize,
            "{slots} + {parts_read} or {parts_changed}"
        );
    }
}
