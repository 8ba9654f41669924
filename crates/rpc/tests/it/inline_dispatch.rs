//! Requests over `lo` that the sender's thread handles inline until they wait.
#![allow(clippy::unwrap_used, clippy::panic)]

use rpc::{Import, ImportKind, Reply, Request};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use testbase::by_hand::{MDT, TestTarget, text};
use testbase::rpc_node::{client, node};
use tokio::sync::Notify;
use wire::MDS_GETATTR;

/// The result of polling a future once.
fn poll_once<F: Future>(f: F) -> Poll<F::Output> {
    pin!(f).poll(&mut Context::from_waker(Waker::noop()))
}

fn request(content: &'static str) -> Request {
    Request::new(MDS_GETATTR, text(content))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_need_not_wait_is_answered_inline() {
    let rpc = node(1);
    rpc.add_target(TestTarget::new(MDT, |_| Box::pin(async { Ok(Reply::default()) })));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    for _ in 0..100 {
        assert!(poll_once(import.call(request("anything"))).is_ready());
        // Tokio limits the work of one poll.
        tokio::task::yield_now().await;
    }
    import.disconnect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_does_not_stop_its_handler() {
    let rpc = node(2);
    let (resume, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (handler_resume, handler_done) = (resume.clone(), done.clone());
    let target = TestTarget::new(MDT, move |_| {
        let (resume, done) = (handler_resume.clone(), handler_done.clone());
        Box::pin(async move {
            resume.notified().await;
            done.notify_one();
            Ok(Reply::default())
        })
    });
    rpc.add_target(target.clone());
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    assert!(poll_once(import.call(request("something long"))).is_pending());
    assert_eq!(target.executed(), 1, "its execution has begun");
    resume.notify_one();
    done.notified().await;
    import.disconnect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_handler_does_not_reach_the_sender() {
    let rpc = node(3);
    rpc.add_target(TestTarget::new(MDT, |req| {
        Box::pin(async move {
            assert_ne!(req.msg.buf(1), b"panic", "the panic that the test wants");
            Ok(Reply::default())
        })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    assert!(poll_once(import.call(request("panic"))).is_pending());
    assert!(poll_once(import.call(request("well"))).is_ready());
    let active: usize = rpc.stats().iter().map(|service| service.active).sum();
    assert_eq!(active, 0, "the slot of the handler is closed");
    import.disconnect().await;
}

thread_local! {
    /// Number of handlers that this thread polls, each inside of another.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Each request sends another one to the same target, `NESTED` times in total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_requests_over_lo_do_not_pile_up_on_a_stack() {
    const NESTED: u64 = 40;
    let rpc = node(4);
    let (shared_import, depth_max) = (
        Arc::<OnceLock<Arc<Import>>>::default(),
        Arc::<AtomicUsize>::default(),
    );
    let (handler_import, handler_depth_max) = (shared_import.clone(), depth_max.clone());
    let count = Arc::<AtomicUsize>::default();
    rpc.add_target(TestTarget::new(MDT, move |_| {
        let (import, depth_max) = (handler_import.get().cloned(), handler_depth_max.clone());
        let sends_another = count.fetch_add(1, Ordering::SeqCst) < NESTED as usize;
        Box::pin(async move {
            let mut nested_call = Box::pin(async {
                if let Some(import) = import.filter(|_| sends_another) {
                    import.call(request("more")).await.unwrap();
                }
            });
            poll_fn(|cx| {
                let depth = DEPTH.get() + 1;
                depth_max.fetch_max(depth, Ordering::SeqCst);
                DEPTH.set(depth);
                let polled = nested_call.as_mut().poll(cx);
                DEPTH.set(depth - 1);
                polled
            })
            .await;
            Ok(Reply::default())
        })
    }));
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    import.set_max_rpcs_in_flight(2 * NESTED as u32);
    assert!(shared_import.set(import.clone()).is_ok());
    import.call(request("once")).await.unwrap();
    let depth_max = depth_max.load(Ordering::SeqCst);
    assert!(
        (1..=2).contains(&depth_max),
        "{depth_max} handlers, each inside of another"
    );
    import.disconnect().await;
}
