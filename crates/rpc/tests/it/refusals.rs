//! Unsupported requests: security flavors, big-endian peers, unknown operations. The server refuses
//! them in a form that Lustre's clients report; a big-endian peer gets no reply. The server logs
//! each refusal with the peer, and other clients are not affected.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use rpc::{ImportKind, Ptlrpc, Request, RpcError};
use std::sync::Arc;
use std::time::Duration;
use testbase::Log;
use testbase::by_hand::{TestTarget, body, connect_by_hand, next_reply, reply_buffer};
use testbase::rpc_node::{EchoTarget, client, node};
use tokio::time::timeout;
use wire::{
    Errno, LUSTRE_MDS_VERSION, LUSTRE_OBD_VERSION, MDS_CONNECT, MDS_STATFS, Message, Nid, OBD_CONNECT_AT,
    OBD_CONNECT_FULL20, ObdConnectData, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PtlrpcBody,
};

const MDT: &str = "testfs-MDT0000_UUID";

/// Sends bytes to the MDT's portal. Returns the offset and the message of a reply within a minute.
async fn send_bytes(rpc: &Arc<Ptlrpc>, xid: u64, bytes: Bytes) -> Option<(u32, Message)> {
    let mut buffer = reply_buffer(rpc.lnet(), wire::MDC_REPLY_PORTAL, xid);
    let put = rpc
        .lnet()
        .put(Nid::LO, wire::MDS_REQUEST_PORTAL, xid, 0, 0, bytes.into(), false);
    put.await.unwrap();
    timeout(Duration::from_secs(60), next_reply(&mut buffer))
        .await
        .ok()
}

/// Checks that a normal client is served.
async fn check_normal_client(rpc: &Arc<Ptlrpc>) {
    let (import, _) = client(rpc, MDT, ImportKind::Mdc).await;
    import.call(Request::new(MDS_STATFS, Vec::new())).await.unwrap();
    import.disconnect().await;
}

/// A request as the flavor `plain` and GSS with integrity wrap it: a header, the request, two more
/// segments.
fn wrap_request(secflvr: u32, request: Bytes) -> Bytes {
    let header = Bytes::from_static(&[0; 8]);
    Message {
        secflvr,
        bufs: vec![header, request, Bytes::new(), Bytes::new()],
        ..Message::default()
    }
    .build()
}

#[tokio::test(start_paused = true)]
async fn security_flavors_are_refused_by_a_null_flavor_reply() {
    let log = Log::start();
    let rpc = node(1);
    rpc.add_target(EchoTarget::new(MDT));
    let connect = Message::new(&body(MDS_CONNECT, LUSTRE_OBD_VERSION, 0), []);
    let without_early = Message {
        flags: 0,
        ..connect.clone()
    };
    let mut xid = 1 << 40;
    for (secflvr, request, reply_offset, opc, name) in [
        (0x2_1001, connect.build(), 224, MDS_CONNECT, "plain (0x21001)"),
        (0x2_0222, without_early.build(), 0, MDS_CONNECT, "ski (0x20222)"),
        // The start of a security context, without a request in it.
        (0x2_0212, Bytes::from_static(b"token"), 224, 0, "krb5i (0x20212)"),
        (1 << 24 | 7, Bytes::new(), 224, 0, "unknown (0x7)"),
    ] {
        xid += 128;
        let (offset, reply) = send_bytes(&rpc, xid, wrap_request(secflvr, request))
            .await
            .unwrap();
        let refusal = reply.body().unwrap();
        assert_eq!(
            (offset, reply.secflvr, refusal.pb_opc),
            (reply_offset, 0, opc),
            "{name}"
        );
        assert_eq!(refusal.pb_type, PTL_RPC_MSG_ERR);
        assert_eq!(refusal.pb_status, Errno::EPROTO.status());
        let lines = log.lines(name);
        assert_eq!(lines.len(), 1, "{name}");
        assert!(
            lines[0].contains("peer=0@lo") && lines[0].contains("srpc.flavor"),
            "{lines:?}"
        );
    }
    check_normal_client(&rpc).await;
    // Repeated requests do not fill the log.
    for _ in 0..100 {
        xid += 128;
        send_bytes(&rpc, xid, wrap_request(0x2_0222, connect.build()))
            .await
            .unwrap();
    }
    assert!(log.lines("ski").len() < 20);
}

#[tokio::test(start_paused = true)]
async fn a_big_endian_peer_gets_no_reply_and_is_logged() {
    let log = Log::start();
    let rpc = node(2);
    rpc.add_target(EchoTarget::new(MDT));
    let connect = Message::new(&body(MDS_CONNECT, LUSTRE_OBD_VERSION, 0), []);
    let mut bytes = connect.build().to_vec();
    for word in bytes.chunks_mut(4) {
        word.reverse();
    }
    assert!(send_bytes(&rpc, 1 << 40, bytes.into()).await.is_none());
    let lines = log.lines("of a big-endian peer");
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("peer=0@lo"), "{lines:?}");
    check_normal_client(&rpc).await;
}

#[tokio::test(start_paused = true)]
async fn unsupported_operations_are_refused_and_logged() {
    let log = Log::start();
    let rpc = node(3);
    rpc.add_target(TestTarget::new(MDT, |req| {
        let is_supported = req.opc == MDS_STATFS;
        Box::pin(async move { is_supported.then(rpc::Reply::default).ok_or(Errno::ENOTSUPP) })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let result = import.call(Request::new(wire::MDS_HSM_REQUEST, Vec::new())).await;
    assert!(
        matches!(result, Err(RpcError::Status(Errno::EOPNOTSUPP))),
        "{result:?}"
    );
    let lines = log.lines("MDS_HSM_REQUEST");
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].contains("peer=0@lo") && lines[0].contains(MDT),
        "{lines:?}"
    );
    // If Lustre has the operation, its clients treat the refusal as a failed operation. They treat
    // the refusal of an unknown opcode as an invalid reply, and log it.
    let requested = ObdConnectData {
        ocd_connect_flags: OBD_CONNECT_FULL20 | OBD_CONNECT_AT,
        ..ObdConnectData::default()
    };
    let (_, reply, _) = connect_by_hand(rpc.lnet(), MDT, "by hand", (5, 1, true), requested).await;
    let handle = reply.pb_handle.cookie;
    let mut xid = 1 << 40;
    let mut reply_to = async |opc, version| {
        xid += 128;
        let msg = Message::new(&body(opc, version, handle), []);
        let (_, reply) = send_bytes(&rpc, xid, msg.build()).await.unwrap();
        let PtlrpcBody {
            pb_type, pb_status, ..
        } = reply.body().unwrap();
        (pb_type, pb_status)
    };
    assert_eq!(
        reply_to(wire::MDS_SWAP_LAYOUTS, LUSTRE_MDS_VERSION).await,
        (PTL_RPC_MSG_REPLY, Errno::EOPNOTSUPP.status())
    );
    assert_eq!(
        reply_to(4999, LUSTRE_OBD_VERSION).await,
        (PTL_RPC_MSG_ERR, Errno::ENOTSUPP.status())
    );
    assert_eq!(log.lines("opc=4999 operation=\"unknown\"").len(), 1);
    import.disconnect().await;
    check_normal_client(&rpc).await;
}
