//! An index in memory. A test can set its contents back, as a crash does.

use std::sync::Arc;

use bytes::Bytes;
use osd::{Batch, Index, IndexRead, MemoryIndex, OsdError, Space, Transactions};
use wire::Transno;

/// The contents of an index at one time.
pub(crate) struct Image {
    rows: Vec<(Bytes, Bytes)>,
    committed: Transno,
    epoch: u64,
}

impl Image {
    /// The index after a restart with these contents.
    pub(crate) fn restore(&self) -> Arc<CrashIndex> {
        let index = CrashIndex {
            rows: MemoryIndex::default(),
            transactions: Transactions::restore(self.committed, self.epoch),
        };
        let mut batch = Batch::new();
        for (key, value) in &self.rows {
            batch.put(key.clone(), value.clone());
        }
        index.rows.apply(batch).unwrap();
        Arc::new(index)
    }

    /// The records of the name space, without the replies kept for clients.
    pub(crate) fn name_space(&self) -> Vec<(Bytes, Bytes)> {
        let is_name_space = |(key, _): &&(Bytes, Bytes)| b"idxo".contains(&key[0]);
        self.rows.iter().filter(is_name_space).cloned().collect()
    }
}

/// An index in memory. A transaction is committed only by a sync.
pub(crate) struct CrashIndex {
    rows: MemoryIndex,
    transactions: Arc<Transactions>,
}

impl CrashIndex {
    pub(crate) fn new() -> Arc<CrashIndex> {
        Arc::new(CrashIndex {
            rows: MemoryIndex::default(),
            transactions: Transactions::restore(Transno::NONE, 0),
        })
    }

    /// Commits all applied batches.
    pub(crate) fn commit(&self) {
        self.transactions.set_committed(self.transactions.committable());
    }

    /// The contents now. All batches so far are durable, whether or not a client knows it.
    pub(crate) fn image(&self) -> Image {
        Image {
            rows: self.rows.scan(&[0], &[0xff], usize::MAX).wait().unwrap(),
            committed: self.transactions.committed(),
            epoch: self.transactions.epoch(),
        }
    }
}

impl Index for CrashIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        self.rows.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        self.rows.scan(from, to, limit)
    }

    fn apply(&self, mut batch: Batch) -> Result<(), OsdError> {
        let transnos: Vec<Transno> = batch.transnos().collect();
        (batch.transno, batch.joined) = (None, Vec::new());
        let result = self.rows.apply(batch);
        transnos.into_iter().for_each(|t| self.transactions.finish(t));
        result
    }

    fn sync(&self) -> cpt::BoxFuture<'_, Result<(), OsdError>> {
        self.commit();
        Box::pin(async { Ok(()) })
    }

    fn throttle(&self) -> cpt::BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    fn space(&self) -> &Arc<Space> {
        self.rows.space()
    }
}
