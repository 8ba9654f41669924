//! Inline dispatch: the sender's thread polls the handler of a request over `lo` once, before a
//! task is spawned for it.
//!
//! It does not nest: requests that a handler sends over `lo` go to other tasks, so that handlers do
//! not pile up on a stack. The sender's thread handles only that one request, and no others that
//! are queued.

use std::cell::Cell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread polls a handler inline.
pub(super) struct Inside(PhantomData<*const ()>);

/// Begins inline dispatch, unless this thread dispatches inline already.
pub(super) fn enter() -> Option<Inside> {
    (!INSIDE.replace(true)).then(|| Inside(PhantomData))
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Resolves on a thread that does not dispatch inline. A slot awaits it before its second request.
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
