//! Which locks the target itself takes, and in which order.
//!
//! A name is locked by a resource of its own, the directory's with the name's hash (never told to clients), so that
//! operations on different names of one directory do not wait for each other; with it goes a CW lock of the directory's
//! UPDATE bit, which takes pages and attributes of the directory away from clients but lets other changes of names go
//! on. What is removed, replaced or changed is locked itself, which takes it out of the clients' caches.
//!
//! The order is: from the root downwards; of directories that are not above each other, by FID; directories before
//! files, files by FID. Renames across directories go one at a time, because they alone hold two directories. No lock
//! is asked for against this order, so nobody waits in a circle; clients give locks back without asking the target for
//! others.

use std::sync::Arc;

use ldlm::{Ibits, LocalLock, LockMode, LockServer, Policy};
use tokio::sync::{Mutex, MutexGuard};
use wire::{
    Errno, Fid, LdlmResId, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR,
};

use crate::{
    namespace::is_below,
    store::{NameHash, S_IFDIR, Store},
};

/// The entry that leads to the inode.
pub(crate) const LOOKUP: u64 = MDS_INODELOCK_LOOKUP;
/// Attributes; of a directory, its entries too.
pub(crate) const UPDATE: u64 = MDS_INODELOCK_UPDATE;
/// The open handle.
pub(crate) const OPEN: u64 = wire::MDS_INODELOCK_OPEN;
/// The layout.
pub(crate) const LAYOUT: u64 = MDS_INODELOCK_LAYOUT;
/// Owner, mode and ACL.
pub(crate) const PERM: u64 = MDS_INODELOCK_PERM;
/// Extended attributes.
pub(crate) const XATTR: u64 = MDS_INODELOCK_XATTR;

/// The target's own use of its lock server.
pub(crate) struct Locks {
    server: Arc<LockServer>,
    renames: Mutex<()>,
}

/// Locks that are held together; letting go of them is one drop.
pub(crate) type HeldLocks = Vec<LocalLock>;

/// One end of a rename.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    /// The directory.
    pub dir: Fid,
    /// The name.
    pub name: &'a [u8],
}

fn name_resource(dir: Fid, name: &[u8]) -> LdlmResId {
    let mut res = dir.res_id();
    res.name[3] = NameHash::of(name).0;
    res
}

impl Locks {
    /// Locks of this server.
    pub(crate) fn new(server: Arc<LockServer>) -> Locks {
        Locks {
            server,
            renames: Mutex::default(),
        }
    }

    /// The lock server.
    pub(crate) fn server(&self) -> &Arc<LockServer> {
        &self.server
    }

    async fn take(&self, res: LdlmResId, mode: LockMode, bits: u64) -> Result<LocalLock, Errno> {
        self.server
            .lock(res, mode, Policy::Ibits(Ibits { bits, try_bits: 0 }))
            .await
    }

    /// To read what a name leads to, and to grant locks on it.
    pub(crate) async fn name_read(&self, dir: Fid, name: &[u8]) -> Result<HeldLocks, Errno> {
        Ok(vec![
            self.take(name_resource(dir, name), LockMode::Pr, UPDATE).await?,
        ])
    }

    /// To make or remove a name.
    pub(crate) async fn name_write(&self, dir: Fid, name: &[u8]) -> Result<HeldLocks, Errno> {
        Ok(vec![
            self.take(dir.res_id(), LockMode::Cw, UPDATE).await?,
            self.take(name_resource(dir, name), LockMode::Pw, UPDATE).await?,
        ])
    }

    /// To change an inode: nobody has these bits of it any more.
    pub(crate) async fn inode(&self, fid: Fid, bits: u64) -> Result<LocalLock, Errno> {
        self.take(fid.res_id(), LockMode::Pw, bits).await
    }

    /// To take a name from an inode, or an inode away.
    pub(crate) async fn removal(&self, fid: Fid) -> Result<LocalLock, Errno> {
        self.take(fid.res_id(), LockMode::Ex, LOOKUP | UPDATE).await
    }

    /// To rename: both names, then what is renamed and what is replaced.
    pub(crate) async fn rename<'a>(
        &'a self,
        store: &Store,
        src: End<'_>,
        dst: End<'_>,
    ) -> Result<(Option<MutexGuard<'a, ()>>, HeldLocks), Errno> {
        let mut held = Vec::new();
        let guard = if src.dir == dst.dir {
            held.push(self.take(src.dir.res_id(), LockMode::Cw, UPDATE).await?);
            let mut names = [name_resource(src.dir, src.name), name_resource(dst.dir, dst.name)];
            names.sort();
            held.push(self.take(names[0], LockMode::Pw, UPDATE).await?);
            if names[0] != names[1] {
                held.push(self.take(names[1], LockMode::Pw, UPDATE).await?);
            }
            None
        } else {
            let guard = self.renames.lock().await;
            let dst_above = is_below(store, src.dir, dst.dir)?;
            let src_above = is_below(store, dst.dir, src.dir)?;
            let src_first = src_above || (!dst_above && src.dir < dst.dir);
            let ends = if src_first { [src, dst] } else { [dst, src] };
            for end in ends {
                held.append(&mut self.name_write(end.dir, end.name).await?);
            }
            Some(guard)
        };
        let children = [store.entry(src.dir, src.name)?, store.entry(dst.dir, dst.name)?];
        let mut children: Vec<_> = children.into_iter().flatten().collect();
        for (child, other_dir, errno) in [
            (store.entry(src.dir, src.name)?, dst.dir, Errno::EINVAL),
            (store.entry(dst.dir, dst.name)?, src.dir, Errno::ENOTEMPTY),
        ] {
            // A directory above the other end is not to be waited for: it is held already, or by who waits for us.
            let dir = child.filter(|c| c.kind == S_IFDIR);
            if dir.is_some_and(|d| is_below(store, other_dir, d.fid).unwrap_or(true)) {
                return Err(errno);
            }
        }
        children.sort_by_key(|c| (c.kind != S_IFDIR, c.fid));
        children.dedup();
        for child in children {
            held.push(self.removal(child.fid).await?);
        }
        Ok((guard, held))
    }
}
