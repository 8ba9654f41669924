//! Access control of connections: by user, host, address and number.
#![allow(clippy::unwrap_used)]

use lnet::{LnetConfig, PeerEvent};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testbase::sockets::{
    LIMIT, addresses, config, exchange_hellos, node, node_with, peer_closes, read_to_end, send_hello,
    send_hello_from, until,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use wire::{KsockHelloMsgNid4, LNET_PROTO_MAGIC, LnetAcceptorConnreq, Nid, WireStruct};

#[tokio::test]
async fn a_hello_must_name_its_source_address() {
    let (nid_a, nid_b) = addresses();
    let (node_a, node_b) = (node(nid_a).await, node(nid_b).await);
    let mut events = node_a.peer_events();
    // The impostor connects before and after the owner of the NID does.
    for connected in [false, true] {
        let mut impostor = send_hello_from(Ipv4Addr::LOCALHOST, nid_a, nid_b, 1, 1).await;
        assert!(
            read_to_end(&mut impostor).await.is_empty(),
            "the impostor got an answer (the owner was connected: {connected})"
        );
        node_b.ping(nid_a, LIMIT).await.unwrap();
    }
    node_a.ping(nid_b, LIMIT).await.unwrap();
    assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(nid_b));
    assert!(events.try_recv().is_err(), "the connection stays");
}

/// A Python program that connects and sends a hello. Then it waits for the answer and prints its
/// length, or closes the connection. Its arguments: the address to connect to, the bytes to send
/// in hexadecimal, and the variant (how to connect, and what to do after the hello).
const CONNECT_SCRIPT: &str = "
import os, socket, struct, sys
to, hello, variant = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3]
if variant == 'v6':
    s = socket.socket(socket.AF_INET6)
    s.connect(('::ffff:' + to, 7988))
else:
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262 if variant == 'mptcp' else 0)
    except OSError:
        s = socket.socket()
    if variant == 'device':
        s.setsockopt(socket.SOL_SOCKET, 25, b'lo')
    s.connect((to, 7988))
try:
    s.sendall(hello)
    if variant == 'half':
        s.shutdown(socket.SHUT_WR)
    if variant == 'close':
        sys.exit(0)
    if variant == 'reset':
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        sys.exit(0)
    print(len(s.recv(100)))
except OSError:
    # The node has closed the connection already.
    print(0)
";

#[tokio::test]
async fn other_users_of_this_host_get_no_answer() {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("!!! NOT TESTED: changing the user needs root");
        return;
    }
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        accept_timeout: 10 * LIMIT,
        ..config()
    };
    let node_a = node_with(nid_a, cfg).await;
    let mut events = node_a.peer_events();
    let hello = KsockHelloMsgNid4 {
        kshm_magic: LNET_PROTO_MAGIC,
        kshm_version: 3,
        kshm_src_nid: Nid::tcp(Ipv4Addr::LOCALHOST, 0),
        kshm_dst_nid: nid_a,
        kshm_src_incarnation: 1,
        kshm_ctype: 1,
        ..KsockHelloMsgNid4::default()
    };
    let greeting = [
        &LnetAcceptorConnreq::to(nid_a).to_bytes()[..],
        &hello.to_bytes()[..],
    ]
    .concat();
    let greeting: String = greeting.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer_length = async |user: &'static str, variant: &'static str| {
        let mut command = std::process::Command::new("setpriv");
        command
            .args([
                "--reuid",
                user,
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                CONNECT_SCRIPT,
            ])
            .args([nid_a.addr().to_string().as_str(), &greeting, variant]);
        let ended = tokio::task::spawn_blocking(move || command.output());
        let ended = tokio::time::timeout(LIMIT, ended)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{variant}: {err}");
        String::from_utf8(ended.stdout).unwrap()
    };
    for variant in ["plain", "v6", "mptcp", "device", "half"] {
        assert_eq!(answer_length("65534", variant).await, "0\n", "{variant}");
    }
    for variant in ["close", "reset"] {
        let length = answer_length("65534", variant).await;
        assert!(length.is_empty() || length == "0\n", "{variant}: {length}");
    }
    // Now as root. The kernel does not find a socket bound to an interface.
    assert_eq!(answer_length("0", "device").await, "0\n");
    for variant in ["plain", "v6", "mptcp"] {
        assert_eq!(answer_length("0", variant).await, "56\n", "{variant}");
        let roots_nid = Nid::tcp(Ipv4Addr::LOCALHOST, 0);
        assert_eq!(events.recv().await.unwrap(), PeerEvent::Up(roots_nid));
        assert_eq!(events.recv().await.unwrap(), PeerEvent::Down(roots_nid));
    }
    node(nid_b).await.ping(nid_a, LIMIT).await.unwrap();
    assert_eq!(
        events.recv().await.unwrap(),
        PeerEvent::Up(nid_b),
        "no other peer was accepted"
    );
}

#[tokio::test]
async fn silent_connections_of_one_host_are_limited() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        accept_timeout: 10 * LIMIT,
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(
            TcpStream::connect(SocketAddr::from((nid_a.addr(), 7988)))
                .await
                .unwrap(),
        );
    }
    let started_at = std::time::Instant::now();
    // Connections from this host may use half of `accept_pending_max`, 127.
    while silent.len() > 63 {
        assert!(
            started_at.elapsed() < LIMIT,
            "{} of 200 are still open",
            silent.len()
        );
        // A refused connection can be read to its end at once.
        silent.retain(|socket| {
            let read = socket.try_read(&mut [0]);
            matches!(read, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(silent);
    node(nid_b).await.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn all_loopback_addresses_count_as_one_host() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        accept_host_max: 8,
        ..config()
    };
    let _node_a = node_with(nid_a, cfg).await;
    let nid = |n: u8| Nid::tcp(Ipv4Addr::new(127, 200, 200, n), 0);
    let mut connections = Vec::new();
    for n in 1..=8 {
        connections.push(exchange_hellos(nid_a, nid(n), 1, 1).await.0);
    }
    for other in [nid(9), nid_b] {
        let mut excess = send_hello(nid_a, other, 1, 1).await;
        assert!(read_to_end(&mut excess).await.is_empty());
    }
    connections.clear();
    let started_at = std::time::Instant::now();
    loop {
        let mut retried = send_hello(nid_a, nid(9), 1, 1).await;
        if retried.read_u8().await.is_ok() {
            break;
        }
        assert!(started_at.elapsed() < LIMIT, "closed connections must not count");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_silent_peer_that_the_upper_layer_does_not_use_is_disconnected() {
    let (nid_a, nid_b) = addresses();
    let cfg = LnetConfig {
        unused_peer_timeout: Duration::from_millis(50),
        ..config()
    };
    let node_a = node_with(nid_a, cfg).await;
    let (mut idle, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
    let used_nid = Nid::tcp(Ipv4Addr::new(127, 200, 202, 1), 0);
    let (used_socket, _) = exchange_hellos(nid_a, used_nid, 1, 1).await;
    let checks = Arc::new(AtomicUsize::new(0));
    let check_count = checks.clone();
    node_a.close_unused_peers(move || {
        check_count.fetch_add(1, Ordering::Relaxed);
        Some([used_nid].into())
    });
    assert!(peer_closes(&mut idle).await);
    let target = checks.load(Ordering::Relaxed) + 3;
    until("three more checks have run", || {
        checks.load(Ordering::Relaxed) >= target
    })
    .await;
    let read = used_socket.try_read(&mut [0]);
    assert!(matches!(read, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock));
}
