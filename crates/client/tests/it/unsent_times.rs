//! Times that a program sets while data is unwritten. The data carries them; every mount sees them
//! at once, and they are still there after the write-back.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags, SetAttr, SetTime};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use testkit::Cluster;
use tokio::time::timeout;
use wire::{Fid, OST_WRITE, Time};

const RW: OpenFlags = OpenFlags::READ_WRITE;
/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(180);
const ATIME: Time = Time::new(1_000_000_000, 123_456_789);
const MTIME: Time = Time::new(1_100_000_000, 987_654_321);

/// A file with unwritten data.
async fn written_file(client: &Client) -> Arc<OpenFile> {
    let root = Cred::root();
    let (_, file) = client
        .create(&root, client.root(), b"f", 0o644, RW)
        .await
        .unwrap();
    client.write(&file, 0, Bytes::from_static(b"data")).await.unwrap();
    file
}

async fn set_times(client: &Client, fid: Fid) {
    let set = SetAttr {
        atime: Some(SetTime::At(ATIME)),
        mtime: Some(SetTime::At(MTIME)),
        ..SetAttr::default()
    };
    let set_times = async { client.setattr(&Cred::root(), fid, &set, None).await.map(drop) };
    let in_time = timeout(SOON, set_times).await;
    in_time.expect("the change does not wait for the data").unwrap();
}

async fn check_times(client: &Client, fid: Fid, case: &str) {
    let attr = client.getattr(&Cred::root(), fid).await.unwrap().attr;
    assert_eq!((attr.atime, attr.mtime), (ATIME, MTIME), "{case}");
    assert!(attr.ctime > MTIME, "{case}");
}

/// The numbers of data requests and of other requests that the OST has handled, once it is idle.
async fn ost_requests(cluster: &Cluster) -> (u64, u64) {
    loop {
        let stats = cluster.rpc.stats();
        let handled = |name: &str| stats.iter().filter(|s| s.name == name).map(|s| s.handled).sum();
        if stats.iter().all(|s| s.active == 0 && s.queued == 0) {
            return (handled("ost_io"), handled("ost"));
        }
        tokio::task::yield_now().await;
    }
}

/// Ends the mount that has written, and checks the times on a new one.
async fn check_after_end(cluster: &Cluster, client: Arc<Client>, file: &OpenFile) {
    client.release(file).await.unwrap();
    client.umount().await;
    let later = cluster.mount().await;
    check_times(&later, file.fid, "a later mount").await;
    later.umount().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_carries_the_times_that_a_program_sets() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let file = written_file(&client).await;
    let before = ost_requests(&cluster).await;
    set_times(&client, file.fid).await;
    client.write_back(&file).await.unwrap();
    assert_eq!(ost_requests(&cluster).await, (before.0 + 1, before.1));
    let other = cluster.mount().await;
    check_times(&other, file.fid, "another mount").await;
    check_after_end(&cluster, client, &file).await;
    other.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_mounts_see_times_before_the_data_is_written() {
    let cluster = Cluster::start(1).await;
    let (client, other) = (cluster.mount().await, cluster.mount().await);
    cluster.rpc.faults().lose_requests(OST_WRITE, u32::MAX);
    let file = written_file(&client).await;
    set_times(&client, file.fid).await;
    check_times(&other, file.fid, "before the write-back").await;
    cluster.rpc.faults().clear_losses_and_refusals();
    let root = Cred::root();
    let flags = OpenFlags {
        no_atime: true,
        ..OpenFlags::READ
    };
    let by_other = other.open(&root, file.fid, flags).await.unwrap();
    let data = other.read(&by_other, 0, 9).await.unwrap().concat();
    assert_eq!(data, b"data");
    check_times(&other, file.fid, "under the lock of the other mount").await;
    other.release(&by_other).await.unwrap();
    check_after_end(&cluster, client, &file).await;
    other.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_times_does_not_wait_for_data_in_flight() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    cluster.rpc.faults().lose_requests(OST_WRITE, u32::MAX);
    let file = written_file(&client).await;
    {
        let mut write_back = pin!(client.write_back(&file));
        let sent = poll_fn(|cx| Poll::Ready(write_back.as_mut().poll(cx))).await;
        assert!(sent.is_pending(), "the OST does not answer");
        set_times(&client, file.fid).await;
        check_times(&client, file.fid, "the mount itself").await;
        cluster.rpc.faults().clear_losses_and_refusals();
        timeout(SOON, write_back).await.expect("the OST answers").unwrap();
    }
    let other = cluster.mount().await;
    check_times(&other, file.fid, "another mount").await;
    check_after_end(&cluster, client, &file).await;
    other.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_a_change_of_times_sets_its_own_time() {
    let cluster = Cluster::start(1).await;
    let (client, other) = (cluster.mount().await, cluster.mount().await);
    let file = written_file(&client).await;
    set_times(&client, file.fid).await;
    client.write(&file, 4, Bytes::from_static(b"more")).await.unwrap();
    client.write_back(&file).await.unwrap();
    let attr = async |client: &Client| client.getattr(&Cred::root(), file.fid).await.unwrap().attr;
    let (own, seen) = (attr(&client).await, attr(&other).await);
    assert_eq!((seen.atime, seen.mtime), (ATIME, own.mtime));
    assert!(seen.mtime > MTIME);
    client.release(&file).await.unwrap();
    client.umount().await;
    assert_eq!(attr(&other).await.mtime, seen.mtime);
    other.umount().await;
    cluster.stop().await;
}
