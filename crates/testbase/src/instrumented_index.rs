//! An index in memory for tests: it counts reads and batches, can fail, and can run a callback when
//! a batch is visible but [`Index::apply`] has not returned.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use osd::{Batch, Index, IndexRead, MemoryIndex, OsdError, Space, Transactions};
use parking_lot::Mutex;

/// A function to call when a batch has put this key.
type Callback = (Bytes, Box<dyn FnOnce() + Send>);

/// An index in memory that counts reads and batches, can fail, and can run a callback.
#[derive(Default)]
pub struct InstrumentedIndex {
    index: MemoryIndex,
    /// Number of calls of [`Index::get`].
    pub gets: AtomicUsize,
    /// Number of calls of [`Index::apply`].
    pub batches: AtomicUsize,
    /// Number of the next calls of [`Index::apply`] that fail and change nothing.
    pub failures: AtomicUsize,
    callback: Mutex<Option<Callback>>,
}

impl InstrumentedIndex {
    /// Calls `callback` once, when a batch has put this key and before [`Index::apply`] returns.
    pub fn when_visible(&self, key: Bytes, callback: impl FnOnce() + Send + 'static) {
        *self.callback.lock() = Some((key, Box::new(callback)));
    }
}

impl Index for InstrumentedIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        self.gets.fetch_add(1, SeqCst);
        self.index.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        self.index.scan(from, to, limit)
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        self.batches.fetch_add(1, SeqCst);
        if self
            .failures
            .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
            .is_ok()
        {
            batch.transnos().for_each(|t| self.transactions().finish(t));
            return Err(OsdError::NoSpace);
        }
        let is_due = |(key, _): &mut Callback| batch.puts.iter().any(|(k, _)| k == key);
        let callback = self.callback.lock().take_if(is_due);
        self.index.apply(batch)?;
        if let Some((_, callback)) = callback {
            callback();
        }
        Ok(())
    }

    fn sync(&self) -> cpt::BoxFuture<'_, Result<(), OsdError>> {
        self.index.sync()
    }

    fn throttle(&self) -> cpt::BoxFuture<'_, ()> {
        self.index.throttle()
    }

    fn transactions(&self) -> &Arc<Transactions> {
        self.index.transactions()
    }

    fn space(&self) -> &Arc<Space> {
        self.index.space()
    }
}
