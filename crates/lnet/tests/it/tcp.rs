//! Two nodes in one process, connected over TCP on loopback.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, Queue, addresses, config, match_entry, node, pattern};
use cpt::{CptConfig, CptTable};
use lnet::{Lnet, LnetError, Md, MdEvent, Payload, PeerEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use wire::Nid;

#[tokio::test]
async fn the_ack_of_a_put_has_the_accepted_length() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let mut buffer = b.attach(match_entry(4, 7, na), Md::Sink { max_len: 100 });
    let done = a.put(nb, 4, 7, 10, 0, pattern(50, 1).into(), true).await.unwrap();
    assert_eq!(done.mlength, 50);
    assert_eq!(
        a.put(nb, 4, 7, 90, 0, pattern(50, 1).into(), true)
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
    assert_eq!((from, payload.into_bytes()), (na, pattern(50, 1)));
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test]
async fn bulk_of_several_sizes_is_transferred_unchanged_in_both_directions() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
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
        let mut sink = b.attach(match_entry(8, bits, na), Md::Sink { max_len: 1 << 20 });
        let done = a
            .put(nb, 8, bits, 0, 0, pieces.clone().into(), true)
            .await
            .unwrap();
        assert_eq!(done.mlength as usize, len);
        let Some(MdEvent::Put { payload, .. }) = sink.next().await else {
            panic!()
        };
        assert!(payload.into_bytes() == data, "a PUT of {len}");
        let _source = a.attach(match_entry(8, bits, nb), Md::Source(pieces.into()));
        let fetched = b.get(na, 8, bits, 0, 1 << 20).await.unwrap();
        assert!(fetched.into_bytes() == data, "a GET of {len}");
    }
}

#[tokio::test]
async fn a_ping_returns_the_peers_nids() {
    let (na, nb) = addresses();
    let (a, _b) = (node(na).await, node(nb).await);
    let info = a.ping(nb, LIMIT).await.unwrap();
    assert_eq!(
        info.nis.iter().map(|ni| ni.ns_nid).collect::<Vec<_>>(),
        [Nid::LO, nb]
    );
}

#[test]
fn hundreds_of_concurrent_puts_arrive_once_each_on_several_partitions() {
    let (na, nb) = addresses();
    let cpts = CptTable::build(&CptConfig {
        cpu_npartitions: 2,
        ..CptConfig::default()
    })
    .or_else(|_| CptTable::build(&CptConfig::default()))
    .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let a = Lnet::new(cpts.clone(), config());
        let b = Lnet::new(cpts.clone(), config());
        a.add_tcp(na, true).await.unwrap();
        b.add_tcp(nb, true).await.unwrap();
        let (send, mut requests) = mpsc::channel(1000);
        let _portal = b.serve_portal(12, Arc::new(Queue(send)));
        let puts: Vec<_> = (0..600u64)
            .map(|i| {
                let a = a.clone();
                tokio::spawn(async move {
                    let len = if i % 10 == 0 { 5000 } else { 300 };
                    a.put(nb, 12, i, 0, i, pattern(len, i as u8).into(), i % 3 == 0)
                        .await
                })
            })
            .collect();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        let mut delivered = [false; 600];
        for _ in 0..600 {
            let m = requests.recv().await.unwrap();
            assert!(
                !std::mem::replace(&mut delivered[m.hdr_data as usize], true),
                "delivered twice"
            );
            let expected = pattern(m.payload.len(), m.hdr_data as u8);
            assert_eq!(m.payload.into_bytes(), expected);
        }
        a.shutdown().await;
        b.shutdown().await;
    });
    cpts.shutdown();
}

#[tokio::test]
async fn both_sides_can_connect_at_the_same_time() {
    for _ in 0..20 {
        let (na, nb) = addresses();
        let (a, b) = (node(na).await, node(nb).await);
        let (mut events_a, mut events_b) = (a.peer_events(), b.peer_events());
        let (reply_of_b, reply_of_a) = tokio::join!(a.ping(nb, LIMIT), b.ping(na, LIMIT));
        assert_eq!(
            (reply_of_b.unwrap().nis.len(), reply_of_a.unwrap().nis.len()),
            (2, 2)
        );
        assert_eq!(events_a.recv().await.unwrap(), PeerEvent::Up(nb));
        assert_eq!(events_b.recv().await.unwrap(), PeerEvent::Up(na));
        // The losing connections of the race must not break the winning ones.
        for _ in 0..20 {
            a.ping(nb, LIMIT).await.unwrap();
            b.ping(na, LIMIT).await.unwrap();
        }
        assert!(events_a.is_empty() && events_b.is_empty());
        a.shutdown().await;
        b.shutdown().await;
    }
}

#[tokio::test]
async fn a_restarted_peer_is_reconnected() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let mut events = a.peer_events();
    a.ping(nb, LIMIT).await.unwrap();
    b.shutdown().await;
    drop(b);
    let b = node(nb).await;
    a.ping(nb, LIMIT).await.unwrap();
    for expected in [PeerEvent::Up(nb), PeerEvent::Down(nb), PeerEvent::Up(nb)] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    b.ping(na, LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_full_sink_blocks_neither_other_portals_nor_answers() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let (send, mut requests) = mpsc::channel(1);
    let _portal = b.serve_portal(12, Arc::new(Queue(send)));
    for i in 0..100 {
        a.put(nb, 12, i, 0, i, Payload::new(), false).await.unwrap();
    }
    let put = a.put(nb, 12, 100, 0, 100, Payload::new(), true);
    let acked = tokio::time::timeout(Duration::from_millis(100), put).await;
    assert!(acked.is_err(), "a PUT in the backlog is not acknowledged");
    a.ping(nb, LIMIT).await.unwrap();
    b.ping(na, LIMIT).await.unwrap();
    for i in 0..=100 {
        assert_eq!(requests.recv().await.unwrap().hdr_data, i, "in order");
    }
}

#[tokio::test]
async fn a_full_backlog_of_a_sink_blocks_the_peer() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let (send, mut requests) = mpsc::channel(1);
    let _portal = b.serve_portal(12, Arc::new(Queue(send)));
    let mut sending = tokio::spawn(async move {
        for i in 0..64 {
            a.put(nb, 12, i, 0, i, pattern(1 << 20, i as u8).into(), false)
                .await
                .unwrap();
        }
        a
    });
    let finished = tokio::time::timeout(Duration::from_millis(500), &mut sending).await;
    assert!(finished.is_err(), "the node buffered 64 MiB");
    // The order may change: the first messages use the control connection, before there is one for
    // bulk.
    let mut delivered = [false; 64];
    for _ in 0..64 {
        let m = requests.recv().await.unwrap();
        assert!(
            !std::mem::replace(&mut delivered[m.hdr_data as usize], true),
            "delivered twice"
        );
    }
    sending.await.unwrap().shutdown().await;
}

#[tokio::test]
async fn unusable_nids_are_refused_with_the_reason() {
    let (na, nb) = addresses();
    let a = node(na).await;
    let other_node = Lnet::new(CptTable::single_current(), config());
    let why = other_node.add_tcp(na, true).await.unwrap_err();
    assert!(
        matches!(why, LnetError::AddrInUse { nid, port: 7988, .. } if nid == na),
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
    let why = other_node.ping(na, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::NoRoute { .. }), "{why}");
    let why = a.ping(nb, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::Connect { .. }), "{why}");
}
