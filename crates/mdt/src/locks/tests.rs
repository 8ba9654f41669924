//! Tests of the locks of requests, and of their order.

#![allow(clippy::unwrap_used)]
use std::{
    future::{Future, ready},
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use testbase::Wait;

use ldlm::{LdlmConfig, LockServer, NoLvb};
use osd::MemoryIndex;
use wire::{Errno, Fid, RenameFlags, Time};

use super::{LOOKUP, Locks, RenameEnd, RequestLocks, UPDATE};
use crate::{
    cred::Cred,
    namespace::{NewInode, create, make_root},
    store::Store,
};

const DIR: Fid = Fid::new(0x2_0000_0401, 7, 0);

fn locks() -> Locks {
    Locks::new(LockServer::new("mdt", Arc::new(NoLvb), LdlmConfig::default()))
}

impl Locks {
    fn without_client(&self) -> RequestLocks<'_> {
        self.request_locks(None, false)
    }

    /// Locks a name for a change, if the locks are available at once.
    async fn write_now(&self, dir: Fid, name: &[u8]) -> Option<RequestLocks<'_>> {
        let mut held = self.without_client();
        poll_once(held.lock_name_write(dir, name)).await.map(|()| held)
    }

    /// Locks a name for a lookup, if the locks are available at once.
    async fn read_now(&self, dir: Fid, name: &[u8]) -> Option<RequestLocks<'_>> {
        let mut held = self.without_client();
        poll_once(held.lock_name_read(dir, name)).await.map(|()| held)
    }
}

/// Polls a future once; `None` if it is not ready. Panics on an error.
async fn poll_once(future: impl Future<Output = Result<(), Errno>>) -> Option<()> {
    let future = pin!(future);
    tokio::select! {
        biased;
        result = future => {
            result.unwrap();
            Some(())
        }
        () = ready(()) => None,
    }
}

#[tokio::test]
async fn names_of_one_directory_are_locked_independently() {
    let locks = locks();
    let _a = locks.write_now(DIR, b"a").await.unwrap();
    assert!(locks.write_now(DIR, b"b").await.is_some());
    assert!(locks.read_now(DIR, b"b").await.is_some());
    assert!(locks.write_now(DIR, b"a").await.is_none());
    assert!(locks.read_now(DIR, b"a").await.is_none());
}

#[tokio::test]
async fn change_without_pdo_locks_the_whole_directory() {
    let locks = locks();
    locks.pdo().store(false, Relaxed);
    let a = locks.write_now(DIR, b"a").await.unwrap();
    assert!(locks.write_now(DIR, b"b").await.is_none());
    assert!(locks.read_now(DIR, b"b").await.is_none());
    let other_dir = Fid { f_oid: 8, ..DIR };
    assert!(locks.write_now(other_dir, b"b").await.is_some());
    drop(a);
    let reads = locks.read_now(DIR, b"a").await.unwrap();
    assert!(locks.read_now(DIR, b"b").await.is_some());
    assert!(locks.write_now(DIR, b"b").await.is_none());
    drop(reads);
    assert!(locks.write_now(DIR, b"b").await.is_some());
}

#[tokio::test]
async fn operations_on_one_name_exclude_each_other_while_pdo_is_switched() {
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
async fn lookup_of_dots_does_not_wait_for_the_directorys_lock() {
    let locks = locks();
    locks.pdo().store(false, Relaxed);
    let _changes = locks.write_now(DIR, b"a").await.unwrap();
    for dots in [&b"."[..], b".."] {
        assert!(locks.read_now(DIR, dots).await.is_some());
    }
}

#[tokio::test]
async fn uncommitted_name_can_be_read_and_not_changed() {
    let locks = locks();
    let mut change = locks.without_client();
    change.lock_names_for_sharing(DIR, &["a".into()]).await.unwrap();
    let mut uncommitted = change.share_until_commit();
    assert!(locks.read_now(DIR, b"a").await.is_none());
    uncommitted.share();
    assert!(locks.read_now(DIR, b"a").await.is_some());
    assert!(locks.write_now(DIR, b"a").await.is_none());
    assert!(locks.write_now(DIR, b"b").await.is_some());
    let mut removal = locks.without_client();
    let removes = poll_once(removal.lock_for_removal(DIR)).await.is_some();
    assert!(!removes, "the directory");
    drop((removal, uncommitted));
    assert!(locks.write_now(DIR, b"a").await.is_some());
    let mut removal = locks.without_client();
    assert!(poll_once(removal.lock_for_removal(DIR)).await.is_some());
}

#[tokio::test]
async fn request_does_not_wait_for_its_own_lock() {
    let locks = locks();
    let mut held = locks.write_now(DIR, b"a").await.unwrap();
    assert_eq!(held.lock_inode(DIR, UPDATE).await, Err(Errno::EDEADLK));
    assert_eq!(held.lock_for_removal(DIR).await, Err(Errno::EDEADLK));
    assert_eq!(held.lock_name_write(DIR, b"a").await, Err(Errno::EDEADLK));
    held.lock_inode(DIR, LOOKUP).await.unwrap();
}

/// Three operations: remove `y/c`, move `y/c/f` into `x`, replace `y` by `x`. Without the
/// rename lock, each would wait for the next one, and the last for the first.
#[tokio::test]
async fn renames_of_unrelated_directories_do_not_deadlock() {
    let store = Store::new(Arc::new(MemoryIndex::default()));
    make_root(&store, (0, 0), Time::default()).wait().unwrap();
    let fid = |oid| Fid { f_oid: oid, ..DIR };
    let (c, x, y, f) = (fid(1), fid(2), fid(3), fid(4));
    for (dir, name, fid, mode) in [
        (Fid::ROOT, b"x", x, 0o040755),
        (Fid::ROOT, b"y", y, 0o040755),
        (y, b"c", c, 0o040755),
        (c, b"f", f, 0o100644),
    ] {
        let node = NewInode {
            fid,
            mode,
            ..NewInode::default()
        };
        create(&store, &Cred::root(), dir, name, &node).wait().unwrap();
    }
    const NONE: RenameFlags = RenameFlags::NONE;
    let end = |dir, name| RenameEnd { dir, name };
    let locks = locks();
    let mut removal_locks = locks.write_now(y, b"c").await.unwrap();
    let (mut replace_locks, mut move_locks) = (locks.without_client(), locks.without_client());
    let root_end = |name| end(Fid::ROOT, name);
    let mut replace = Box::pin(async {
        let lacks_lock = !replace_locks
            .lock_rename(&store, root_end(b"x"), root_end(b"y"), NONE, false)
            .await?;
        assert!(lacks_lock, "a directory replaces a directory");
        replace_locks.lock_renames().await?;
        replace_locks
            .lock_rename(&store, root_end(b"x"), root_end(b"y"), NONE, true)
            .await
            .map(|locked| assert!(locked))
    });
    assert!(poll_once(replace.as_mut()).await.is_none());
    let mut move_file = pin!(async {
        move_locks.lock_renames().await?;
        move_locks
            .lock_rename(&store, end(c, b"f"), end(x, b"f"), NONE, true)
            .await
            .map(|locked| assert!(locked))
    });
    assert!(poll_once(move_file.as_mut()).await.is_none());
    assert!(
        poll_once(removal_locks.lock_for_removal(c)).await.is_some(),
        "deadlock"
    );
    drop(removal_locks);
    replace.await.unwrap();
    replace_locks.held.clear();
    move_file.await.unwrap();
}
