//! Which locks the target itself takes, and in which order.
//!
//! A name is locked by a resource of its own, the directory's with the name's hash (never told to clients), so that
//! operations on different names of one directory do not wait for each other; with it goes a CW lock of the directory's
//! UPDATE bit, which takes pages and attributes of the directory away from clients but lets other changes of names go
//! on. What is removed, replaced or changed is locked itself, which takes it out of the clients' caches.
//!
//! A client that changes names keeps its own lock of the directory where that is agreed on
//! ([`wire::lock_terms`]): `asker` below. Who has made a file and not yet written to it may hold its DOM bit, which opening
//! it to write and changing its size take away.
//!
//! With parallel directory operations switched off (`pdo`) the directory's lock excludes the others that change or look up
//! its names. The name's own lock is taken all the same, so that the switch may be turned while operations are under way.
//!
//! The order is: from the root downwards; of directories that are not above each other, by FID; directories before
//! files, files by FID. Renames across directories go one at a time, because they alone hold two directories. No lock
//! is asked for against this order, so nobody waits in a circle; clients give locks back without asking the target for
//! others.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ldlm::{LocalLock, LockMode, LockServer, Policy};
use rpc::Export;
use tokio::sync::{Mutex, MutexGuard};
use wire::{
    Errno, Fid, LdlmResId, MDS_INODELOCK_DOM, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
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
/// That nobody writes to a file but who made it.
pub(crate) const DOM: u64 = MDS_INODELOCK_DOM;
/// Extended attributes.
pub(crate) const XATTR: u64 = MDS_INODELOCK_XATTR;

/// The target's own use of its lock server.
pub(crate) struct Locks {
    server: Arc<LockServer>,
    /// Whether operations on different names of one directory go on side by side.
    pdo: Arc<AtomicBool>,
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
            pdo: Arc::new(true.into()),
            renames: Mutex::default(),
        }
    }

    /// The switch of parallel directory operations.
    pub(crate) fn pdo(&self) -> &Arc<AtomicBool> {
        &self.pdo
    }

    /// The lock server.
    pub(crate) fn server(&self) -> &Arc<LockServer> {
        &self.server
    }

    async fn take(&self, res: LdlmResId, mode: LockMode, bits: u64) -> Result<LocalLock, Errno> {
        self.server.lock(res, mode, Policy::ibits(bits)).await
    }

    /// To read what a name leads to, and to grant locks on it.
    pub(crate) async fn name_read(&self, dir: Fid, name: &[u8]) -> Result<HeldLocks, Errno> {
        let mut held = Vec::with_capacity(2);
        // The dots lead to directories that are not below: they are locked while this is held, against the order.
        if !self.pdo.load(Relaxed) && !matches!(name, b"." | b"..") {
            held.push(self.take(dir.res_id(), LockMode::Pr, UPDATE).await?);
        }
        held.push(self.take(name_resource(dir, name), LockMode::Pr, UPDATE).await?);
        Ok(held)
    }

    /// The same, if nobody is in the way.
    pub(crate) async fn try_name_read(&self, dir: Fid, name: &[u8]) -> Result<Option<HeldLocks>, Errno> {
        let dots = matches!(name, b"." | b"..");
        let whole = (!self.pdo.load(Relaxed) && !dots).then(|| dir.res_id());
        let mut held = Vec::with_capacity(2);
        for res in whole.into_iter().chain([name_resource(dir, name)]) {
            let update = Policy::ibits(UPDATE);
            match self.server.try_lock(res, LockMode::Pr, update).await? {
                Some(lock) => held.push(lock),
                None => return Ok(None),
            }
        }
        Ok(Some(held))
    }

    /// To make or remove a name.
    pub(crate) async fn name_write(
        &self,
        asker: Option<&Export>,
        dir: Fid,
        name: &[u8],
    ) -> Result<HeldLocks, Errno> {
        Ok(vec![
            self.dir_write(asker, dir).await?,
            self.take(name_resource(dir, name), LockMode::Pw, UPDATE).await?,
        ])
    }

    /// A directory of which names change.
    async fn dir_write(&self, asker: Option<&Export>, dir: Fid) -> Result<LocalLock, Errno> {
        let mode = if self.pdo.load(Relaxed) {
            LockMode::Cw
        } else {
            LockMode::Pw
        };
        let (res, update) = (dir.res_id(), Policy::ibits(UPDATE));
        match asker {
            Some(client) => self.server.lock_for(client, res, mode, update).await,
            None => self.server.lock(res, mode, update).await,
        }
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
        asker: Option<&Export>,
        store: &Store,
        src: End<'_>,
        dst: End<'_>,
    ) -> Result<(Option<MutexGuard<'a, ()>>, HeldLocks), Errno> {
        let mut held = Vec::new();
        let guard = if src.dir == dst.dir {
            held.push(self.dir_write(asker, src.dir).await?);
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
                held.append(&mut self.name_write(asker, end.dir, end.name).await?);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        future::{Future, ready},
        pin::pin,
        sync::{Arc, atomic::Ordering::Relaxed},
    };

    use ldlm::{LdlmConfig, LockServer, NoLvb};
    use wire::{Errno, Fid};

    use super::{HeldLocks, Locks};

    const DIR: Fid = Fid::new(0x2_0000_0401, 7, 0);

    fn locks() -> Locks {
        Locks::new(LockServer::new("mdt", Arc::new(NoLvb), LdlmConfig::default()))
    }

    /// The locks, if they are to be had at once.
    async fn at_once(taking: impl Future<Output = Result<HeldLocks, Errno>>) -> Option<HeldLocks> {
        let taking = pin!(taking);
        tokio::select! {
            biased;
            held = taking => Some(held.unwrap()),
            () = ready(()) => None,
        }
    }

    #[tokio::test]
    async fn names_of_one_directory_are_locked_side_by_side() {
        let locks = locks();
        let _a = locks.name_write(None, DIR, b"a").await.unwrap();
        assert!(at_once(locks.name_write(None, DIR, b"b")).await.is_some());
        assert!(at_once(locks.name_read(DIR, b"b")).await.is_some());
        assert!(at_once(locks.name_write(None, DIR, b"a")).await.is_none());
        assert!(at_once(locks.name_read(DIR, b"a")).await.is_none());
    }

    #[tokio::test]
    async fn without_pdo_a_change_locks_the_whole_directory() {
        let locks = locks();
        locks.pdo().store(false, Relaxed);
        let a = locks.name_write(None, DIR, b"a").await.unwrap();
        assert!(at_once(locks.name_write(None, DIR, b"b")).await.is_none());
        assert!(at_once(locks.name_read(DIR, b"b")).await.is_none());
        let elsewhere = Fid { f_oid: 8, ..DIR };
        assert!(at_once(locks.name_write(None, elsewhere, b"b")).await.is_some());
        drop(a);
        let reads = locks.name_read(DIR, b"a").await.unwrap();
        assert!(at_once(locks.name_read(DIR, b"b")).await.is_some());
        assert!(at_once(locks.name_write(None, DIR, b"b")).await.is_none());
        drop(reads);
        assert!(at_once(locks.name_write(None, DIR, b"b")).await.is_some());
    }

    #[tokio::test]
    async fn the_switch_is_turned_under_operations_that_still_exclude_each_other() {
        let locks = locks();
        for before in [true, false] {
            locks.pdo().store(before, Relaxed);
            let changes = locks.name_write(None, DIR, b"a").await.unwrap();
            locks.pdo().store(!before, Relaxed);
            assert!(at_once(locks.name_read(DIR, b"a")).await.is_none());
            assert!(at_once(locks.name_write(None, DIR, b"a")).await.is_none());
            drop(changes);
            let reads = locks.name_read(DIR, b"a").await.unwrap();
            locks.pdo().store(before, Relaxed);
            assert!(at_once(locks.name_write(None, DIR, b"a")).await.is_none());
            drop(reads);
        }
    }

    #[tokio::test]
    async fn the_dots_are_looked_up_while_somebody_waits_for_the_directory() {
        let locks = locks();
        locks.pdo().store(false, Relaxed);
        let _changes = locks.name_write(None, DIR, b"a").await.unwrap();
        for dots in [&b"."[..], b".."] {
            assert!(at_once(locks.name_read(DIR, dots)).await.is_some());
        }
    }
}
