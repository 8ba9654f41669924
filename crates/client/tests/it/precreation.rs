//! The MDT preallocates objects for new files, and destroys objects of removed files later. So
//! neither a create nor an unlink waits for an object target, even if one does not answer.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, NiSpec};
use params::Registry;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::{Cluster, OstNode};
use tokio::task::JoinSet;
use wire::{Nid, OBD_PING, OST_CREATE, OST_DESTROY, OST_STATFS};

/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(120);

async fn create(client: &Client, name: &str) {
    let (root, dir) = (Cred::root(), client.root());
    let create = client.create(&root, dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
    let (found, file) = create.await.unwrap();
    drop(found);
    client.release(&file).await.unwrap();
}

/// The value of the only parameter of this name.
fn param(params: &Registry, name: &str) -> u64 {
    let found = params.get(name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0].1.trim().parse().unwrap()
}

/// Number of creates that waited for objects.
fn create_waits(cluster: &Cluster) -> u64 {
    param(&cluster.params, "lod.*.create_waits")
}

/// Waits until the condition holds; returns how long the wait took.
async fn wait_until(event: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "waited {SOON:?} in vain for {event}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_create_waits_for_objects_once_the_pools_have_grown() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    // Each of 8 tasks creates this many files.
    let create_files = async |from: usize, count: usize| {
        let mut tasks = JoinSet::new();
        for task in 0..8 {
            let client = client.clone();
            tasks.spawn(async move {
                for n in from..from + count {
                    create(&client, &format!("{task}-{n}")).await;
                }
            });
        }
        tasks.join_all().await;
    };
    // The next ID of an empty pool is larger than its last one.
    let stock = |ost| {
        let id = |which| param(&cluster.params, &format!("osp.*OST{ost:04x}*.prealloc_{which}"));
        (id("last_id") + 1).saturating_sub(id("next_id"))
    };
    // The MDT requests larger batches with use. It uses a target less while the target's first
    // objects are late. So a burst may empty a small pool.
    let mut files = 0;
    while stock(0) <= 200 || stock(1) <= 200 {
        assert!(files < 10_000, "{} and {} objects in stock", stock(0), stock(1));
        create_files(files, 20).await;
        files += 20;
    }
    let waits_before = create_waits(&cluster);
    for _ in 0..12 {
        wait_until("a stock of objects", || stock(0) > 100 && stock(1) > 100).await;
        // About 80 files on each target: no pool runs empty, even if it is refilled slowly.
        create_files(files, 20).await;
        files += 20;
    }
    assert_eq!(create_waits(&cluster), waits_before);
    client.umount().await;
    cluster.stop().await;
}

/// A node with a loopback address of this process that ends with `last`.
fn node(last: u8) -> Arc<Lnet> {
    let pid = std::process::id();
    let address = Ipv4Addr::new(127, (pid % 250) as u8 + 1, (pid / 250 % 250) as u8 + 1, last);
    let cfg = LnetConfig {
        accept_port: 7989,
        ..LnetConfig::default()
    };
    let node = Lnet::new(CptTable::single_current(), cfg);
    node.add_ni(&NiSpec::new(Nid::tcp(address, 0))).unwrap();
    node
}

/// A cluster with its second object target on a separate node. The nodes' addresses end with
/// `first` and `first + 1`.
async fn start_with_another_node(first: u8) -> (Cluster, OstNode) {
    let cluster = Cluster::start_on(node(first), 1).await;
    let other = cluster.start_ost_on(node(first + 1), 1).await;
    cluster.mdt.osts_ready(2).await;
    (cluster, other)
}

/// Makes the node lose the MDT's requests, so that its object target does not answer.
fn lose_requests(other: &OstNode) {
    for opc in [OST_CREATE, OST_STATFS, OST_DESTROY, OBD_PING] {
        other.rpc.faults().lose_requests(opc, u32::MAX);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_ost_is_skipped_and_used_again_when_it_answers() {
    let (cluster, other) = start_with_another_node(1).await;
    let client = cluster.mount().await;
    let next_id = |ost: u32| param(&cluster.params, &format!("osp.*OST{ost:04x}*.prealloc_next_id"));
    let is_slow = || param(&cluster.params, "osp.*OST0001*.slow") == 1;
    let first_id = next_id(1);
    for n in 0..10 {
        create(&client, &format!("before{n}")).await;
    }
    assert!(next_id(1) > first_id, "the OST is used");
    lose_requests(&other);
    let mut n = 0;
    let until_skipped = async {
        while !is_slow() {
            create(&client, &format!("meanwhile{n}")).await;
            n += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let start = Instant::now();
    tokio::time::timeout(SOON, until_skipped).await.unwrap();
    eprintln!("skipped after {:?}, {n} creates", start.elapsed());
    let (silent_id, other_id, waits_before) = (next_id(1), next_id(0), create_waits(&cluster));
    for n in 0..100 {
        create(&client, &format!("after{n}")).await;
    }
    assert_eq!(next_id(1), silent_id, "no new file is on the silent OST");
    assert_eq!(
        (next_id(0), create_waits(&cluster)),
        (other_id + 100, waits_before)
    );

    other.rpc.faults().clear_losses_and_refusals();
    wait_until("an answer of the OST", || !is_slow()).await;
    for n in 0..10 {
        create(&client, &format!("again{n}")).await;
    }
    assert!(next_id(1) > silent_id, "the OST is used again");
    client.umount().await;
    other.stop().await;
    cluster.stop().await;
}

/// The reason that new files avoid the second OST; empty: new files use this OST.
fn exclusion(cluster: &Cluster) -> String {
    cluster.params.get("osp.*OST0001*.excluded").remove(0).1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_ost_gets_new_files_again_once_it_has_space() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    let reserve = "osd-memory.*OST0001.reserved_mb";
    let reserved = cluster.params.get(reserve).remove(0).1;
    cluster.params.set(reserve, "100000000").unwrap();
    let mut n = 0;
    let until_full = async {
        while exclusion(&cluster).is_empty() {
            create(&client, &format!("full{n}")).await;
            n += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, until_full).await.unwrap();
    let next_id = || param(&cluster.params, "osp.*OST0001*.prealloc_next_id");
    let full_id = next_id();
    create(&client, "meanwhile").await;
    assert_eq!(next_id(), full_id);

    cluster.params.set(reserve, &reserved).unwrap();
    // No create requests objects of this OST: the MDT itself must notice the space.
    wait_until("space on the OST", || exclusion(&cluster).is_empty()).await;
    for n in 0..10 {
        create(&client, &format!("again{n}")).await;
    }
    assert!(next_id() > full_id, "the OST is used again");
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrator_keeps_new_files_off_an_ost() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    let limit = "osp.*OST0001*.max_create_count";
    cluster.params.set(limit, "0").unwrap();
    assert_eq!(exclusion(&cluster), "max_create_count=0");
    let next_id = || param(&cluster.params, "osp.*OST0001*.prealloc_next_id");
    let first_id = next_id();
    for n in 0..10 {
        create(&client, &format!("without{n}")).await;
    }
    assert_eq!(next_id(), first_id);
    cluster.params.set(limit, "20000").unwrap();
    assert_eq!(exclusion(&cluster), "");
    for n in 0..10 {
        create(&client, &format!("with{n}")).await;
    }
    assert!(next_id() > first_id);
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlink_does_not_wait_for_a_silent_ost() {
    let (cluster, other) = start_with_another_node(3).await;
    let client = cluster.mount().await;
    let free = || [&cluster.params, &other.params].map(|params| param(params, "osd-memory.*OST*.kbytesfree"));
    let before = free();
    let root = Cred::root();
    for n in 0..40 {
        let name = format!("f{n}");
        let create = client.create(
            &root,
            client.root(),
            name.as_bytes(),
            0o644,
            OpenFlags::READ_WRITE,
        );
        let (found, file) = create.await.unwrap();
        drop(found);
        client
            .write(&file, 0, Bytes::from(vec![1; 100_000]))
            .await
            .unwrap();
        client.fsync(&file, false).await.unwrap();
        client.release(&file).await.unwrap();
    }
    let full = free();
    assert!(
        full[0] + 1000 < before[0] && full[1] + 1000 < before[1],
        "{full:?}"
    );
    lose_requests(&other);
    let unlinks = async {
        for n in 0..40 {
            let name = format!("f{n}");
            client
                .unlink(&root, client.root(), name.as_bytes())
                .await
                .unwrap();
        }
    };
    tokio::time::timeout(SOON / 2, unlinks)
        .await
        .expect("no unlink waits");
    wait_until("the space of the first OST", || free()[0] == before[0]).await;
    assert!(
        free()[1] + 1000 < before[1],
        "the silent OST has not destroyed its objects"
    );
    other.rpc.faults().clear_losses_and_refusals();
    wait_until("the space of the silent OST", || free()[1] == before[1]).await;
    client.umount().await;
    other.stop().await;
    cluster.stop().await;
}
