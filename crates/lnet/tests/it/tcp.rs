//! Two nodes in one process, connected over TCP on loopback.
#![allow(clippy::unwrap_used)]

use cpt::{CptConfig, CptTable};
use lnet::{Lnet, LnetError, Md, MdEvent, Payload, PeerEvent};
use std::sync::Arc;
use std::time::Duration;
use testbase::sockets::{LIMIT, Queue, addresses, config, match_entry, node, pattern};
use tokio::sync::mpsc;
use wire::Nid;

#[tokio::test]
async fn the_ack_of_a_put_has_the_accepted_length() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    let mut buffer = node_b.attach(match_entry(4, 7, nid_a), Md::Sink { max_len: 100 });
    let done = node_a
        .put(nid_b, 4, 7, 10, 0, pattern(50, 1).into(), true)
        .await
        .unwrap();
    assert_eq!(done.mlength, 50);
    assert_eq!(
        node_a
            .put(nid_b, 4, 7, 90, 0, pattern(50, 1).into(), true)
            .await
            .unwrap()
            .mlength,
        10
    );
    let Some(MdEvent::Put {
        from,
        offset: 10,
        payload,
    }) = buffer.next().await
    else {
        panic!()
    };
    assert_eq!((from, payload.into_bytes()), (nid_a, pattern(50, 1)));
    node_a.shutdown().await;
    node_b.shutdown().await;
}

#[tokio::test]
async fn bulk_of_several_sizes_is_transferred_unchanged_in_both_directions() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    for (i, len) in [0, 1, 4095, 65_535, 65_536, 65_537, 1 << 20, 100, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let bits = i as u64;
        let data = pattern(len, i as u8);
        let pieces = vec![
            data.slice(..len / 3),
            data.slice(len / 3..len / 2),
            data.slice(len / 2..),
        ];
        let mut sink = node_b.attach(match_entry(8, bits, nid_a), Md::Sink { max_len: 1 << 20 });
        let done = node_a
            .put(nid_b, 8, bits, 0, 0, pieces.clone().into(), true)
            .await
            .unwrap();
        assert_eq!(done.mlength as usize, len);
        let Some(MdEvent::Put { payload, .. }) = sink.next().await else {
            panic!()
        };
        assert!(payload.into_bytes() == data, "a PUT of {len}");
        let _source = node_a.attach(match_entry(8, bits, nid_b), Md::Source(pieces.into()));
        let fetched = node_b.get(nid_a, 8, bits, 0, 1 << 20).await.unwrap();
        assert!(fetched.into_bytes() == data, "a GET of {len}");
    }
}

#[tokio::test]
async fn a_ping_returns_the_peers_nids() {
    let (nid_a, nid_b) = addresses();
    let (node_a, _node_b) = (node(nid_a).await, node(nid_b).await);
    let info = node_a.ping(nid_b, LIMIT).await.unwrap();
    assert_eq!(
        info.nis.iter().map(|ni| ni.ns_nid).collect::<Vec<_>>(),
        [Nid::LO, nid_b]
    );
}

#[tokio::test]
async fn a_deleted_peer_is_a_new_peer_at_the_next_message() {
    let (nid_a, nid_b) = addresses();
    let (node_a, _node_b) = (node(nid_a).await, node(nid_b).await);
    let known = |node: &Lnet| node.show_peers().iter().any(|peer| peer.nid == nid_b);
    node_a.ping(nid_b, LIMIT).await.unwrap();
    assert!(known(&node_a));
    node_a.del_peer(nid_b);
    assert!(!known(&node_a));
    node_a.ping(nid_b, LIMIT).await.unwrap();
    assert!(known(&node_a));
}

#[test]
fn each_of_hundreds_of_concurrent_puts_arrives_once_with_several_partitions() {
    let (nid_a, nid_b) = addresses();
    let cpts = CptTable::build(&CptConfig {
        cpu_npartitions: 2,
        ..CptConfig::default()
    })
    .or_else(|_| CptTable::build(&CptConfig::default()))
    .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let node_a = Lnet::new(cpts.clone(), config());
        let node_b = Lnet::new(cpts.clone(), config());
        node_a.add_tcp(nid_a, true).await.unwrap();
        node_b.add_tcp(nid_b, true).await.unwrap();
        let (send, mut requests) = mpsc::channel(1000);
        let _portal = node_b.serve_portal(12, Arc::new(Queue(send)));
        let puts: Vec<_> = (0..600u64)
            .map(|i| {
                let node_a = node_a.clone();
                tokio::spawn(async move {
                    let len = if i % 10 == 0 { 5000 } else { 300 };
                    node_a
                        .put(nid_b, 12, i, 0, i, pattern(len, i as u8).into(), i % 3 == 0)
                        .await
                })
            })
            .collect();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        let mut delivered = [false; 600];
        for _ in 0..600 {
            let request = requests.recv().await.unwrap();
            assert!(
                !std::mem::replace(&mut delivered[request.hdr_data as usize], true),
                "delivered twice"
            );
            let expected = pattern(request.payload.len(), request.hdr_data as u8);
            assert_eq!(request.payload.into_bytes(), expected);
        }
        node_a.shutdown().await;
        node_b.shutdown().await;
    });
    cpts.shutdown();
}

