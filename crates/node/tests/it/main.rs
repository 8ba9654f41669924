//! Nodes with targets and mounts.

#![allow(clippy::unwrap_used)]

mod several_mdts;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use node::{MGS_WAIT, Node, NodeConfig, NodeError, RandomSource, SAVED_CONFIG_FILE, TargetSpec};
use osd::target::TargetKind;
use osd::{MemoryFiles, MemoryStores, Stores, TargetFiles};
use testkit::{FSNAME, RestartableMemoryStores, SlowStores};
use wire::Nid;

/// Capacity of each store, bytes.
const CAPACITY: u64 = 1 << 30;

fn in_memory(kind: TargetKind) -> TargetSpec {
    TargetSpec::in_memory(testkit::label(kind, 0), CAPACITY)
}

/// A node without an address: its parts reach each other over `lo`.
fn start_node(seed: u64) -> Arc<Node> {
    let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
    Node::start(lnet, NodeConfig::new(RandomSource::seeded(seed))).unwrap()
}

async fn mount(node: &Node) -> Arc<Client> {
    let options = node.mount_options(vec![Nid::LO], FSNAME).unwrap();
    node.mount(options).await.unwrap()
}

async fn write_file(client: &Client, name: &str, data: &'static [u8]) {
    let (cred, flags) = (Cred::root(), OpenFlags::READ_WRITE);
    let created = client.create(&cred, client.root(), name.as_bytes(), 0o644, flags);
    let (_, file) = created.await.unwrap();
    client.write(&file, 0, Bytes::from_static(data)).await.unwrap();
    client.release(&file).await.unwrap();
}

async fn read_file(client: &Client, name: &str) -> Vec<u8> {
    let cred = Cred::root();
    let found = client
        .lookup(&cred, client.root(), name.as_bytes())
        .await
        .unwrap();
    let opened = client.open(&cred, found.attr.fid, OpenFlags::READ).await;
    let file = opened.unwrap();
    let data = client.read(&file, 0, 1 << 20).await.unwrap().concat();
    client.release(&file).await.unwrap();
    data
}

#[tokio::test(start_paused = true)]
async fn node_serves_and_mounts_a_whole_file_system() {
    check_file_system(in_memory).await;
}

#[tokio::test(start_paused = true)]
async fn node_serves_and_mounts_a_whole_file_system_on_slow_stores() {
    check_file_system(|kind| TargetSpec {
        stores: Box::new(SlowStores(MemoryStores(CAPACITY))),
        ..in_memory(kind)
    })
    .await;
}

async fn check_file_system(target: impl Fn(TargetKind) -> TargetSpec) {
    let node = start_node(1);
    let kinds = [TargetKind::Mgs, TargetKind::Mdt, TargetKind::Ost];
    node.serve(kinds.map(target).into(), MGS_WAIT).await.unwrap();
    assert_eq!(node.target_names(), ["MGS", "testfs-OST0000", "testfs-MDT0000"]);
    node.wait_until_ready().await.unwrap();
    let (first, second) = (mount(&node).await, mount(&node).await);
    write_file(&first, "f", b"data").await;
    assert_eq!(read_file(&second, "f").await, b"data");
    assert_eq!(node.registry().get("health_check")[0].1, "healthy");
    node.umount(&first).await;
    assert_eq!(node.clients().len(), 1);
    node.stop().await.unwrap();
    assert!(node.clients().is_empty() && node.target_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopped_target_starts_again_on_its_stores() {
    let node = start_node(2);
    let (mdt, ost) = (
        RestartableMemoryStores::new(CAPACITY).await,
        RestartableMemoryStores::new(CAPACITY).await,
    );
    let kept = |kind, stores: &RestartableMemoryStores| TargetSpec {
        stores: Box::new(stores.clone()),
        ..in_memory(kind)
    };
    let targets = vec![
        in_memory(TargetKind::Mgs),
        kept(TargetKind::Mdt, &mdt),
        kept(TargetKind::Ost, &ost),
    ];
    node.serve(targets, MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let client = mount(&node).await;
    write_file(&client, "f", b"data").await;
    node.umount(&client).await;
    for (name, kind, stores) in [
        ("testfs-MDT0000", TargetKind::Mdt, &mdt),
        ("testfs-OST0000", TargetKind::Ost, &ost),
    ] {
        node.stop_target(name).await.unwrap();
        let again = node.stop_target(name).await;
        assert!(matches!(again, Err(NodeError::NoTarget { .. })));
        assert!(stores.has_run());
        node.serve(vec![kept(kind, stores)], MGS_WAIT).await.unwrap();
    }
    let client = mount(&node).await;
    assert_eq!(read_file(&client, "f").await, b"data");
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn target_with_a_saved_configuration_starts_without_its_mgs() {
    let files = MemoryFiles::default();
    let stores = RestartableMemoryStores::new(CAPACITY).await;
    let mdt = || TargetSpec {
        stores: Box::new(stores.clone()),
        files: Some(Arc::new(files.clone())),
        ..in_memory(TargetKind::Mdt)
    };
    let node = start_node(3);
    let targets = vec![in_memory(TargetKind::Mgs), mdt()];
    node.serve(targets, MGS_WAIT).await.unwrap();
    while files.read(SAVED_CONFIG_FILE).unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.stop().await.unwrap();

    let node = start_node(4);
    node.serve(vec![mdt()], MGS_WAIT).await.unwrap();
    assert_eq!(node.target_names(), ["testfs-MDT0000"]);
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn target_that_gets_no_answer_names_itself_and_the_remedy() {
    let node = start_node(5);
    let wait = Duration::from_secs(5);
    let error = node.serve(vec![in_memory(TargetKind::Mdt)], wait).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("testfs-MDT0000: ") && error.contains("is the MGS running"),
        "{error}"
    );
    node.stop().await.unwrap();
    // The MGS answers, but an OST needs the file system's first MDT.
    let node = start_node(6);
    let targets = [TargetKind::Mgs, TargetKind::Ost].map(in_memory);
    let error = node.serve(targets.into(), wait).await.unwrap_err().to_string();
    assert!(error.contains("start the first MDT of testfs"), "{error}");
    assert_eq!(node.target_names(), ["MGS"]);
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_node_accepts_no_mount() {
    let node = start_node(7);
    let kinds = [TargetKind::Mgs, TargetKind::Mdt, TargetKind::Ost];
    node.serve(kinds.map(in_memory).into(), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let options = node.mount_options(vec![Nid::LO], FSNAME).unwrap();
    node.stop().await.unwrap();
    let mounted = node.mount(options).await;
    assert!(mounted.is_err() && node.clients().is_empty());
}
