//! Evictions: the client loses dirty data and file locks, and its descriptors report the loss. No
//! data from before the eviction reaches a server or a reader afterwards.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, FlockRange, FlockType, OpenFile, OpenFlags};
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use wire::{Errno, OST_WRITE};

/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(180);
const RW: OpenFlags = OpenFlags::READ_WRITE;

async fn create(client: &Client, name: &[u8]) -> Arc<OpenFile> {
    let created = client.create(&Cred::root(), client.root(), name, 0o644, RW).await;
    created.unwrap().1
}

/// Writes data that stays in the cache: the object targets receive no OST_WRITE before
/// [`evict_all`].
async fn write_to_cache(cluster: &Cluster, client: &Client, file: &OpenFile, data: &'static [u8]) {
    cluster.rpc.faults().lose_requests(OST_WRITE, u32::MAX);
    client.write(file, 0, Bytes::from_static(data)).await.unwrap();
}

/// Evicts all clients from the object targets, and waits until the client works again.
async fn evict_all(cluster: &Cluster, client: &Client) {
    let fid = create(client, b"another").await.fid;
    cluster
        .params
        .set("obdfilter.*.evict_client", "nid:0@lo")
        .unwrap();
    cluster.rpc.faults().clear_losses_and_refusals();
    // Calls may fail until the client has reconnected, and a descriptor with lost data fails. Later
    // a write through a new descriptor succeeds.
    let works = async {
        loop {
            let file = client.open(&Cred::root(), fid, RW).await.unwrap();
            let written = client.write(&file, 0, Bytes::from_static(b"x")).await;
            let synced = client.fsync(&file, false).await;
            client.release(&file).await.unwrap();
            if written.is_ok() && synced.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, works)
        .await
        .expect("the client reconnects");
    client
        .unlink(&Cred::root(), client.root(), b"another")
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_was_only_cached_at_an_eviction_is_reported_as_lost() {
    let cluster = Cluster::start(2).await;
    let mount_a = cluster.mount().await;
    let root = Cred::root();
    let file = create(&mount_a, b"f").await;
    let (reader, untouched) = (
        mount_a.open(&root, file.fid, OpenFlags::READ).await.unwrap(),
        create(&mount_a, b"untouched").await,
    );
    mount_a.write(&file, 0, Bytes::from_static(b"old")).await.unwrap();
    mount_a.fsync(&file, false).await.unwrap();
    mount_a
        .write(&untouched, 0, Bytes::from_static(b"kept"))
        .await
        .unwrap();
    mount_a.fsync(&untouched, false).await.unwrap();
    write_to_cache(&cluster, &mount_a, &file, b"new").await;
    evict_all(&cluster, &mount_a).await;

    for _ in 0..2 {
        for open in [&file, &reader] {
            assert_eq!(mount_a.write_back(open).await, Err(Errno::EIO), "close");
            assert_eq!(mount_a.fsync(open, false).await, Err(Errno::EIO));
            assert_eq!(mount_a.read(open, 0, 9).await, Err(Errno::EIO));
            assert_eq!(mount_a.read_mapped(open, 0, 9).await, Err(Errno::EIO));
        }
        let more = Bytes::from_static(b"more");
        assert_eq!(mount_a.write(&file, 0, more.clone()).await, Err(Errno::EIO));
        assert_eq!(mount_a.write_mapped(&file, 0, more).await, Err(Errno::EIO));
        let space = client::Fallocate::Allocate { keep_size: false };
        assert_eq!(mount_a.fallocate(&file, space, 0, 9).await, Err(Errno::EIO));
    }
    assert_eq!(mount_a.fsync(&untouched, false).await, Ok(()));
    assert_eq!(mount_a.read(&untouched, 0, 9).await.unwrap().concat(), b"kept");

    let later = mount_a.open(&root, file.fid, RW).await.unwrap();
    assert_eq!(
        mount_a.fsync(&later, false).await,
        Ok(()),
        "another descriptor has reported the loss"
    );
    assert_eq!(mount_a.read(&later, 0, 9).await.unwrap().concat(), b"old");
    mount_a
        .write(&later, 0, Bytes::from_static(b"newer"))
        .await
        .unwrap();
    mount_a.fsync(&later, false).await.unwrap();
    assert_eq!(mount_a.read(&later, 0, 9).await.unwrap().concat(), b"newer");
    assert_eq!(mount_a.read(&file, 0, 9).await, Err(Errno::EIO), "still");
    // All mappings share pages: a mapping of a failed descriptor would show the bytes that this
    // read returns.
    assert_eq!(mount_a.read_mapped(&later, 0, 9).await, Err(Errno::EIO));
    for failed in [&file, &reader] {
        mount_a.release(failed).await.unwrap();
    }
    drop((file, reader));
    assert_eq!(
        mount_a.read_mapped(&later, 0, 9).await.unwrap().concat(),
        b"newer"
    );
    mount_a.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_descriptor_reports_an_unreported_loss() {
    let cluster = Cluster::start(1).await;
    let mount_a = cluster.mount().await;
    let file = create(&mount_a, b"f").await;
    write_to_cache(&cluster, &mount_a, &file, b"lost").await;
    evict_all(&cluster, &mount_a).await;
    mount_a.release(&file).await.unwrap();
    let later = mount_a.open(&Cred::root(), file.fid, RW).await.unwrap();
    assert_eq!(mount_a.fsync(&later, false).await, Err(Errno::EIO));
    assert_eq!(mount_a.fsync(&later, false).await, Ok(()));
    mount_a.umount().await;
    cluster.stop().await;
}

/// Mount A writes, the OST evicts both mounts, and mount B overwrites the data and syncs. No older
/// data of A may reach the OST afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_data_is_not_overwritten_by_an_evicted_client() {
    let cluster = Cluster::start(1).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = create(&mount_a, b"f").await.fid;
    let direct = OpenFlags { direct: true, ..RW };
    for round in 0..200u32 {
        let old = Bytes::from(format!("a {round:08}"));
        let new = Bytes::from(format!("b {round:08}"));
        // The descriptors of the last round may have failed permanently.
        let own_file = mount_a.open(&root, fid, RW).await.unwrap();
        // May fail: the client may notice the last eviction only now.
        let written = mount_a.write(&own_file, 0, old).await;
        cluster
            .params
            .set("obdfilter.*.evict_client", "nid:0@lo")
            .unwrap();
        let late_fsync = tokio::spawn({
            let (mount_a, own_file) = (mount_a.clone(), own_file.clone());
            async move { mount_a.fsync(&own_file, false).await }
        });
        let synced = async {
            loop {
                let other_file = mount_b.open(&root, fid, RW).await.unwrap();
                let written = mount_b.write(&other_file, 0, new.clone()).await;
                let synced = mount_b.fsync(&other_file, false).await;
                mount_b.release(&other_file).await.unwrap();
                if written.is_ok() && synced.is_ok() {
                    return;
                }
            }
        };
        tokio::time::timeout(SOON, synced).await.expect("B continues");
        let fsync_result = late_fsync.await.unwrap();
        mount_a.release(&own_file).await.unwrap();
        // Reads without the cache: A may not have noticed the eviction yet.
        let read = async {
            loop {
                let direct_file = mount_b.open(&root, fid, direct).await.unwrap();
                let read = mount_b.read(&direct_file, 0, 99).await;
                mount_b.release(&direct_file).await.unwrap();
                if let Ok(read) = read {
                    return read.concat();
                }
            }
        };
        let read = tokio::time::timeout(SOON, read).await.unwrap();
        assert!(
            read == new,
            "round {round}: {:?}; A's results: {written:?}, {fsync_result:?}",
            String::from_utf8_lossy(&read)
        );
    }
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

fn range(ty: FlockType, start: u64, end: u64) -> FlockRange {
    FlockRange {
        ty,
        start,
        end,
        owner: 7,
        pid: 7,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descriptor_with_a_lost_lock_fails_and_others_continue() {
    let cluster = Cluster::start(1).await;
    let mount_a = cluster.mount().await;
    let root = Cred::root();
    let (locked, unlocked) = (create(&mount_a, b"f").await, create(&mount_a, b"g").await);
    let without_lock = mount_a.open(&root, locked.fid, RW).await.unwrap();
    mount_a
        .write(&locked, 0, Bytes::from_static(b"data"))
        .await
        .unwrap();
    mount_a.fsync(&locked, false).await.unwrap();
    let all = |ty| range(ty, 0, FlockRange::END);
    mount_a
        .setlk_through(&locked, all(FlockType::Write), false)
        .await
        .unwrap();
    mount_a
        .setlk_through(&locked, range(FlockType::Unlock, 10, 19), false)
        .await
        .unwrap();
    // The whole range is unlocked, in parts.
    mount_a
        .setlk_through(&unlocked, range(FlockType::Write, 0, 99), false)
        .await
        .unwrap();
    for part in [range(FlockType::Unlock, 50, 99), range(FlockType::Unlock, 0, 49)] {
        mount_a.setlk_through(&unlocked, part, false).await.unwrap();
    }
    cluster.params.set("mdt.*.evict_client", "nid:0@lo").unwrap();
    let until_evicted = async {
        while mount_a.read(&locked, 0, 9).await.is_ok() {
            // Any operation with a request to the metadata target.
            let _ = mount_a.fsyncdir(mount_a.root()).await;
        }
    };
    tokio::time::timeout(SOON, until_evicted)
        .await
        .expect("the client notices the eviction");
    for _ in 0..2 {
        assert_eq!(mount_a.read(&locked, 0, 9).await, Err(Errno::EIO));
        assert_eq!(mount_a.fsync(&locked, false).await, Err(Errno::EIO));
        let more = Bytes::from_static(b"more");
        assert_eq!(mount_a.write(&locked, 0, more).await, Err(Errno::EIO));
        for ty in [FlockType::Write, FlockType::Unlock] {
            assert_eq!(
                mount_a.setlk_through(&locked, all(ty), false).await,
                Err(Errno::EIO)
            );
        }
    }
    mount_a.release_locks(&root, locked.fid, 7, 7).await.unwrap();
    assert_eq!(mount_a.read(&without_lock, 0, 9).await.unwrap().concat(), b"data");
    assert_eq!(mount_a.read(&unlocked, 0, 9).await.unwrap().concat(), b"");
    let later = mount_a.open(&root, locked.fid, RW).await.unwrap();
    mount_a
        .setlk_through(&later, all(FlockType::Write), false)
        .await
        .unwrap();
    assert_eq!(mount_a.read(&later, 0, 9).await.unwrap().concat(), b"data");
    mount_a.umount().await;
    cluster.stop().await;
}