#[tokio::test]
async fn both_sides_can_connect_at_the_same_time() {
    for _ in 0..20 {
        let (nid_a, nid_b) = addresses();
        let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
        let (mut events_a, mut events_b) = (node_a.peer_events(), node_b.peer_events());
        let (reply_of_b, reply_of_a) = tokio::join!(node_a.ping(nid_b, LIMIT), node_b.ping(nid_a, LIMIT));
        assert_eq!(
            (reply_of_b.unwrap().nis.len(), reply_of_a.unwrap().nis.len()),
            (2, 2)
        );
        assert_eq!(events_a.recv().await.unwrap(), PeerEvent::Up(nid_b));
        assert_eq!(events_b.recv().await.unwrap(), PeerEvent::Up(nid_a));
        // The losing connections of the race must not break the winning ones.
        for _ in 0..20 {
            node_a.ping(nid_b, LIMIT).await.unwrap();
            node_b.ping(nid_a, LIMIT).await.unwrap();
        }
        assert!(events_a.is_empty() && events_b.is_empty());
        node_a.shutdown().await;
        node_b.shutdown().await;
    }
}

#[tokio::test]
async fn a_restarted_peer_is_reconnected() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    let mut events = node_a.peer_events();
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.shutdown().await;
    drop(node_b);
    let node_b = node(nid_b).await;
    node_a.ping(nid_b, LIMIT).await.unwrap();
    for expected in [PeerEvent::Up(nid_b), PeerEvent::Down(nid_b), PeerEvent::Up(nid_b)] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    node_b.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_full_sink_blocks_neither_other_portals_nor_answers() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    let (send, mut requests) = mpsc::channel(1);
    let _portal = node_b.serve_portal(12, Arc::new(Queue(send)));
    for i in 0..100 {
        node_a
            .put(nid_b, 12, i, 0, i, Payload::new(), false)
            .await
            .unwrap();
    }
    let put = node_a.put(nid_b, 12, 100, 0, 100, Payload::new(), true);
    let acked = tokio::time::timeout(Duration::from_millis(100), put).await;
    assert!(acked.is_err(), "a PUT in the backlog is not acknowledged");
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.ping(nid_a, LIMIT).await.unwrap();
    for i in 0..=100 {
        assert_eq!(requests.recv().await.unwrap().hdr_data, i, "in order");
    }
}

#[tokio::test]
async fn a_full_backlog_of_a_sink_blocks_the_peer() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    let (send, mut requests) = mpsc::channel(1);
    let _portal = node_b.serve_portal(12, Arc::new(Queue(send)));
    let mut sending = tokio::spawn(async move {
        for i in 0..64 {
            node_a
                .put(nid_b, 12, i, 0, i, pattern(1 << 20, i as u8).into(), false)
                .await
                .unwrap();
        }
        node_a
    });
    let finished = tokio::time::timeout(Duration::from_millis(500), &mut sending).await;
    assert!(finished.is_err(), "the node buffered 64 MiB");
    // The order may change: the first messages use the control connection, before there is one for
    // bulk.
    let mut delivered = [false; 64];
    for _ in 0..64 {
        let request = requests.recv().await.unwrap();
        assert!(
            !std::mem::replace(&mut delivered[request.hdr_data as usize], true),
            "delivered twice"
        );
    }
    sending.await.unwrap().shutdown().await;
}

#[tokio::test]
async fn unusable_nids_are_refused_with_the_reason() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let other_node = Lnet::new(CptTable::single_current(), config());
    let why = other_node.add_tcp(nid_a, true).await.unwrap_err();
    assert!(
        matches!(why, LnetError::AddrInUse { nid, port: 7988, .. } if nid == nid_a),
        "{why}"
    );
    let elsewhere = "192.0.2.77@tcp".parse().unwrap();
    for listen in [true, false] {
        let why = other_node.add_tcp(elsewhere, listen).await.unwrap_err();
        assert!(matches!(why, LnetError::AddrNotAvailable { .. }), "{why}");
    }
    assert!(matches!(
        other_node.add_tcp(Nid::LO, true).await,
        Err(LnetError::NotTcp { .. })
    ));
    let why = other_node.ping(nid_a, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::NoRoute { .. }), "{why}");
    let why = node_a.ping(nid_b, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::Connect { .. }), "{why}");
}
