//! Routers between networks, over loopback: nodes on `tcp` and `tcp1`, and one or two routers on
//! both.
#![allow(clippy::unwrap_used)]

use cpt::CptTable;
use lnet::{Lnet, LnetConfig, LnetError, Md, MdEvent, NiSpec, Payload, PeerEvent, PortalRotor, RouteSpec};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use testbase::sockets::{
    LIMIT, Queue, config, exchange_hellos, match_entry, nid_maker, pattern, peer_closes, until,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use wire::frame::{FrameHead, LnetOp};
use wire::{LnetHandleWire, LnetHdrNid4, LnetPut, Nid};

/// A configuration that checks routers every second.
fn quick_checks() -> LnetConfig {
    LnetConfig {
        alive_router_check_interval: Duration::from_secs(1),
        dead_router_check_interval: Duration::from_secs(1),
        // Long, so that a router on a busy machine does not count as down.
        router_ping_timeout: LIMIT / 3,
        ..config()
    }
}

/// A node with these NIDs and with routes to networks through these routers.
fn node(nids: &[Nid], routes: &[(u16, Nid)], cfg: LnetConfig) -> Arc<Lnet> {
    let node = Lnet::new(CptTable::single_current(), cfg);
    for nid in nids {
        node.add_ni(&NiSpec::new(*nid)).unwrap();
    }
    for &(net, gateway) in routes {
        let net = Nid::tcp(Ipv4Addr::UNSPECIFIED, net).net();
        node.add_route(RouteSpec {
            net,
            gateway,
            hop: None,
            priority: 0,
        })
        .unwrap();
    }
    node
}

fn router(nids: &[Nid]) -> Arc<Lnet> {
    node(
        nids,
        &[],
        LnetConfig {
            forwarding: true,
            ..quick_checks()
        },
    )
}

/// Number of messages that a router has forwarded.
fn forwarded_count(router: &Lnet) -> u64 {
    let stats = router.stats_line();
    stats.split_whitespace().nth(5).unwrap().parse().unwrap()
}

/// Two nodes with a router in between.
struct RoutedPair {
    node_a: Arc<Lnet>,
    node_b: Arc<Lnet>,
    router: Arc<Lnet>,
}

impl RoutedPair {
    fn new(cfg: LnetConfig) -> RoutedPair {
        let nid = nid_maker();
        RoutedPair {
            node_a: node(&[nid(2, 0)], &[(1, nid(1, 0))], cfg.clone()),
            node_b: node(&[nid(3, 1)], &[(0, nid(1, 1))], cfg.clone()),
            router: node(
                &[nid(1, 0), nid(1, 1)],
                &[],
                LnetConfig {
                    forwarding: true,
                    ..cfg
                },
            ),
        }
    }
}

#[tokio::test]
async fn a_router_forwards_all_kinds_and_sizes_of_messages_unchanged() {
    let RoutedPair {
        node_a,
        node_b,
        router,
    } = RoutedPair::new(quick_checks());
    let (nid_a, nid_b) = (node_a.nid(), node_b.nid());
    for (i, len) in [0, 1, 4096, 4097, 65_537, 1 << 20, 100].into_iter().enumerate() {
        let (bits, data) = (i as u64, pattern(len, i as u8));
        let mut sink = node_b.attach(match_entry(8, bits, nid_a), Md::Sink { max_len: 1 << 20 });
        let done = node_a
            .put(nid_b, 8, bits, 0, 0, data.clone().into(), true)
            .await
            .unwrap();
        assert_eq!(done.mlength as usize, len, "the ACK of a PUT");
        let Some(MdEvent::Put { from, payload, .. }) = sink.next().await else {
            panic!()
        };
        assert_eq!(from, nid_a, "the event names the original sender");
        assert!(payload.into_bytes() == data, "a PUT of {len}");
        let _source = node_a.attach(match_entry(8, bits, nid_b), Md::Source(data.clone().into()));
        let fetched = node_b.get(nid_a, 8, bits, 0, 1 << 20).await.unwrap();
        assert!(fetched.into_bytes() == data, "a GET of {len}");
    }
    let info = node_a.ping(nid_b, LIMIT).await.unwrap();
    assert_eq!(info.nis[1].ns_nid, nid_b);
    // A PUT, an ACK, a GET and a REPLY for each of the 7 sizes, and a ping with its reply.
    assert!(forwarded_count(&router) >= 7 * 4 + 2, "{}", router.stats_line());
    assert!(
        node_a.routes_table().contains(" up "),
        "{}",
        node_a.routes_table()
    );
    assert!(
        node_a.show_peers().iter().all(|p| p.nid != nid_b),
        "the two nodes are not connected directly"
    );
}

#[tokio::test]
async fn the_nid_of_the_original_sender_selects_the_partition_of_routed_requests() {
    let RoutedPair {
        node_a,
        node_b,
        router: _router,
    } = RoutedPair::new(quick_checks());
    node_b.set_portal_rotor(PortalRotor::HashRt);
    let (send, mut requests) = mpsc::channel(8);
    let _portal = node_b.serve_portal(12, Arc::new(Queue(send)));
    node_a
        .put(node_b.nid(), 12, 1, 0, 0, Payload::new(), false)
        .await
        .unwrap();
    let request = requests.recv().await.unwrap();
    assert_eq!(
        (request.from, request.cpt),
        (node_a.nid(), node_b.cpts().of_nid(node_a.nid().0))
    );
}

/// The maximum size of the socket buffers of two hops, in MiB.
fn mib_in_sockets() -> usize {
    let max_bytes = |buffers: &str| -> usize {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{buffers}")).unwrap();
        sizes.split_whitespace().last().unwrap().parse().unwrap()
    };
    (2 * (max_bytes("tcp_rmem") + max_bytes("tcp_wmem"))) >> 20
}

#[tokio::test]
async fn messages_for_a_slow_destination_hold_at_most_their_senders_share_of_buffers() {
    let cfg = LnetConfig {
        large_router_buffers: 4,
        peer_buffer_credits: 2,
        // Nothing may be dropped while the destination is slow.
        transaction_timeout: 10 * LIMIT,
        ..quick_checks()
    };
    let RoutedPair {
        node_a,
        node_b,
        router,
    } = RoutedPair::new(cfg);
    let (nid_b, (send, mut requests)) = (node_b.nid(), mpsc::channel(1));
    let _portal = node_b.serve_portal(12, Arc::new(Queue(send)));
    let (sender, count) = (node_a.clone(), mib_in_sockets() + 32);
    let mut sending = tokio::spawn(async move {
        for i in 0..count as u64 {
            sender
                .put(nid_b, 12, i, 0, i, pattern(1 << 20, i as u8).into(), false)
                .await
                .unwrap();
        }
    });
    // The large buffers: pages of each, their number, and the minimum number of free ones so far.
    let large = || {
        let table = router.buffers_table();
        let columns = table.lines().last().unwrap().split_whitespace();
        let [pages, count, _, free_min] = columns.map(|c| c.parse().unwrap()).collect::<Vec<i64>>()[..]
        else {
            panic!("{table}");
        };
        (pages, count, free_min)
    };
    until("the sender uses its share", || large().2 <= 2).await;
    let finished = tokio::time::timeout(Duration::from_millis(700), &mut sending).await;
    assert!(finished.is_err(), "the router buffered {count} MiB");
    assert_eq!(large(), (256, 4, 2), "a peer must not exceed its share");
    let mut delivered = vec![false; count];
    for _ in 0..count {
        let request = tokio::time::timeout(LIMIT, requests.recv())
            .await
            .unwrap()
            .unwrap();
        let n = request.hdr_data as usize;
        assert!(!std::mem::replace(&mut delivered[n], true), "delivered twice");
        assert!(request.payload.into_bytes() == pattern(1 << 20, n as u8));
    }
    sending.await.unwrap();
    until("all buffers of the router are free again", || {
        router.buffers_table().lines().skip(1).all(|l| {
            let columns: Vec<&str> = l.split_whitespace().collect();
            columns[1] == columns[2]
        })
    })
    .await;
}

#[tokio::test]
async fn two_routers_share_the_load_and_one_takes_over_for_the_other() {
    let nid = nid_maker();
    let routers = [1, 2].map(|n| router(&[nid(n, 0), nid(n, 1)]));
    let routes = |net: u16, own_net: u16| [(net, nid(1, own_net)), (net, nid(2, own_net))];
    let node_a = node(&[nid(3, 0)], &routes(1, 0), quick_checks());
    let node_b = node(&[nid(4, 1)], &routes(0, 1), quick_checks());
    let mut events = node_a.peer_events();
    for _ in 0..40 {
        node_a.ping(node_b.nid(), LIMIT).await.unwrap();
    }
    let shares = [forwarded_count(&routers[0]), forwarded_count(&routers[1])];
    assert!(shares.iter().all(|n| *n >= 30), "{shares:?}");
    assert!(node_a.has_route_via(node_b.nid(), nid(1, 0)) && !node_a.has_route_via(nid(1, 0), nid(1, 0)));
    routers[0].shutdown().await;
    while !matches!(events.recv().await.unwrap(), PeerEvent::Down(n) if n == nid(1, 0)) {}
    for _ in 0..10 {
        // Until the other node also notices the failure, its answers through the dead router are
        // lost.
        while node_a.ping(node_b.nid(), Duration::from_secs(1)).await.is_err() {}
    }
    until("the router is shown as down", || {
        node_a.routers_table().contains(&format!("down {}", nid(1, 0)))
    })
    .await;
    let _restarted = router(&[nid(1, 0), nid(1, 1)]);
    until("the router is shown as up", || {
        node_a.routers_table().contains(&format!("up {}", nid(1, 0)))
    })
    .await;
}

#[tokio::test]
async fn a_better_route_is_used_as_long_as_it_works() {
    let nid = nid_maker();
    let good = router(&[nid(1, 0), nid(1, 1)]);
    let spare = router(&[nid(2, 0), nid(2, 1)]);
    let node_a = node(&[nid(3, 0)], &[], quick_checks());
    let node_b = node(&[nid(4, 1)], &[(0, nid(1, 1)), (0, nid(2, 1))], quick_checks());
    let net = nid(0, 1).net();
    node_a
        .add_route(RouteSpec {
            net,
            gateway: nid(2, 0),
            hop: Some(1),
            priority: 1,
        })
        .unwrap();
    node_a
        .add_route(RouteSpec {
            net,
            gateway: nid(1, 0),
            hop: Some(1),
            priority: 0,
        })
        .unwrap();
    let mut sink = node_b.attach(match_entry(8, 1, node_a.nid()), Md::Sink { max_len: 64 });
    for _ in 0..10 {
        node_a
            .put(node_b.nid(), 8, 1, 0, 0, Payload::new(), false)
            .await
            .unwrap();
        sink.next().await.unwrap();
    }
    assert!(!spare.stats_line().contains(" 10 ") || good.stats_line().contains(" 10 "));
    assert_eq!((forwarded_count(&good), forwarded_count(&spare)), (10, 0));
    good.shutdown().await;
    while node_a
        .put(node_b.nid(), 8, 1, 0, 0, Payload::new(), true)
        .await
        .is_err()
    {}
}

#[tokio::test]
async fn errors_distinguish_missing_routes_from_dead_routers() {
    let nid = nid_maker();
    let (dead, non_router) = (nid(1, 0), node(&[nid(2, 0)], &[], quick_checks()));
    let node_a = node(&[nid(3, 0)], &[(1, dead), (2, non_router.nid())], quick_checks());
    let result = node_a.ping(nid(9, 7), LIMIT).await;
    assert!(matches!(result, Err(LnetError::NoRoute { .. })), "{result:?}");
    assert!(node_a.ping(nid(9, 1), LIMIT).await.is_err());
    until("both routers are down", || {
        node_a.routers_table().matches("down").count() == 2
    })
    .await;
    for net in [1, 2] {
        let result = node_a.ping(nid(9, net), LIMIT).await;
        assert!(matches!(result, Err(LnetError::NoRouter { .. })), "{result:?}");
    }
}

#[tokio::test]
async fn invalid_changes_of_networks_and_routes_are_refused() {
    let nid = nid_maker();
    let node_a = node(&[nid(1, 0)], &[(1, nid(2, 0))], quick_checks());
    let add_error = |spec: RouteSpec| node_a.add_route(spec).unwrap_err().to_string();
    let route = |net, gateway| RouteSpec {
        net: nid(0, net).net(),
        gateway,
        hop: None,
        priority: 0,
    };
    assert!(add_error(route(1, nid(2, 0))).contains("already exists"));
    assert!(add_error(route(0, nid(2, 5))).contains("directly on that network"));
    assert!(add_error(route(2, nid(2, 5))).contains("not on the router's network"));
    assert!(add_error(route(2, nid(1, 0))).contains("this node"));
    assert!(node_a.del_route(nid(0, 4).net(), nid(2, 0)).is_err());
    assert!(
        node_a
            .add_ni(&NiSpec::new(nid(3, 1)))
            .unwrap_err()
            .to_string()
            .contains("a route leads to its network")
    );
    assert!(
        node_a
            .del_ni(nid(1, 0))
            .unwrap_err()
            .to_string()
            .contains("delete its routes first")
    );
    assert!(node_a.add_ni(&NiSpec::new(nid(1, 0))).is_err() && node_a.del_ni(nid(7, 0)).is_err());
    node_a.del_route(nid(0, 1).net(), nid(2, 0)).unwrap();
    node_a.add_ni(&NiSpec::new(nid(3, 1))).unwrap();
    node_a.del_ni(nid(1, 0)).unwrap();
    assert_eq!(node_a.nids(), [nid(3, 1)]);
}

#[tokio::test]
async fn a_removed_interface_is_unreachable_and_can_be_added_again() {
    let nid = nid_maker();
    let (node_a, node_b) = (
        node(&[nid(1, 0), nid(1, 1)], &[], config()),
        node(&[nid(2, 0), nid(2, 1)], &[], config()),
    );
    for net in [0, 1] {
        node_a.ping(nid(2, net), LIMIT).await.unwrap();
    }
    node_b.del_ni(nid(2, 1)).unwrap();
    assert!(matches!(
        node_a.ping(nid(2, 1), LIMIT).await,
        Err(LnetError::Connect { .. } | LnetError::PeerLost { .. })
    ));
    assert_eq!(node_a.ping(nid(2, 0), LIMIT).await.unwrap().nis.len(), 2);
    // The acceptor of the removed interface ends asynchronously.
    loop {
        match node_b.add_ni(&NiSpec::new(nid(2, 1))) {
            Ok(()) => break,
            Err(LnetError::AddrInUse { .. }) => tokio::task::yield_now().await,
            Err(e) => panic!("{e}"),
        }
    }
    while node_a.ping(nid(2, 1), LIMIT).await.is_err() {}
}

fn frame(src: Nid, dest: Nid, payload: &[u8]) -> Vec<u8> {
    let msg = LnetOp::Put(LnetPut {
        ack_wmd: LnetHandleWire::NONE,
        ptl_index: 12,
        ..Default::default()
    });
    let header = LnetHdrNid4::new((src, 12345), (dest, 12345), &msg, payload.len() as u32);
    let head = FrameHead::Lnet {
        cookies: [0, 0],
        header,
        msg,
    };
    [&head.build()[..], payload].concat()
}

#[tokio::test]
async fn forwarded_messages_of_a_peer_that_is_not_a_router_close_its_connection() {
    let nid = nid_maker();
    let _node_a = node(&[nid(1, 0)], &[(1, nid(2, 0))], quick_checks());
    // The sending peer, then the source and the destination in the header.
    for (me, src, dest) in [
        (nid(5, 0), nid(6, 1), nid(1, 0)),
        (nid(5, 0), nid(6, 0), nid(1, 0)),
        (nid(5, 0), nid(5, 0), nid(7, 1)),
        (nid(5, 0), nid(5, 0), nid(7, 0)),
    ] {
        let (mut socket, _) = exchange_hellos(nid(1, 0), me, 1, 1).await;
        socket.write_all(&frame(src, dest, b"x")).await.unwrap();
        assert!(peer_closes(&mut socket).await, "{src} to {dest}, sent by {me}");
    }
}

#[tokio::test]
async fn invalid_routed_messages_are_dropped_without_closing_the_connection() {
    let nid = nid_maker();
    let node_a = node(
        &[nid(1, 0)],
        &[(1, nid(2, 0))],
        LnetConfig {
            alive_router_check_interval: Duration::ZERO,
            ..config()
        },
    );
    let (send, mut requests) = mpsc::channel(8);
    let _portal = node_a.serve_portal(12, Arc::new(Queue(send)));
    let (mut socket, _) = exchange_hellos(nid(1, 0), nid(2, 0), 1, 1).await;
    for (src, dest) in [
        (nid(6, 2), nid(1, 0)), // from a network that this router does not lead to
        (nid(6, 0), nid(1, 0)), // from a node of this network
        (nid(1, 0), nid(1, 0)), // from this node itself
        (Nid(0), nid(1, 0)),
        (Nid::ANY, nid(1, 0)),
        (Nid::LO, nid(1, 0)),
        (nid(6, 1), nid(9, 0)), // for another node
        (nid(6, 1), Nid(0)),
    ] {
        socket.write_all(&frame(src, dest, b"garbage")).await.unwrap();
    }
    socket
        .write_all(&frame(nid(6, 1), nid(1, 0), b"good"))
        .await
        .unwrap();
    let request = tokio::time::timeout(LIMIT, requests.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (request.from, request.payload.into_bytes()),
        (nid(6, 1), "good".into())
    );
    assert!(requests.is_empty());
}

#[tokio::test]
async fn a_router_drops_messages_that_it_cannot_forward() {
    let nid = nid_maker();
    let cfg = LnetConfig {
        forwarding: true,
        ..config()
    };
    let router = node(&[nid(1, 0), nid(1, 1)], &[(3, nid(2, 0))], cfg);
    let (send, mut requests) = mpsc::channel(8);
    let _portal = router.serve_portal(12, Arc::new(Queue(send)));
    let (mut socket, _) = exchange_hellos(nid(1, 0), nid(2, 0), 1, 1).await;
    for dest in [
        nid(9, 4), // no route leads there
        nid(9, 3), // the only route leads back to the sender
        Nid::tcp(Ipv4Addr::BROADCAST, 1),
        Nid::tcp(Ipv4Addr::UNSPECIFIED, 1),
        Nid::ANY,
    ] {
        socket.write_all(&frame(nid(2, 0), dest, b"lost")).await.unwrap();
    }
    socket
        .write_all(&frame(nid(2, 0), nid(1, 0), b"here"))
        .await
        .unwrap();
    assert_eq!(
        tokio::time::timeout(LIMIT, requests.recv())
            .await
            .unwrap()
            .unwrap()
            .from,
        nid(2, 0)
    );
    until("all five messages are counted as dropped", || {
        router.stats_line().split_whitespace().nth(6).unwrap() == "5"
    })
    .await;
}
