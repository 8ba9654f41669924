//! Inodes as they were last read or written: the parents and the root that every operation looks at.
//!
//! Two generations: what is used lives in the young one; when that is full it becomes the old one, and what nobody used
//! meanwhile is forgotten. A miss is read from the index under the shard's lock, and a change is entered after it was
//! applied, so that an old value never stays behind a new one.

use foldhash::HashMap;

use parking_lot::Mutex;
use wire::{Errno, Fid};

use super::{Inode, SHARDS, shard_of};

/// Inodes of one generation of one shard: 16,384 inodes in all, a few MiB.
const GENERATION: usize = 32;

#[derive(Default)]
struct Shard {
    young: HashMap<Fid, Inode>,
    old: HashMap<Fid, Inode>,
}

impl Shard {
    fn get(&mut self, fid: Fid) -> Option<Inode> {
        if let Some(inode) = self.young.get(&fid) {
            return Some(inode.clone());
        }
        let inode = self.old.remove(&fid)?;
        self.put(fid, inode.clone());
        Some(inode)
    }

    fn put(&mut self, fid: Fid, inode: Inode) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(fid, inode);
    }
}

/// The cache.
pub(super) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
}

impl InodeCache {
    pub(super) fn new() -> InodeCache {
        InodeCache {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
        }
    }

    /// An inode, read by `read` if it is not here.
    pub(super) fn get(
        &self,
        fid: Fid,
        read: impl FnOnce() -> Result<Option<Inode>, Errno>,
    ) -> Result<Option<Inode>, Errno> {
        let mut shard = self.shards[shard_of(fid)].lock();
        if let Some(inode) = shard.get(fid) {
            return Ok(Some(inode));
        }
        let inode = read()?;
        if let Some(inode) = &inode {
            shard.put(fid, inode.clone());
        }
        Ok(inode)
    }

    /// An inode was changed, or (`None`) removed.
    pub(super) fn changed(&self, fid: Fid, inode: Option<Inode>) {
        let mut shard = self.shards[shard_of(fid)].lock();
        shard.old.remove(&fid);
        match inode {
            Some(inode) => shard.put(fid, inode),
            None => {
                shard.young.remove(&fid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{GENERATION, InodeCache, SHARDS};
    use crate::store::Inode;
    use wire::Fid;

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
    fn it_keeps_what_is_used_and_never_grows_without_bound() {
        let cache = InodeCache::new();
        for n in 0..100_000 {
            cache.get(fid(n), || Ok(Some(inode(n.into())))).unwrap();
            cache.get(fid(7), || Ok(Some(inode(7)))).unwrap();
        }
        assert!(cache.get(fid(7), || panic!("it is used")).unwrap().is_some());
        let count = |s: &parking_lot::Mutex<super::Shard>| {
            let s = s.lock();
            s.young.len() + s.old.len()
        };
        let kept: usize = cache.shards.iter().map(count).sum();
        assert!(kept <= SHARDS * 2 * GENERATION);
    }
}
