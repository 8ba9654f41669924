//! Two nodes over TCP on loopback addresses, in real time.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, Payload};
use rpc::{
    Bulk, Import, ImportKind, ImportState, Ptlrpc, Reply, Request, RpcConfig, RpcError, TargetExports,
    services,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testbase::by_hand::{TestTarget, connect_to};
use testbase::over_tcp::{addresses, forced_partitions, import, nid_maker, node, node_on};
use testbase::rpc_node::{EchoTarget, RecordingOwner, import_config};
use wire::{
    Errno, MDS_GETATTR, Nid, OBD_CONNECT_FULL20, OBD_CONNECT_MDS, OST_READ, OST_WRITE, ObdConnectData,
};

const MDT: &str = "testfs-MDT0000_UUID";
const OST: &str = "testfs-OST0000_UUID";
const MIB: usize = 1 << 20;
/// Time limit of each wait, with a margin for a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A MiB of bytes that depend on `seed` and on their position.
fn pattern(seed: usize) -> Bytes {
    (0..MIB)
        .map(|i| (i * 31 + seed) as u8)
        .collect::<Vec<u8>>()
        .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn megabytes_of_bulk_arrive_unchanged() {
    let (server_nid, client_nid) = addresses();
    let (server, client) = (node(server_nid, 1).await, node(client_nid, 2).await);
    let all: Vec<Payload> = (0..3).map(|i| Payload::from(pattern(i))).collect();
    let stored = all.clone();
    server.add_target(TestTarget::new(OST, move |req| {
        let stored = stored.clone();
        Box::pin(async move {
            if req.opc == OST_READ {
                req.bulk_put(wire::OST_BULK_PORTAL, stored).await?;
                return Ok(Reply::status(3 * MIB as i32));
            }
            let received = req.bulk_get(wire::OST_BULK_PORTAL, &[MIB as u32; 3]).await?;
            let same = received
                .into_iter()
                .zip(stored)
                .all(|(a, b)| a.into_bytes() == b.into_bytes());
            Ok(Reply::status(i32::from(same)))
        })
    }));
    let (import, _) = import(&client, server_nid, OST, ImportKind::Osc).await;
    let write = Request::new(OST_WRITE, Vec::new()).with_bulk(Bulk::Source(all.clone()));
    assert_eq!(import.call(write).await.unwrap().status, 1);
    let read = Request::new(OST_READ, Vec::new()).with_bulk(Bulk::Sink(vec![MIB as u32; 3]));
    let reply = import.call(read).await.unwrap();
    assert_eq!(reply.status, 3 * MIB as i32);
    for (got, sent) in reply.bulk.into_iter().zip(all) {
        assert!(got.into_bytes() == sent.into_bytes());
    }
    import.disconnect().await;
    client.lnet().shutdown().await;
    server.lnet().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_takes_its_uuid_from_a_client_and_no_client_takes_it_back() {
    const NAME: &str = "testfs-MDT0000-mdtlov_UUID";
    let nid = nid_maker();
    let (server, mdt, client) = (
        node(nid(1), 1).await,
        node(nid(2), 2).await,
        node(nid(3), 3).await,
    );
    let target = TestTarget::new(MDT, |_| Box::pin(async { Ok(Reply::default()) }));
    *target.server_nid.lock().unwrap() = Some(nid(2));
    let exports = server.add_target(target.clone());
    let connect = async |rpc: &Arc<rpc::Ptlrpc>, cookie: u64, conn_cnt: u32, flags: u64| {
        let requested = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_FULL20 | flags,
            ..ObdConnectData::default()
        };
        let claim = (cookie, conn_cnt, true);
        let (_, body, _) = connect_to(rpc.lnet(), nid(1), MDT, NAME, claim, requested).await;
        body.pb_status
    };
    let holder = || -> (Nid, bool) {
        let export = exports.client(NAME).unwrap();
        (export.peer(), export.is_server())
    };
    // The client connects first. Its claim to be a server has no effect.
    assert_eq!(connect(&client, 5, 1, OBD_CONNECT_MDS).await, 0);
    assert_eq!(holder(), (nid(3), false));
    assert_eq!(connect(&mdt, 6, 2, OBD_CONNECT_MDS).await, 0);
    assert_eq!(holder(), (nid(2), true));
    let evictions = || target.gone.lock().unwrap().clone();
    assert_eq!(evictions(), [true]);
    for flags in [OBD_CONNECT_MDS, 0] {
        for (cookie, conn_cnt) in [(5, 3), (7, 4)] {
            let status = connect(&client, cookie, conn_cnt, flags).await;
            assert_eq!(status, Errno::EALREADY.status());
        }
    }
    assert_eq!((holder(), evictions()), ((nid(2), true), vec![true]));
    // A restarted server takes the UUID from its earlier instance.
    assert_eq!(connect(&mdt, 8, 5, OBD_CONNECT_MDS).await, 0);
    assert_eq!(holder(), (nid(2), true));
    for rpc in [client, mdt, server] {
        rpc.lnet().shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_found_and_evicts_the_client() {
    let (server_nid, client_nid) = addresses();
    let (server, client) = (node(server_nid, 1).await, node(client_nid, 2).await);
    server.add_target(EchoTarget::new(MDT));
    let (import, owner) = import(&client, server_nid, MDT, ImportKind::Mdc).await;
    import.call(Request::new(MDS_GETATTR, Vec::new())).await.unwrap();
    let stopped_at = Instant::now();
    server.shutdown().await;
    server.lnet().shutdown().await;
    drop(server);
    let waiting = tokio::spawn({
        let import = import.clone();
        let request = Request {
            timeout: Some(10 * LIMIT),
            ..Request::new(MDS_GETATTR, Vec::new())
        };
        async move { import.call(request).await }
    });
    let server = node(server_nid, 3).await;
    server.add_target(EchoTarget::new(MDT));
    let result = waiting.await.unwrap();
    assert!(matches!(result, Err(RpcError::Evicted(_))), "{result:?}");
    import.call(Request::new(MDS_GETATTR, Vec::new())).await.unwrap();
    // The lost connection is detected at once, without a timeout.
    assert!(stopped_at.elapsed() < LIMIT, "{:?}", stopped_at.elapsed());
    assert_eq!(
        *owner.events.lock(),
        ["connected", "disconnected", "evicted", "connected"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_to_an_absent_node_fails_within_the_limit_with_the_reason() {
    let (server_nid, client_nid) = addresses();
    let client = node(client_nid, 2).await;
    let owner = Arc::<RecordingOwner>::default();
    let cfg = import_config(MDT, ImportKind::Mdc, owner.clone());
    let import = Import::new(
        &client,
        rpc::ImportConfig {
            nids: vec![server_nid],
            ..cfg
        },
    );
    let started_at = Instant::now();
    let error = import.connect().await.unwrap_err();
    assert!(error.to_string().contains("cannot connect"), "{error}");
    assert!(started_at.elapsed() < LIMIT);
    import.disconnect().await;
    assert_eq!(import.state(), ImportState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_over_tcp_gets_a_reply() {
    let (server_nid, client_nid) = addresses();
    let (server, client) = (node(server_nid, 1).await, node(client_nid, 2).await);
    let exports = server.add_target(EchoTarget::new(OST));
    let (import, owner) = import(&client, server_nid, OST, ImportKind::Osc).await;
    let export = exports.all().remove(0);
    assert_eq!(export.peer(), client_nid);
    let content = vec![Bytes::from_static(b"lock")];
    let reply = export
        .callback(wire::LDLM_GL_CALLBACK, content, LIMIT)
        .await
        .unwrap();
    assert_eq!(
        (reply.buf(1), &owner.callbacks.lock()[..]),
        (&b"lock"[..], &[wire::LDLM_GL_CALLBACK][..])
    );
    import.disconnect().await;
}

#[test]
fn thousands_of_requests_cross_partitions() {
    let (server_cpts, client_cpts) = (forced_partitions(2), forced_partitions(2));
    let (server_nid, client_nid) = addresses();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = node_on(
            server_cpts.clone(),
            server_nid,
            RpcConfig {
                seed: 1,
                ..RpcConfig::default()
            },
        )
        .await;
        let client = node_on(
            client_cpts.clone(),
            client_nid,
            RpcConfig {
                seed: 2,
                ..RpcConfig::default()
            },
        )
        .await;
        server.add_target(EchoTarget::new(MDT));
        let (import, owner) = import(&client, server_nid, MDT, ImportKind::Mdc).await;
        let calls: Vec<_> = (0..32u32)
            .map(|task| {
                let import = import.clone();
                client
                    .cpts()
                    .get(cpt::CptId(task as usize % 2))
                    .spawn(async move {
                        for i in 0..100u32 {
                            let name = Bytes::copy_from_slice(&(task * 1000 + i).to_le_bytes());
                            let reply = import
                                .call(Request::new(wire::MDS_STATFS, vec![name.clone()]))
                                .await
                                .unwrap();
                            assert_eq!(reply.buf(1), &name[..]);
                        }
                    })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(*owner.events.lock(), ["connected"]);
        import.disconnect().await;
        client.lnet().shutdown().await;
        server.lnet().shutdown().await;
    });
    server_cpts.shutdown();
    client_cpts.shutdown();
}

/// A server with two targets and a short `unreachable_timeout`.
async fn server_with_short_timeout(nid: Nid) -> (Arc<Ptlrpc>, [Arc<TargetExports>; 2]) {
    let config = RpcConfig {
        seed: 1,
        unreachable_timeout: Duration::from_secs(1),
        ..RpcConfig::default()
    };
    let server = node_on(CptTable::single_current(), nid, config).await;
    let exports = [MDT, OST].map(|uuid| server.add_target(EchoTarget::new(uuid)));
    (server, exports)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_client_that_owes_a_reply_is_evicted_from_all_targets() {
    let (server_nid, client_nid) = addresses();
    let (_server, targets) = server_with_short_timeout(server_nid).await;
    {
        let client = node(client_nid, 2).await;
        import(&client, server_nid, MDT, ImportKind::Mdc).await;
        import(&client, server_nid, OST, ImportKind::Osc).await;
        assert!(targets.iter().all(|target| target.len() == 1));
        // The client does not disconnect, as if its process had died.
        client.lnet().shutdown().await;
    }
    let export = targets[0].all().remove(0);
    let answer = export.callback(wire::LDLM_BL_CALLBACK, Vec::new(), LIMIT).await;
    assert!(matches!(answer, Err(RpcError::Closed(_))), "{answer:?}");
    while targets.iter().any(|target| !target.is_empty()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_but_slow_client_is_not_evicted_as_unreachable() {
    let (server_nid, client_nid) = addresses();
    let (_server, targets) = server_with_short_timeout(server_nid).await;
    let client = node(client_nid, 2).await;
    let (_import, _) = import(&client, server_nid, MDT, ImportKind::Mdc).await;
    let export = targets[0].all().remove(0);
    // The client answers LNet pings, and cancels no lock for three times the unreachable timeout.
    for _ in 0..30 {
        export.report_blocking();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!export.is_gone());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_from_before_a_restart_do_not_block_new_connects() {
    let (server_nid, client_nid) = addresses();
    let server = node(server_nid, 1).await;
    let target = server.add_target(EchoTarget::new(MDT));
    let data = wire::ObdConnectData {
        ocd_connect_flags: wire::OBD_CONNECT_FULL20,
        ..Default::default()
    };
    let first_boot = node(client_nid, 2).await;
    let connect = async |node: &Arc<Ptlrpc>, n: u32| {
        let (uuid, claim) = (format!("client-{n}"), (u64::from(n) + 1, n + 1, true));
        let (_, body, _) = connect_to(node.lnet(), server_nid, MDT, &uuid, claim, data).await;
        body.pb_status
    };
    for n in 0..1024 {
        assert_eq!(connect(&first_boot, n).await, 0, "client {n}");
    }
    assert_ne!(
        connect(&first_boot, 1024).await,
        0,
        "a peer may have 1024 clients"
    );
    first_boot.lnet().shutdown().await;
    let second_boot = node(client_nid, 3).await;
    assert_eq!(connect(&second_boot, 1025).await, 0);
    assert_eq!(target.len(), 1, "the clients from before the restart are evicted");
    // After another restart the peer has few clients, so a connect evicts no earlier export. But
    // the server evicts an export from before the restart if it blocks others.
    second_boot.lnet().shutdown().await;
    let third_boot = node(client_nid, 4).await;
    assert_eq!(connect(&third_boot, 1026).await, 0);
    let earlier_export = target.client("client-1025").unwrap();
    while !earlier_export.is_gone() {
        earlier_export.report_blocking();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(target.client("client-1026").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_is_disconnected_unless_it_is_a_client() {
    let nid_of = nid_maker();
    let cpts = CptTable::single_current();
    let cfg = LnetConfig {
        accept_port: 7987,
        unused_peer_timeout: Duration::from_secs(1),
        ..LnetConfig::default()
    };
    let lnet = Lnet::new(cpts.clone(), cfg);
    lnet.add_tcp(nid_of(1), true).await.unwrap();
    let server = Ptlrpc::start(lnet, cpts, RpcConfig::default());
    server.serve(services::MDS).unwrap();
    server.add_target(EchoTarget::new(MDT));
    let (client, stranger) = (node(nid_of(2), 2).await, node(nid_of(3), 3).await);
    let (import, owner) = import(&client, nid_of(1), MDT, ImportKind::Mdc).await;
    let connected = |nid| {
        let peers = server.lnet().show_peers();
        peers.iter().any(|peer| peer.nid == nid && peer.connections > 0)
    };
    // Two rounds, so that the client has been silent for at least two checks.
    for _ in 0..2 {
        let started_at = Instant::now();
        // The node may not have noticed yet that its last connection was closed.
        while let Err(e) = stranger.lnet().ping(nid_of(1), LIMIT).await {
            assert!(started_at.elapsed() < LIMIT, "{e}");
        }
        while connected(nid_of(3)) {
            assert!(started_at.elapsed() < LIMIT, "the stranger stays connected");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(connected(nid_of(2)));
    import.call(Request::new(MDS_GETATTR, Vec::new())).await.unwrap();
    let events = owner.events.lock();
    assert_eq!(*events, ["connected"], "the client did not reconnect");
}
