//! Peers that speak what this node does not: another byte order, other versions, networks other than tcp. Each is refused
//! with a line in the log that says who and why, and nobody else notices.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, addresses, closed, greet, last_words, node};
use crate::log::Log;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use wire::{
    KsockHelloMsgNid4, KsockMsgHdr, LNET_PROTO_ACCEPTOR_MAGIC, LNET_PROTO_MAGIC, LnetAcceptorConnreq,
    LnetHdrNid4, Nid, O2IBLND, WireStruct,
};

/// Says this to a node; what it answers before it closes the connection.
async fn say(to: Nid, said: &[&[u8]]) -> Vec<u8> {
    let mut socket = TcpStream::connect(SocketAddr::from((to.addr(), 7988)))
        .await
        .unwrap();
    socket.write_all(&said.concat()).await.unwrap();
    last_words(&mut socket).await
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
async fn who_connects_otherwise_is_told_what_is_spoken_here() {
    let log = Log::start();
    let (na, nb) = addresses();
    let a = node(na).await;
    let ours = LnetAcceptorConnreq::to(Nid(0)).to_bytes();
    let big_endian = [
        &LNET_PROTO_ACCEPTOR_MAGIC.to_be_bytes()[..],
        &1u32.to_be_bytes(),
        &u64::from(na).to_be_bytes(),
    ];
    assert_eq!(say(na, &big_endian).await, ours);
    assert_eq!(log.lines("127.").len(), 1);
    assert_eq!(
        log.lines("it is a big-endian machine, which is not supported")
            .len(),
        1
    );

    let ipv6 = [&LNET_PROTO_ACCEPTOR_MAGIC.to_le_bytes()[..], &2u32.to_le_bytes()];
    assert_eq!(say(na, &ipv6).await, ours);
    assert_eq!(log.lines("no IPv4 one: use IPv4 NIDs for this node").len(), 1);

    let later = [&LNET_PROTO_ACCEPTOR_MAGIC.to_le_bytes()[..], &7u32.to_le_bytes()];
    assert_eq!(say(na, &later).await, ours);
    assert_eq!(log.lines("of version 7, and 1 is known here").len(), 1);

    assert_eq!(say(na, &[&LNET_PROTO_MAGIC.to_le_bytes()]).await, ours);
    assert_eq!(log.lines("hello without a connection request").len(), 1);

    let b = node(nb).await;
    a.ping(nb, LIMIT).await.unwrap();
    b.ping(na, LIMIT).await.unwrap();
    assert_eq!(log.lines("refused").len(), 4);
}

#[tokio::test]
async fn hellos_of_other_versions_networks_and_byte_orders_are_refused() {
    let log = Log::start();
    let (na, nb) = addresses();
    let a = node(na).await;
    let connreq = LnetAcceptorConnreq::to(na).to_bytes();
    for version in [1, 2, 4] {
        let answer = say(na, &[&connreq, &hello(nb, na, version).to_bytes()[..8]]).await;
        // Ours, so that a node that speaks several versions takes the right one.
        let answer = KsockHelloMsgNid4::from_bytes(&answer).unwrap();
        assert_eq!((answer.kshm_version, answer.kshm_src_nid), (3, na));
        let said = format!("it speaks socklnd version {version}, this node version 3");
        assert_eq!(log.lines(&said).len(), 1);
    }
    let swapped = LNET_PROTO_MAGIC.to_be_bytes();
    assert_eq!(say(na, &[&connreq, &swapped]).await, b"");
    assert_eq!(log.lines("big-endian").len(), 1);
    let o2ib = o2ib();
    assert_eq!(say(na, &[&connreq, &hello(o2ib, na, 3).to_bytes()]).await, b"");
    assert_eq!(
        log.lines("it is 10.0.0.1@o2ib, which is not on the network of")
            .len(),
        1
    );
    assert_eq!(say(na, &[&connreq, &hello(na, na, 3).to_bytes()]).await, b"");
    assert_eq!(log.lines("which is this node").len(), 1);
    let b = node(nb).await;
    a.ping(nb, LIMIT).await.unwrap();
    b.ping(na, LIMIT).await.unwrap();
}

#[tokio::test]
async fn nothing_comes_from_or_goes_to_networks_that_nobody_routes() {
    let log = Log::start();
    let (na, nb) = addresses();
    let a = node(na).await;
    let o2ib = o2ib();
    let put = LnetHdrNid4 {
        dest_nid: na,
        src_nid: nb,
        r#type: 1,
        ..LnetHdrNid4::default()
    };
    let lnet = KsockMsgHdr {
        ksh_type: 0xc1,
        ..KsockMsgHdr::default()
    };
    let from = LnetHdrNid4 { src_nid: o2ib, ..put };
    let to = LnetHdrNid4 {
        dest_nid: o2ib,
        ..put
    };
    for (hdr, said) in [
        (from, "it sends a message of 10.0.0.1@o2ib"),
        (to, "it sends a message for 10.0.0.1@o2ib, which is not this node"),
    ] {
        let (mut socket, _) = greet(na, nb, 1, 1).await;
        let message = [&lnet.to_bytes()[..], &hdr.to_bytes()].concat();
        socket.write_all(&message).await.unwrap();
        assert!(closed(&mut socket).await);
        assert_eq!(log.lines(said).len(), 1, "{:?}", log.lines(""));
    }
    let b = node(nb).await;
    a.ping(nb, LIMIT).await.unwrap();
    b.ping(na, LIMIT).await.unwrap();
}
