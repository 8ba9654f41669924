//! A cache of inodes as last read or written.
//!
//! Each shard has two generations. A read or changed inode enters the young generation. When the
//! young generation is full, it becomes the old one, and the former old one is dropped.
//!
//! A reader that misses the cache reads the index without a lock of the cache. A change of the
//! inode may be applied meanwhile, so an old value must not enter the cache after a new one:
//!
//! - If memory answers the read, the value enters only if the shard has seen no change since the
//!   miss ([`InodeCache::add`]).
//! - If the read waits, the shard lists it ([`InodeRead`]). Other readers of the inode wait for the
//!   same read. A change removes the read from the list: its value does not enter the cache, and
//!   later readers start a new read.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use cpt::HashMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use wire::{Errno, Fid};

use super::{Inode, SHARDS, shard_of};

/// Maximum memory of a cached inode, bytes, unless it has many names or stripes.
const INODE_BYTES: u64 = 1024;
/// By default, the cache may use the memory available to the process, divided by this.
const MEMORY_DIVISOR: u64 = 256;
/// Upper bound of the default limit, a number of inodes.
const DEFAULT_MAX: u64 = 128 << 10;

/// The value of a read that waits for the index; `None` if there is no such inode.
type ReadCell = Arc<OnceCell<Option<Arc<Inode>>>>;

/// A read in the list of its shard.
#[derive(Default)]
struct ListedRead {
    cell: ReadCell,
    /// Number of tasks that wait for it.
    readers: usize,
}

#[derive(Default)]
struct Shard {
    young: HashMap<Fid, Arc<Inode>>,
    old: HashMap<Fid, Arc<Inode>>,
    /// The reads that wait for the index; at most one for each waiting request.
    reads: HashMap<Fid, ListedRead>,
    /// Number of changes of inodes so far.
    changes: u64,
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

    /// Records a change of an inode: the reads that have begun may return the old value.
    fn note_change(&mut self, fid: Fid) {
        self.changes += 1;
        if !self.reads.is_empty() {
            self.reads.remove(&fid);
        }
    }

    /// The list's entry of this read, if the list has it.
    fn listed(&mut self, fid: Fid, cell: &ReadCell) -> Option<&mut ListedRead> {
        let listed = self.reads.get_mut(&fid)?;
        Arc::ptr_eq(&listed.cell, cell).then_some(listed)
    }
}

/// The result of a lookup in the cache.
pub(super) enum Lookup<'a> {
    /// The inode.
    Found(Arc<Inode>),
    /// Another task reads the inode.
    Reading(InodeRead<'a>),
    /// The caller reads the inode. The number of changes of the shard so far.
    Missing(u64),
}

/// A read of an inode that waits for the index.
pub(super) struct InodeRead<'a> {
    cache: &'a InodeCache,
    fid: Fid,
    cell: ReadCell,
}

impl InodeRead<'_> {
    /// Waits for the value. One of the waiting tasks calls `read`; if that task ends early or the
    /// read fails, the next one does.
    pub(super) async fn value(
        &self,
        read: impl AsyncFnOnce() -> Result<Option<Inode>, Errno>,
    ) -> Result<Option<Arc<Inode>>, Errno> {
        let read = async || Ok::<_, Errno>(read().await?.map(Arc::new));
        let value = self.cell.get_or_try_init(read).await?.clone();
        let mut shard = self.cache.shard(self.fid).lock();
        if shard.listed(self.fid, &self.cell).is_some() {
            shard.reads.remove(&self.fid);
            if let Some(inode) = &value {
                shard.put(self.fid, inode.clone(), self.cache.generation_max());
            }
        }
        Ok(value)
    }
}

