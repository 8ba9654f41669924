//! The target's store: inodes, entries, attributes and settings, as keys and values of an index.
//!
//! Readers read single records and hold no lock. An operation that changes inodes takes a [`Stamp`]
//! of them first, reads, plans a change, and applies it in one atomic batch
//! ([`Store::apply_if_current`]). If another operation has changed one of the inodes, or the counts
//! of its open handles, since the stamp, nothing is applied, and the operation starts again. So if
//! the last unlink and the last close of an inode run at the same time, the later one destroys the
//! inode.
//!
//! The caller's locks protect names and the permissions of a directory. An operation on names does
//! not stamp the directory: it changes the directory's record (times, links, size) last, together
//! with other operations ([`dirs`]).

mod apply;
mod cache;
pub mod data;
mod describe;
mod dirs;
pub(crate) mod dot_lustre;
mod inode;
mod inode_count;
pub mod keys;
pub mod links;
mod mutation;
mod mutation_codec;
mod request;
mod work;

use cpt::{BoxFuture, HashMap};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use dirs::DirCommits;
use osd::{Index, Transactions, prefix_end};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;
use wire::{Errno, Fid, Transno};

pub use apply::{Applied, ApplyError};
pub(crate) use cache::InodeCache;
use cache::Lookup;
pub use data::FileData;
pub use describe::describe;
pub use dirs::DirChange;
pub use inode::{
    DIR_BLOCK, Entry, Inode, Ownership, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG,
    S_IFSOCK, S_ISGID, S_ISUID, S_ISVTX,
};
use inode_count::InodeCount;
pub use keys::NameHash;
pub(crate) use mutation::decode_entry;
pub use mutation::{Change, Mutation, OwnRecords};
pub(crate) use mutation_codec::{get_fid, put_fid};
pub use request::{Origin, ReplySlot, RequestStore};
pub use work::Work;

/// Number of shards of inodes: of their mutexes, of the turns of directories, and of the cache.
const SHARDS: usize = 256;
/// Most operations depend on at most this number of shards.
const INLINE_SHARDS: usize = 2;
/// Maximum number of records that one scan of orphans returns.
const ORPHANS_MAX: usize = 65536;
/// Number of extended attributes that one scan returns. A local index reads so many without a
/// thread hand-over if memory holds them.
const XATTRS_PER_SCAN: usize = 256;

/// The numbers of open handles of an inode, of all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    /// All handles.
    pub total: u32,
    /// Handles open for write.
    pub writers: u32,
    /// Handles open for execution.
    pub executors: u32,
    /// Handles with a lease.
    pub leases: u32,
}

#[derive(Default)]
struct Shard {
    opens: HashMap<Fid, OpenCounts>,
}

/// The target's store.
pub struct Store {
    index: Arc<dyn Index>,
    shards: Vec<Mutex<Shard>>,
    dirs: DirCommits,
    inode_cache: InodeCache,
    /// Number of changes of inodes and of the counts of their open handles so far, by shard.
    changes: Vec<AtomicU64>,
    /// The number of the last transaction that queued work for OSTs.
    work: watch::Sender<Transno>,
    count: InodeCount,
}

/// The state of the inodes that an operation depends on: the numbers of changes of their shards.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// The shards in lock order, each with its number of changes.
    shards: SmallVec<[(usize, u64); INLINE_SHARDS]>,
    /// Directories in which the operation changes names, and that the cache lacked.
    dirs: Vec<ReadDir>,
}

/// The result of the lookup of an inode; `None` if there is none.
type FoundInode = Result<Option<Arc<Inode>>, Errno>;

/// A directory as an operation has read it, because the cache lacked it.
#[derive(Clone, Debug)]
struct ReadDir {
    fid: Fid,
    /// The number of changes of its shard before the read.
    changes: u64,
    inode: Inode,
}

/// A FID that no inode had when it was looked up ([`Store::unused_fid`]).
#[derive(Clone, Debug)]
pub struct UnusedFid {
    /// The stamp from before the lookup.
    pub(crate) stamp: Stamp,
}

/// The shard of an inode: a multiplicative hash; its high bits are mixed best.
pub(crate) fn shard_of(fid: Fid) -> usize {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (fid.f_seq ^ u64::from(fid.f_oid) << 20).wrapping_mul(MULTIPLIER);
    (mixed >> 56) as usize % SHARDS
}

