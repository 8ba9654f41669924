//! A kernel may keep a new directory's name and attributes until another client changes them.

#![allow(clippy::unwrap_used)]

use client::{Cred, KernelCache, SetAttr};
use cpt::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use testkit::Cluster;
use wire::{Errno, Fid};

#[derive(Debug, PartialEq, Eq)]
enum Invalidation {
    Entry(Fid, Vec<u8>),
    Inode(Fid),
}

/// A kernel that records its invalidations.
#[derive(Default)]
struct Kernel(Mutex<Vec<Invalidation>>);

impl Kernel {
    fn was_told(&self, invalidation: &Invalidation) -> bool {
        self.0.lock().contains(invalidation)
    }
}

impl KernelCache for Kernel {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], _: Fid) -> BoxFuture<'a, ()> {
        self.0.lock().push(Invalidation::Entry(parent, name.to_vec()));
        Box::pin(async {})
    }

    fn inval_inode(&self, fid: Fid, _: i64, _: i64) -> BoxFuture<'_, ()> {
        self.0.lock().push(Invalidation::Inode(fid));
        Box::pin(async {})
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_keeps_a_new_directory_until_another_client_changes_it() {
    let cluster = Cluster::start(1).await;
    let (client, other) = (cluster.mount().await, cluster.mount().await);
    let kernel = Arc::new(Kernel::default());
    client.set_kernel(kernel.clone());
    let (top, root) = (client.root(), Cred::root());
    let made = client.mkdir(&root, top, b"d", 0o750).await.unwrap();
    assert!(made.attr_cached && made.name_cached);
    let (fid, attr) = (made.attr.fid, made.attr.clone());
    drop(made);
    assert_eq!(other.lookup(&root, top, b"d").await.unwrap().attr, attr);
    assert!(!kernel.was_told(&Invalidation::Inode(fid)));

    let chmod = SetAttr {
        mode: Some(0o700),
        ..SetAttr::default()
    };
    drop(other.setattr(&root, fid, &chmod, None).await.unwrap());
    assert!(kernel.was_told(&Invalidation::Inode(fid)));
    let found = client.lookup(&root, top, b"d").await.unwrap();
    assert!(found.attr_cached && found.attr.mode & 0o777 == 0o700);
    drop(found);

    other.rename(&root, (top, b"d"), (top, b"e")).await.unwrap();
    assert!(kernel.was_told(&Invalidation::Entry(top, b"d".to_vec())));
    let absent = client.lookup(&root, top, b"d").await;
    assert_eq!(absent.map(|found| found.attr.fid), Err(Errno::ENOENT));

    let again = client.mkdir(&root, top, b"d", 0o755).await.unwrap();
    assert!(again.name_cached && again.attr.fid != fid);
    let fid = again.attr.fid;
    drop(again);
    kernel.0.lock().clear();
    other.rmdir(&root, top, b"d").await.unwrap();
    assert!(kernel.was_told(&Invalidation::Entry(top, b"d".to_vec())));
    let removed = client.getattr(&root, fid).await;
    assert!(removed.is_err_and(|e| matches!(e, Errno::ENOENT | Errno::ESTALE)));
    client.umount().await;
    other.umount().await;
    cluster.stop().await;
}
