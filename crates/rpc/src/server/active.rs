//! Counts requests or changes in progress and waits until there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// A counter; its users can wait until it is zero.
#[derive(Debug, Default)]
pub(crate) struct ActiveCount {
    count: AtomicUsize,
    /// Notified when the count becomes zero.
    idle: Notify,
}

/// Guard of one request or change in progress.
#[derive(Debug)]
pub struct ActiveGuard(Arc<ActiveCount>);

impl ActiveCount {
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveGuard {
        self.count.fetch_add(1, Ordering::SeqCst);
        ActiveGuard(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Resolves when the count is zero.
    pub(crate) async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.count() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
