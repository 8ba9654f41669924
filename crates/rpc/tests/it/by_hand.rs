//! A service's replies to hand-made messages: offsets, match bits, duplicates, refusals, garbage.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use lnet::{IncomingPut, Payload, PutSink, SinkFull};
use proptest::prelude::{any, prop_assert};
use rpc::{
    BoxFuture, Import, ImportKind, ImportState, Ptlrpc, Reply, Request, RpcError, ServiceConfig, Spread,
};
use std::sync::Arc;
use std::time::Duration;
use testbase::by_hand::{TestTarget, body, connect_by_hand, next_reply, reply_buffer, send};
use testbase::rpc_node::{EchoTarget, RecordingOwner, client, import_config, node};
use tokio::time::{sleep, timeout};
use wire::{
    Errno, LustreHandle, MSG_CONNECT_RECONNECT, MSG_CONNECT_REPLAYABLE, MSG_RESENT, Message, Nid,
    OBD_CONNECT_AT, OBD_CONNECT_FULL20, OBD_CONNECT_MDS, ObdConnectData, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY,
    PtlrpcBody, Transno, WireStruct,
};

const MDT: &str = "testfs-MDT0000_UUID";

/// The connect data that hand-made connects request.
fn connect_data() -> ObdConnectData {
    ObdConnectData {
        ocd_connect_flags: OBD_CONNECT_FULL20 | OBD_CONNECT_AT,
        ..Default::default()
    }
}

/// Connects by hand; returns the server's handle.
async fn connect(rpc: &Arc<Ptlrpc>) -> u64 {
    let (offset, body, data) = connect_by_hand(rpc.lnet(), MDT, "client", (5, 1, true), connect_data()).await;
    assert_eq!((offset, body.pb_type, body.pb_status), (0, PTL_RPC_MSG_REPLY, 0));
    assert_eq!(
        data.unwrap().ocd_connect_flags,
        OBD_CONNECT_FULL20 | OBD_CONNECT_AT
    );
    assert_eq!(body.pb_op_flags, MSG_CONNECT_REPLAYABLE);
    body.pb_handle.cookie
}

