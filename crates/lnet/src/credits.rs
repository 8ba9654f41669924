//! Credits limit the number of concurrent messages. A pool also counts the numbers that Lustre
//! shows: the credits left (negative while messages wait), and their minimum so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A pool of credits.
#[derive(Debug)]
pub(crate) struct Credits {
    max: u32,
    left: AtomicI64,
    left_min: AtomicI64,
    permits: Arc<Semaphore>,
}

/// One credit; dropping it returns it to its pool.
#[derive(Debug)]
pub(crate) struct Credit {
    pool: Arc<Credits>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Credits {
    /// A pool of `max` credits, at least one.
    pub(crate) fn new(max: u32) -> Arc<Credits> {
        let max = max.max(1);
        Arc::new(Credits {
            max,
            left: AtomicI64::new(max.into()),
            left_min: AtomicI64::new(max.into()),
            permits: Arc::new(Semaphore::new(max as usize)),
        })
    }

    /// Takes a credit; waits in FIFO order while there is none.
    pub(crate) async fn take(self: &Arc<Self>) -> Credit {
        let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
        self.left_min.fetch_min(left, Ordering::Relaxed);
        let mut credit = Credit {
            pool: self.clone(),
            _permit: None,
        };
        // Fails only if the semaphore is closed, which never happens.
        credit._permit = self.permits.clone().acquire_owned().await.ok();
        credit
    }

    /// The size of the pool.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// The credits left; the negative number of waiting messages if there are none.
    pub(crate) fn left(&self) -> i64 {
        self.left.load(Ordering::Relaxed)
    }

    /// The minimum of [`Credits::left`] so far.
    pub(crate) fn left_min(&self) -> i64 {
        self.left_min.load(Ordering::Relaxed)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.pool.left.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Credits;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn waiters_count_as_negative_credits_until_they_give_up() {
        let credits = Credits::new(2);
        let (_one, two) = (credits.take().await, credits.take().await);
        assert!(timeout(Duration::from_secs(1), credits.take()).await.is_err());
        assert_eq!((credits.left(), credits.left_min()), (0, -1));
        drop(two);
        let _again = credits.take().await;
        assert_eq!((credits.max(), credits.left(), credits.left_min()), (2, 0, -1));
    }
}
