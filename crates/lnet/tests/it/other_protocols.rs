//! Peers with another byte order, another version, or another type of network. The node refuses
//! each with a log line that names the peer and the reason; other peers are not affected.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use testbase::Log;
use testbase::sockets::{LIMIT, addresses, exchange_hellos, node, peer_closes, read_to_end};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use wire::{
    KsockHelloMsgNid4, KsockMsgHdr, LNET_PROTO_ACCEPTOR_MAGIC, LNET_PROTO_MAGIC, LnetAcceptorConnreq,
    LnetHdrNid4, Nid, O2IBLND, WireStruct,
};

/// Sends these bytes to a node; returns the bytes that it sends until it closes the connection.
async fn send(to: Nid, sent: &[&[u8]]) -> Vec<u8> {
    let mut socket = TcpStream::connect(SocketAddr::from((to.addr(), 7988)))
        .await
        .unwrap();
    socket.write_all(&sent.concat()).await.unwrap();
    read_to_end(&mut socket).await
}

/// `10.0.0.1@o2ib`.
fn o2ib() -> Nid {
    Nid(u64::from(O2IBLND) << 48 | 0x0a00_0001)
}

fn hello(from: Nid, to: Nid, kshm_version: u32) -> KsockHelloMsgNid4 {
    KsockHelloMsgNid4 {
        kshm_magic: LNET_PROTO_MAGIC,
        kshm_version,
        kshm_src_nid: from,
        kshm_dst_nid: to,
        kshm_src_pid: 12345,
        kshm_src_incarnation: 1,
        kshm_ctype: 1,
        ..KsockHelloMsgNid4::default()
    }
}

#[tokio::test]
async fn unsupported_connection_requests_are_answered_with_the_supported_version() {
    let log = Log::start();
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let ours = LnetAcceptorConnreq::to(Nid(0)).to_bytes();
    let big_endian = [
        &LNET_PROTO_ACCEPTOR_MAGIC.to_be_bytes()[..],
        &1u32.to_be_bytes(),
        &u64::from(nid_a).to_be_bytes(),
    ];
    assert_eq!(send(nid_a, &big_endian).await, ours);
    assert_eq!(log.lines("127.").len(), 1);
    assert_eq!(log.lines("it is a big-endian machine: not supported").len(), 1);

    let version_2 = [&LNET_PROTO_ACCEPTOR_MAGIC.to_le_bytes()[..], &2u32.to_le_bytes()];
    assert_eq!(send(nid_a, &version_2).await, ours);
    assert_eq!(log.lines("not IPv4: use IPv4 NIDs for this node").len(), 1);

    let version_7 = [&LNET_PROTO_ACCEPTOR_MAGIC.to_le_bytes()[..], &7u32.to_le_bytes()];
    assert_eq!(send(nid_a, &version_7).await, ours);
    assert_eq!(
        log.lines("has version 7, but only version 1 is supported").len(),
        1
    );

    assert_eq!(send(nid_a, &[&LNET_PROTO_MAGIC.to_le_bytes()]).await, ours);
    assert_eq!(log.lines("hello without a connection request").len(), 1);

    let node_b = node(nid_b).await;
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.ping(nid_a, LIMIT).await.unwrap();
    assert_eq!(log.lines("refused").len(), 4);
}

#[tokio::test]
async fn hellos_of_other_versions_networks_and_byte_orders_are_refused() {
    let log = Log::start();
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let connreq = LnetAcceptorConnreq::to(nid_a).to_bytes();
    for version in [1, 2, 4] {
        let answer = send(nid_a, &[&connreq, &hello(nid_b, nid_a, version).to_bytes()[..8]]).await;
        // The answer is this node's hello, so that a peer with several versions can choose the
        // right one.
        let answer = KsockHelloMsgNid4::from_bytes(&answer).unwrap();
        assert_eq!((answer.kshm_version, answer.kshm_src_nid), (3, nid_a));
        let line = format!("it speaks socklnd version {version}, but this node speaks version 3");
        assert_eq!(log.lines(&line).len(), 1);
    }
    let swapped = LNET_PROTO_MAGIC.to_be_bytes();
    assert_eq!(send(nid_a, &[&connreq, &swapped]).await, b"");
    assert_eq!(log.lines("big-endian").len(), 1);
    let o2ib = o2ib();
    assert_eq!(
        send(nid_a, &[&connreq, &hello(o2ib, nid_a, 3).to_bytes()]).await,
        b""
    );
    assert_eq!(
        log.lines("its hello names 10.0.0.1@o2ib, which is not on the network of")
            .len(),
        1
    );
    assert_eq!(
        send(nid_a, &[&connreq, &hello(nid_a, nid_a, 3).to_bytes()]).await,
        b""
    );
    assert_eq!(log.lines("a NID of this node").len(), 1);
    let node_b = node(nid_b).await;
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.ping(nid_a, LIMIT).await.unwrap();
}

#[tokio::test]
async fn messages_from_and_to_networks_without_routes_are_violations() {
    let log = Log::start();
    let (nid_a, nid_b) = addresses();
    let node_a = node(nid_a).await;
    let o2ib = o2ib();
    let put = LnetHdrNid4 {
        dest_nid: nid_a,
        src_nid: nid_b,
        r#type: 1,
        ..LnetHdrNid4::default()
    };
    let lnet = KsockMsgHdr {
        ksh_type: 0xc1,
        ..KsockMsgHdr::default()
    };
    let from_o2ib = LnetHdrNid4 { src_nid: o2ib, ..put };
    let to_o2ib = LnetHdrNid4 {
        dest_nid: o2ib,
        ..put
    };
    for (hdr, line) in [
        (
            from_o2ib,
            "it sends a message of 10.0.0.1@o2ib but is not a router",
        ),
        (
            to_o2ib,
            "it sends a message for 10.0.0.1@o2ib, which is not this node",
        ),
    ] {
        let (mut socket, _) = exchange_hellos(nid_a, nid_b, 1, 1).await;
        let message = [&lnet.to_bytes()[..], &hdr.to_bytes()].concat();
        socket.write_all(&message).await.unwrap();
        assert!(peer_closes(&mut socket).await);
        assert_eq!(log.lines(line).len(), 1, "{:?}", log.lines(""));
    }
    let node_b = node(nid_b).await;
    node_a.ping(nid_b, LIMIT).await.unwrap();
    node_b.ping(nid_a, LIMIT).await.unwrap();
}
