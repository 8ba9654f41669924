//! Faulty peers: silent, vanished, restarted, malformed or hostile.
#![allow(clippy::unwrap_used)]

use lnet::{LnetConfig, LnetError, Md, Payload, PeerEvent};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use testbase::sockets::{
    LIMIT, Queue, addresses, config, exchange_hellos, match_entry, node, node_with, pattern, peer_closes,
    send_hello, until,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::frame::FRAME_HEAD;
use wire::{
    KsockHelloMsgNid4, KsockMsgHdr, LNET_PROTO_MAGIC, LnetAcceptorConnreq, LnetHdrNid4, Nid, WireStruct,
};

#[tokio::test]
async fn a_peer_that_this_node_cannot_reach_may_still_connect() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        connect_timeout: 2 * LIMIT,
        ..config()
    };
    let node_b = node_with(nid_b, cfg).await;
    // This listener accepts connections and sends nothing, like a firewall in between: dialling
    // takes its full time limit.
    let silent = TcpListener::bind(SocketAddr::from((nid_a.addr(), 7988)))
        .await
        .unwrap();
    let ping = tokio::spawn({
        let node_b = node_b.clone();
        async move { node_b.ping(nid_a, 2 * LIMIT).await }
    });
    let (_dialed, _) = silent.accept().await.unwrap();
    let started_at = std::time::Instant::now();
    loop {
        match exchange_hellos(nid_b, nid_a, 1, 1).await.1 {
            1 => break,
            refused => assert_eq!(refused, -1, "while dialling, the higher NID refuses"),
        }
        assert!(
            started_at.elapsed() < LIMIT,
            "the peer is refused although dialling gets no answer"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ping.abort();
}

#[tokio::test]
async fn a_new_incarnation_closes_the_connections_of_the_old_one() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let mut events = node_a.peer_events();
    let (mut old, ctype) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    assert_eq!(ctype, 1);
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(nid_b));
    let (_bulk, ctype) = exchange_hellos(nid_a, nid_b, 1, 2).await;
    assert_eq!(ctype, 3, "the peer's BULK_IN is this node's BULK_OUT");
    let (_new, ctype) = exchange_hellos(nid_a, nid_b, 2, 1).await;
    assert_eq!(ctype, 1);
    assert!(peer_closes(&mut old).await);
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Down(nid_b));
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(nid_b));
}

#[tokio::test]
async fn operations_fail_when_their_peer_vanishes() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let (socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let (put, ()) = tokio::join!(
        node_a.put(nid_b, 4, 7, 0, 0, pattern(10, 0).into(), true),
        async {
            let mut socket = socket;
            let mut head = [0; FRAME_HEAD + 10];
            socket.read_exact(&mut head).await.unwrap();
            drop(socket);
        }
    );
    let why = put.unwrap_err();
    assert!(
        matches!(why, LnetError::PeerLost { peer, .. } if peer == nid_b),
        "{why}"
    );
    let why = node_a
        .put(nid_b, 4, 7, 0, 0, Payload::new(), false)
        .await
        .unwrap_err();
    assert!(
        matches!(why, LnetError::Connect { .. }),
        "no process listens there: {why}"
    );
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_disconnected() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        sock_timeout: Duration::from_millis(300),
        retry_count: 0,
        ..config()
    };
    let node_a = node_with(nid_a, cfg).await;
    let (_stuck, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let mut events = node_a.peer_events();
    let payload: Payload = pattern(1 << 20, 0).into();
    let why = loop {
        if let Err(why) = node_a.put(nid_b, 4, 7, 0, 0, payload.clone(), false).await {
            break why;
        }
    };
    assert!(matches!(why, LnetError::PeerLost { .. }), "{why}");
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Down(nid_b));
}

#[tokio::test]
async fn a_peer_that_stops_inside_a_message_is_disconnected() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        sock_timeout: Duration::from_millis(300),
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    for payload_length in [100, 50 << 10, 1 << 20] {
        for sent in [0, 10] {
            let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
            let ksh = KsockMsgHdr {
                ksh_type: 0xc1,
                ..Default::default()
            };
            let put = LnetHdrNid4 {
                dest_nid: nid_a,
                src_nid: nid_b,
                r#type: 1,
                payload_length,
                ..Default::default()
            };
            socket.write_all(&ksh.to_bytes()).await.unwrap();
            socket.write_all(&put.to_bytes()).await.unwrap();
            socket.write_all(&pattern(sent, 0)).await.unwrap();
            assert!(peer_closes(&mut socket).await, "{sent} bytes of {payload_length}");
        }
    }
}

