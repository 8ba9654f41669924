//! Work that is done to its end, also when nobody waits for it any more.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// Waits for `work`. Who stops waiting (drops this) leaves the rest of it to the current runtime.
pub fn to_its_end<F>(work: F) -> ToItsEnd<F>
where
    F: Future + Send + 'static,
{
    ToItsEnd {
        work: Some(Box::pin(work)),
        runtime: Handle::current(),
    }
}

/// Of [`to_its_end`].
pub struct ToItsEnd<F: Future + Send + 'static> {
    /// Until it has ended.
    work: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future + Send + 'static> Future for ToItsEnd<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // What panics is not looked at again.
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

impl<F: Future + Send + 'static> Drop for ToItsEnd<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::to_its_end;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn work_is_done_whether_it_is_waited_for_or_not() {
        for waits in [true, false] {
            let (go, wait) = oneshot::channel::<()>();
            let (said, heard) = oneshot::channel::<()>();
            let mut work = to_its_end(async move {
                wait.await.unwrap();
                said.send(()).unwrap();
                7
            });
            tokio::select! {
                biased;
                _ = &mut work => unreachable!("it has not been let go"),
                () = yield_now() => {}
            }
            go.send(()).unwrap();
            match waits {
                true => assert_eq!(work.await, 7),
                false => drop(work),
            }
            heard.await.unwrap();
        }
    }
}
