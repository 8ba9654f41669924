//! Two nodes in one process that talk over TCP on loopback, and peers that misbehave.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use cpt::{BoxFuture, CptConfig, CptTable};
use lnet::{Full, Incoming, Lnet, LnetConfig, LnetError, Match, Md, MdEvent, Payload, PeerEvent, PutSink};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use wire::frame::FRAME_HEAD;
use wire::{
    KsockHelloMsgNid4, KsockMsgHdr, LNET_PROTO_MAGIC, LnetAcceptorConnreq, LnetHdrNid4, Nid, WireStruct,
};

const LIMIT: Duration = Duration::from_secs(10);

/// Loopback addresses of one test: nobody else uses them, so that the acceptor's port is always free.
fn addresses() -> (Nid, Nid) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let address = |last| Ipv4Addr::new(127, (pid % 250) as u8 + 1, n, last);
    (Nid::tcp(address(1), 0), Nid::tcp(address(2), 0))
}

fn config() -> LnetConfig {
    LnetConfig {
        accept_port: 7988,
        transaction_timeout: LIMIT,
        ..LnetConfig::default()
    }
}

async fn node(nid: Nid) -> Arc<Lnet> {
    node_with(nid, config()).await
}

async fn node_with(nid: Nid, cfg: LnetConfig) -> Arc<Lnet> {
    let node = Lnet::new(CptTable::single_current(), cfg);
    node.add_tcp(nid, true).await.unwrap();
    node
}

/// A sink with room for `n`.
struct Queue(mpsc::Sender<Incoming>);

impl PutSink for Queue {
    fn put(&self, m: Incoming) -> Result<(), Full> {
        self.0.try_send(m).map_err(|e| Full(e.into_inner()))
    }
    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while self.0.capacity() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

fn at(portal: u32, match_bits: u64, from: Nid) -> Match {
    Match {
        portal,
        match_bits,
        from: Some(from),
    }
}

fn pattern(len: usize, seed: u8) -> Bytes {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect::<Vec<u8>>()
        .into()
}

#[tokio::test]
async fn a_put_is_acknowledged_with_what_fitted() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let mut buffer = b.attach(at(4, 7, na), Md::Sink { max_len: 100 });
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
async fn bulk_of_every_size_goes_both_ways_unharmed() {
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
        let mut sink = b.attach(at(8, bits, na), Md::Sink { max_len: 1 << 20 });
        let done = a
            .put(nb, 8, bits, 0, 0, pieces.clone().into(), true)
            .await
            .unwrap();
        assert_eq!(done.mlength as usize, len);
        let Some(MdEvent::Put { payload, .. }) = sink.next().await else {
            panic!()
        };
        assert!(payload.into_bytes() == data, "a PUT of {len}");
        let _source = a.attach(at(8, bits, nb), Md::Source(pieces.into()));
        let got = b.get(na, 8, bits, 0, 1 << 20).await.unwrap();
        assert!(got.into_bytes() == data, "a GET of {len}");
    }
}

#[tokio::test]
async fn pings_tell_the_nids_of_the_other_side() {
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
        cpu_pattern: None,
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
        let mut seen = [false; 600];
        for _ in 0..600 {
            let m = requests.recv().await.unwrap();
            assert!(!std::mem::replace(&mut seen[m.hdr_data as usize], true), "twice");
            let expected = pattern(m.payload.len(), m.hdr_data as u8);
            assert_eq!(m.payload.into_bytes(), expected);
        }
        a.shutdown().await;
        b.shutdown().await;
    });
    cpts.shutdown();
}

