//! The result of a read of an index, as a future. It is ready at once, without an allocation, if
//! memory answers the read. Otherwise it waits for the store, or for a thread that may block.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cpt::BoxFuture;
use tokio::sync::Semaphore;

use crate::{OsdError, blocking};

/// A read of an index ([`Index::get`](crate::Index::get), [`Index::scan`](crate::Index::scan)).
#[must_use = "a read that waits does nothing until it is polled"]
pub struct IndexRead<'a, T>(State<'a, T>);

type BoxRead<T> = Box<dyn FnOnce() -> Result<T, OsdError> + Send>;

enum State<'a, T> {
    Ready(Result<T, OsdError>),
    /// A function that blocks, and the permits for threads that run such functions.
    Blocking(BoxRead<T>, Arc<Semaphore>),
    Waiting(BoxFuture<'a, Result<T, OsdError>>),
    /// The future has returned its result.
    Ended,
}

impl<'a, T: Send + 'static> IndexRead<'a, T> {
    /// A read that memory has answered.
    pub fn ready(result: Result<T, OsdError>) -> IndexRead<'a, T> {
        IndexRead(State::Ready(result))
    }

    /// A read that waits for `read`.
    pub fn waiting(read: impl Future<Output = Result<T, OsdError>> + Send + 'a) -> IndexRead<'a, T> {
        IndexRead(State::Waiting(Box::pin(read)))
    }

    /// A read that blocks its thread: runs on a thread for blocking work, with one of `permits`.
    pub(crate) fn blocking(
        permits: &Arc<Semaphore>,
        read: impl FnOnce() -> Result<T, OsdError> + Send + 'static,
    ) -> IndexRead<'a, T> {
        IndexRead(State::Blocking(Box::new(read), permits.clone()))
    }

    /// The result, if memory has answered the read; otherwise the read itself.
    pub fn now(self) -> Result<Result<T, OsdError>, IndexRead<'a, T>> {
        match self.0 {
            State::Ready(result) => Ok(result),
            _ => Err(self),
        }
    }

    /// Blocks the thread until the read ends. Only for threads that may block.
    ///
    /// # Errors
    ///
    /// The error of the read.
    ///
    /// # Panics
    ///
    /// If the read waits, and the thread is a worker of a runtime or belongs to no runtime.
    pub fn wait(self) -> Result<T, OsdError> {
        match self.0 {
            State::Ready(result) => result,
            State::Blocking(read, _) => read(),
            State::Waiting(read) => cpt::Handle::current().tokio().block_on(read),
            State::Ended => Err(OsdError::Stopping),
        }
    }
}

// No part of the state is pinned in place: a future that waits has a box of its own.
impl<T> Unpin for IndexRead<'_, T> {}

impl<T: Send + 'static> Future for IndexRead<'_, T> {
    type Output = Result<T, OsdError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.0, State::Ended) {
            State::Ready(result) => Poll::Ready(result),
            State::Blocking(read, permits) => {
                self.0 = State::Waiting(Box::pin(async move {
                    let permit = permits.acquire_owned().await;
                    let permit = permit.map_err(|_| OsdError::Stopping)?;
                    blocking(move || {
                        let _permit = permit;
                        read()
                    })
                    .await
                }));
                self.poll(context)
            }
            State::Waiting(mut read) => {
                let poll = read.as_mut().poll(context);
                if poll.is_pending() {
                    self.0 = State::Waiting(read);
                }
                poll
            }
            // A future is not polled after its result.
            State::Ended => Poll::Ready(Err(OsdError::Stopping)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::IndexRead;
    use crate::OsdError;

    #[tokio::test]
    async fn each_kind_of_read_returns_its_result() {
        let permits = Arc::new(Semaphore::new(1));
        assert_eq!(IndexRead::ready(Ok(1)).await.unwrap(), 1);
        assert_eq!(IndexRead::blocking(&permits, || Ok(2)).await.unwrap(), 2);
        assert_eq!(IndexRead::waiting(async { Ok(3) }).await.unwrap(), 3);
        let failed: Result<u8, _> = IndexRead::blocking(&permits, || Err(OsdError::NoSpace)).await;
        assert!(matches!(failed, Err(OsdError::NoSpace)));
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn only_an_answered_read_has_a_result_now() {
        let permits = Arc::new(Semaphore::new(1));
        assert_eq!(IndexRead::ready(Ok(1)).now().ok().unwrap().unwrap(), 1);
        assert!(IndexRead::blocking(&permits, || Ok(2)).now().is_err());
        assert!(IndexRead::waiting(async { Ok(3) }).now().is_err());
    }

    #[tokio::test]
    async fn thread_that_may_block_waits_for_a_read() {
        let read = || {
            let permits = Arc::new(Semaphore::new(1));
            let blocking = IndexRead::blocking(&permits, || Ok(1)).wait();
            let waiting = IndexRead::waiting(async {
                tokio::task::yield_now().await;
                Ok(2)
            });
            (blocking.unwrap(), waiting.wait().unwrap())
        };
        assert_eq!(tokio::task::spawn_blocking(read).await.unwrap(), (1, 2));
    }
}