impl Drop for InodeRead<'_> {
    /// Removes the read from the list if no other task waits for it.
    fn drop(&mut self) {
        let mut shard = self.cache.shard(self.fid).lock();
        let Some(listed) = shard.listed(self.fid, &self.cell) else {
            return;
        };
        listed.readers -= 1;
        if listed.readers == 0 {
            shard.reads.remove(&self.fid);
        }
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
            let mut shard = shard.lock();
            (shard.young, shard.old) = Default::default();
        }
    }

    /// Maximum number of inodes in one generation of one shard.
    fn generation_max(&self) -> usize {
        (self.max.load(Relaxed) as usize / (2 * SHARDS)).max(1)
    }

    fn shard(&self, fid: Fid) -> &Mutex<Shard> {
        &self.shards[shard_of(fid)]
    }

    /// A cached inode; `None` if it has to be read.
    pub(super) fn cached(&self, fid: Fid) -> Option<Arc<Inode>> {
        self.shard(fid).lock().get(fid, self.generation_max())
    }

    /// Looks up an inode, before the caller reads it.
    pub(super) fn look_up(&self, fid: Fid) -> Lookup<'_> {
        let mut shard = self.shard(fid).lock();
        if let Some(inode) = shard.get(fid, self.generation_max()) {
            return Lookup::Found(inode);
        }
        let changes = shard.changes;
        match shard.reads.is_empty() {
            true => None,
            false => shard.reads.get_mut(&fid),
        }
        .map_or(Lookup::Missing(changes), |listed| {
            Lookup::Reading(self.join_read(fid, listed))
        })
    }

    /// Lists a read that waits, or joins the listed one. `None` if the shard has changed since the
    /// lookup, which returned `changes`: look up again.
    pub(super) fn begin_read(&self, fid: Fid, changes: u64) -> Option<InodeRead<'_>> {
        let mut shard = self.shard(fid).lock();
        if shard.changes != changes {
            return None;
        }
        Some(self.join_read(fid, shard.reads.entry(fid).or_default()))
    }

    fn join_read(&self, fid: Fid, listed: &mut ListedRead) -> InodeRead<'_> {
        listed.readers += 1;
        InodeRead {
            cache: self,
            fid,
            cell: listed.cell.clone(),
        }
    }

    /// Adds an inode that was read, unless the shard has changed since the lookup, which returned
    /// `changes`.
    pub(super) fn add(&self, fid: Fid, inode: Arc<Inode>, changes: u64) {
        let mut shard = self.shard(fid).lock();
        if shard.changes == changes {
            shard.put(fid, inode, self.generation_max());
        }
    }

    /// Adds an inode that was created or changed, or drops a destroyed one (`None`).
    pub(super) fn update(&self, fid: Fid, inode: Option<Inode>) {
        let mut shard = self.shard(fid).lock();
        shard.note_change(fid);
        shard.old.remove(&fid);
        match inode {
            Some(inode) => shard.put(fid, Arc::new(inode), self.generation_max()),
            None => {
                shard.young.remove(&fid);
            }
        }
    }

    /// Records that an inode was created, without adding it.
    pub(super) fn note_created(&self, fid: Fid) {
        self.shard(fid).lock().note_change(fid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, atomic::Ordering::Relaxed};

    use bytes::Bytes;
    use wire::{Errno, Fid};

    use super::{INODE_BYTES, InodeCache, InodeRead, Lookup};
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

    /// Reads an inode that memory holds (`stored`), through the cache.
    fn read(cache: &InodeCache, fid: Fid, stored: Option<Inode>) -> Option<u64> {
        match cache.look_up(fid) {
            Lookup::Found(inode) => Some(inode.size),
            Lookup::Reading(_) => panic!("no read waits"),
            Lookup::Missing(changes) => {
                let inode = Arc::new(stored?);
                cache.add(fid, inode.clone(), changes);
                Some(inode.size)
            }
        }
    }

    /// The read of an inode that is not cached.
    fn begin(cache: &InodeCache, fid: Fid) -> InodeRead<'_> {
        match cache.look_up(fid) {
            Lookup::Found(_) => panic!("cached"),
            Lookup::Reading(read) => read,
            Lookup::Missing(changes) => cache.begin_read(fid, changes).unwrap(),
        }
    }

    #[test]
    fn cached_inode_is_not_read_from_the_index_again() {
        let cache = InodeCache::new();
        assert_eq!(read(&cache, fid(1), None), None);
        assert_eq!(read(&cache, fid(1), Some(inode(1))), Some(1));
        assert_eq!(read(&cache, fid(1), None), Some(1));
        cache.update(fid(1), Some(inode(2)));
        assert_eq!(read(&cache, fid(1), None), Some(2));
        cache.update(fid(1), None);
        assert_eq!(read(&cache, fid(1), None), None);
    }

    #[test]
    fn value_read_before_a_change_does_not_enter_the_cache() {
        let cache = InodeCache::new();
        for change in [Some(inode(2)), None] {
            cache.update(fid(1), None);
            let Lookup::Missing(changes) = cache.look_up(fid(1)) else {
                panic!("cached");
            };
            cache.update(fid(1), change.clone());
            cache.add(fid(1), Arc::new(inode(1)), changes);
            assert!(cache.begin_read(fid(1), changes).is_none());
            assert_eq!(cache.cached(fid(1)).map(|i| i.size), change.map(|i| i.size));
        }
    }

    #[test]
    fn read_that_nobody_waits_for_leaves_the_list() {
        let cache = InodeCache::new();
        let (first, second) = (begin(&cache, fid(1)), begin(&cache, fid(1)));
        std::thread::scope(|threads| {
            threads.spawn(|| drop(first));
            threads.spawn(|| drop(second));
        });
        assert!(cache.shard(fid(1)).lock().reads.is_empty());
    }

    #[tokio::test]
    async fn concurrent_readers_share_a_read_and_a_later_one_does_not_get_an_old_value() {
        let cache = InodeCache::new();
        let (first, second) = (begin(&cache, fid(1)), begin(&cache, fid(1)));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let first = first.value(async || Ok(receiver.await.unwrap()));
        let second = second.value(async || panic!("the first reader reads"));
        let changed = async {
            cache.note_created(fid(1));
            let third = begin(&cache, fid(1));
            let value = third.value(async || Ok(Some(inode(2)))).await.unwrap();
            assert_eq!(value.unwrap().size, 2);
            sender.send(Some(inode(1))).unwrap();
        };
        let (first, second, ()) = tokio::join!(first, second, changed);
        assert_eq!(first.unwrap().unwrap().size, 1);
        assert_eq!(second.unwrap().unwrap().size, 1);
        assert_eq!(cache.cached(fid(1)).unwrap().size, 2);
    }

    #[tokio::test]
    async fn next_reader_reads_if_the_first_one_fails_or_ends() {
        let cache = InodeCache::new();
        let (failing, ending, last) = (
            begin(&cache, fid(1)),
            begin(&cache, fid(1)),
            begin(&cache, fid(1)),
        );
        failing.value(async || Err(Errno::EIO)).await.unwrap_err();
        drop(failing);
        tokio::select! {
            biased;
            _ = ending.value(async || std::future::pending().await) => {}
            () = async {} => {}
        }
        drop(ending);
        let value = last.value(async || Ok(Some(inode(1)))).await.unwrap();
        assert_eq!(value.unwrap().size, 1);
        assert_eq!(cache.cached(fid(1)).unwrap().size, 1);
        drop(begin(&cache, fid(2)));
        let listed = cache.shards.iter().map(|shard| shard.lock().reads.len());
        assert_eq!(listed.sum::<usize>(), 0);
    }

    #[test]
    fn cache_keeps_used_entries_within_its_limit() {
        let cache = InodeCache::new();
        for max in [16_384, 4096] {
            cache.max().store(max, Relaxed);
            cache.clear();
            for n in 0..100_000 {
                read(&cache, fid(n), Some(inode(n.into())));
                read(&cache, fid(7), Some(inode(7)));
            }
            assert!(cache.cached(fid(7)).is_some());
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