#[tokio::test]
async fn both_sides_may_connect_at_the_same_moment() {
    for _ in 0..20 {
        let (na, nb) = addresses();
        let (a, b) = (node(na).await, node(nb).await);
        let (mut up_a, mut up_b) = (a.peer_events(), b.peer_events());
        let (there, back) = tokio::join!(a.ping(nb, LIMIT), b.ping(na, LIMIT));
        assert_eq!((there.unwrap().nis.len(), back.unwrap().nis.len()), (2, 2));
        assert_eq!(up_a.recv().await.unwrap(), PeerEvent::Up(nb));
        assert_eq!(up_b.recv().await.unwrap(), PeerEvent::Up(na));
        // Nothing that the race left behind may break what was won.
        for _ in 0..20 {
            a.ping(nb, LIMIT).await.unwrap();
            b.ping(na, LIMIT).await.unwrap();
        }
        assert!(up_a.is_empty() && up_b.is_empty());
        a.shutdown().await;
        b.shutdown().await;
    }
}

#[tokio::test]
async fn a_peer_that_reaches_us_but_not_we_it_is_let_in() {
    let (na, nb) = addresses();
    let b = node(nb).await;
    // Takes connections and says nothing, as a firewall in the way would: our dialling takes its whole time.
    let silent = TcpListener::bind(SocketAddr::from((na.addr(), 7988)))
        .await
        .unwrap();
    let ping = tokio::spawn({
        let b = b.clone();
        async move { b.ping(na, LIMIT).await }
    });
    let (_dialed, _) = silent.accept().await.unwrap();
    let (_socket, ctype) = greet(nb, na, 1, 1).await;
    assert_eq!(ctype, -1, "the higher NID wins a race");
    let begun = std::time::Instant::now();
    while greet(nb, na, 1, 1).await.1 != 1 {
        assert!(begun.elapsed() < LIMIT / 3, "but not while it gets no answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ping.abort();
}

#[tokio::test]
async fn a_peer_that_restarts_is_found_again() {
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

/// Says hello to `to` as `me`, as a peer would; gives back the socket and the answer's type.
async fn greet(to: Nid, me: Nid, incarnation: u64, kshm_ctype: i32) -> (TcpStream, i32) {
    let mut socket = TcpStream::connect(SocketAddr::from((to.addr(), 7988)))
        .await
        .unwrap();
    let hello = KsockHelloMsgNid4 {
        kshm_magic: LNET_PROTO_MAGIC,
        kshm_version: 3,
        kshm_src_nid: me,
        kshm_dst_nid: to,
        kshm_src_pid: 12345,
        kshm_src_incarnation: incarnation,
        kshm_ctype,
        ..KsockHelloMsgNid4::default()
    };
    socket
        .write_all(&LnetAcceptorConnreq::to(to).to_bytes())
        .await
        .unwrap();
    socket.write_all(&hello.to_bytes()).await.unwrap();
    let mut reply = [0; KsockHelloMsgNid4::SIZE];
    socket.read_exact(&mut reply).await.unwrap();
    let reply = KsockHelloMsgNid4::from_bytes(&reply).unwrap();
    assert_eq!(reply.kshm_src_nid, to);
    (socket, reply.kshm_ctype)
}

async fn closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    // A reset is an end as well.
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut rest))
        .await
        .is_ok()
}

#[tokio::test]
async fn a_new_incarnation_closes_the_connections_of_the_old_one() {
    let (na, nb) = addresses();
    let a = node(na).await;
    let mut events = a.peer_events();
    let (mut old, ctype) = greet(na, nb, 1, 1).await;
    assert_eq!(ctype, 1);
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(nb));
    let (_bulk, ctype) = greet(na, nb, 1, 2).await;
    assert_eq!(ctype, 3, "the peer's BULK_IN is our BULK_OUT");
    let (_again, ctype) = greet(na, nb, 1, 1).await;
    assert_eq!(ctype, -1, "one CONTROL connection is enough");
    let (_new, ctype) = greet(na, nb, 2, 1).await;
    assert_eq!(ctype, 1);
    assert!(closed(&mut old).await);
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Down(nb));
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(nb));
}