#[tokio::test]
async fn garbage_at_the_acceptor_is_refused() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        accept_timeout: Duration::from_millis(200),
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    let connect = || async {
        TcpStream::connect(SocketAddr::from((nid_a.addr(), 7988)))
            .await
            .unwrap()
    };
    let other_nid = LnetAcceptorConnreq::to(nid_b).to_bytes();
    let mut endless_hello = LnetAcceptorConnreq::to(nid_a).to_bytes().to_vec();
    let hello = KsockHelloMsgNid4 {
        kshm_magic: LNET_PROTO_MAGIC,
        kshm_version: 3,
        kshm_nips: u32::MAX,
        ..Default::default()
    };
    endless_hello.extend_from_slice(&hello.to_bytes());
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        b"",
        &[0xff; 200],
        &other_nid,
        &endless_hello,
    ] {
        let mut socket = connect().await;
        socket.write_all(garbage).await.unwrap();
        assert!(peer_closes(&mut socket).await);
    }
    // A request of another version gets this node's version as the answer.
    let mut socket = connect().await;
    let request = LnetAcceptorConnreq {
        acr_version: 9,
        ..LnetAcceptorConnreq::to(nid_a)
    };
    socket.write_all(&request.to_bytes()).await.unwrap();
    let mut answer = [0; LnetAcceptorConnreq::SIZE];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(
        LnetAcceptorConnreq::from_bytes(&answer).unwrap(),
        LnetAcceptorConnreq::to(Nid(0))
    );
    let node_b = node(nid_b).await;
    node_b.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn messages_that_violate_the_protocol_close_the_connection() {
    let (nid_a, nid_b) = addresses();
    let _node_a = node(nid_a).await;
    let head = |hdr: LnetHdrNid4| {
        let mut bytes = KsockMsgHdr {
            ksh_type: 0xc1,
            ..Default::default()
        }
        .to_bytes()
        .to_vec();
        bytes.extend_from_slice(&hdr.to_bytes());
        bytes
    };
    let put = LnetHdrNid4 {
        dest_nid: nid_a,
        src_nid: nid_b,
        r#type: 1,
        ..Default::default()
    };
    for violation in [
        head(LnetHdrNid4 {
            payload_length: (1 << 20) + 1,
            ..put
        }),
        head(LnetHdrNid4 {
            payload_length: u32::MAX,
            ..put
        }),
        head(LnetHdrNid4 { r#type: 77, ..put }),
        head(LnetHdrNid4 {
            dest_nid: nid_b,
            ..put
        }),
        vec![0xff; 96],
    ] {
        let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
        socket.write_all(&violation).await.unwrap();
        assert!(peer_closes(&mut socket).await);
    }
}

#[tokio::test]
async fn zero_copy_cookies_come_back_once_the_payload_is_read() {
    let (nid_a, nid_b) = addresses();
    let _node_a = node(nid_a).await;
    let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let put = LnetHdrNid4 {
        dest_nid: nid_a,
        src_nid: nid_b,
        r#type: 1,
        payload_length: 20_000,
        ..Default::default()
    };
    for cookie in [2, 3] {
        let ksh = KsockMsgHdr {
            ksh_type: 0xc1,
            ksh_csum: 0,
            ksh_zc_cookies: [cookie, 0],
        };
        socket.write_all(&ksh.to_bytes()).await.unwrap();
        socket.write_all(&put.to_bytes()).await.unwrap();
        socket.write_all(&[0; 20_000]).await.unwrap();
        let mut noop = [0; KsockMsgHdr::SIZE];
        socket.read_exact(&mut noop).await.unwrap();
        let noop = KsockMsgHdr::from_bytes(&noop).unwrap();
        assert_eq!((noop.ksh_type, noop.ksh_zc_cookies), (0xc0, [0, cookie]));
    }
}

#[tokio::test]
async fn a_silent_connection_is_kept_alive() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        keepalive: Duration::from_millis(50),
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    for _ in 0..2 {
        let mut noop = [0; KsockMsgHdr::SIZE];
        socket.read_exact(&mut noop).await.unwrap();
        assert_eq!(KsockMsgHdr::from_bytes(&noop).unwrap().ksh_zc_cookies, [0, 1]);
        socket.write_all(&noop).await.unwrap();
    }
}

#[tokio::test]
async fn connecting_to_a_service_that_is_not_lustre_is_an_error() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let listener = TcpListener::bind(SocketAddr::from((nid_b.addr(), 7988)))
        .await
        .unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket
                .write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian and so on and so on and so on and so on")
                .await;
        }
    });
    let why = node_a.ping(nid_b, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::Connect { .. }), "{why}");
}

