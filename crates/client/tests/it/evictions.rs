//! What a client that was evicted had not written back is lost, and whoever asks is told so; nothing of before the eviction
//! gets to a server or to a reader after it.

#![allow(clippy::unwrap_used)]

use crate::cluster::Cluster;
use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use std::sync::Arc;
use std::time::Duration;
use wire::Errno;

/// What takes longer does not come.
const SOON: Duration = Duration::from_secs(180);
const RW: OpenFlags = OpenFlags::READ_WRITE;

async fn create(c: &Client, name: &[u8]) -> Arc<OpenFile> {
    let made = c.create(&Cred::root(), c.root(), name, 0o644, RW).await;
    made.unwrap().1
}

/// Evicts everybody from the object targets, and waits until the client works again.
async fn evict_all(cluster: &Cluster, c: &Client) {
    let file = create(c, b"another").await;
    cluster
        .params
        .set("obdfilter.*.evict_client", "nid:0@lo")
        .unwrap();
    // In the middle of it calls fail; then data is written and stays.
    let works = async {
        while c.write(&file, 0, Bytes::from_static(b"x")).await.is_err()
            || c.fsync(&file, false).await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, works)
        .await
        .expect("it connects again");
    c.release(&file).await.unwrap();
    c.unlink(&Cred::root(), c.root(), b"another").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_was_only_cached_at_an_eviction_is_reported_as_lost() {
    let cluster = Cluster::start(2).await;
    let a = cluster.mount().await;
    let root = Cred::root();
    let file = create(&a, b"f").await;
    let (reader, untouched) = (
        a.open(&root, file.fid, OpenFlags::READ).await.unwrap(),
        create(&a, b"untouched").await,
    );
    a.write(&file, 0, Bytes::from_static(b"old")).await.unwrap();
    a.fsync(&file, false).await.unwrap();
    a.write(&untouched, 0, Bytes::from_static(b"kept")).await.unwrap();
    a.fsync(&untouched, false).await.unwrap();
    a.write(&file, 0, Bytes::from_static(b"new")).await.unwrap();
    evict_all(&cluster, &a).await;

    assert_eq!(a.write_back(&file).await, Err(Errno::EIO), "a close tells");
    assert_eq!(a.write_back(&file).await, Err(Errno::EIO), "and the next");
    assert_eq!(a.fsync(&file, false).await, Err(Errno::EIO), "fsync too");
    assert_eq!(a.fsync(&file, false).await, Ok(()), "once");
    assert_eq!(a.fsync(&reader, false).await, Err(Errno::EIO), "each open file");
    assert_eq!(a.fsync(&untouched, false).await, Ok(()));
    let later = a.open(&root, file.fid, RW).await.unwrap();
    assert_eq!(a.fsync(&later, false).await, Ok(()), "it has been told");
    assert_eq!(a.read(&file, 0, 9).await.unwrap().concat(), b"old");

    a.write(&file, 0, Bytes::from_static(b"newer")).await.unwrap();
    a.fsync(&file, false).await.unwrap();
    assert_eq!(a.read(&later, 0, 9).await.unwrap().concat(), b"newer");
    a.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_opens_a_file_after_its_data_was_lost_is_told_if_nobody_was() {
    let cluster = Cluster::start(1).await;
    let a = cluster.mount().await;
    let file = create(&a, b"f").await;
    a.write(&file, 0, Bytes::from_static(b"lost")).await.unwrap();
    evict_all(&cluster, &a).await;
    a.release(&file).await.unwrap();
    let later = a.open(&Cred::root(), file.fid, RW).await.unwrap();
    assert_eq!(a.fsync(&later, false).await, Err(Errno::EIO));
    assert_eq!(a.fsync(&later, false).await, Ok(()));
    a.umount().await;
    cluster.stop().await;
}

/// One mount writes, both are evicted at any moment, and the other one overwrites that and syncs: what the first one still
/// had must not come after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_synced_is_not_overwritten_by_what_an_evicted_client_had() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let fid = create(&a, b"f").await.fid;
    let (mine, others) = (
        a.open(&root, fid, RW).await.unwrap(),
        b.open(&root, fid, RW).await.unwrap(),
    );
    let direct = OpenFlags { direct: true, ..RW };
    let at_server = b.open(&root, fid, direct).await.unwrap();
    for round in 0..200u32 {
        let old = Bytes::from(format!("a {round:08}"));
        let new = Bytes::from(format!("b {round:08}"));
        // May fail: the last eviction is perhaps noticed only now.
        let written = a.write(&mine, 0, old).await;
        cluster
            .params
            .set("obdfilter.*.evict_client", "nid:0@lo")
            .unwrap();
        let late = tokio::spawn({
            let (a, mine) = (a.clone(), mine.clone());
            async move { a.fsync(&mine, false).await }
        });
        let synced = async {
            while b.write(&others, 0, new.clone()).await.is_err() || b.fsync(&others, false).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, synced).await.expect("B goes on");
        let told = late.await.unwrap();
        // Past the caches: A may not have noticed yet.
        let read = async {
            loop {
                if let Ok(read) = b.read(&at_server, 0, 99).await {
                    return read.concat();
                }
            }
        };
        let read = tokio::time::timeout(SOON, read).await.unwrap();
        assert!(
            read == new,
            "round {round}: {:?}; A was told {written:?}, {told:?}",
            String::from_utf8_lossy(&read)
        );
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}
