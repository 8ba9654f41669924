//! Bytes on the acceptor's port: garbage, false addresses, wrong lengths, silence, and too many
//! connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::{
    KSOCK_PROTO_V3, KsockHelloMsgNid4, KsockMsgHdr, LNET_PROTO_MAGIC, LnetAcceptorConnreq, LnetHdrNid4, Nid,
    WireStruct,
};

use crate::hostile::attacked_fs::AttackedFs;
use testbase::sockets::{LIMIT, addresses, exchange_hellos, node, peer_closes, read_to_end, send_hello};

/// Number of connections that send an incomplete message and then stay silent.
const SILENT_CONNECTIONS: usize = 200;
/// Number of connections from one host, above the limit.
const CONNECTIONS: u32 = 1400;

async fn connect(to: Nid) -> TcpStream {
    TcpStream::connect(SocketAddr::from((to.addr(), 7988)))
        .await
        .unwrap()
}

/// The nth of many unused NIDs of this host.
fn unused_nid(n: u32) -> Nid {
    Nid::tcp(Ipv4Addr::from(0x7f63_0000 + n), 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_only_its_own_connection() {
    let attacked = AttackedFs::new();
    send_false_hellos(attacked.nid).await;
    attacked.wait_for_log("its hello names 0@lo");
    attacked.wait_for_log("its hello names 10.99.0.1@tcp, but it connects from 127.0.0.1");
    attacked.check_progress("false hellos");
    send_garbage(attacked.nid).await;
    attacked.wait_for_log("connection refused: it started with");
    attacked.check_progress("garbage");
    send_illegal_frames(attacked.nid).await;
    attacked.wait_for_log(
        "closing a connection after a protocol violation: it sends a message of 127.99.0.7@tcp",
    );
    attacked.check_progress("illegal frames");
    send_incomplete_messages(attacked.nid).await;
    attacked.check_progress("half messages");
    open_too_many_connections(&attacked).await;
    attacked.wait_for_log("connection refused: its host already has");
    attacked.check_progress("too many connections");
    attacked.end();
}

async fn send_garbage(to: Nid) {
    let mut random = fastrand::Rng::with_seed(7);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(100_000).collect();
    let hello = |magic, version, nips| {
        let hello = KsockHelloMsgNid4 {
            kshm_magic: magic,
            kshm_version: version,
            kshm_nips: nips,
            ..KsockHelloMsgNid4::default()
        };
        [&LnetAcceptorConnreq::to(to).to_bytes()[..], &hello.to_bytes()[..]].concat()
    };
    let version = LnetAcceptorConnreq {
        acr_version: 77,
        ..LnetAcceptorConnreq::to(to)
    };
    for bytes in [
        noise,
        vec![0xff; 70_000],
        vec![0; 4096],
        b"GET / HTTP/1.1\r\nHost: nacre\r\n\r\n".to_vec(),
        version.to_bytes().to_vec(),
        LnetAcceptorConnreq::to(unused_nid(1)).to_bytes().to_vec(),
        hello(0xdead_beef, KSOCK_PROTO_V3, 0),
        hello(LNET_PROTO_MAGIC, 2, 0),
        hello(LNET_PROTO_MAGIC, KSOCK_PROTO_V3, u32::MAX),
    ] {
        let mut socket = connect(to).await;
        // The server may close the connection during the write.
        let _ = socket.write_all(&bytes).await;
        assert!(peer_closes(&mut socket).await);
    }
}

async fn send_false_hellos(to: Nid) {
    for (nid, ctype) in [
        (to, 1),
        (Nid::LO, 1),
        (Nid(0), 1),
        (Nid(u64::MAX), 1),
        (Nid::tcp(Ipv4Addr::new(10, 99, 0, 1), 0), 1),
        (unused_nid(2), 4),
        (unused_nid(2), 99),
        (unused_nid(2), -1),
    ] {
        let mut socket = send_hello(to, nid, 1, ctype).await;
        let answer = read_to_end(&mut socket).await;
        assert!(answer.is_empty(), "{nid} {ctype}: {answer:x?}");
    }
}

fn frame_of(header: LnetHdrNid4) -> Vec<u8> {
    let ksh = KsockMsgHdr {
        ksh_type: 0xc1,
        ..KsockMsgHdr::default()
    };
    [&ksh.to_bytes()[..], &header.to_bytes()[..]].concat()
}

fn put(to: Nid, from: Nid, payload_length: u32) -> LnetHdrNid4 {
    LnetHdrNid4 {
        dest_nid: to,
        src_nid: from,
        r#type: 1,
        payload_length,
        ..LnetHdrNid4::default()
    }
}

async fn send_illegal_frames(to: Nid) {
    let nid = unused_nid(3);
    for bytes in [
        frame_of(put(to, nid, u32::MAX)),
        frame_of(put(to, nid, (1 << 20) + 1)),
        frame_of(put(to, unused_nid(7), 0)),
        frame_of(put(unused_nid(7), nid, 0)),
        frame_of(LnetHdrNid4 {
            r#type: 9,
            ..put(to, nid, 0)
        }),
        vec![0xff; 4096],
    ] {
        let (mut socket, _) = exchange_hellos(to, nid, 1, 1).await;
        // The server may close the connection during the write.
        let _ = socket.write_all(&bytes).await;
        assert!(peer_closes(&mut socket).await);
    }
}

/// Opens many connections that send only the beginning of a connection request, or of a long
/// message after the hello, and then wait.
async fn send_incomplete_messages(to: Nid) {
    let mut early = Vec::new();
    for n in 0..SILENT_CONNECTIONS {
        let mut socket = connect(to).await;
        // The server closes connections above its limit at once.
        let _ = socket
            .write_all(&LnetAcceptorConnreq::to(to).to_bytes()[..n % 16])
            .await;
        early.push(socket);
    }
    for socket in &mut early {
        assert!(peer_closes(socket).await);
    }
    let mut late = Vec::new();
    for n in 0..SILENT_CONNECTIONS as u32 {
        let nid = unused_nid(100 + n);
        let (mut socket, _) = exchange_hellos(to, nid, 1, 1).await;
        socket.write_all(&frame_of(put(to, nid, 1 << 20))).await.unwrap();
        socket.write_all(&vec![1; 4096]).await.unwrap();
        late.push(socket);
    }
    // The server answers other peers while these connections are open.
    let (_, other) = addresses();
    node(other).await.ping(to, LIMIT).await.unwrap();
}

/// Opens more connections than one host may have.
async fn open_too_many_connections(attacked: &AttackedFs) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let mut accepted = Vec::new();
    for n in 0..CONNECTIONS {
        let mut socket = send_hello(attacked.nid, unused_nid(1000 + n), 1, 1).await;
        let mut answer = [0; KsockHelloMsgNid4::SIZE];
        let answered = tokio::time::timeout(LIMIT, socket.read_exact(&mut answer)).await;
        if answered.expect("the server answers or closes").is_ok() {
            accepted.push(socket);
        }
    }
    assert!(
        (500..=1024).contains(&accepted.len()),
        "the server accepted {} connections",
        accepted.len()
    );
    attacked.check_progress("many connections are open");
    drop(accepted);
    // Closed connections do not count against the limit.
    let start_time = tokio::time::Instant::now();
    while send_hello(attacked.nid, unused_nid(9), 1, 1)
        .await
        .read_u8()
        .await
        .is_err()
    {
        assert!(start_time.elapsed() < 3 * LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
