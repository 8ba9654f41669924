//! File locks of programs: conflicts, cancelled waits, unmounts. Also: an unmount without servers
//! ends.

#![allow(clippy::unwrap_used)]

use crate::cluster::Cluster;
use bytes::Bytes;
use client::{Cred, FlockRange, FlockType, OpenFlags};
use std::time::Duration;
use wire::Errno;

/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(60);

fn range(ty: FlockType, start: u64, end: u64, owner: u64) -> FlockRange {
    FlockRange {
        ty,
        start,
        end,
        owner,
        pid: owner as u32,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_waits_for_a_conflicting_lock_of_another_mount() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = a
        .mknod(&root, a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    a.setlk(&root, fid, range(FlockType::Write, 0, 99, 1), false)
        .await
        .unwrap();
    let want = range(FlockType::Write, 50, 149, 2);
    assert_eq!(b.setlk(&root, fid, want, false).await, Err(Errno::EAGAIN));
    let held = b.getlk(&root, fid, want).await.unwrap().unwrap();
    assert_eq!(
        (held.ty, held.start, held.end, held.pid),
        (FlockType::Write, 0, 99, 1)
    );
    b.setlk(&root, fid, range(FlockType::Read, 100, 149, 2), false)
        .await
        .unwrap();
    let waiting = {
        let (b, root) = (b.clone(), root.clone());
        tokio::spawn(async move { b.setlk(&root, fid, want, true).await })
    };
    a.release_locks(&root, fid, 1, 1).await.unwrap();
    assert_eq!(
        tokio::time::timeout(SOON, waiting)
            .await
            .expect("the lock is granted")
            .unwrap(),
        Ok(())
    );
    assert_eq!(
        a.getlk(&root, fid, range(FlockType::Read, 0, 49, 1)).await,
        Ok(None)
    );
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_a_lock_leaves_no_lock() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = a
        .mknod(&root, a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    let all = |ty, owner| range(ty, 0, FlockRange::END, owner);
    a.setlk(&root, fid, all(FlockType::Write, 1), false)
        .await
        .unwrap();
    let waiting = b.setlk(&root, fid, all(FlockType::Write, 2), true);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), waiting)
            .await
            .is_err(),
        "the request waits"
    );
    a.setlk(&root, fid, all(FlockType::Unlock, 1), false)
        .await
        .unwrap();
    let again = async {
        while a
            .setlk(&root, fid, all(FlockType::Write, 3), false)
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, again)
        .await
        .expect("no mount holds the range");
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_releases_its_locks() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = a
        .mknod(&root, a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    a.setlk(&root, fid, range(FlockType::Write, 0, 9, 1), false)
        .await
        .unwrap();
    a.umount().await;
    b.setlk(&root, fid, range(FlockType::Write, 0, 9, 1), false)
        .await
        .unwrap();
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unmount_ends_without_servers() {
    let cluster = Cluster::start(1).await;
    let a = cluster.mount().await;
    let root = Cred::root();
    let (_, file) = a
        .create(&root, a.root(), b"f", 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    a.write(&file, 0, Bytes::from_static(b"never written back"))
        .await
        .unwrap();
    cluster.stop().await;
    tokio::time::timeout(Duration::from_secs(60), a.umount())
        .await
        .expect("the unmount ends");
}
