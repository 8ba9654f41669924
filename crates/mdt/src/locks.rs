//! The locks that the target itself takes, and their order.
//!
//! A name has its own lock resource, made of the directory's FID and the name's hash; clients never
//! use it. So operations on different names of a directory run concurrently. A change of a name
//! also takes a CW lock of the directory's UPDATE bit: this lock revokes the directory's pages and
//! attributes from clients, but admits other changes of names. A removal, replacement or change of
//! an inode locks the inode itself, which revokes it from the clients' caches.
//!
//! A client that changes names keeps its own lock of the directory if it negotiated
//! [`wire::LockTerms::Nacre`] (`keeps_own_locks` below).
//!
//! With the same lock terms, the creator of a file may hold a bit of the file that Lustre does not
//! have (docs/decisions/004-own-locks.md). While it does, no other client writes to the file. An
//! open for write and a change of the size revoke the bit.
//!
//! The DOM bit protects data on the MDT ([`crate::data`]).
//!
//! With parallel directory operations (`pdo`) off, the lock of the directory excludes all other
//! changes and lookups of its names. Operations still take the lock of the name: `pdo` may change
//! while they run.
//!
//! # Lock order
//!
//! Every request takes its locks in one order, so requests never deadlock:
//!
//! 1. the rename lock (`RENAME_LOCK`);
//! 2. each directory with changing names, followed by these names: an ancestor before its
//!    descendant, unrelated directories by FID, names by their hash;
//! 3. the inodes that the names lead to: directories first, each kind by FID;
//! 4. the lock granted to the client with the reply.
//!
//! An operation on several MDTs takes these steps in this order on whatever MDTs they are. In such
//! a file system, the rename lock is that of MDT0000. The MDT of a name also grants locks of the
//! inode; an operation takes such a lock before that of the inode's own MDT.
//!
//! Two directories are unrelated if neither is above the other. A rename can move one of them above
//! the other, and so reverse their lock order. Therefore, a request that locks two unrelated
//! directories, as parents or as children, holds the rename lock. A client never needs another lock
//! to cancel a lock.
//!
//! A request never waits for a lock that it holds itself: [`RequestLocks`] returns `EDEADLK`
//! instead. Handlers reject such a request before its first lock, so `EDEADLK` occurs only in a
//! damaged name space.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use ldlm::{LocalLock, LockMode, LockServer, Policy};
use rpc::{Export, ServerRequest};
use wire::{
    Errno, Fid, LdlmResId, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, RenameFlags,
};

use crate::{
    namespace::is_at_or_below,
    store::{Entry, NameHash, S_IFDIR, Store},
};

/// LOOKUP bit: the entry that leads to the inode.
pub(crate) const LOOKUP: u64 = MDS_INODELOCK_LOOKUP;
/// UPDATE bit: attributes, and a directory's entries.
pub(crate) const UPDATE: u64 = MDS_INODELOCK_UPDATE;
/// OPEN bit: the open handle.
pub(crate) const OPEN: u64 = wire::MDS_INODELOCK_OPEN;
/// LAYOUT bit: the layout.
pub(crate) const LAYOUT: u64 = MDS_INODELOCK_LAYOUT;
/// PERM bit: owner, mode and ACL.
pub(crate) const PERM: u64 = MDS_INODELOCK_PERM;
/// Nacre's bit of unwritten files: while the creator of a file holds it, no other client writes to
/// the file.
pub(crate) const UNWRITTEN: u64 = wire::INODELOCK_UNWRITTEN;
/// The bit of a name's lock, and of its directory's, that stays locked until the name is on disk
/// ([`SharedUntilCommit`]).
const UNCOMMITTED: u64 = LOOKUP;
/// The bits that a change of a name locks in the name's lock.
const NAME_BITS: u64 = UPDATE | UNCOMMITTED;
/// XATTR bit: extended attributes.
pub(crate) const XATTR: u64 = MDS_INODELOCK_XATTR;

/// The rename lock: renames that lock unrelated directories run one at a time. No name has this
/// resource, because the hashes of names are above 1.
const RENAME_LOCK: LdlmResId = LdlmResId { name: [0, 0, 0, 1] };

/// The target's own locks on its lock server.
#[derive(Clone)]
pub(crate) struct Locks {
    server: Arc<LockServer>,
    /// Whether operations on different names of one directory run concurrently.
    pdo: Arc<AtomicBool>,
}