#[tokio::test]
async fn a_vanished_peer_fails_what_waits_for_it() {
    let (na, nb) = addresses();
    let a = node(na).await;
    let (socket, _) = greet(na, nb, 1, 1).await;
    let (put, ()) = tokio::join!(a.put(nb, 4, 7, 0, 0, pattern(10, 0).into(), true), async {
        let mut socket = socket;
        let mut head = [0; FRAME_HEAD + 10];
        socket.read_exact(&mut head).await.unwrap();
        drop(socket);
    });
    let why = put.unwrap_err();
    assert!(
        matches!(why, LnetError::PeerLost { peer, .. } if peer == nb),
        "{why}"
    );
    let why = a.put(nb, 4, 7, 0, 0, Payload::new(), false).await.unwrap_err();
    assert!(
        matches!(why, LnetError::Connect { .. }),
        "nobody listens there: {why}"
    );
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_given_up() {
    let (na, nb) = addresses();
    let cfg = LnetConfig {
        sock_timeout: Duration::from_millis(300),
        retry_count: 0,
        ..config()
    };
    let a = node_with(na, cfg).await;
    let (_stuck, _) = greet(na, nb, 1, 1).await;
    let mut events = a.peer_events();
    let payload: Payload = pattern(1 << 20, 0).into();
    let why = loop {
        if let Err(why) = a.put(nb, 4, 7, 0, 0, payload.clone(), false).await {
            break why;
        }
    };
    assert!(matches!(why, LnetError::PeerLost { .. }), "{why}");
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Down(nb));
}

#[tokio::test]
async fn garbage_at_the_acceptor_is_turned_away() {
    let (na, nb) = addresses();
    let cfg = LnetConfig {
        accept_timeout: Duration::from_millis(200),
        ..config()
    };
    let _a = node_with(na, cfg).await;
    let connect = || async {
        TcpStream::connect(SocketAddr::from((na.addr(), 7988)))
            .await
            .unwrap()
    };
    let other_nid = LnetAcceptorConnreq::to(nb).to_bytes();
    let mut endless_hello = LnetAcceptorConnreq::to(na).to_bytes().to_vec();
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
        assert!(closed(&mut socket).await);
    }
    // Another version is told which one we speak.
    let mut socket = connect().await;
    let request = LnetAcceptorConnreq {
        acr_version: 9,
        ..LnetAcceptorConnreq::to(na)
    };
    socket.write_all(&request.to_bytes()).await.unwrap();
    let mut answer = [0; LnetAcceptorConnreq::SIZE];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(
        LnetAcceptorConnreq::from_bytes(&answer).unwrap(),
        LnetAcceptorConnreq::to(Nid(0))
    );
    let b = node(nb).await;
    b.ping(na, LIMIT).await.unwrap();
}

