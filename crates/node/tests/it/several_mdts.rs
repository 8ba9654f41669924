//! A file system with several MDTs: they share the OSTs, and the death of one stops only its part.

use std::time::Duration;

use node::{MGS_WAIT, Node, TargetSpec};
use osd::target::TargetKind;
use testkit::RestartableMemoryStores;
use tokio::time::{Instant, sleep, timeout};

use crate::{CAPACITY, mount, read_file, start_node, write_file};

/// The targets of the file system: MGS, two MDTs, two OSTs.
const TARGETS: [(TargetKind, u32); 5] = [
    (TargetKind::Mgs, 0),
    (TargetKind::Mdt, 0),
    (TargetKind::Mdt, 1),
    (TargetKind::Ost, 0),
    (TargetKind::Ost, 1),
];

/// The targets' stores, which outlive their nodes.
struct Stores(Vec<RestartableMemoryStores>);

impl Stores {
    async fn new() -> Stores {
        let mut stores = Vec::new();
        for _ in TARGETS {
            stores.push(RestartableMemoryStores::new(CAPACITY).await);
        }
        Stores(stores)
    }

    /// The targets with these numbers, to start.
    fn specs(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<TargetSpec> {
        let spec = |number: usize| {
            let (kind, index) = TARGETS[number];
            TargetSpec {
                stores: Box::new(self.0[number].clone()),
                ..TargetSpec::in_memory(testkit::label(kind, index), CAPACITY)
            }
        };
        numbers.into_iter().map(spec).collect()
    }
}

/// The value of a parameter; empty without such a parameter.
fn param(node: &Node, name: &str) -> String {
    node.registry()
        .get(name)
        .pop()
        .map_or(String::new(), |(_, value)| value)
}

async fn wait_until(mut condition: impl AsyncFnMut() -> bool) {
    let met = async {
        while !condition().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(120), met)
        .await
        .expect("the condition becomes true");
}

#[tokio::test(start_paused = true)]
async fn mdts_share_the_osts_and_each_has_objects_of_its_own_sequence() {
    let (node, stores) = (start_node(1), Stores::new().await);
    node.serve(stores.specs(0..5), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let names = [
        "MGS",
        "testfs-OST0000",
        "testfs-OST0001",
        "testfs-MDT0000",
        "testfs-MDT0001",
    ];
    assert_eq!(node.target_names(), names);
    let client = mount(&node).await;
    write_file(&client, "f", b"data").await;
    assert_eq!(read_file(&client, "f").await, b"data");
    let space: Vec<u32> = client.mdt_space().await.iter().map(|(mdt, _)| *mdt).collect();
    assert_eq!(space, [0, 1]);
    let mut sequences = Vec::new();
    for mdt in 0..2 {
        for ost in 0..2 {
            let device = format!("osp.testfs-OST{ost:04x}-osc-MDT{mdt:04x}");
            assert_eq!(param(&node, &format!("{device}.active")), "1", "{device}");
            sequences.push(param(&node, &format!("{device}.prealloc_last_seq")));
        }
    }
    sequences.sort();
    sequences.dedup();
    assert_eq!(sequences.len(), 4, "{sequences:?}");
    for device in ["testfs-MDT0000-osp-MDT0001", "testfs-MDT0001-osp-MDT0000"] {
        wait_until(async || param(&node, &format!("osp.{device}.active")) == "1").await;
    }
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_mdt_stops_neither_the_other_one_nor_an_ost_that_restarts() {
    let (node, stores) = (start_node(2), Stores::new().await);
    node.serve(stores.specs(0..5), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let client = mount(&node).await;
    write_file(&client, "f", b"data").await;
    node.stop_target("testfs-MDT0001").await.unwrap();
    let limit = Duration::from_secs(10);
    let works = async {
        assert_eq!(read_file(&client, "f").await, b"data");
        write_file(&client, "g", b"more").await;
        assert_eq!(read_file(&client, "g").await, b"more");
    };
    timeout(limit, works).await.expect("MDT0000 works");
    for ost in ["testfs-OST0000", "testfs-OST0001"] {
        node.stop_target(ost).await.unwrap();
    }
    node.serve(stores.specs(3..5), MGS_WAIT).await.unwrap();
    timeout(limit, node.wait_until_ready()).await.unwrap().unwrap();
    node.serve(stores.specs([2]), MGS_WAIT).await.unwrap();
    // Now MDT0000 is dead: MDT0001 still answers, with objects on all OSTs.
    node.stop_target("testfs-MDT0000").await.unwrap();
    wait_until(async || client.mdt_space().await.iter().any(|(mdt, _)| *mdt == 1)).await;
    timeout(limit, node.wait_until_ready()).await.unwrap().unwrap();
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_mdt_joins_a_running_file_system() {
    let (node, stores) = (start_node(3), Stores::new().await);
    node.serve(stores.specs([0, 1, 3]), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let client = mount(&node).await;
    write_file(&client, "f", b"data").await;
    node.serve(stores.specs([2]), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    let device = "osp.testfs-MDT0001-osp-MDT0000.active";
    wait_until(async || param(&node, device) == "1").await;
    let newcomer = mount(&node).await;
    assert_eq!(newcomer.mdt_space().await.len(), 2);
    assert_eq!(read_file(&newcomer, "f").await, b"data");
    // Other MDTs are no Lustre clients, for which new files would avoid a new OST for a while.
    let added_at = Instant::now();
    node.serve(stores.specs([4]), MGS_WAIT).await.unwrap();
    node.wait_until_ready().await.unwrap();
    assert!(added_at.elapsed() < Duration::from_secs(10));
    node.stop().await.unwrap();
}
