//! Requests of this node to itself that their sender handles, on its own thread, as far as that goes without waiting.
//!
//! One at a time: what a handler itself sends to this node is for others, so that handlers do not pile up on a stack. And the
//! sender handles no more than the one request: whatever else waits by then is for others too.

use std::cell::Cell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread handles a request in its sender's place.
pub(super) struct Inside(PhantomData<*const ()>);

/// Begins that, unless this thread is at it already.
pub(super) fn enter() -> Option<Inside> {
    (!INSIDE.replace(true)).then(|| Inside(PhantomData))
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Resolves where a slot is not in anybody's place.
pub(super) async fn over() {
    poll_fn(|_| {
        if INSIDE.get() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::{enter, over};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn nobody_is_inside_of_himself() {
        let mut nobody = Context::from_waker(Waker::noop());
        let outer = enter();
        assert!(outer.is_some() && enter().is_none());
        assert_eq!(pin!(over()).poll(&mut nobody), Poll::Pending);
        drop(outer);
        assert_eq!(pin!(over()).poll(&mut nobody), Poll::Ready(()));
        assert!(enter().is_some());
    }
}
