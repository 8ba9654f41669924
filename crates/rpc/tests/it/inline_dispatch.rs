//! Requests over `lo` that the sender's thread handles inline until they wait.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::{MDT, Scripted, text};
use rpc::testing::{client, node};
use rpc::{Import, ImportKind, Reply, Request};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use wire::MDS_GETATTR;

/// The result of polling a future once.
fn now<F: Future>(f: F) -> Poll<F::Output> {
    pin!(f).poll(&mut Context::from_waker(Waker::noop()))
}

fn ask(what: &'static str) -> Request {
    Request::new(MDS_GETATTR, text(what))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_need_not_wait_is_answered_inline() {
    let rpc = node(1);
    rpc.add_target(Scripted::new(MDT, |_| Box::pin(async { Ok(Reply::default()) })));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    for _ in 0..100 {
        assert!(now(import.call(ask("anything"))).is_ready());
        // Tokio limits the work of one poll.
        tokio::task::yield_now().await;
    }
    import.disconnect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_does_not_stop_its_handler() {
    let rpc = node(2);
    let (go, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (wait, tell) = (go.clone(), done.clone());
    let target = Scripted::new(MDT, move |_| {
        let (wait, tell) = (wait.clone(), tell.clone());
        Box::pin(async move {
            wait.notified().await;
            tell.notify_one();
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    assert!(now(import.call(ask("something long"))).is_pending());
    assert_eq!(target.executed(), 1, "it has been begun");
    go.notify_one();
    done.notified().await;
    import.disconnect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_handler_does_not_reach_the_sender() {
    let rpc = node(3);
    rpc.add_target(Scripted::new(MDT, |req| {
        Box::pin(async move {
            assert_ne!(req.msg.buf(1), b"panic", "as it is to be");
            Ok(Reply::default())
        })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    assert!(now(import.call(ask("panic"))).is_pending());
    assert!(now(import.call(ask("well"))).is_ready());
    let active: usize = rpc.stats().iter().map(|service| service.active).sum();
    assert_eq!(active, 0, "its slot was given back");
    import.disconnect().await;
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Each request sends another one to the same target, `OFTEN` times in total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_requests_over_lo_do_not_pile_up_on_a_stack() {
    const OFTEN: u64 = 40;
    let rpc = node(4);
    let (asked, deepest) = (
        Arc::<OnceLock<Arc<Import>>>::default(),
        Arc::<AtomicUsize>::default(),
    );
    let (again, most) = (asked.clone(), deepest.clone());
    let count = Arc::<AtomicUsize>::default();
    rpc.add_target(Scripted::new(MDT, move |_| {
        let (again, most) = (again.get().cloned(), most.clone());
        let more = count.fetch_add(1, Ordering::SeqCst) < OFTEN as usize;
        Box::pin(async move {
            let mut asking = Box::pin(async {
                if let Some(again) = again.filter(|_| more) {
                    again.call(ask("more")).await.unwrap();
                }
            });
            poll_fn(|cx| {
                let depth = DEPTH.get() + 1;
                most.fetch_max(depth, Ordering::SeqCst);
                DEPTH.set(depth);
                let polled = asking.as_mut().poll(cx);
                DEPTH.set(depth - 1);
                polled
            })
            .await;
            Ok(Reply::default())
        })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    import.set_max_rpcs_in_flight(2 * OFTEN as u32);
    assert!(asked.set(import.clone()).is_ok());
    import.call(ask("once")).await.unwrap();
    let deepest = deepest.load(Ordering::SeqCst);
    assert!(
        (1..=2).contains(&deepest),
        "{deepest} handlers, each inside of another"
    );
    import.disconnect().await;
}