/// Sends one request to the MDT's portal and waits for the reply.
async fn send_and_wait(rpc: &Arc<Ptlrpc>, xid: u64, msg: &Message) -> (u32, PtlrpcBody) {
    let mut buffer = reply_buffer(rpc.lnet(), 10, xid);
    send(rpc.lnet(), Nid::LO, 12, xid, msg).await;
    let (offset, reply) = next_reply(&mut buffer).await;
    (offset, reply.body().unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_reply_follows_the_space_for_an_early_reply() {
    let rpc = node(1);
    rpc.add_target(EchoTarget::new(MDT));
    let handle = connect(&rpc).await;
    let msg = Message::new(&body(wire::MDS_STATFS, wire::LUSTRE_MDS_VERSION, handle), []);
    let (offset, reply) = send_and_wait(&rpc, 1 << 40, &msg).await;
    assert_eq!(
        (offset, reply.pb_type, reply.pb_opc),
        (224, PTL_RPC_MSG_REPLY, wire::MDS_STATFS)
    );
    assert!(reply.pb_timeout >= 5 && reply.pb_service_time >= 1);
    let old = Message { flags: 0, ..msg };
    assert_eq!(send_and_wait(&rpc, (1 << 40) + 128, &old).await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn handle_conn_cnt_and_flags_decide_whether_a_connect_is_admitted() {
    let rpc = node(2);
    let exports = rpc.add_target(EchoTarget::new(MDT));
    // Returns `pb_status`, `pb_op_flags` and the server's handle.
    let connect = async |uuid, claim: (u64, u32, bool), data| {
        let (_, body, _) = connect_by_hand(rpc.lnet(), uuid, "client", claim, data).await;
        (body.pb_status, body.pb_op_flags, body.pb_handle.cookie)
    };
    let first_connect = connect(MDT, (5, 1, true), connect_data()).await;
    assert_eq!((first_connect.0, first_connect.1), (0, MSG_CONNECT_REPLAYABLE));
    // The server refuses a connect that repeats the `conn_cnt`. A connect with a higher `conn_cnt`
    // is a reconnect.
    assert_eq!(
        connect(MDT, (5, 1, false), connect_data()).await.0,
        Errno::EALREADY.status()
    );
    let reconnected = connect(MDT, (5, 2, false), connect_data()).await;
    assert_eq!(
        reconnected,
        (0, MSG_CONNECT_REPLAYABLE | MSG_CONNECT_RECONNECT, first_connect.2)
    );
    // A connect with another handle, but without the flag of a restarted client, is refused.
    assert_eq!(
        connect(MDT, (6, 9, false), connect_data()).await.0,
        Errno::EALREADY.status()
    );
    // When a restarted client connects, its old export is evicted.
    let server = ObdConnectData {
        ocd_connect_flags: OBD_CONNECT_FULL20 | OBD_CONNECT_MDS,
        ..connect_data()
    };
    let restarted = connect(MDT, (7, 1, true), server).await;
    assert_eq!(
        (restarted.0, restarted.1, exports.len()),
        (0, MSG_CONNECT_REPLAYABLE, 1)
    );
    assert_ne!(restarted.2, first_connect.2);
    assert_eq!(
        connect("testfs-OST0009_UUID", (5, 1, true), connect_data())
            .await
            .0,
        Errno::ENODEV.status()
    );
    assert_eq!(
        connect(MDT, (5, 1, true), ObdConnectData::default()).await.0,
        Errno::EPROTO.status()
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_refused() {
    let rpc = node(3);
    rpc.add_target(EchoTarget::new(MDT));
    let handle = connect(&rpc).await;
    let mut xid = 1 << 40;
    let mut status = async |body: PtlrpcBody| {
        xid += 128;
        let (_, reply) = send_and_wait(&rpc, xid, &Message::new(&body, [])).await;
        assert_eq!(reply.pb_type, PTL_RPC_MSG_ERR);
        reply.pb_status
    };
    let unknown_handle = body(wire::MDS_STATFS, wire::LUSTRE_MDS_VERSION, 99);
    assert_eq!(status(unknown_handle).await, Errno::ENOTCONN.status());
    let wrong_version = body(wire::MDS_STATFS, wire::LUSTRE_OST_VERSION, handle);
    assert_eq!(status(wrong_version).await, Errno::EPROTO.status());
    let wrong_portal = body(wire::OST_READ, wire::LUSTRE_OST_VERSION, handle);
    assert_eq!(status(wrong_portal).await, Errno::EPROTO.status());
    let missing_slot = PtlrpcBody {
        pb_tag: 3,
        ..body(wire::MDS_SYNC, wire::LUSTRE_MDS_VERSION, handle)
    };
    assert_eq!(status(missing_slot).await, Errno::EPROTO.status());
    // This request reports that the replies to all lower xids have arrived.
    let acknowledging = PtlrpcBody {
        pb_last_xid: 1 << 41,
        ..body(wire::MDS_SYNC, wire::LUSTRE_MDS_VERSION, handle)
    };
    let (_, reply) = send_and_wait(&rpc, 1 << 42, &Message::new(&acknowledging, [])).await;
    assert_eq!(reply.pb_status, 0);
    assert_eq!(
        status(body(wire::MDS_SYNC, wire::LUSTRE_MDS_VERSION, handle)).await,
        Errno::EPROTO.status()
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_need_no_reply_are_dropped() {
    let rpc = node(4);
    let target = EchoTarget::new(MDT);
    rpc.add_target(target.clone());
    let handle = connect(&rpc).await;
    let good = body(wire::MDS_STATFS, wire::LUSTRE_MDS_VERSION, handle);
    for dropped in [
        PtlrpcBody {
            pb_timeout: 0,
            ..good
        },
        PtlrpcBody {
            pb_conn_cnt: 0,
            ..good
        },
        PtlrpcBody {
            pb_type: PTL_RPC_MSG_REPLY,
            ..good
        },
    ] {
        let reply = timeout(
            Duration::from_secs(60),
            send_and_wait(&rpc, 1 << 40, &Message::new(&dropped, [])),
        )
        .await;
        assert!(reply.is_err(), "{reply:?}");
    }
    assert_eq!(target.executed.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_duplicated_request_is_executed_once() {
    let rpc = node(5);
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_secs(1)).await;
            Ok(Reply::default().with_transno(Transno(41)))
        })
    });
    rpc.add_target(target.clone());
    let handle = connect(&rpc).await;
    let reint = PtlrpcBody {
        pb_tag: 1,
        ..body(wire::MDS_REINT, wire::LUSTRE_MDS_VERSION, handle)
    };
    let resent = PtlrpcBody {
        pb_flags: MSG_RESENT,
        ..reint
    };
    let xid = 1 << 40;
    let mut buffer = reply_buffer(rpc.lnet(), 10, xid);
    // The network duplicates the request, and the client resends it during its execution: there is
    // one reply.
    for body in [reint, reint, resent] {
        send(rpc.lnet(), Nid::LO, 12, xid, &Message::new(&body, [])).await;
    }
    assert_eq!(next_reply(&mut buffer).await.1.body().unwrap().pb_transno, 41);
    assert!(
        timeout(Duration::from_secs(5), next_reply(&mut buffer))
            .await
            .is_err()
    );
    drop(buffer);
    // A resend after the execution gets the same reply. A duplicate without `MSG_RESENT` is
    // refused.
    assert_eq!(
        send_and_wait(&rpc, xid, &Message::new(&resent, []))
            .await
            .1
            .pb_transno,
        41
    );
    assert_eq!(
        send_and_wait(&rpc, xid, &Message::new(&reint, []))
            .await
            .1
            .pb_status,
        Errno::ENOTCONN.status()
    );
    assert_eq!(target.executed(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_duplicate_of_a_request_in_progress_is_not_executed() {
    let rpc = node(6);
    let target = TestTarget::new(MDT, |_| Box::pin(async { Err(Errno::EINPROGRESS) }));
    rpc.add_target(target.clone());
    let handle = connect(&rpc).await;
    let reint = PtlrpcBody {
        pb_tag: 1,
        ..body(wire::MDS_REINT, wire::LUSTRE_MDS_VERSION, handle)
    };
    let resent = PtlrpcBody {
        pb_flags: MSG_RESENT,
        ..reint
    };
    let status = async |xid: u64, body: &PtlrpcBody| {
        let (_, reply) = send_and_wait(&rpc, xid, &Message::new(body, [])).await;
        Errno::from_status(reply.pb_status)
    };
    let xid = 1 << 40;
    assert_eq!(status(xid, &reint).await, Some(Errno::EINPROGRESS));
    // The client waits before it sends the request with a new xid, unless it lacks the reply.
    assert_eq!(status(xid, &reint).await, Some(Errno::ENOTCONN));
    assert_eq!(status(xid, &resent).await, Some(Errno::EINPROGRESS));
    assert_eq!(target.executed(), 1);
    assert_eq!(status(xid + 128, &reint).await, Some(Errno::EINPROGRESS));
    assert_eq!(target.executed(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_late_duplicate_of_a_message_between_mdts_is_not_executed() {
    let rpc = node(7);
    let target = TestTarget::new(MDT, |req| {
        let is_busy = req.xid.0 == 1 << 41;
        Box::pin(async move { (!is_busy).then(Reply::default).ok_or(Errno::EBUSY) })
    });
    rpc.add_target(target.clone());
    let handle = connect(&rpc).await;
    // Such messages have no slot.
    let message = body(wire::OUT_UPDATE, wire::LUSTRE_MDS_VERSION, handle);
    let message = Message::new(&message, []);
    for (xid, status) in [(1 << 40, 0), (1 << 41, Errno::EBUSY.status())] {
        assert_eq!(send_and_wait(&rpc, xid, &message).await.1.pb_status, status);
        let again = send_and_wait(&rpc, xid, &message).await.1.pb_status;
        assert_eq!(again, Errno::ENOTCONN.status());
    }
    assert_eq!(target.executed(), 2);
}

/// A server that grants all flags to every connect, requested or not.
struct OverGrantingServer(Arc<lnet::Lnet>);

impl PutSink for OverGrantingServer {
    fn put(&self, incoming: IncomingPut) -> Result<(), SinkFull> {
        let lnet = self.0.clone();
        tokio::spawn(async move {
            let body = PtlrpcBody {
                pb_handle: LustreHandle { cookie: 1 },
                pb_type: PTL_RPC_MSG_REPLY,
                ..PtlrpcBody::default()
            };
            let data = ObdConnectData {
                ocd_connect_flags: u64::MAX,
                ..Default::default()
            };
            let reply = Message::new(&body, [data.to_bytes()]).build();
            lnet.put(
                incoming.from,
                10,
                incoming.match_bits,
                0,
                0,
                Payload::from(reply),
                false,
            )
            .await
            .unwrap();
        });
        Ok(())
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_refuses_flags_that_it_did_not_request() {
    let rpc = node(6);
    let _portal = rpc.lnet().serve_portal(
        wire::MDS_REQUEST_PORTAL,
        Arc::new(OverGrantingServer(rpc.lnet().clone())),
    );
    let owner = Arc::<RecordingOwner>::default();
    let import = Import::new(&rpc, import_config(MDT, ImportKind::Mdc, owner.clone()));
    let result = import.connect().await;
    assert!(matches!(result, Err(RpcError::Protocol { .. })), "{result:?}");
    assert_eq!(
        (import.state(), &owner.events.lock()[..]),
        (ImportState::Closed, &["closed"][..])
    );
}

/// A node with the MDT's service, which has the minimum of three slots and a queue of two requests.
async fn node_with_three_slots(seed: u64) -> Arc<Ptlrpc> {
    let cpts = cpt::CptTable::single_current();
    let lnet = lnet::Lnet::new(cpts.clone(), lnet::LnetConfig::default());
    let rpc = Ptlrpc::start(
        lnet,
        cpts,
        rpc::RpcConfig {
            seed,
            ..Default::default()
        },
    );
    let mdt = ServiceConfig::new("mdt", wire::MDS_REQUEST_PORTAL, (1, 1, 1, 0), Spread::All);
    rpc.serve(&[ServiceConfig { queue: 2, ..mdt }]).unwrap();
    rpc
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_stalls_senders_and_loses_nothing() {
    let rpc = node_with_three_slots(7).await;
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_millis(100)).await;
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let import = import.clone();
            tokio::spawn(async move { import.call(Request::new(wire::MDS_STATFS, Vec::new())).await })
        })
        .collect();
    sleep(Duration::from_millis(50)).await;
    let stats = rpc.stats();
    let mdt = stats.iter().find(|s| s.name == "mdt").unwrap();
    assert_eq!((mdt.queued, mdt.active), (2, mdt.threads));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        (target.executed(), &owner.events.lock()[..]),
        (40, &["connected"][..])
    );
}

#[tokio::test(start_paused = true)]
async fn queued_requests_get_early_replies_and_pings_pass_them() {
    let rpc = node_with_three_slots(8).await;
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_secs(50)).await;
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let import = import.clone();
            tokio::spawn(async move { import.call(Request::new(wire::MDS_STATFS, Vec::new())).await })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    let ping = Request {
        timeout: Some(Duration::from_secs(1)),
        ..Request::new(wire::OBD_PING, Vec::new())
    };
    assert_eq!(import.call(ping).await.unwrap().status, 0);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        (target.executed(), &owner.events.lock()[..]),
        (5, &["connected"][..])
    );
    assert!(rpc.stats().iter().any(|s| s.name == "mdt" && s.early > 0));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_neither_panics_nor_stops_a_service(
        junk in proptest::collection::vec(any::<u8>(), 0..400),
        offset in 0usize..400,
        portal in proptest::sample::select(vec![12u32, 17, 15]),
        opc in proptest::sample::select(vec![38u32, 39, 400, 36, 101, 103, 104, 3]),
        raw in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let answered = runtime.block_on(async {
            let rpc = node(9);
            rpc.add_target(EchoTarget::new(MDT));
            let handle = connect(&rpc).await;
            let version = if opc == 38 || opc == 39 || opc == 400 { wire::LUSTRE_OBD_VERSION } else { wire::LUSTRE_MDS_VERSION };
            let mut bytes = Message::new(&body(opc, version, handle), [Bytes::from(junk.clone())]).build().to_vec();
            for (to, from) in bytes.iter_mut().skip(offset).zip(&junk) {
                *to = *from;
            }
            if raw {
                bytes = junk;
            }
            rpc.lnet().put(Nid::LO, portal, 1 << 40, 0, 0, Payload::from(bytes), false).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
            import.call(Request::new(wire::MDS_STATFS, Vec::new())).await
        });
        prop_assert!(answered.is_ok());
    }
}
