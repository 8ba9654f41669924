//! Work that is begun where it is asked for: done as far as it goes without waiting on the calling thread, the rest on a
//! runtime. What never has to wait costs no change of thread, and nobody is woken for it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// Begins `work` right here; what waits goes on on `runtime`. A panic ends the work and not its caller, as in a task.
pub fn begin_here(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let _inside = runtime.enter();
    // `Box::pin` would copy it to the stack first, and futures are long.
    let mut work = Pin::from(Box::write(Box::new_uninit(), work));
    // Nobody is woken: whoever goes on looks again first.
    let mut nobody = Context::from_waker(Waker::noop());
    if let Ok(Poll::Pending) = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut nobody))) {
        runtime.spawn(work);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::begin_here;
    use std::thread;
    use tokio::runtime::Handle;
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_waits_goes_on_elsewhere_and_what_does_not_is_done() {
        let (runtime, (said, mut heard)) = (Handle::current(), mpsc::channel(2));
        let (go, wait) = oneshot::channel::<()>();
        let begun = thread::spawn(move || {
            begin_here(&runtime, async move {
                said.send(thread::current().id()).await.unwrap();
                wait.await.unwrap();
                said.send(thread::current().id()).await.unwrap();
            });
        });
        let id = begun.thread().id();
        begun.join().unwrap();
        assert_eq!(
            heard.try_recv().unwrap(),
            id,
            "it has begun where it was asked for"
        );
        go.send(()).unwrap();
        assert_ne!(heard.recv().await.unwrap(), id, "and goes on on the runtime");
    }

    #[tokio::test]
    async fn a_panic_does_not_reach_the_caller() {
        begin_here(&Handle::current(), async { panic!("as it is to be") });
    }
}