/// The indices of the shards of inodes, in lock order.
fn shards_in_lock_order(fids: impl IntoIterator<Item = Fid>) -> SmallVec<[usize; INLINE_SHARDS]> {
    let mut shards: SmallVec<[usize; INLINE_SHARDS]> = fids.into_iter().map(shard_of).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

impl Store {
    /// Creates the store over an index.
    pub fn new(index: Arc<dyn Index>) -> Store {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Store {
            index,
            shards,
            dirs: DirCommits::default(),
            inode_cache: InodeCache::new(),
            changes: std::iter::repeat_with(AtomicU64::default).take(SHARDS).collect(),
            work: watch::Sender::new(Transno::NONE),
            count: InodeCount::default(),
        }
    }

    /// The index itself.
    pub fn index(&self) -> &Arc<dyn Index> {
        &self.index
    }

    /// Whether there are no records at all, as before the creation of the root directory.
    pub(crate) async fn is_empty(&self) -> Result<bool, Errno> {
        Ok(self
            .index
            .scan(&[osd::USER_KEYS.start], &[osd::USER_KEYS.end], 1)
            .await?
            .is_empty())
    }

    /// The cache of inodes.
    pub(crate) fn inode_cache(&self) -> &InodeCache {
        &self.inode_cache
    }

    /// The transaction numbers.
    pub fn transactions(&self) -> &Arc<Transactions> {
        self.index.transactions()
    }

    /// Announces work that transactions up to `transno` have queued for OSTs, perhaps before a
    /// restart of the target.
    pub(crate) fn announce_work(&self, transno: Transno) {
        self.work.send_modify(|last| *last = transno.max(*last));
    }

    /// Watches the number of the last transaction that queued work for OSTs.
    pub fn watch_work(&self) -> watch::Receiver<Transno> {
        self.work.subscribe()
    }

    /// A stamp of inodes. The caller reads them afterwards.
    pub fn stamp(&self, fids: &[Fid]) -> Stamp {
        let changes = |shard: usize| (shard, self.changes[shard].load(Ordering::Acquire));
        Stamp {
            shards: shards_in_lock_order(fids.iter().copied())
                .into_iter()
                .map(changes)
                .collect(),
            dirs: Vec::new(),
        }
    }

    /// Reads directories whose records an operation changes, after [`ApplyError::Unread`]. They
    /// become a part of the stamp.
    ///
    /// # Errors
    ///
    /// An error of [`Store::inode`].
    pub(crate) async fn read_dirs(&self, stamp: &mut Stamp, dirs: &[Fid]) -> Result<(), Errno> {
        for &fid in dirs {
            let changes = self.changes[shard_of(fid)].load(Ordering::Acquire);
            let inode = self.inode(fid).await?;
            stamp.dirs.push(ReadDir { fid, changes, inode });
        }
        Ok(())
    }

    /// The counts of an inode's open handles.
    pub fn open_counts(&self, fid: Fid) -> OpenCounts {
        let shard = self.shards[shard_of(fid)].lock();
        shard.opens.get(&fid).copied().unwrap_or_default()
    }

    /// Looks up an inode.
    ///
    /// # Errors
    ///
    /// `EIO` if the record is malformed, or the error of the index.
    pub async fn find(&self, fid: Fid) -> Result<Option<Inode>, Errno> {
        Ok(self.find_shared(fid).await?.map(Arc::unwrap_or_clone))
    }

    async fn find_shared(&self, fid: Fid) -> FoundInode {
        match self.find_now(fid) {
            Ok(found) => found,
            Err(read) => read.await,
        }
    }

    /// Looks up an inode in the cache and, on a miss, in the index; adds it to the cache. The error
    /// is the read, if it waits. It has a box of its own, so that the futures of operations, which
    /// read several inodes, stay small.
    fn find_now(&self, fid: Fid) -> Result<FoundInode, BoxFuture<'_, FoundInode>> {
        let changes = match self.inode_cache.look_up(fid) {
            Lookup::Found(inode) => return Ok(Ok(Some(inode))),
            Lookup::Reading(read) => {
                let value = move || self.index.get(&keys::inode(fid));
                return Err(Box::pin(async move {
                    read.value(async || decode_inode(fid, value().await?)).await
                }));
            }
            Lookup::Missing(changes) => changes,
        };
        let read = match self.index.get(&keys::inode(fid)).now() {
            Ok(value) => {
                let decoded = value.map_err(Errno::from).and_then(|v| decode_inode(fid, v));
                return Ok(decoded.map(|inode| {
                    let inode = inode.map(Arc::new)?;
                    self.inode_cache.add(fid, inode.clone(), changes);
                    Some(inode)
                }));
            }
            Err(read) => read,
        };
        Err(match self.inode_cache.begin_read(fid, changes) {
            Some(listed) => {
                Box::pin(async move { listed.value(async || decode_inode(fid, read.await?)).await })
            }
            // A change came first.
            None => Box::pin(self.find_shared(fid)),
        })
    }

    /// Reads an inode.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it does not exist, or an error of [`Store::find`].
    pub async fn inode(&self, fid: Fid) -> Result<Inode, Errno> {
        let found = self.find_shared(fid).await?;
        Ok(Arc::unwrap_or_clone(found.ok_or(Errno::ENOENT)?))
    }

    /// Checks that no inode has this FID; `None` if one has.
    ///
    /// # Errors
    ///
    /// An error of [`Store::find`].
    pub async fn unused_fid(&self, fid: Fid) -> Result<Option<UnusedFid>, Errno> {
        let stamp = self.stamp(&[fid]);
        let found = self.find_shared(fid).await?;
        Ok(found.is_none().then_some(UnusedFid { stamp }))
    }

    /// Looks up a name in a directory, including the names without a record ([`dot_lustre`]).
    ///
    /// # Errors
    ///
    /// `EIO` if the record is malformed, or the error of the index.
    pub async fn entry(&self, dir: Fid, name: &[u8]) -> Result<Option<Entry>, Errno> {
        match self.index.get(&keys::entry(dir, name)).await? {
            None => dot_lustre::entry(self, dir, name).await,
            Some(value) => decode_entry(&value).map(Some),
        }
    }

    /// Up to `limit` entries of a directory from `hash` on, in the order of hashes.
    ///
    /// # Errors
    ///
    /// `EIO` if a record is malformed, or the error of the index.
    pub async fn entries(
        &self,
        dir: Fid,
        hash: NameHash,
        limit: usize,
    ) -> Result<Vec<(NameHash, Bytes, Entry)>, Errno> {
        self.entries_from_key(&keys::entries_from(dir, hash), dir, limit)
            .await
    }

    /// Like [`Store::entries`], starting after the entry `name`.
    ///
    /// # Errors
    ///
    /// The same as [`Store::entries`].
    pub async fn entries_after(
        &self,
        dir: Fid,
        name: &[u8],
        limit: usize,
    ) -> Result<Vec<(NameHash, Bytes, Entry)>, Errno> {
        let mut from = keys::entry(dir, name).to_vec();
        from.push(0);
        self.entries_from_key(&from, dir, limit).await
    }

    async fn entries_from_key(
        &self,
        from: &[u8],
        dir: Fid,
        limit: usize,
    ) -> Result<Vec<(NameHash, Bytes, Entry)>, Errno> {
        let end = prefix_end(&keys::entries_from(dir, NameHash(0))[..keys::FID_KEY_BYTES]);
        let rows = self.index.scan(from, &end, limit).await?;
        rows.into_iter()
            .map(|(key, value)| {
                let (hash, name) = keys::entry_name(&key).ok_or(Errno::EIO)?;
                Ok((hash, name, decode_entry(&value)?))
            })
            .collect()
    }

    /// Whether a directory has no entries.
    ///
    /// # Errors
    ///
    /// The same as [`Store::entries`].
    pub async fn is_empty_dir(&self, dir: Fid) -> Result<bool, Errno> {
        Ok(self.entries(dir, NameHash(0), 1).await?.is_empty())
    }

    /// The value of an extended attribute that has its own record.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub async fn xattr(&self, fid: Fid, name: &[u8]) -> Result<Option<Bytes>, Errno> {
        Ok(self.index.get(&keys::xattr(fid, name)).await?)
    }

    /// The extended attributes that have their own records.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub async fn xattrs(&self, fid: Fid) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        let mut from = keys::xattr(fid, b"").to_vec();
        let end = prefix_end(&from);
        let mut xattrs = Vec::new();
        loop {
            let rows = self.index.scan(&from, &end, XATTRS_PER_SCAN).await?;
            let last = rows.last().filter(|_| rows.len() == XATTRS_PER_SCAN);
            let next = last.map(|(key, _)| [&key[..], b"\0"].concat());
            xattrs.extend(
                rows.iter()
                    .map(|(key, value)| (keys::xattr_name(key), value.clone())),
            );
            match next {
                Some(next) => from = next,
                None => return Ok(xattrs),
            }
        }
    }

    /// The names of an inode's extended attributes that have their own records.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub async fn xattr_names(&self, fid: Fid, inode: &Inode) -> Result<Vec<Bytes>, Errno> {
        if !inode.has_xattrs {
            return Ok(Vec::new());
        }
        Ok(self
            .xattrs(fid)
            .await?
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    /// The records of an inode besides the inode itself.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub async fn own_records(&self, fid: Fid, inode: &Inode) -> Result<OwnRecords, Errno> {
        Ok(OwnRecords {
            xattrs: self.xattr_names(fid, inode).await?,
            data: match inode.data_max() {
                None => Vec::new(),
                Some(_) => self.data_keys(fid).await?,
            },
        })
    }

    /// The FIDs of orphans after `after`, at most 65536 (`ORPHANS_MAX`).
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub async fn orphans(&self, after: Option<Fid>) -> Result<Vec<Fid>, Errno> {
        let from = match after {
            None => Bytes::from_static(keys::ORPHANS),
            Some(fid) => [&keys::orphan(fid)[..], b"\0"].concat().into(),
        };
        let rows = self
            .index
            .scan(&from, &prefix_end(keys::ORPHANS), ORPHANS_MAX)
            .await?;
        Ok(rows.iter().filter_map(|(key, _)| keys::fid(key)).collect())
    }
}

/// Decodes the record of an inode; `None` if there is none.
fn decode_inode(fid: Fid, value: Option<Bytes>) -> Result<Option<Inode>, Errno> {
    let decode = |value: Bytes| {
        Inode::decode(&value).map_err(|e| {
            tracing::error!("cannot decode inode {fid}: {e}. Run 'nacre fsck' on the MDT");
            Errno::EIO
        })
    };
    value.map(decode).transpose()
}

impl Shard {
    fn set_open_counts(&mut self, fid: Fid, opens: OpenCounts) {
        match opens.total {
            0 => self.opens.remove(&fid),
            _ => self.opens.insert(fid, opens),
        };
    }
}
