//! Exchanges between imports and targets of one node, over `lo`, in virtual time.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use lnet::Payload;
use rpc::{Bulk, Import, ImportKind, ImportState, Reply, Request, RpcError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testbase::by_hand::{MDT, OST, TestTarget, text};
use testbase::rpc_node::{EchoTarget, RecordingOwner, client, import_config, node};
use tokio::time::{Instant, sleep};
use wire::{Errno, MDS_REINT, OST_READ, OST_WRITE, Transno};

#[tokio::test(start_paused = true)]
async fn a_call_returns_the_reply() {
    let rpc = node(1);
    rpc.add_target(EchoTarget::new(MDT));
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let reply = import
        .call(Request::new(wire::MDS_GETATTR, text("hello")))
        .await
        .unwrap();
    assert_eq!((reply.status, reply.buf(1)), (0, &b"hello"[..]));
    let started_at = Instant::now();
    import.disconnect().await;
    assert!(
        started_at.elapsed() < Duration::from_millis(100),
        "the disconnect is answered"
    );
    assert_eq!(*owner.events.lock(), ["connected", "closed"]);
    assert_eq!(import.state(), ImportState::Closed);
    let result = import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await;
    assert!(matches!(result, Err(RpcError::Closed(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_connection_in_progress() {
    let rpc = node(4);
    rpc.add_target(EchoTarget::new(MDT));
    let import = Import::new(
        &rpc,
        import_config(MDT, ImportKind::Mdc, Arc::<RecordingOwner>::default()),
    );
    import.start_connecting();
    let reply = import
        .call(Request::new(wire::MDS_GETATTR, text("early")))
        .await
        .unwrap();
    assert_eq!(reply.buf(1), b"early");
    import.disconnect().await;
}

#[tokio::test(start_paused = true)]
async fn only_requested_flags_are_granted() {
    let rpc = node(2);
    // The target would grant all flags.
    rpc.add_target(TestTarget::new(MDT, |_| Box::pin(async { Ok(Reply::default()) })));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let data = import.connect_data();
    assert_eq!(
        data.ocd_connect_flags
            & !(wire::OBD_CONNECT_FULL20
                | wire::OBD_CONNECT_AT
                | wire::OBD_CONNECT_BULK_MBITS
                | wire::OBD_CONNECT_FLAGS2),
        0
    );
    assert_eq!(data.ocd_connect_flags2, wire::OBD_CONNECT2_REP_MBITS);
}

#[tokio::test(start_paused = true)]
async fn connecting_to_an_absent_target_fails_and_is_retried() {
    let rpc = node(3);
    let owner = Arc::<RecordingOwner>::default();
    let import = Import::new(&rpc, import_config(MDT, ImportKind::Mdc, owner.clone()));
    assert!(matches!(
        import.connect().await,
        Err(RpcError::Status(Errno::ENODEV))
    ));
    let no_delay = Request {
        no_delay: true,
        ..Request::new(wire::MDS_GETATTR, Vec::new())
    };
    assert!(import.call(no_delay).await.is_err());
    rpc.add_target(EchoTarget::new(MDT));
    assert_eq!(
        import
            .call(Request::new(wire::MDS_GETATTR, Vec::new()))
            .await
            .unwrap()
            .status,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn bulk_moves_in_both_directions_over_three_mds() {
    let rpc = node(4);
    rpc.add_target(TestTarget::new(OST, |req| {
        Box::pin(async move {
            assert_eq!(req.bulk_mds(4), 3);
            match req.opc {
                OST_WRITE => {
                    let data = req.bulk_get(wire::OST_BULK_PORTAL, &[4, 4, 2]).await?;
                    Ok(Reply::new(data.into_iter().map(Payload::into_bytes).collect()))
                }
                _ => {
                    let mds = [&b"abc"[..], b"", b"de"].map(|md| Payload::from(Bytes::from_static(md)));
                    req.bulk_put(wire::OST_BULK_PORTAL, mds.into()).await?;
                    Ok(Reply::status(5))
                }
            }
        })
    }));
    let (import, _) = client(&rpc, OST, ImportKind::Osc).await;
    let source = [&b"0123"[..], b"4567", b"89"].map(|md| Payload::from(Bytes::from_static(md)));
    let write = Request::new(OST_WRITE, Vec::new()).with_bulk(Bulk::Source(source.into()));
    let reply = import.call(write).await.unwrap();
    assert_eq!([reply.buf(1), reply.buf(2), reply.buf(3)].concat(), b"0123456789");
    let read = Request::new(OST_READ, Vec::new()).with_bulk(Bulk::Sink(vec![4096, 4096, 4096]));
    let reply = import.call(read).await.unwrap();
    let lens: Vec<usize> = reply.bulk.iter().map(Payload::len).collect();
    assert_eq!((reply.status, lens), (5, vec![3, 0, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_reply_was_lost_is_executed_once() {
    let rpc = node(5);
    let count = Arc::new(AtomicU64::new(100));
    let target = TestTarget::new(MDT, move |_| {
        let transno = count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(Reply::new(text("made")).with_transno(Transno(transno))) })
    });
    rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    rpc.faults().lose_replies(MDS_REINT, 2);
    let started_at = Instant::now();
    let reply = import
        .call(Request::modifying(MDS_REINT, Vec::new()))
        .await
        .unwrap();
    assert_eq!(
        (reply.buf(1), reply.body.pb_transno, target.executed()),
        (&b"made"[..], 100, 1)
    );
    assert_eq!(
        *owner.events.lock(),
        [
            "connected",
            "disconnected",
            "connected",
            "disconnected",
            "connected"
        ]
    );
    assert!(started_at.elapsed() < Duration::from_secs(40));
    assert_eq!((import.uncommitted(), import.last_committed()), (1, Transno(40)));
}

#[tokio::test(start_paused = true)]
async fn an_early_reply_extends_the_deadline_of_a_slow_request() {
    let rpc = node(6);
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_secs(200)).await;
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    import
        .call(Request::new(wire::LDLM_ENQUEUE, Vec::new()))
        .await
        .unwrap();
    assert_eq!(
        (target.executed(), &owner.events.lock()[..]),
        (1, &["connected"][..])
    );
}

#[tokio::test(start_paused = true)]
async fn an_evicted_client_reconnects() {
    let rpc = node(7);
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_secs(3)).await;
            Ok(Reply::default())
        })
    });
    let exports = rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let slow = tokio::spawn({
        let import = import.clone();
        async move { import.call(Request::new(wire::MDS_STATFS, Vec::new())).await }
    });
    sleep(Duration::from_secs(1)).await;
    exports.all()[0].evict("the test says so").await;
    let result = import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await;
    assert!(matches!(result, Err(RpcError::Evicted(_))), "{result:?}");
    assert!(matches!(slow.await.unwrap(), Err(RpcError::Evicted(_))));
    assert_eq!(
        import
            .call(Request::new(wire::MDS_GETATTR, Vec::new()))
            .await
            .unwrap()
            .status,
        0
    );
    assert_eq!(
        *owner.events.lock(),
        ["connected", "disconnected", "evicted", "connected"]
    );
    assert_eq!(*target.gone.lock().unwrap(), [true]);
    // The request in execution ended after the eviction and may have left locks behind, so the
    // server calls `Target::last_request_done`.
    assert_eq!(target.last_done.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_from_before_an_eviction_is_not_sent_after_it() {
    let rpc = node(18);
    let target = TestTarget::new(OST, |_| Box::pin(async { Ok(Reply::default()) }));
    let exports = rpc.add_target(target.clone());
    let (import, _) = client(&rpc, OST, ImportKind::Osc).await;
    let depending_on = |evictions| Request {
        evictions: Some(evictions),
        ..Request::new(OST_WRITE, Vec::new())
    };
    let before = import.evictions();
    import.call(depending_on(before)).await.unwrap();
    exports.all()[0].evict("the test says so").await;
    assert!(import.call(Request::new(OST_READ, Vec::new())).await.is_err());
    import.call(Request::new(OST_READ, Vec::new())).await.unwrap();
    let executed = target.executed();
    let result = import.call(depending_on(before)).await;
    assert!(matches!(result, Err(RpcError::Evicted(_))), "{result:?}");
    assert_eq!(target.executed(), executed);
    import.call(depending_on(import.evictions())).await.unwrap();
}

/// After an eviction a request that has not begun its change fails. A change in progress ends
/// before the target drops the client's locks.
#[tokio::test(start_paused = true)]
async fn an_eviction_waits_for_a_change_under_the_clients_locks() {
    let rpc = node(19);
    let changed = Arc::new(AtomicU64::new(0));
    let counter = changed.clone();
    let target = TestTarget::new(OST, move |req| {
        let changed = counter.clone();
        Box::pin(async move {
            let time_before_change = Duration::from_secs(if req.opc == OST_WRITE { 0 } else { 2 });
            sleep(time_before_change).await;
            let _change = req.export.change()?;
            sleep(Duration::from_secs(3)).await;
            changed.fetch_add(1, Ordering::SeqCst);
            Ok(Reply::default())
        })
    });
    let exports = rpc.add_target(target.clone());
    let (import, _) = client(&rpc, OST, ImportKind::Osc).await;
    for opc in [OST_WRITE, wire::OST_PUNCH] {
        let import = import.clone();
        tokio::spawn(async move { import.call(Request::new(opc, Vec::new())).await });
    }
    sleep(Duration::from_secs(1)).await;
    let started_at = Instant::now();
    exports.all()[0].evict("the test says so").await;
    assert_eq!(
        started_at.elapsed(),
        Duration::from_secs(2),
        "the end of the change"
    );
    assert_eq!(changed.load(Ordering::SeqCst), 1);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        changed.load(Ordering::SeqCst),
        1,
        "a change cannot begin after the eviction"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_with_bulk_detects_an_eviction() {
    let rpc = node(17);
    let exports = rpc.add_target(EchoTarget::new(OST));
    let (import, _) = client(&rpc, OST, ImportKind::Osc).await;
    exports.all()[0].evict("the test says so").await;
    let started_at = Instant::now();
    let read = Request::new(OST_READ, Vec::new()).with_bulk(Bulk::Sink(vec![4096; 2]));
    assert!(matches!(import.call(read).await, Err(RpcError::Evicted(_))));
    assert!(started_at.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn clients_of_a_restarted_server_are_evicted() {
    let rpc = node(8);
    rpc.add_target(EchoTarget::new(MDT));
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    rpc.remove_target(MDT).await;
    let call = tokio::spawn({
        let import = import.clone();
        async move { import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await }
    });
    sleep(Duration::from_secs(60)).await;
    assert_eq!(import.state(), ImportState::Discon);
    rpc.add_target(EchoTarget::new(MDT));
    assert!(matches!(call.await.unwrap(), Err(RpcError::Evicted(_))));
    import
        .call(Request::new(wire::MDS_GETATTR, Vec::new()))
        .await
        .unwrap();
    assert_eq!(
        *owner.events.lock(),
        ["connected", "disconnected", "evicted", "connected"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_committed_open_with_a_guard_does_not_count_as_uncommitted() {
    let rpc = node(10);
    rpc.add_target(TestTarget::new(MDT, |_| {
        Box::pin(async { Ok(Reply::default().with_transno(Transno(40))) })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let open = Request {
        keep_until_closed: true,
        ..Request::modifying(MDS_REINT, Vec::new())
    };
    let reply = import.call(open).await.unwrap();
    assert!(reply.uncommitted_guard.is_some());
    assert_eq!(import.uncommitted(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_sends_callbacks_to_its_client() {
    let rpc = node(11);
    let exports = rpc.add_target(EchoTarget::new(OST));
    let (import, owner) = client(&rpc, OST, ImportKind::Osc).await;
    let export = exports.client("00000000-0000-4000-8000-000000000001").unwrap();
    let limit = Duration::from_secs(20);
    let reply = export
        .callback(wire::LDLM_BL_CALLBACK, text("lock"), limit)
        .await
        .unwrap();
    assert_eq!(reply.buf(1), b"lock");
    assert_eq!(*owner.callbacks.lock(), [wire::LDLM_BL_CALLBACK]);
    import.disconnect().await;
    assert!(export.is_gone());
    let result = export.callback(wire::LDLM_BL_CALLBACK, text("lock"), limit).await;
    assert!(matches!(result, Err(RpcError::Closed(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn slots_limit_requests_in_flight() {
    let rpc = node(12);
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async {
            sleep(Duration::from_millis(10)).await;
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let concurrent_max = async |make: fn() -> Request, n: usize| {
        target.running_max.store(0, Ordering::SeqCst);
        let calls: Vec<_> = (0..n)
            .map(|_| {
                let import = import.clone();
                tokio::spawn(async move { import.call(make()).await.unwrap() })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        target.running_max.load(Ordering::SeqCst)
    };
    assert_eq!(
        concurrent_max(|| Request::new(wire::LDLM_ENQUEUE, Vec::new()), 50).await,
        8
    );
    // The client did not request several modifying requests in flight, so it sends one at a time.
    assert_eq!(
        concurrent_max(|| Request::modifying(MDS_REINT, Vec::new()), 10).await,
        1
    );
    assert_eq!(
        concurrent_max(|| Request::new(wire::LDLM_CANCEL, Vec::new()), 20).await,
        20
    );
    // A close does not wait for a modifying request: it has one extra slot.
    target.running_max.store(0, Ordering::SeqCst);
    let reint = import.call(Request::modifying(MDS_REINT, Vec::new()));
    let close = import.call(Request::modifying(wire::MDS_CLOSE, Vec::new()));
    let (reint, close) = tokio::join!(reint, close);
    assert!(reint.is_ok() && close.is_ok(), "{close:?}");
    assert_eq!(target.running_max.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_truncated_reply_is_requested_again() {
    let rpc = node(13);
    let target = TestTarget::new(MDT, |_| {
        Box::pin(async { Ok(Reply::new(vec![Bytes::from(vec![7; 100_000])])) })
    });
    rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let reply = import
        .call(Request {
            reply_len: 10,
            ..Request::modifying(MDS_REINT, Vec::new())
        })
        .await
        .unwrap();
    assert_eq!((reply.buf(1).len(), target.executed()), (100_000, 1));
    assert_eq!(*owner.events.lock(), ["connected"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_answered_with_einprogress_is_retried() {
    let rpc = node(14);
    let attempts = Arc::new(AtomicU64::new(0));
    rpc.add_target(TestTarget::new(MDT, move |_| {
        let n = attempts.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if n < 3 {
                Err(Errno::EINPROGRESS)
            } else {
                Ok(Reply::status(n as i32))
            }
        })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    assert_eq!(
        import
            .call(Request::modifying(MDS_REINT, Vec::new()))
            .await
            .unwrap()
            .status,
        3
    );
}

#[tokio::test(start_paused = true)]
async fn failed_bulk_has_no_reply_and_is_retried() {
    let rpc = node(15);
    let attempts = Arc::new(AtomicU64::new(0));
    let target = TestTarget::new(OST, move |req| {
        let n = attempts.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            // The first attempt uses a portal that the client has not attached to.
            let portal = if n == 0 {
                wire::MDS_BULK_PORTAL
            } else {
                wire::OST_BULK_PORTAL
            };
            let data = req.bulk_get(portal, &[5]).await?;
            Ok(Reply::new(data.into_iter().map(Payload::into_bytes).collect()))
        })
    });
    rpc.add_target(target.clone());
    let (import, _) = client(&rpc, OST, ImportKind::Osc).await;
    let source = vec![Payload::from(Bytes::from_static(b"bytes"))];
    let write = Request::new(OST_WRITE, Vec::new()).with_bulk(Bulk::Source(source));
    assert_eq!(import.call(write).await.unwrap().buf(1), b"bytes");
    assert_eq!(target.executed(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_timeout() {
    let rpc = node(16);
    rpc.add_target(TestTarget::new(MDT, |_| Box::pin(std::future::pending())));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let limited = Request {
        timeout: Some(Duration::from_secs(4)),
        ..Request::new(wire::MDS_STATFS, Vec::new())
    };
    let started_at = Instant::now();
    assert!(matches!(import.call(limited).await, Err(RpcError::Timeout(_))));
    assert!(started_at.elapsed() < Duration::from_secs(5));
    assert_eq!(import.in_flight(), 0);
}

#[test]
fn every_request_is_executed_once_despite_losses() {
    for seed in 0..20 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(check_with_losses(seed));
    }
}

async fn check_with_losses(seed: u64) {
    const CALLS: u64 = 60;
    let rpc = node(seed);
    let executed_names = Arc::new(std::sync::Mutex::new(Vec::new()));
    let target = TestTarget::new(MDT, {
        let executed_names = executed_names.clone();
        move |req| {
            let name = req.bytes(1);
            executed_names.lock().unwrap().push(name.clone());
            Box::pin(async move {
                sleep(Duration::from_millis(u64::from(name[0]) * 200)).await;
                Ok(Reply::new(vec![name]).with_transno(Transno(41)))
            })
        }
    });
    rpc.add_target(target.clone());
    let owner = Arc::<RecordingOwner>::default();
    let mut cfg = import_config(MDT, ImportKind::Mdc, owner.clone());
    cfg.connect.ocd_connect_flags = wire::OBD_CONNECT_MULTIMODRPCS;
    let import = Import::new(&rpc, cfg);
    import.connect().await.unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut calls = Vec::new();
    for i in 0..CALLS {
        match random.u64(..6) {
            0 => rpc.faults().lose_replies(MDS_REINT, 1),
            1 => rpc.faults().lose_requests(MDS_REINT, 1),
            2 => rpc.faults().lose_replies(wire::MDS_CONNECT, 1),
            _ => {}
        }
        sleep(Duration::from_millis(random.u64(..4000))).await;
        let import = import.clone();
        calls.push(tokio::spawn(async move {
            let name = Bytes::copy_from_slice(&[i as u8]);
            let reply = import
                .call(Request::modifying(MDS_REINT, vec![name.clone()]))
                .await
                .unwrap();
            assert_eq!(reply.buf(1), &name[..]);
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
    let mut executed_names = executed_names.lock().unwrap().clone();
    executed_names.sort_unstable();
    let all: Vec<Bytes> = (0..CALLS).map(|i| Bytes::copy_from_slice(&[i as u8])).collect();
    assert_eq!(executed_names, all, "seed {seed}");
    assert!(target.running_max.load(Ordering::SeqCst) <= 3, "seed {seed}");
    assert!(!owner.events.lock().contains(&"evicted"), "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn evict_client_refuses_the_clients_requests_at_once() {
    let params = params::Registry::default();
    let rpc = node(9);
    let exports = rpc.add_target(EchoTarget::new(MDT));
    let _shown = params.register("mdt.evict_client", exports.param_evict_client());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    let export = exports.all().remove(0);
    params.set("mdt.evict_client", &export.client_uuid).unwrap();
    assert!(export.is_gone(), "at once, before another task runs");
    let result = import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await;
    assert!(matches!(result, Err(RpcError::Evicted(_))), "{result:?}");
    import
        .call(Request::new(wire::MDS_GETATTR, Vec::new()))
        .await
        .unwrap();
    assert!(owner.events.lock().contains(&"evicted"));
    for form in ["nid:", ""] {
        let export = exports.all().remove(0);
        let client = format!("{form}{}", export.peer());
        params.set("mdt.evict_client", &client).unwrap();
        assert!(export.is_gone(), "{client}");
        let result = import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await;
        assert!(
            matches!(result, Err(RpcError::Evicted(_))),
            "{client}: {result:?}"
        );
        import
            .call(Request::new(wire::MDS_GETATTR, Vec::new()))
            .await
            .unwrap();
    }
    let unknown = params.set("mdt.evict_client", "10.9.9.9@tcp").unwrap_err();
    assert!(
        unknown.to_string().contains("no client '10.9.9.9@tcp'"),
        "{unknown}"
    );
    import.disconnect().await;
}
