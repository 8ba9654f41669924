//! A client and its servers are on two networks, connected by two routers. One router stops while
//! the client writes.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Cred, OpenFlags};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, NiSpec, RouteSpec};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use testkit::{Cluster, FSNAME, SettableClock, start_node};
use wire::Nid;

/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(180);

fn nid(last: u8, net: u16) -> Nid {
    let pid = std::process::id();
    Nid::tcp(
        Ipv4Addr::new(127, (pid % 250) as u8 + 1, (pid / 250 % 250) as u8 + 1, last),
        net,
    )
}

fn config(forwarding: bool) -> LnetConfig {
    LnetConfig {
        accept_port: 7988,
        forwarding,
        alive_router_check_interval: Duration::from_secs(1),
        dead_router_check_interval: Duration::from_secs(1),
        router_ping_timeout: Duration::from_secs(2),
        ..LnetConfig::default()
    }
}

/// A node on some networks that reaches `to` through the two routers.
fn node(nids: &[Nid], forwarding: bool, to: Option<u16>) -> Arc<Lnet> {
    let node = Lnet::new(CptTable::single_current(), config(forwarding));
    for nid in nids {
        node.add_ni(&NiSpec::new(*nid)).unwrap();
    }
    if let Some(net) = to {
        let from = nids[0].net_number();
        for router in [1, 2] {
            let spec = RouteSpec {
                net: nid(0, net).net(),
                gateway: nid(router, from),
                hop: None,
                priority: 0,
            };
            node.add_route(spec).unwrap();
        }
    }
    node
}

/// Number of messages that a router has forwarded.
fn routed(router: &Lnet) -> u64 {
    router.counters().lcc_route_count.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_works_through_two_routers_and_continues_through_one() {
    let routers = [1, 2].map(|n| node(&[nid(n, 0), nid(n, 1)], true, None));
    let servers = node(&[nid(3, 1)], false, Some(0));
    let cluster = Cluster::start_on(servers, 2).await;
    let lnet = node(&[nid(4, 0)], false, Some(1));
    let client_node = start_node(lnet.clone(), 77, &SettableClock::default());
    let mount = async || {
        let options = client_node.mount_options(vec![nid(3, 1)], FSNAME);
        client_node.mount(options.unwrap()).await.unwrap()
    };
    let client = mount().await;
    let data: Bytes = (0..20_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect::<Vec<u8>>()
        .into();
    let write = async |name: &[u8]| {
        let created = client
            .create(&Cred::root(), client.root(), name, 0o644, OpenFlags::READ_WRITE)
            .await;
        let (found, file) = created.unwrap();
        client.write(&file, 0, data.clone()).await.unwrap();
        client.fsync(&file, false).await.unwrap();
        client.release(&file).await.unwrap();
        found.attr.fid
    };
    let first = write(b"first").await;
    let shares = [routed(&routers[0]), routed(&routers[1])];
    assert!(
        shares.iter().all(|n| *n > 20),
        "both routers forward messages: {shares:?}"
    );

    let stop_router = async {
        // Stops the router while the client writes the second file.
        while routed(&routers[0]) < shares[0] + 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        routers[0].shutdown().await;
    };
    let (second, ()) = tokio::time::timeout(SOON, async { tokio::join!(write(b"second"), stop_router) })
        .await
        .expect("the mount continues through the other router");
    // Another mount has no cache, so it reads from the servers.
    let other = tokio::time::timeout(SOON, mount()).await.unwrap();
    for fid in [first, second] {
        let file = other
            .open(&Cred::root(), fid, OpenFlags::READ_WRITE)
            .await
            .unwrap();
        let read = other.read(&file, 0, data.len()).await.unwrap().concat();
        assert!(read == data, "the written data is read");
        other.release(&file).await.unwrap();
    }
    assert!(
        lnet.show_peers().iter().all(|p| p.nid.net() == nid(0, 0).net()),
        "the client is connected to routers only"
    );
    client_node.stop().await.unwrap();
    cluster.stop().await;
}
