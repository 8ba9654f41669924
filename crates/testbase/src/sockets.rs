//! Nodes and peers for tests over loopback.

use bytes::Bytes;
use cpt::{BoxFuture, CptTable};
use lnet::{IncomingPut, Lnet, LnetConfig, MatchEntry, PutSink, SinkFull};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use wire::{KsockHelloMsgNid4, LNET_PROTO_MAGIC, LnetAcceptorConnreq, Nid, WireStruct};

/// Time limit of any step, with a margin for a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns a function from a last octet and an LNet network number to a NID on loopback. No other
/// test of this process gets these addresses, so the acceptor's port is free.
pub fn nid_maker() -> impl Fn(u8, u16) -> Nid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    move |last, net| Nid::tcp(Ipv4Addr::new(127, (pid % 250) as u8 + 1, n, last), net)
}

/// Two addresses of one test.
pub fn addresses() -> (Nid, Nid) {
    let nid = nid_maker();
    (nid(1, 0), nid(2, 0))
}

pub fn config() -> LnetConfig {
    LnetConfig {
        accept_port: 7988,
        // Some tests wait for this timeout.
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

/// A sink that sends PUTs to a channel, and is full when the channel is full.
pub struct Queue(pub mpsc::Sender<IncomingPut>);

impl PutSink for Queue {
    fn put(&self, request: IncomingPut) -> Result<(), SinkFull> {
        self.0.try_send(request).map_err(|e| SinkFull(e.into_inner()))
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            while self.0.capacity() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

pub fn match_entry(portal: u32, match_bits: u64, from: Nid) -> MatchEntry {
    MatchEntry {
        portal,
        match_bits,
        from: Some(from),
    }
}

/// `len` bytes that depend on `seed` and on their position.
pub fn pattern(len: usize, seed: u8) -> Bytes {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect::<Vec<u8>>()
        .into()
}

/// Connects to `to` with the hello of `me`; returns the socket and the connection type of the
/// answer. Types: 1: small messages; 2: large messages to the sender of the hello; 3: large
/// messages from that sender; -1: the peer asks the sender to retry.
pub async fn exchange_hellos(to: Nid, me: Nid, incarnation: u64, kshm_ctype: i32) -> (TcpStream, i32) {
    let mut socket = send_hello(to, me, incarnation, kshm_ctype).await;
    let mut reply = [0; KsockHelloMsgNid4::SIZE];
    socket.read_exact(&mut reply).await.unwrap();
    let reply = KsockHelloMsgNid4::from_bytes(&reply).unwrap();
    assert_eq!(reply.kshm_src_nid, to);
    (socket, reply.kshm_ctype)
}

/// Connects to `to` and sends the hello of `me`, without waiting for the answer. Connects from the
/// address of `me` if that is a loopback address, otherwise from 127.0.0.1. Ignores write errors:
/// `to` may close the connection before it has read the hello.
pub async fn send_hello(to: Nid, me: Nid, incarnation: u64, kshm_ctype: i32) -> TcpStream {
    let from = if me.addr().is_loopback() {
        me.addr()
    } else {
        Ipv4Addr::LOCALHOST
    };
    send_hello_from(from, to, me, incarnation, kshm_ctype).await
}

/// Connects to `to` from an address of this host and sends the hello of `me`, without waiting for
/// the answer.
pub async fn send_hello_from(
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
    let greeting = [&LnetAcceptorConnreq::to(to).to_bytes()[..], &hello.to_bytes()[..]];
    let _ = socket.write_all(&greeting.concat()).await;
    socket
}

/// Whether the peer closes the connection within [`LIMIT`]; a reset closes it as well.
pub async fn peer_closes(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut rest))
        .await
        .is_ok()
}

/// Reads until the peer closes or resets the connection; returns the bytes read.
pub async fn read_to_end(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ended = tokio::time::timeout(LIMIT, socket.read_to_end(&mut bytes)).await;
    assert!(ended.is_ok(), "the connection stays open");
    bytes
}

/// Waits until the condition holds.
pub async fn until(condition: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(LIMIT, wait).await.is_ok(),
        "never: {condition}"
    );
}
