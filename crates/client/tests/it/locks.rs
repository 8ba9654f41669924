//! File locks of programs: conflicts, cancelled waits, unmounts. Also an unmount without servers.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Cred, FlockRange, FlockType, OpenFlags};
use std::time::Duration;
use testkit::Cluster;
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
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = mount_a
        .mknod(&root, mount_a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    mount_a
        .setlk(&root, fid, range(FlockType::Write, 0, 99, 1), false)
        .await
        .unwrap();
    let wanted = range(FlockType::Write, 50, 149, 2);
    assert_eq!(mount_b.setlk(&root, fid, wanted, false).await, Err(Errno::EAGAIN));
    let held = mount_b.getlk(&root, fid, wanted).await.unwrap().unwrap();
    assert_eq!(
        (held.ty, held.start, held.end, held.pid),
        (FlockType::Write, 0, 99, 1)
    );
    mount_b
        .setlk(&root, fid, range(FlockType::Read, 100, 149, 2), false)
        .await
        .unwrap();
    let waiting = {
        let (mount_b, root) = (mount_b.clone(), root.clone());
        tokio::spawn(async move { mount_b.setlk(&root, fid, wanted, true).await })
    };
    mount_a.release_locks(&root, fid, 1, 1).await.unwrap();
    assert_eq!(
        tokio::time::timeout(SOON, waiting)
            .await
            .expect("the lock is granted")
            .unwrap(),
        Ok(())
    );
    assert_eq!(
        mount_a.getlk(&root, fid, range(FlockType::Read, 0, 49, 1)).await,
        Ok(None)
    );
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_a_lock_leaves_no_lock() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = mount_a
        .mknod(&root, mount_a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    let all = |ty, owner| range(ty, 0, FlockRange::END, owner);
    mount_a
        .setlk(&root, fid, all(FlockType::Write, 1), false)
        .await
        .unwrap();
    let waiting = mount_b.setlk(&root, fid, all(FlockType::Write, 2), true);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), waiting)
            .await
            .is_err(),
        "the request waits"
    );
    mount_a
        .setlk(&root, fid, all(FlockType::Unlock, 1), false)
        .await
        .unwrap();
    let again = async {
        while mount_a
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
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_releases_its_locks() {
    let cluster = Cluster::start(0).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = mount_a
        .mknod(&root, mount_a.root(), b"f", 0o010_644, 0)
        .await
        .unwrap()
        .attr
        .fid;
    mount_a
        .setlk(&root, fid, range(FlockType::Write, 0, 9, 1), false)
        .await
        .unwrap();
    mount_a.umount().await;
    mount_b
        .setlk(&root, fid, range(FlockType::Write, 0, 9, 1), false)
        .await
        .unwrap();
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unmount_completes_without_servers() {
    let cluster = Cluster::start(1).await;
    let mount_a = cluster.mount().await;
    let root = Cred::root();
    let (_, file) = mount_a
        .create(&root, mount_a.root(), b"f", 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    mount_a
        .write(&file, 0, Bytes::from_static(b"never written back"))
        .await
        .unwrap();
    cluster.stop().await;
    tokio::time::timeout(Duration::from_secs(60), mount_a.umount())
        .await
        .expect("the unmount completes");
}
