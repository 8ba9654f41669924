//! Which locks the target itself takes, and in which order.
//!
//! A name is locked by a resource of its own, the directory's with the name's hash (never told to clients), so that
//! operations on different names of one directory do not wait for each other; with it goes a CW lock of the directory's
//! UPDATE bit, which takes pages and attributes of the directory away from clients but lets other changes of names go
//! on. What is removed, replaced or changed is locked itself, which takes it out of the clients' caches.
//!
//! A client that changes names keeps its own lock of the directory where that is agreed on
//! ([`wire::lock_terms`]): `keeps_own` below. Who has made a file and not yet written to it may hold its DOM bit, which opening
//! it to write and changing its size take away.
//!
//! With parallel directory operations switched off (`pdo`) the directory's lock excludes the others that change or look up
//! its names. The name's own lock is taken all the same, so that the switch may be turned while operations are under way.
//!
//! # The order
//!
//! Every request takes its locks in one order, so requests never wait for each other in a circle:
//!
//! 1. the lock of renames (`RENAMES`);
//! 2. each directory whose names change, and right after it its names: a directory above another one first, unrelated
//!    directories by FID, names by their hash;
//! 3. the inodes that the names lead to: directories first, each kind by FID;
//! 4. the lock that the client is granted with the reply.
//!
//! Unrelated directories have no order that renames leave as it is. So a request that locks two of them, as parents or
//! as children, holds the lock of renames. Clients give locks back without asking the target for others.
//!
//! A request never waits for a lock that it holds itself: [`RequestLocks`] refuses that. What a request says is checked
//! before its first lock, so this happens only in a damaged name space.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ldlm::{LocalLock, LockMode, LockServer, Policy};
use rpc::Export;
use wire::{
    Errno, Fid, LdlmResId, MDS_INODELOCK_DOM, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM,
    MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR,
};

use crate::{
    namespace::is_below,
    store::{Entry, NameHash, S_IFDIR, Store},
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

/// Renames that lock unrelated directories go one at a time. No name has this hash.
const RENAMES: LdlmResId = LdlmResId { name: [0, 0, 0, 1] };

/// The target's own use of its lock server.
pub(crate) struct Locks {
    server: Arc<LockServer>,
    /// Whether operations on different names of one directory go on side by side.
    pdo: Arc<AtomicBool>,
}

/// The locks that one request holds. Dropping this lets them all go.
pub(crate) struct RequestLocks<'a> {
    locks: &'a Locks,
    /// Whose request it is. When this client is gone, the request does not wait any more.
    client: Option<&'a Export>,
    /// The client's own locks of a directory may stay while it changes names.
    keeps_own: bool,
    held: Vec<HeldLock>,
}

/// One of them.
struct HeldLock {
    res: LdlmResId,
    mode: LockMode,
    bits: u64,
    _lock: LocalLock,
}

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

    /// For a request of this client, without any lock yet.
    pub(crate) fn of_request<'a>(&'a self, client: Option<&'a Export>, keeps_own: bool) -> RequestLocks<'a> {
        RequestLocks {
            locks: self,
            client,
            keeps_own,
            held: Vec::new(),
        }
    }
}

