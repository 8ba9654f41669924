//! Futures that start on the calling thread. The caller polls the future once; if the future has to
//! wait, the rest runs on a runtime. Work that never waits costs no task switch and no wake-up.

use crate::Handle;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls `work` once on the calling thread. If `work` is not finished then, spawns the rest on
/// `runtime`. As in a task, a panic ends `work` but not the caller.
pub fn poll_then_spawn(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let _guard = runtime.tokio().enter();
    // `Box::pin` could copy the future to the stack first, and futures are large.
    let mut work = Pin::from(Box::write(Box::new_uninit(), work));
    // A waker that does nothing is enough: the spawned task polls the future again.
    let mut cx = Context::from_waker(Waker::noop());
    if let Ok(Poll::Pending) = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut cx))) {
        runtime.spawn(work);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::poll_then_spawn;
    use crate::Handle;
    use std::thread;
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_first_poll_runs_on_the_caller_and_the_rest_on_the_runtime() {
        let (runtime, (thread_tx, mut thread_rx)) = (Handle::current(), mpsc::channel(2));
        let (go, wait) = oneshot::channel::<()>();
        let caller = thread::spawn(move || {
            poll_then_spawn(&runtime, async move {
                thread_tx.send(thread::current().id()).await.unwrap();
                wait.await.unwrap();
                thread_tx.send(thread::current().id()).await.unwrap();
            });
        });
        let id = caller.thread().id();
        caller.join().unwrap();
        assert_eq!(
            thread_rx.try_recv().unwrap(),
            id,
            "the first poll runs on the calling thread"
        );
        go.send(()).unwrap();
        assert_ne!(
            thread_rx.recv().await.unwrap(),
            id,
            "the rest runs on the runtime"
        );
    }

    #[tokio::test]
    async fn a_panic_does_not_reach_the_caller() {
        poll_then_spawn(&Handle::current(), async { panic!("expected") });
    }
}