#[tokio::test]
async fn lengths_and_types_beyond_the_protocol_close_the_connection() {
    let (na, nb) = addresses();
    let _a = node(na).await;
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
        dest_nid: na,
        src_nid: nb,
        r#type: 1,
        ..Default::default()
    };
    for bad in [
        head(LnetHdrNid4 {
            payload_length: (1 << 20) + 1,
            ..put
        }),
        head(LnetHdrNid4 {
            payload_length: u32::MAX,
            ..put
        }),
        head(LnetHdrNid4 { r#type: 77, ..put }),
        head(LnetHdrNid4 { dest_nid: nb, ..put }),
        vec![0xff; 96],
    ] {
        let (mut socket, _) = greet(na, nb, 1, 1).await;
        socket.write_all(&bad).await.unwrap();
        assert!(closed(&mut socket).await);
    }
}

#[tokio::test]
async fn zero_copy_cookies_come_back_once_the_payload_is_read() {
    let (na, nb) = addresses();
    let _a = node(na).await;
    let (mut socket, _) = greet(na, nb, 1, 1).await;
    let put = LnetHdrNid4 {
        dest_nid: na,
        src_nid: nb,
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
    let (na, nb) = addresses();
    let cfg = LnetConfig {
        keepalive: Duration::from_millis(50),
        ..config()
    };
    let _a = node_with(na, cfg).await;
    let (mut socket, _) = greet(na, nb, 1, 1).await;
    for _ in 0..2 {
        let mut noop = [0; KsockMsgHdr::SIZE];
        socket.read_exact(&mut noop).await.unwrap();
        assert_eq!(KsockMsgHdr::from_bytes(&noop).unwrap().ksh_zc_cookies, [0, 1]);
        socket.write_all(&noop).await.unwrap();
    }
}

#[tokio::test]
async fn a_full_sink_holds_up_neither_other_portals_nor_answers() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    let (send, mut requests) = mpsc::channel(1);
    let _portal = b.serve_portal(12, Arc::new(Queue(send)));
    for i in 0..100 {
        a.put(nb, 12, i, 0, i, Payload::new(), false).await.unwrap();
    }
    let acked = a.put(nb, 12, 100, 0, 100, Payload::new(), true);
    let acked = tokio::time::timeout(Duration::from_millis(100), acked).await;
    assert!(acked.is_err(), "what the sink has not taken is not acknowledged");
    a.ping(nb, LIMIT).await.unwrap();
    b.ping(na, LIMIT).await.unwrap();
    for i in 0..=100 {
        assert_eq!(requests.recv().await.unwrap().hdr_data, i, "in order");
    }
}

#[tokio::test]
async fn a_peer_that_sends_more_than_a_full_sink_may_park_has_to_wait() {
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
    let waiting = tokio::time::timeout(Duration::from_millis(500), &mut sending).await;
    assert!(waiting.is_err(), "64 MiB were taken into memory");
    // Not in order: the first went over the control connection, before there was one for bulk.
    let mut seen = [false; 64];
    for _ in 0..64 {
        let m = requests.recv().await.unwrap();
        assert!(!std::mem::replace(&mut seen[m.hdr_data as usize], true), "twice");
    }
    sending.await.unwrap().shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_added_says_why() {
    let (na, nb) = addresses();
    let a = node(na).await;
    let other = Lnet::new(CptTable::single_current(), config());
    let why = other.add_tcp(na, true).await.unwrap_err();
    assert!(
        matches!(why, LnetError::AddrInUse { nid, port: 7988 } if nid == na),
        "{why}"
    );
    let elsewhere = "192.0.2.77@tcp".parse().unwrap();
    for listen in [true, false] {
        let why = other.add_tcp(elsewhere, listen).await.unwrap_err();
        assert!(matches!(why, LnetError::AddrNotAvailable { .. }), "{why}");
    }
    assert!(matches!(
        other.add_tcp(Nid::LO, true).await,
        Err(LnetError::NotTcp { .. })
    ));
    let why = other.ping(na, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::NoRoute { .. }), "{why}");
    let why = a.ping(nb, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::Connect { .. }), "{why}");
}

#[tokio::test]
async fn a_host_that_is_not_lustre_is_reported() {
    let (na, nb) = addresses();
    let a = node(na).await;
    let listener = TcpListener::bind(SocketAddr::from((nb.addr(), 7988)))
        .await
        .unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket
                .write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian and so on and so on and so on and so on")
                .await;
        }
    });
    let why = a.ping(nb, LIMIT).await.unwrap_err();
    assert!(matches!(why, LnetError::Connect { .. }), "{why}");
}

#[tokio::test]
async fn a_stopped_node_takes_nothing_and_frees_its_port() {
    let (na, nb) = addresses();
    let (a, b) = (node(na).await, node(nb).await);
    a.ping(nb, LIMIT).await.unwrap();
    a.shutdown().await;
    assert!(matches!(a.ping(nb, LIMIT).await, Err(LnetError::ShutDown)));
    let a = node(na).await;
    b.ping(na, LIMIT).await.unwrap();
    a.ping(nb, LIMIT).await.unwrap();
}
