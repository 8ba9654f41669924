//! Inline dispatch: the sender's thread polls the handler of a request over `lo` once, before a
//! task is spawned for it.
//!
//! Inline dispatch does not nest: requests that a handler sends over `lo` go to other tasks, so
//! that handlers do not pile up on a stack. The sender's thread handles only its own request, no
//! other queued ones.

use std::cell::Cell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;

thread_local! {
    /// Whether this thread polls a handler inline.
    static DISPATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as polling a handler inline until it is dropped.
pub(super) struct InlineGuard(PhantomData<*const ()>);

/// Begins inline dispatch, unless this thread dispatches inline already.
pub(super) fn try_enter() -> Option<InlineGuard> {
    (!DISPATCHING.replace(true)).then(|| InlineGuard(PhantomData))
}

impl Drop for InlineGuard {
    fn drop(&mut self) {
        DISPATCHING.set(false);
    }
}

/// Resolves on a thread that does not dispatch inline. A slot awaits this before its second
/// request.
pub(super) async fn wait_until_outside() {
    poll_fn(|_| {
        if DISPATCHING.get() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::{try_enter, wait_until_outside};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn inline_dispatch_does_not_nest() {
        let mut cx = Context::from_waker(Waker::noop());
        let outer = try_enter();
        assert!(outer.is_some() && try_enter().is_none());
        assert_eq!(pin!(wait_until_outside()).poll(&mut cx), Poll::Pending);
        drop(outer);
        assert_eq!(pin!(wait_until_outside()).poll(&mut cx), Poll::Ready(()));
        assert!(try_enter().is_some());
    }
}
