//! Reusable memory for large payloads. Fresh memory costs a page fault for every 4 KiB, which takes
//! longer than copying the data.
//!
//! Each partition has a pool. A pool that stays unused for a while is emptied.

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use wire::LNET_MAX_PAYLOAD;

/// Size of a pool's buffers in bytes: each can hold any payload.
const BUFFER_SIZE: usize = LNET_MAX_PAYLOAD as usize;
/// Payloads of fewer bytes get memory of their own, since they would waste most of a buffer.
const PAYLOAD_MIN: usize = BUFFER_SIZE / 2;
/// Maximum number of free buffers to keep.
const FREE_MAX: usize = 16;
/// Interval at which a pool is emptied if no buffer was taken since the previous check.
const UNUSED_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A pool of free buffers.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<FreeList>);

#[derive(Debug, Default)]
struct FreeList {
    buffers: Vec<Vec<u8>>,
    /// Whether a buffer was taken since the last check.
    used: bool,
    /// Whether the task that empties the pool is running.
    emptier_runs: bool,
}

/// Memory for a payload, empty at first. Dropping a buffer of the pool's size returns it to the
/// pool.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Pool {
    /// Memory for a payload of `len` bytes, from the pool if the payload is large enough.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let free = if len < PAYLOAD_MIN {
            Some(Vec::with_capacity(len))
        } else {
            let mut free = self.0.lock();
            free.used = true;
            free.buffers.pop()
        };
        Buffer {
            bytes: free.unwrap_or_else(|| Vec::with_capacity(BUFFER_SIZE)),
            pool: self.clone(),
        }
    }

    /// Takes a buffer back, and starts a task that empties the pool when it is unused.
    fn give_back(self: &Arc<Self>, mut bytes: Vec<u8>) {
        // A buffer that is dropped outside of a runtime is not kept, as no task could empty the
        // pool.
        let Some(runtime) = cpt::Handle::try_current() else {
            return;
        };
        bytes.clear();
        let mut free = self.0.lock();
        if free.buffers.len() < FREE_MAX {
            free.buffers.push(bytes);
        }
        if !std::mem::replace(&mut free.emptier_runs, true) {
            drop(free);
            runtime.spawn(empty_when_unused(self.clone()));
        }
    }
}

async fn empty_when_unused(pool: Arc<Pool>) {
    loop {
        sleep(UNUSED_CHECK_INTERVAL).await;
        let mut free = pool.0.lock();
        if !std::mem::replace(&mut free.used, false) {
            *free = FreeList::default();
            return;
        }
    }
}

impl Buffer {
    /// The memory to read into.
    pub(super) fn as_buf_mut(&mut self) -> &mut (impl BufMut + use<>) {
        &mut self.bytes
    }

    /// Number of bytes read.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes read. The memory returns to the pool when the last reference is dropped.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() == BUFFER_SIZE {
            self.pool.give_back(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_SIZE, FREE_MAX, Pool, UNUSED_CHECK_INTERVAL};
    use bytes::BufMut;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn memory_is_reused_and_released_when_unused() {
        let pool = Arc::new(Pool::default());
        let mut buffer = pool.take(BUFFER_SIZE);
        buffer.as_buf_mut().put_slice(b"data");
        let (payload, other) = (buffer.freeze(), pool.take(BUFFER_SIZE));
        assert_eq!(payload, "data");
        let address = payload.as_ptr();
        drop(payload.slice(1..2));
        drop(payload);
        let reused = pool.take(BUFFER_SIZE);
        assert_eq!((reused.as_ref().as_ptr(), reused.len()), (address, 0));
        drop((reused, other));
        assert_eq!(pool.0.lock().buffers.len(), 2);
        tokio::time::sleep(3 * UNUSED_CHECK_INTERVAL).await;
        assert!(pool.0.lock().buffers.is_empty());
    }

    #[tokio::test]
    async fn small_payloads_and_too_many_buffers_are_not_kept() {
        let pool = Arc::new(Pool::default());
        drop(pool.take(1000));
        assert!(pool.0.lock().buffers.is_empty());
        let many: Vec<_> = (0..2 * FREE_MAX).map(|_| pool.take(BUFFER_SIZE)).collect();
        drop(many);
        assert_eq!(pool.0.lock().buffers.len(), FREE_MAX);
    }
}
