//! Waits for futures in tests that are plain functions.

use std::{
    future::{Future, IntoFuture},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use tokio::runtime::Handle;

/// Waits for a future on the test's own thread.
pub trait Wait: IntoFuture<Output: Send, IntoFuture: Send> + Sized {
    /// Blocks the thread until the future ends. A future over an index in memory ends at once.
    fn wait(self) -> Self::Output {
        let mut future = pin!(self.into_future());
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // A worker of a runtime wakes some futures only when its task yields. So another thread
        // polls.
        let runtime = Handle::try_current().ok();
        let poll = move || {
            let _guard = runtime.as_ref().map(Handle::enter);
            poll_until_ready(future)
        };
        thread::scope(|scope| scope.spawn(poll).join()).unwrap()
    }
}

impl<F: IntoFuture<Output: Send, IntoFuture: Send>> Wait for F {}

fn poll_until_ready<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
