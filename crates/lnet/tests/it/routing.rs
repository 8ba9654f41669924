//! Routers between networks, over loopback: nodes on `tcp` and `tcp1`, and one or two that are on both.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, Queue, at, closed, config, greet, pattern, subnet, until};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, LnetError, Md, MdEvent, NiSpec, Payload, PeerEvent, PortalRotor, RouteSpec};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use wire::frame::{FrameHead, LnetMsg};
use wire::{LnetHandleWire, LnetHdrNid4, LnetPut, Nid};

fn quick() -> LnetConfig {
    LnetConfig {
        alive_router_check_interval: Duration::from_secs(1),
        dead_router_check_interval: Duration::from_secs(1),
        // A machine that stands still for a while has not lost its routers.
        router_ping_timeout: LIMIT / 3,
        ..config()
    }
}

/// A node with these NIDs, and routes by these routers to a network.
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
            ..quick()
        },
    )
}

/// Two ends with a router in between.
struct Line {
    a: Arc<Lnet>,
    b: Arc<Lnet>,
    router: Arc<Lnet>,
}

impl Line {
    fn new(cfg: LnetConfig) -> Line {
        let nid = subnet();
        Line {
            a: node(&[nid(2, 0)], &[(1, nid(1, 0))], cfg.clone()),
            b: node(&[nid(3, 1)], &[(0, nid(1, 1))], cfg.clone()),
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
async fn messages_of_every_kind_and_size_go_by_a_router_unharmed() {
    let Line { a, b, router } = Line::new(quick());
    let (na, nb) = (a.nid(), b.nid());
    for (i, len) in [0, 1, 4096, 4097, 65_537, 1 << 20, 100].into_iter().enumerate() {
        let (bits, data) = (i as u64, pattern(len, i as u8));
        let mut sink = b.attach(at(8, bits, na), Md::Sink { max_len: 1 << 20 });
        let done = a.put(nb, 8, bits, 0, 0, data.clone().into(), true).await.unwrap();
        assert_eq!(done.mlength as usize, len, "the ACK of a PUT");
        let Some(MdEvent::Put { from, payload, .. }) = sink.next().await else {
            panic!()
        };
        assert_eq!(from, na, "it says who sent it first");
        assert!(payload.into_bytes() == data, "a PUT of {len}");
        let _source = a.attach(at(8, bits, nb), Md::Source(data.clone().into()));
        let got = b.get(na, 8, bits, 0, 1 << 20).await.unwrap();
        assert!(got.into_bytes() == data, "a GET of {len}");
    }
    let info = a.ping(nb, LIMIT).await.unwrap();
    assert_eq!(info.nis[1].ns_nid, nb);
    let routed: Vec<u64> = router
        .stats_line()
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(routed[5] >= 7 * 4 + 2, "{routed:?}");
    assert!(a.routes_table().contains(" up "), "{}", a.routes_table());
    assert!(
        a.show_peers().iter().all(|p| p.nid != nb),
        "the ends are not connected"
    );
}

#[tokio::test]
async fn requests_by_a_router_are_spread_by_who_sent_them_first() {
    let Line {
        a,
        b,
        router: _router,
    } = Line::new(quick());
    b.set_portal_rotor(PortalRotor::HashRt);
    let (send, mut requests) = mpsc::channel(8);
    let _portal = b.serve_portal(12, Arc::new(Queue(send)));
    a.put(b.nid(), 12, 1, 0, 0, Payload::new(), false).await.unwrap();
    let m = requests.recv().await.unwrap();
    assert_eq!((m.from, m.cpt), (a.nid(), b.cpts().of_nid(a.nid().0)));
}

/// How many MiB the sockets of two hops take at most.
fn mib_in_sockets() -> usize {
    let most = |buffers: &str| -> usize {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{buffers}")).unwrap();
        sizes.split_whitespace().last().unwrap().parse().unwrap()
    };
    (2 * (most("tcp_rmem") + most("tcp_wmem"))) >> 20
}

#[tokio::test]
async fn a_slow_destination_holds_up_its_senders_and_the_router_keeps_little() {
    let cfg = LnetConfig {
        large_router_buffers: 4,
        peer_buffer_credits: 2,
        // Nothing is dropped while it is held up.
        transaction_timeout: 10 * LIMIT,
        ..quick()
    };
    let Line { a, b, router } = Line::new(cfg);
    let (nb, (send, mut requests)) = (b.nid(), mpsc::channel(1));
    let _portal = b.serve_portal(12, Arc::new(Queue(send)));
    let (sender, count) = (a.clone(), mib_in_sockets() + 32);
    let mut sending = tokio::spawn(async move {
        for i in 0..count as u64 {
            sender
                .put(nb, 12, i, 0, i, pattern(1 << 20, i as u8).into(), false)
                .await
                .unwrap();
        }
    });
    // Large buffers, how many, and how few of them were free.
    let large = || {
        let table = router.buffers_table();
        let columns = table.lines().last().unwrap().split_whitespace();
        let [pages, count, _, fewest] = columns.map(|c| c.parse().unwrap()).collect::<Vec<i64>>()[..] else {
            panic!("{table}");
        };
        (pages, count, fewest)
    };
    until("the sender has its share", || large().2 <= 2).await;
    let waiting = tokio::time::timeout(Duration::from_millis(700), &mut sending).await;
    assert!(waiting.is_err(), "{count} MiB were taken into memory");
    assert_eq!(large(), (256, 4, 2), "one peer holds no more than its share");
    let mut seen = vec![false; count];
    for _ in 0..count {
        let m = tokio::time::timeout(LIMIT, requests.recv())
            .await
            .unwrap()
            .unwrap();
        let n = m.hdr_data as usize;
        assert!(!std::mem::replace(&mut seen[n], true), "twice");
        assert!(m.payload.into_bytes() == pattern(1 << 20, n as u8));
    }
    sending.await.unwrap();
    until("the router has all its buffers again", || {
        router.buffers_table().lines().skip(1).all(|l| {
            let columns: Vec<&str> = l.split_whitespace().collect();
            columns[1] == columns[2]
        })
    })
    .await;
}

#[tokio::test]
async fn two_routers_share_the_work_and_one_does_it_alone_when_the_other_is_gone() {
    let nid = subnet();
    let routers = [1, 2].map(|n| router(&[nid(n, 0), nid(n, 1)]));
    let by = |net: u16, of: u16| [(net, nid(1, of)), (net, nid(2, of))];
    let a = node(&[nid(3, 0)], &by(1, 0), quick());
    let b = node(&[nid(4, 1)], &by(0, 1), quick());
    let mut events = a.peer_events();
    for _ in 0..40 {
        a.ping(b.nid(), LIMIT).await.unwrap();
    }
    let routed = |r: &Arc<Lnet>| {
        r.stats_line()
            .split_whitespace()
            .nth(5)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let shares = [routed(&routers[0]), routed(&routers[1])];
    assert!(shares.iter().all(|n| *n >= 30), "{shares:?}");
    assert!(a.goes_by(b.nid(), nid(1, 0)) && !a.goes_by(nid(1, 0), nid(1, 0)));
    routers[0].shutdown().await;
    while !matches!(events.recv().await.unwrap(), PeerEvent::Down(n) if n == nid(1, 0)) {}
    for _ in 0..10 {
        // Until the other end has noticed too, what it answers by the router that is gone is lost.
        while a.ping(b.nid(), Duration::from_secs(1)).await.is_err() {}
    }
    until("it is shown as down", || {
        a.routers_table().contains(&format!("down {}", nid(1, 0)))
    })
    .await;
    let _again = router(&[nid(1, 0), nid(1, 1)]);
    until("it is used again", || {
        a.routers_table().contains(&format!("up {}", nid(1, 0)))
    })
    .await;
}

#[tokio::test]
async fn a_better_route_is_used_as_long_as_it_works() {
    let nid = subnet();
    let good = router(&[nid(1, 0), nid(1, 1)]);
    let spare = router(&[nid(2, 0), nid(2, 1)]);
    let a = node(&[nid(3, 0)], &[], quick());
    let b = node(&[nid(4, 1)], &[(0, nid(1, 1)), (0, nid(2, 1))], quick());
    let net = nid(0, 1).net();
    a.add_route(RouteSpec {
        net,
        gateway: nid(2, 0),
        hop: Some(1),
        priority: 1,
    })
    .unwrap();
    a.add_route(RouteSpec {
        net,
        gateway: nid(1, 0),
        hop: Some(1),
        priority: 0,
    })
    .unwrap();
    let mut sink = b.attach(at(8, 1, a.nid()), Md::Sink { max_len: 64 });
    for _ in 0..10 {
        a.put(b.nid(), 8, 1, 0, 0, Payload::new(), false).await.unwrap();
        sink.next().await.unwrap();
    }
    assert!(!spare.stats_line().contains(" 10 ") || good.stats_line().contains(" 10 "));
    let puts = |r: &Arc<Lnet>| r.stats_line().split_whitespace().nth(5).unwrap().to_owned();
    assert_eq!((puts(&good).as_str(), puts(&spare).as_str()), ("10", "0"));
    good.shutdown().await;
    while a.put(b.nid(), 8, 1, 0, 0, Payload::new(), true).await.is_err() {}
}

#[tokio::test]
async fn without_a_router_that_works_it_is_said_which_kind_of_way_is_missing() {
    let nid = subnet();
    let (dead, deaf) = (nid(1, 0), node(&[nid(2, 0)], &[], quick()));
    let a = node(&[nid(3, 0)], &[(1, dead), (2, deaf.nid())], quick());
    let refused = a.ping(nid(9, 7), LIMIT).await;
    assert!(matches!(refused, Err(LnetError::NoRoute { .. })), "{refused:?}");
    assert!(a.ping(nid(9, 1), LIMIT).await.is_err());
    until("both are seen to be no routers", || {
        a.routers_table().matches("down").count() == 2
    })
    .await;
    for net in [1, 2] {
        let refused = a.ping(nid(9, net), LIMIT).await;
        assert!(matches!(refused, Err(LnetError::NoRouter { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn what_a_change_of_networks_and_routes_refuses() {
    let nid = subnet();
    let a = node(&[nid(1, 0)], &[(1, nid(2, 0))], quick());
    let refused = |spec: RouteSpec| a.add_route(spec).unwrap_err().to_string();
    let route = |net, gateway| RouteSpec {
        net: nid(0, net).net(),
        gateway,
        hop: None,
        priority: 0,
    };
    assert!(refused(route(1, nid(2, 0))).contains("there already"));
    assert!(refused(route(0, nid(2, 5))).contains("on that network itself"));
    assert!(refused(route(2, nid(2, 5))).contains("not on the router's network"));
    assert!(refused(route(2, nid(1, 0))).contains("this node"));
    assert!(a.del_route(nid(0, 4).net(), nid(2, 0)).is_err());
    assert!(
        a.add_ni(&NiSpec::new(nid(3, 1)))
            .unwrap_err()
            .to_string()
            .contains("reached by a router")
    );
    assert!(
        a.del_ni(nid(1, 0))
            .unwrap_err()
            .to_string()
            .contains("delete its routes first")
    );
    assert!(a.add_ni(&NiSpec::new(nid(1, 0))).is_err() && a.del_ni(nid(7, 0)).is_err());
    a.del_route(nid(0, 1).net(), nid(2, 0)).unwrap();
    a.add_ni(&NiSpec::new(nid(3, 1))).unwrap();
    a.del_ni(nid(1, 0)).unwrap();
    assert_eq!(a.nids(), [nid(3, 1)]);
}

#[tokio::test]
async fn an_interface_that_is_removed_is_gone_for_its_peers_and_may_come_back() {
    let nid = subnet();
    let (a, b) = (
        node(&[nid(1, 0), nid(1, 1)], &[], config()),
        node(&[nid(2, 0), nid(2, 1)], &[], config()),
    );
    for net in [0, 1] {
        a.ping(nid(2, net), LIMIT).await.unwrap();
    }
    b.del_ni(nid(2, 1)).unwrap();
    assert!(matches!(
        a.ping(nid(2, 1), LIMIT).await,
        Err(LnetError::Connect { .. } | LnetError::PeerLost { .. })
    ));
    assert_eq!(a.ping(nid(2, 0), LIMIT).await.unwrap().nis.len(), 2);
    // Its acceptor ends by itself.
    loop {
        match b.add_ni(&NiSpec::new(nid(2, 1))) {
            Ok(()) => break,
            Err(LnetError::AddrInUse { .. }) => tokio::task::yield_now().await,
            Err(e) => panic!("{e}"),
        }
    }
    while a.ping(nid(2, 1), LIMIT).await.is_err() {}
}

fn frame(src: Nid, dest: Nid, payload: &[u8]) -> Vec<u8> {
    let msg = LnetMsg::Put(LnetPut {
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
async fn strangers_cannot_speak_for_others_nor_use_who_is_no_router() {
    let nid = subnet();
    let _a = node(&[nid(1, 0)], &[(1, nid(2, 0))], quick());
    // (who speaks, for whom it says it is, to whom)
    for (me, src, dest) in [
        (nid(5, 0), nid(6, 1), nid(1, 0)),
        (nid(5, 0), nid(6, 0), nid(1, 0)),
        (nid(5, 0), nid(5, 0), nid(7, 1)),
        (nid(5, 0), nid(5, 0), nid(7, 0)),
    ] {
        let (mut socket, _) = greet(nid(1, 0), me, 1, 1).await;
        socket.write_all(&frame(src, dest, b"x")).await.unwrap();
        assert!(closed(&mut socket).await, "{src} to {dest} by {me}");
    }
}

#[tokio::test]
async fn garbage_that_a_router_brings_is_dropped_and_its_connection_stays() {
    let nid = subnet();
    let a = node(
        &[nid(1, 0)],
        &[(1, nid(2, 0))],
        LnetConfig {
            alive_router_check_interval: Duration::ZERO,
            ..config()
        },
    );
    let (send, mut requests) = mpsc::channel(8);
    let _portal = a.serve_portal(12, Arc::new(Queue(send)));
    let (mut socket, _) = greet(nid(1, 0), nid(2, 0), 1, 1).await;
    for (src, dest) in [
        (nid(6, 2), nid(1, 0)), // from a network that it does not lead to
        (nid(6, 0), nid(1, 0)), // of somebody on this network
        (nid(1, 0), nid(1, 0)), // of this node itself
        (Nid(0), nid(1, 0)),
        (Nid::ANY, nid(1, 0)),
        (Nid::LO, nid(1, 0)),
        (nid(6, 1), nid(9, 0)), // for somebody else
        (nid(6, 1), Nid(0)),
    ] {
        socket.write_all(&frame(src, dest, b"garbage")).await.unwrap();
    }
    socket
        .write_all(&frame(nid(6, 1), nid(1, 0), b"good"))
        .await
        .unwrap();
    let m = tokio::time::timeout(LIMIT, requests.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((m.from, m.payload.into_bytes()), (nid(6, 1), "good".into()));
    assert!(requests.is_empty());
}

#[tokio::test]
async fn a_router_drops_what_leads_nowhere_and_what_would_go_back() {
    let nid = subnet();
    let cfg = LnetConfig {
        forwarding: true,
        ..config()
    };
    let r = node(&[nid(1, 0), nid(1, 1)], &[(3, nid(2, 0))], cfg);
    let (send, mut requests) = mpsc::channel(8);
    let _portal = r.serve_portal(12, Arc::new(Queue(send)));
    let (mut socket, _) = greet(nid(1, 0), nid(2, 0), 1, 1).await;
    for dest in [
        nid(9, 4),
        nid(9, 3),
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
    until("all five are counted as dropped", || {
        r.stats_line().split_whitespace().nth(6).unwrap() == "5"
    })
    .await;
}
