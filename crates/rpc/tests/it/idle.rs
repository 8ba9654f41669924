//! Idle imports: they ping, or disconnect until the next request.
#![allow(clippy::unwrap_used)]

use rpc::{ImportKind, ImportState, Request};
use std::sync::atomic::Ordering;
use std::time::Duration;
use testbase::by_hand::{MDT, OST, text};
use testbase::rpc_node::{EchoTarget, client, node};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn an_idle_client_pings_and_a_silent_one_is_evicted() {
    let rpc = node(9);
    let target = EchoTarget::new(MDT);
    let exports = rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, MDT, ImportKind::Mdc).await;
    sleep(Duration::from_secs(1000)).await;
    assert_eq!((exports.len(), &owner.events.lock()[..]), (1, &["connected"][..]));
    drop(import);
    sleep(Duration::from_secs(6 * 25 + 2)).await;
    assert_eq!(exports.len(), 0);
    let evicted = target.gone.lock()[0].1;
    assert!(evicted);
}

#[tokio::test(start_paused = true)]
async fn an_unused_import_is_disconnected_until_the_next_request() {
    let rpc = node(31);
    let target = EchoTarget::new(OST);
    let exports = rpc.add_target(target.clone());
    let (import, owner) = client(&rpc, OST, ImportKind::Osc).await;
    import.set_idle_timeout(Some(Duration::from_secs(20)));
    owner.in_use.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(
        (exports.len(), import.state()),
        (1, ImportState::Full),
        "a lock is held"
    );

    owner.in_use.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(6)).await;
    assert_eq!((exports.len(), import.state()), (0, ImportState::Idle));
    let evicted = target.gone.lock()[0].1;
    assert!(!evicted, "the client disconnected");

    // A call with `no_delay` reconnects too, although it does not wait for an absent server.
    for no_delay in [false, true] {
        let request = Request {
            no_delay,
            ..Request::new(wire::OST_GETATTR, text("again"))
        };
        assert_eq!(import.call(request).await.unwrap().buf(1), b"again");
        assert_eq!((exports.len(), import.state()), (1, ImportState::Full));
        sleep(Duration::from_secs(19)).await;
        assert_eq!(import.state(), ImportState::Full);
        sleep(Duration::from_secs(2)).await;
        assert_eq!((exports.len(), import.state()), (0, ImportState::Idle));
    }
    assert_eq!(
        *owner.events.lock(),
        ["connected", "idle", "connected", "idle", "connected", "idle"]
    );
    import.disconnect().await;
    assert_eq!(import.state(), ImportState::Closed);
}

/// Tasks send requests at many moments before, during and after idle disconnects.
#[tokio::test(start_paused = true)]
async fn requests_during_an_idle_disconnect_are_answered() {
    let rpc = node(32);
    let exports = rpc.add_target(EchoTarget::new(OST));
    let (import, owner) = client(&rpc, OST, ImportKind::Osc).await;
    import.set_idle_timeout(Some(Duration::from_millis(20)));
    let tasks = (1..9u64).map(|task| {
        let import = import.clone();
        tokio::spawn(async move {
            for i in 1..101u64 {
                sleep(Duration::from_micros(i * task * 7_654_321 % 400_000)).await;
                let request = Request::new(wire::OST_GETATTR, text("here"));
                assert_eq!(import.call(request).await.unwrap().buf(1), b"here");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!((exports.len(), import.state()), (0, ImportState::Idle));
    let events = owner.events.lock();
    assert!(events.len() > 20, "{events:?}");
    assert!(
        events.chunks(2).all(|pair| pair == ["connected", "idle"]),
        "{events:?}"
    );
}
