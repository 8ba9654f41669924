//! Nodes and peers for tests over loopback.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // each test file uses some of it

use bytes::Bytes;
use cpt::{BoxFuture, CptTable};
use lnet::{Full, Incoming, Lnet, LnetConfig, Match, PutSink};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use wire::{KsockHelloMsgNid4, LNET_PROTO_MAGIC, LnetAcceptorConnreq, Nid, WireStruct};

/// How long anything may take on a machine that has much else to do.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Loopback addresses of one test, by the last number and the network: no other test of this process uses them, so that the
/// acceptor's port is always free.
pub fn subnet() -> impl Fn(u8, u16) -> Nid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    move |last, net| Nid::tcp(Ipv4Addr::new(127, (pid % 250) as u8 + 1, n, last), net)
}

/// Two addresses of one test.
pub fn addresses() -> (Nid, Nid) {
    let of = subnet();
    (of(1, 0), of(2, 0))
}

pub fn config() -> LnetConfig {
    LnetConfig {
        accept_port: 7988,
        // Some tests wait for its end.
        transaction_timeout: LIMIT / 6,
        ..LnetConfig::default()
    }
}

pub async fn node(nid: Nid) -> Arc<Lnet> {
    node_with(nid, config()).await
}

pub async fn node_with(nid: Nid, cfg: LnetConfig) -> Arc<Lnet> {
    let node = Lnet::new(CptTable::single_current(), cfg);
    node.add_tcp(nid, true).await.unwrap();
    node
}

/// A sink with room for `n`.
pub struct Queue(pub mpsc::Sender<Incoming>);

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

pub fn at(portal: u32, match_bits: u64, from: Nid) -> Match {
    Match {
        portal,
        match_bits,
        from: Some(from),
    }
}

pub fn pattern(len: usize, seed: u8) -> Bytes {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect::<Vec<u8>>()
        .into()
}

/// Says hello to `to` as `me`, as a peer would; gives back the socket and the answer's type.
pub async fn greet(to: Nid, me: Nid, incarnation: u64, kshm_ctype: i32) -> (TcpStream, i32) {
    let mut socket = say_hello(to, me, incarnation, kshm_ctype).await;
    let mut reply = [0; KsockHelloMsgNid4::SIZE];
    socket.read_exact(&mut reply).await.unwrap();
    let reply = KsockHelloMsgNid4::from_bytes(&reply).unwrap();
    assert_eq!(reply.kshm_src_nid, to);
    (socket, reply.kshm_ctype)
}

/// The same without waiting for an answer: perhaps the connection is closed before all is said. It comes from the address
/// of `me`, if that is one of this host.
pub async fn say_hello(to: Nid, me: Nid, incarnation: u64, kshm_ctype: i32) -> TcpStream {
    let from = if me.addr().is_loopback() {
        me.addr()
    } else {
        Ipv4Addr::LOCALHOST
    };
    say_hello_from(from, to, me, incarnation, kshm_ctype).await
}

/// The same from any address of this host.
pub async fn say_hello_from(
    from: Ipv4Addr,
    to: Nid,
    me: Nid,
    incarnation: u64,
    kshm_ctype: i32,
) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let to_addr = SocketAddr::from((to.addr(), 7988));
    let mut socket = socket.connect(to_addr).await.unwrap();
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
    let said = [&LnetAcceptorConnreq::to(to).to_bytes()[..], &hello.to_bytes()[..]];
    let _ = socket.write_all(&said.concat()).await;
    socket
}

pub async fn closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    // A reset is an end as well.
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut rest))
        .await
        .is_ok()
}

/// What the other end still says before it closes; a reset is an end as well.
pub async fn last_words(socket: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let ended = tokio::time::timeout(LIMIT, socket.read_to_end(&mut said)).await;
    assert!(ended.is_ok(), "it does not close");
    said
}

/// Waits until it is so.
pub async fn until(what: &str, is: impl Fn() -> bool) {
    let so = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, so).await.is_ok(), "never: {what}");
}