impl RequestLocks<'_> {
    /// Refuses a lock that would wait for one that this request holds.
    fn check_own(&self, res: &LdlmResId, mode: LockMode, bits: u64) -> Result<(), Errno> {
        let conflicts = |h: &HeldLock| h.res == *res && h.bits & bits != 0 && !h.mode.compatible(mode);
        if !self.held.iter().any(conflicts) {
            return Ok(());
        }
        let client = self.client.map(|c| &c.client_uuid);
        lnet::warn_seldom!(?client, res = ?res.name, ?mode, bits, "a request needs two locks that exclude each other, and fails");
        Err(Errno::EDEADLK)
    }

    fn hold(&mut self, res: LdlmResId, mode: LockMode, bits: u64, lock: LocalLock) {
        self.held.push(HeldLock {
            res,
            mode,
            bits,
            _lock: lock,
        });
    }

    async fn take(&mut self, res: LdlmResId, mode: LockMode, bits: u64) -> Result<(), Errno> {
        self.check_own(&res, mode, bits)?;
        let server = &self.locks.server;
        let lock = server.lock(self.client, res, mode, Policy::ibits(bits)).await?;
        self.hold(res, mode, bits, lock);
        Ok(())
    }

    /// What a look at a name locks. The dots lead to directories that are not below: those are locked while this is
    /// held, against the order.
    fn to_read(&self, dir: Fid, name: &[u8]) -> impl Iterator<Item = LdlmResId> + use<> {
        let whole = !self.locks.pdo.load(Relaxed) && !matches!(name, b"." | b"..");
        let dir_res = whole.then(|| dir.res_id());
        dir_res.into_iter().chain([name_resource(dir, name)])
    }

    /// To read what a name leads to, and to grant locks on it.
    pub(crate) async fn name_read(&mut self, dir: Fid, name: &[u8]) -> Result<(), Errno> {
        for res in self.to_read(dir, name) {
            self.take(res, LockMode::Pr, UPDATE).await?;
        }
        Ok(())
    }

    /// The same, if nobody is in the way; whether it is so.
    pub(crate) async fn try_name_read(&mut self, dir: Fid, name: &[u8]) -> Result<bool, Errno> {
        for res in self.to_read(dir, name) {
            let update = Policy::ibits(UPDATE);
            match self.locks.server.try_lock(res, LockMode::Pr, update).await? {
                Some(lock) => self.hold(res, LockMode::Pr, UPDATE, lock),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// To make or remove a name.
    pub(crate) async fn name_write(&mut self, dir: Fid, name: &[u8]) -> Result<(), Errno> {
        self.dir_write(dir).await?;
        self.take(name_resource(dir, name), LockMode::Pw, UPDATE).await
    }

    /// A directory of which names change.
    async fn dir_write(&mut self, dir: Fid) -> Result<(), Errno> {
        let mode = if self.locks.pdo.load(Relaxed) {
            LockMode::Cw
        } else {
            LockMode::Pw
        };
        let res = dir.res_id();
        let Some(client) = self.client.filter(|_| self.keeps_own) else {
            return self.take(res, mode, UPDATE).await;
        };
        self.check_own(&res, mode, UPDATE)?;
        let update = Policy::ibits(UPDATE);
        let lock = self.locks.server.lock_for(client, res, mode, update).await?;
        self.hold(res, mode, UPDATE, lock);
        Ok(())
    }

    /// To change an inode: nobody has these bits of it any more.
    pub(crate) async fn inode(&mut self, fid: Fid, bits: u64) -> Result<(), Errno> {
        self.take(fid.res_id(), LockMode::Pw, bits).await
    }

    /// To open a file for writing, or to change its size: a client that has a lease on it loses that.
    pub(crate) async fn break_lease(&mut self, fid: Fid) -> Result<(), Errno> {
        self.take(fid.res_id(), LockMode::Cw, OPEN).await
    }

    /// To take a name from an inode, or an inode away. The names are an extended attribute too: `trusted.link`.
    pub(crate) async fn removal(&mut self, fid: Fid) -> Result<(), Errno> {
        self.take(fid.res_id(), LockMode::Ex, LOOKUP | UPDATE | XATTR)
            .await
    }

    /// The same of an inode that no client may have open: handles that clients keep though nobody uses them go first.
    pub(crate) async fn removal_if_unused(&mut self, fid: Fid) -> Result<(), Errno> {
        self.take(fid.res_id(), LockMode::Ex, LOOKUP | UPDATE | XATTR | OPEN)
            .await
    }

    /// To rename: both names, then what is renamed and what is replaced.
    pub(crate) async fn rename(&mut self, store: &Store, src: End<'_>, dst: End<'_>) -> Result<(), Errno> {
        let mut alone = src.dir != dst.dir;
        loop {
            if alone {
                self.take(RENAMES, LockMode::Ex, UPDATE).await?;
            }
            self.renamed_names(store, src, dst).await?;
            let children = renamed_inodes(store, src, dst)?;
            if !alone && children.iter().all(|c| c.kind == S_IFDIR) && children.len() > 1 {
                // One directory replaces another: two unrelated directories.
                self.held.clear();
                alone = true;
                continue;
            }
            for child in children {
                self.removal(child.fid).await?;
            }
            return Ok(());
        }
    }

    /// The two names of a rename, with their directories.
    async fn renamed_names(&mut self, store: &Store, src: End<'_>, dst: End<'_>) -> Result<(), Errno> {
        if src.dir != dst.dir {
            let dst_above = is_below(store, src.dir, dst.dir)?;
            let src_above = is_below(store, dst.dir, src.dir)?;
            let src_first = src_above || (!dst_above && src.dir < dst.dir);
            let ends = if src_first { [src, dst] } else { [dst, src] };
            for end in ends {
                self.name_write(end.dir, end.name).await?;
            }
            return Ok(());
        }
        self.dir_write(src.dir).await?;
        let mut names = [name_resource(src.dir, src.name), name_resource(dst.dir, dst.name)];
        names.sort();
        self.take(names[0], LockMode::Pw, UPDATE).await?;
        if names[0] != names[1] {
            self.take(names[1], LockMode::Pw, UPDATE).await?;
        }
        Ok(())
    }
}

/// What is renamed and what is replaced, in the order of locks, while the names are locked.
fn renamed_inodes(store: &Store, src: End<'_>, dst: End<'_>) -> Result<Vec<Entry>, Errno> {
    let (moved, replaced) = (store.entry(src.dir, src.name)?, store.entry(dst.dir, dst.name)?);
    for (child, other_dir, errno) in [
        (moved, dst.dir, Errno::EINVAL),
        (replaced, src.dir, Errno::ENOTEMPTY),
    ] {
        // A directory above the other end cannot be waited for: it is locked already, by this request or by one that
        // waits for this one.
        let dir = child.filter(|c| c.kind == S_IFDIR);
        if dir.is_some_and(|d| is_below(store, other_dir, d.fid).unwrap_or(true)) {
            return Err(errno);
        }
    }
    let mut children: Vec<Entry> = [moved, replaced].into_iter().flatten().collect();
    children.sort_by_key(|c| (c.kind != S_IFDIR, c.fid));
    children.dedup();
    Ok(children)
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
    use osd::MemoryIndex;
    use wire::{Errno, Fid, Time};

    use super::{End, LOOKUP, Locks, RequestLocks, UPDATE};
    use crate::{
        cred::Cred,
        namespace::{Node, create, make_root},
        store::Store,
    };

    const DIR: Fid = Fid::new(0x2_0000_0401, 7, 0);

    fn locks() -> Locks {
        Locks::new(LockServer::new("mdt", Arc::new(NoLvb), LdlmConfig::default()))
    }

    impl Locks {
        fn any(&self) -> RequestLocks<'_> {
            self.of_request(None, false)
        }

        /// The lock of a name to change it, if it is to be had at once.
        async fn write_now(&self, dir: Fid, name: &[u8]) -> Option<RequestLocks<'_>> {
            let mut held = self.any();
            at_once(held.name_write(dir, name)).await.map(|()| held)
        }

        /// The lock of a name to read it, if it is to be had at once.
        async fn read_now(&self, dir: Fid, name: &[u8]) -> Option<RequestLocks<'_>> {
            let mut held = self.any();
            at_once(held.name_read(dir, name)).await.map(|()| held)
        }
    }

    /// The result, if there is no need to wait for it.
    async fn at_once(taking: impl Future<Output = Result<(), Errno>>) -> Option<()> {
        let taking = pin!(taking);
        tokio::select! {
            biased;
            taken = taking => {
                taken.unwrap();
                Some(())
            }
            () = ready(()) => None,
        }
    }

    #[tokio::test]
    async fn names_of_one_directory_are_locked_side_by_side() {
        let locks = locks();
        let _a = locks.write_now(DIR, b"a").await.unwrap();
        assert!(locks.write_now(DIR, b"b").await.is_some());
        assert!(locks.read_now(DIR, b"b").await.is_some());
        assert!(locks.write_now(DIR, b"a").await.is_none());
        assert!(locks.read_now(DIR, b"a").await.is_none());
    }

    #[tokio::test]
    async fn without_pdo_a_change_locks_the_whole_directory() {
        let locks = locks();
        locks.pdo().store(false, Relaxed);
        let a = locks.write_now(DIR, b"a").await.unwrap();
        assert!(locks.write_now(DIR, b"b").await.is_none());
        assert!(locks.read_now(DIR, b"b").await.is_none());
        let elsewhere = Fid { f_oid: 8, ..DIR };
        assert!(locks.write_now(elsewhere, b"b").await.is_some());
        drop(a);
        let reads = locks.read_now(DIR, b"a").await.unwrap();
        assert!(locks.read_now(DIR, b"b").await.is_some());
        assert!(locks.write_now(DIR, b"b").await.is_none());
        drop(reads);
        assert!(locks.write_now(DIR, b"b").await.is_some());
    }

    #[tokio::test]
    async fn the_switch_is_turned_under_operations_that_still_exclude_each_other() {
        let locks = locks();
        for before in [true, false] {
            locks.pdo().store(before, Relaxed);
            let changes = locks.write_now(DIR, b"a").await.unwrap();
            locks.pdo().store(!before, Relaxed);
            assert!(locks.read_now(DIR, b"a").await.is_none());
            assert!(locks.write_now(DIR, b"a").await.is_none());
            drop(changes);
            let reads = locks.read_now(DIR, b"a").await.unwrap();
            locks.pdo().store(before, Relaxed);
            assert!(locks.write_now(DIR, b"a").await.is_none());
            drop(reads);
        }
    }

    #[tokio::test]
    async fn the_dots_are_looked_up_while_somebody_waits_for_the_directory() {
        let locks = locks();
        locks.pdo().store(false, Relaxed);
        let _changes = locks.write_now(DIR, b"a").await.unwrap();
        for dots in [&b"."[..], b".."] {
            assert!(locks.read_now(DIR, dots).await.is_some());
        }
    }

    #[tokio::test]
    async fn a_request_does_not_wait_for_a_lock_that_it_holds() {
        let locks = locks();
        let mut held = locks.write_now(DIR, b"a").await.unwrap();
        assert_eq!(held.inode(DIR, UPDATE).await, Err(Errno::EDEADLK));
        assert_eq!(held.removal(DIR).await, Err(Errno::EDEADLK));
        assert_eq!(held.name_write(DIR, b"a").await, Err(Errno::EDEADLK));
        held.inode(DIR, LOOKUP).await.unwrap();
    }

    /// Each of the three would wait for the next one: `y/c` is removed, `x` replaces `y`, and `c/f` moves into `x`.
    #[tokio::test]
    async fn renames_of_unrelated_directories_wait_for_each_other_and_not_in_a_circle() {
        let store = Store::new(Arc::new(MemoryIndex::default()));
        make_root(&store, (0, 0), Time::default()).unwrap();
        let fid = |oid| Fid { f_oid: oid, ..DIR };
        let (c, x, y, f) = (fid(1), fid(2), fid(3), fid(4));
        for (dir, name, fid, mode) in [
            (Fid::ROOT, b"x", x, 0o040755),
            (Fid::ROOT, b"y", y, 0o040755),
            (y, b"c", c, 0o040755),
            (c, b"f", f, 0o100644),
        ] {
            let node = Node {
                fid,
                mode,
                ..Node::default()
            };
            create(&store, &Cred::root(), dir, name, &node).unwrap();
        }
        let end = |dir, name| End { dir, name };
        let locks = locks();
        let mut removes = locks.write_now(y, b"c").await.unwrap();
        let (mut replaces, mut moves) = (locks.any(), locks.any());
        let mut replacing = Box::pin(replaces.rename(&store, end(Fid::ROOT, b"x"), end(Fid::ROOT, b"y")));
        assert!(at_once(replacing.as_mut()).await.is_none());
        let mut moving = pin!(moves.rename(&store, end(c, b"f"), end(x, b"f")));
        assert!(at_once(moving.as_mut()).await.is_none());
        assert!(
            at_once(removes.removal(c)).await.is_some(),
            "it waits in a circle"
        );
        drop(removes);
        replacing.await.unwrap();
        replaces.held.clear();
        moving.await.unwrap();
    }
}