/// The locks held by one request; released when dropped.
pub(crate) struct RequestLocks<'a> {
    locks: &'a Locks,
    /// The client of the request; when its export ends, the request stops waiting for locks.
    client: Option<&'a Export>,
    /// Whether the client keeps its own locks of a directory while it changes names.
    keeps_own_locks: bool,
    held: Vec<HeldLock>,
}

/// One lock held by a request.
struct HeldLock {
    res: LdlmResId,
    mode: LockMode,
    /// `MDS_INODELOCK_*`.
    bits: u64,
    lock: LocalLock,
}

/// The source or target name of a rename.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenameEnd<'a> {
    /// The directory.
    pub dir: Fid,
    /// The name.
    pub name: &'a [u8],
}

/// The resource of a name's lock.
fn name_resource(dir: Fid, name: &[u8]) -> LdlmResId {
    let mut res = dir.res_id();
    res.name[3] = NameHash::of(name).0;
    res
}

impl Locks {
    /// The locks of an MDT on this lock server.
    pub(crate) fn new(server: Arc<LockServer>) -> Locks {
        Locks {
            server,
            pdo: Arc::new(true.into()),
        }
    }

    /// The switch for parallel directory operations.
    pub(crate) fn pdo(&self) -> &Arc<AtomicBool> {
        &self.pdo
    }

    /// The lock server.
    pub(crate) fn server(&self) -> &Arc<LockServer> {
        &self.server
    }

    /// An empty set of locks for a request of this client.
    pub(crate) fn request_locks<'a>(
        &'a self,
        client: Option<&'a Export>,
        keeps_own_locks: bool,
    ) -> RequestLocks<'a> {
        RequestLocks {
            locks: self,
            client,
            keeps_own_locks,
            held: Vec::new(),
        }
    }
}

