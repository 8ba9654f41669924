//! An index in memory for tests: it counts batches, can fail, and can run a callback when a batch
//! is visible but the thread that applied it has not continued.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use osd::{Batch, Index, MemoryIndex, OsdError, Space, Transactions};
use parking_lot::Mutex;

type Then = (Bytes, Box<dyn FnOnce() + Send>);

/// See the module.
#[derive(Default)]
pub(crate) struct Watched {
    index: MemoryIndex,
    pub(crate) batches: AtomicUsize,
    pub(crate) broken: AtomicBool,
    then: Mutex<Option<Then>>,
}

impl Watched {
    /// Runs `then` once a batch has put this key, before [`Index::apply`] returns.
    pub(crate) fn when_visible(&self, key: Bytes, then: impl FnOnce() + Send + 'static) {
        *self.then.lock() = Some((key, Box::new(then)));
    }
}

impl Index for Watched {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.index.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.index.scan(from, to, limit)
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        self.batches.fetch_add(1, SeqCst);
        if self.broken.load(SeqCst) {
            batch.transnos().for_each(|t| self.transactions().finish(t));
            return Err(OsdError::NoSpace);
        }
        let awaited = |(key, _): &mut Then| batch.puts.iter().any(|(k, _)| k == key);
        let then = self.then.lock().take_if(awaited);
        self.index.apply(batch)?;
        if let Some((_, then)) = then {
            then();
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