#[tokio::test]
async fn a_stopped_node_refuses_messages_and_frees_its_port() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_a.shutdown().await;
    assert!(matches!(
        node_a.ping(nid_b, LIMIT).await,
        Err(LnetError::ShutDown)
    ));
    let node_a = node(nid_a).await;
    node_b.ping(nid_a, LIMIT).await.unwrap();
    node_a.ping(nid_b, LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_message_with_another_peers_nid_closes_the_connection() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let other_peer = Nid::tcp("127.9.9.9".parse().unwrap(), 0);
    let hdr = LnetHdrNid4 {
        dest_nid: nid_a,
        src_nid: other_peer,
        r#type: 1,
        ..Default::default()
    };
    let ksh = KsockMsgHdr {
        ksh_type: 0xc1,
        ..Default::default()
    };
    socket.write_all(&ksh.to_bytes()).await.unwrap();
    socket.write_all(&hdr.to_bytes()).await.unwrap();
    assert!(peer_closes(&mut socket).await);
    let node_b = node(nid_b).await;
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn disconnected_peers_do_not_count_against_peers_max() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        peers_max: 4,
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    for n in 0..20 {
        let nid = Nid::tcp(std::net::Ipv4Addr::new(127, 200, 201, n), 0);
        let started_at = std::time::Instant::now();
        loop {
            // A connection that was closed just now may still count.
            let mut socket = send_hello(nid_a, nid, 1, 1).await;
            if socket.read_u8().await.is_ok() {
                break;
            }
            assert!(started_at.elapsed() < LIMIT, "disconnected peers block {nid}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    node(nid_b).await.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn the_backlog_of_all_connections_is_bounded() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        backlog_bytes_max: 64 << 10,
        ..config()
    };
    let (node_a, node_b) = (node_with(nid_a, cfg).await, node(nid_b).await);
    let (service, mut delivered) = tokio::sync::mpsc::channel(1);
    let _portal = node_a.serve_portal(5, Arc::new(Queue(service)));
    let message = || Payload::from(pattern(4096, 0));
    // Until the bulk connection is established, messages of this size use the control connection,
    // and may be reordered.
    node_b.ping(nid_a, LIMIT).await.unwrap();
    until("all connections are established", || {
        node_b.show_peers()[0].connections == 3
    })
    .await;
    for n in 0..100 {
        node_b.put(nid_a, 5, n, 0, 0, message(), false).await.unwrap();
    }
    // This message follows the others on the same connection: when it has arrived, all have been
    // handled.
    let _marker = node_a.attach(match_entry(9, 1, nid_b), Md::Sink { max_len: 4096 });
    node_b.put(nid_a, 9, 1, 0, 0, message(), true).await.unwrap();
    for n in 0..17 {
        assert_eq!(
            delivered.recv().await.unwrap().match_bits,
            n,
            "one delivered directly, 16 from the backlog"
        );
    }
    let put = node_b.put(nid_a, 5, 999, 0, 0, message(), true);
    let (acked, next) = tokio::join!(put, delivered.recv());
    acked.unwrap();
    assert_eq!(next.unwrap().match_bits, 999, "the others were dropped");
}

#[tokio::test]
async fn a_peer_that_connects_again_has_lost_its_former_connections() {
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let mut events = node_a.peer_events();
    let (mut control, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let (mut bulk, _) = exchange_hellos(nid_a, nid_b, 1, 2).await;
    let first_link = node_a.link(nid_b).unwrap();
    assert!(first_link.up);
    let started_at = std::time::Instant::now();
    // The node refuses at first, because both nodes may have dialled.
    let mut reconnected = loop {
        let (socket, ctype) = exchange_hellos(nid_a, nid_b, 1, 1).await;
        if ctype == 1 {
            break socket;
        }
        assert!(started_at.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(peer_closes(&mut control).await && peer_closes(&mut bulk).await);
    for expected in [PeerEvent::Up(nid_b), PeerEvent::Down(nid_b), PeerEvent::Up(nid_b)] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    node_a
        .put(nid_b, 4, 7, 0, 0, Payload::new(), false)
        .await
        .unwrap();
    reconnected.read_exact(&mut [0; FRAME_HEAD]).await.unwrap();
    let last_link = node_a.link(nid_b).unwrap();
    assert_eq!(
        (last_link.up, last_link.generation),
        (true, first_link.generation + 1)
    );
}

#[tokio::test]
async fn a_link_distinguishes_unreachable_peers_from_slow_ones() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        connect_timeout: Duration::from_millis(300),
        ..config()
    };
    let node_a = node_with(nid_a, cfg).await;
    let (socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    assert_eq!(node_a.link(nid_b).unwrap().lost_at, None);
    drop(socket);
    until("the connection is lost", || !node_a.link(nid_b).unwrap().up).await;
    let lost_link = node_a.link(nid_b).unwrap();
    assert!(lost_link.lost_at.is_some() && lost_link.unreachable_at.is_none());
    {
        // The host accepts connections but sends nothing.
        let _silent = TcpListener::bind(SocketAddr::from((nid_b.addr(), 7988)))
            .await
            .unwrap();
        let why = node_a.ping(nid_b, LIMIT).await.unwrap_err();
        assert!(why.to_string().contains("no hello arrived"), "{why}");
        assert_eq!(node_a.link(nid_b), Some(lost_link));
    }
    node_a.ping(nid_b, LIMIT).await.unwrap_err();
    assert!(
        node_a.link(nid_b).unwrap().unreachable_at >= lost_link.lost_at,
        "no process listens there"
    );
    let node_b = node(nid_b).await;
    node_b.ping(nid_a, LIMIT).await.unwrap();
    let link = node_a.link(nid_b).unwrap();
    assert_eq!((link.up, link.unreachable_at), (true, None));
}