impl RequestLocks<'_> {
    /// `EDEADLK` if a lock would wait for a lock that this request holds.
    fn check_self_conflict(&self, res: &LdlmResId, mode: LockMode, bits: u64) -> Result<(), Errno> {
        let conflicts = |h: &HeldLock| h.res == *res && h.bits & bits != 0 && !h.mode.compatible(mode);
        if !self.held.iter().any(conflicts) || cpt::Bug::LinkDeadlock.is_planted() {
            return Ok(());
        }
        let client = self.client.map(|c| &c.client_uuid);
        lnet::warn_rate_limited!(?client, res = ?res.name, ?mode, bits, "request fails with EDEADLK: it needs two locks that conflict");
        Err(Errno::EDEADLK)
    }

    /// Holds the locks of a change until the client has the reply.
    pub(crate) fn hold_until_acknowledged(self, req: &ServerRequest) {
        let held: Vec<LocalLock> = self.held.into_iter().map(|held| held.lock).collect();
        req.hold_until_acknowledged(held);
    }

    /// Adds a granted lock.
    fn add_held(&mut self, res: LdlmResId, mode: LockMode, bits: u64, lock: LocalLock) {
        self.held.push(HeldLock {
            res,
            mode,
            bits,
            lock,
        });
    }

    /// Waits for a lock.
    async fn lock(&mut self, res: LdlmResId, mode: LockMode, bits: u64) -> Result<(), Errno> {
        self.check_self_conflict(&res, mode, bits)?;
        let server = &self.locks.server;
        let lock = server.lock(self.client, res, mode, Policy::ibits(bits)).await?;
        self.add_held(res, mode, bits, lock);
        Ok(())
    }

    /// The resources that a lookup locks, in order: the directory if PDO is off, and the name. A
    /// lookup of "." or ".." does not lock the directory: these names lead to directories that are
    /// not below it, so locking them next would violate the lock order.
    fn lookup_resources(&self, dir: Fid, name: &[u8]) -> impl Iterator<Item = LdlmResId> + use<> {
        let locks_dir = !self.locks.pdo.load(Relaxed) && !matches!(name, b"." | b"..");
        let dir_res = locks_dir.then(|| dir.res_id());
        dir_res.into_iter().chain([name_resource(dir, name)])
    }

    /// Locks a name for a lookup: until the lock is released, the name leads to the same inode.
    pub(crate) async fn lock_name_read(&mut self, dir: Fid, name: &[u8]) -> Result<(), Errno> {
        for res in self.lookup_resources(dir, name) {
            self.lock(res, LockMode::Pr, UPDATE).await?;
        }
        Ok(())
    }

    /// Locks a name for a lookup if the locks are available at once. Otherwise returns false, and
    /// may hold the lock of the directory.
    pub(crate) async fn try_lock_name_read(&mut self, dir: Fid, name: &[u8]) -> Result<bool, Errno> {
        for res in self.lookup_resources(dir, name) {
            let update = Policy::ibits(UPDATE);
            match self.locks.server.try_lock(self.client, res, update).await? {
                Some(lock) => self.add_held(res, LockMode::Pr, UPDATE, lock),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Locks a name for a change.
    pub(crate) async fn lock_name_write(&mut self, dir: Fid, name: &[u8]) -> Result<(), Errno> {
        self.lock_dir_write(dir).await?;
        self.lock(name_resource(dir, name), LockMode::Pw, NAME_BITS).await
    }

    /// Locks names of a directory for a change that others may read before it is on disk, but not
    /// build on ([`SharedUntilCommit`]).
    pub(crate) async fn lock_names_for_sharing(&mut self, dir: Fid, names: &[Bytes]) -> Result<(), Errno> {
        self.lock_dir_write(dir).await?;
        let names: BTreeSet<LdlmResId> = names.iter().map(|name| name_resource(dir, name)).collect();
        for name in names {
            self.lock(name, LockMode::Pw, NAME_BITS).await?;
        }
        // Only the removal of the directory conflicts with this lock.
        self.lock(dir.res_id(), LockMode::Cr, UNCOMMITTED).await
    }

    /// Takes the rename lock of this MDT. MDT0000's is that of the file system.
    pub(crate) async fn lock_renames(&mut self) -> Result<(), Errno> {
        self.lock(RENAME_LOCK, LockMode::Ex, UPDATE).await
    }

    /// The locks, without their request.
    pub(crate) fn share_until_commit(self) -> SharedUntilCommit {
        let is_shared = |held: &HeldLock| held.mode != LockMode::Ex && held.bits & UNCOMMITTED != 0;
        let (shared, exclusive): (Vec<_>, Vec<_>) = self.held.into_iter().partition(is_shared);
        let locks = |held: Vec<HeldLock>| held.into_iter().map(|held| held.lock).collect();
        SharedUntilCommit {
            shared: locks(shared),
            exclusive: locks(exclusive),
        }
    }

    /// Locks a directory for a change of its names.
    async fn lock_dir_write(&mut self, dir: Fid) -> Result<(), Errno> {
        let mode = if self.locks.pdo.load(Relaxed) {
            LockMode::Cw
        } else {
            LockMode::Pw
        };
        let res = dir.res_id();
        let Some(client) = self.client.filter(|_| self.keeps_own_locks) else {
            return self.lock(res, mode, UPDATE).await;
        };
        self.check_self_conflict(&res, mode, UPDATE)?;
        let update = Policy::ibits(UPDATE);
        let lock = self.locks.server.lock_for(client, res, mode, update).await?;
        self.add_held(res, mode, UPDATE, lock);
        Ok(())
    }

    /// Locks an inode for a change: revokes all clients' locks on these bits, except CR locks.
    pub(crate) async fn lock_inode(&mut self, fid: Fid, bits: u64) -> Result<(), Errno> {
        self.lock(fid.res_id(), LockMode::Pw, bits).await
    }

    /// Locks a file's layout and `other_bits` for a change. Unlike [`RequestLocks::lock_inode`],
    /// also revokes the CR locks under which clients keep the layout.
    pub(crate) async fn lock_layout(&mut self, fid: Fid, other_bits: u64) -> Result<(), Errno> {
        self.lock(fid.res_id(), LockMode::Ex, LAYOUT | other_bits).await
    }

    /// Revokes a lease on a file, before an open for write or a change of the size.
    pub(crate) async fn revoke_lease(&mut self, fid: Fid) -> Result<(), Errno> {
        self.lock(fid.res_id(), LockMode::Cw, OPEN).await
    }

    /// Locks an inode for the removal of one of its names; with the XATTR bit, because
    /// `trusted.link` has the names.
    pub(crate) async fn lock_for_removal(&mut self, fid: Fid) -> Result<(), Errno> {
        self.lock(fid.res_id(), LockMode::Ex, LOOKUP | UPDATE | XATTR)
            .await
    }

    /// Like [`RequestLocks::lock_for_removal`]; also revokes the OPEN bit, so that clients close
    /// cached handles that no process uses.
    pub(crate) async fn lock_for_removal_with_open(&mut self, fid: Fid) -> Result<(), Errno> {
        self.lock(fid.res_id(), LockMode::Ex, LOOKUP | UPDATE | XATTR | OPEN)
            .await
    }

    /// Locks a file for a new name.
    pub(crate) async fn lock_for_link(&mut self, fid: Fid) -> Result<(), Errno> {
        self.lock_inode(fid, UPDATE | XATTR).await
    }

    /// Locks both names of a rename, then the renamed and the replaced (or exchanged) inode. The
    /// caller has the rename lock if `serialized`. False: the rename needs that lock and does not
    /// have it; it holds no lock.
    pub(crate) async fn lock_rename(
        &mut self,
        store: &Store,
        src: RenameEnd<'_>,
        dst: RenameEnd<'_>,
        flags: RenameFlags,
        serialized: bool,
    ) -> Result<bool, Errno> {
        if src.dir != dst.dir && !serialized {
            return Ok(false);
        }
        self.lock_renamed_names(store, src, dst).await?;
        let children = renamed_inodes(store, src, dst, flags).await?;
        if !serialized && children.iter().all(|c| c.kind == S_IFDIR) && children.len() > 1 {
            // A directory replaces another one, or is exchanged with it: the two are unrelated
            // directories.
            self.held.clear();
            return Ok(false);
        }
        for child in children {
            self.lock_for_removal(child.fid).await?;
        }
        Ok(true)
    }

    /// Locks the two names of a rename with their directories.
    async fn lock_renamed_names(
        &mut self,
        store: &Store,
        src: RenameEnd<'_>,
        dst: RenameEnd<'_>,
    ) -> Result<(), Errno> {
        if src.dir != dst.dir {
            let dst_above = is_at_or_below(store, src.dir, dst.dir).await?;
            let src_above = is_at_or_below(store, dst.dir, src.dir).await?;
            let src_first = src_above || (!dst_above && src.dir < dst.dir);
            let ends = if src_first { [src, dst] } else { [dst, src] };
            for end in ends {
                self.lock_name_write(end.dir, end.name).await?;
            }
            return Ok(());
        }
        self.lock_dir_write(src.dir).await?;
        let mut names = [name_resource(src.dir, src.name), name_resource(dst.dir, dst.name)];
        names.sort();
        self.lock(names[0], LockMode::Pw, NAME_BITS).await?;
        if names[0] != names[1] {
            self.lock(names[1], LockMode::Pw, NAME_BITS).await?;
        }
        Ok(())
    }
}

/// The locks of a change of a name by an operation on several MDTs (commit on sharing).
///
/// Once the change is visible, others may look the name up. But until the change is on disk, no
/// request changes the name again or removes its directory: another MDT could keep the later change
/// and lose the earlier one.
pub(crate) struct SharedUntilCommit {
    /// The locks of the name and of its directory.
    shared: Vec<LocalLock>,
    /// The locks that the change alone needs.
    exclusive: Vec<LocalLock>,
}

impl SharedUntilCommit {
    /// The change is visible.
    pub(crate) fn share(&mut self) {
        self.exclusive.clear();
        self.shared.iter().for_each(|lock| lock.reduce(UNCOMMITTED));
    }
}

/// The renamed and the replaced inode in lock order; the caller has locked the names.
async fn renamed_inodes(
    store: &Store,
    src: RenameEnd<'_>,
    dst: RenameEnd<'_>,
    flags: RenameFlags,
) -> Result<Vec<Entry>, Errno> {
    let (moved, replaced) = (
        store.entry(src.dir, src.name).await?,
        store.entry(dst.dir, dst.name).await?,
    );
    let above_source_errno = match flags.has(RenameFlags::EXCHANGE) {
        true => Errno::EINVAL,
        false => Errno::ENOTEMPTY,
    };
    for (child, other_dir, errno) in [
        (moved, dst.dir, Errno::EINVAL),
        (replaced, src.dir, above_source_errno),
    ] {
        // In the lock order, a directory above the other name comes before locks that this request
        // already holds. To wait for its lock now would violate the order, and such a rename fails
        // anyway.
        let dir = child.filter(|c| c.kind == S_IFDIR);
        if let Some(dir) = dir {
            match is_at_or_below(store, other_dir, dir.fid).await {
                Ok(false) => {}
                Err(Errno::EXDEV) => return Err(Errno::EXDEV),
                _ => return Err(errno),
            }
        }
    }
    let mut children: Vec<Entry> = [moved, replaced].into_iter().flatten().collect();
    children.sort_by_key(|c| (c.kind != S_IFDIR, c.fid));
    children.dedup();
    Ok(children)
}

#[cfg(test)]
mod tests;
