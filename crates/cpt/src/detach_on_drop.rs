//! Futures that run to completion even if the caller drops them.

use crate::Handle;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Wraps `work` so that it always completes: if the caller drops the wrapper earlier, the rest of
/// `work` runs as a task on the runtime that this function was called on.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn detach_on_drop<F>(work: F) -> DetachOnDrop<F>
where
    F: Future + Send + 'static,
{
    DetachOnDrop {
        work: Some(Box::pin(work)),
        runtime: Handle::current(),
    }
}

/// The future that [`detach_on_drop`] returns.
pub struct DetachOnDrop<F: Future + Send + 'static> {
    /// `None` after the work has completed or panicked.
    work: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future + Send + 'static> Future for DetachOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // After the end or a panic of the work, the wrapper stays pending.
        let Some(mut work) = self.work.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F: Future + Send + 'static> Drop for DetachOnDrop<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::detach_on_drop;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn work_completes_whether_it_is_awaited_or_dropped() {
        for awaited in [true, false] {
            let (go, wait) = oneshot::channel::<()>();
            let (done_tx, done_rx) = oneshot::channel::<()>();
            let mut work = detach_on_drop(async move {
                wait.await.unwrap();
                done_tx.send(()).unwrap();
                7
            });
            tokio::select! {
                biased;
                _ = &mut work => unreachable!("the work still waits"),
                () = yield_now() => {}
            }
            go.send(()).unwrap();
            match awaited {
                true => assert_eq!(work.await, 7),
                false => drop(work),
            }
            done_rx.await.unwrap();
        }
    }
}
