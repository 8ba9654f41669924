//! An index that may wait: each read and each commit of it takes long on tokio's clock, which a
//! test can pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use cpt::BoxFuture;
use osd::{Batch, Index, IndexRead, OsdError, Space, Transactions};
use tokio::time::sleep;
use wire::Transno;

/// Time of each read.
pub const READ_DELAY: Duration = Duration::from_millis(20);
/// Time of each commit.
pub const COMMIT_DELAY: Duration = Duration::from_millis(200);

/// Whether the tests that choose an index or stores by [`index`] or `testkit` use slow ones: the
/// environment variable `NACRE_SLOW_STORES` is set.
pub fn stores_are_slow() -> bool {
    std::env::var_os("NACRE_SLOW_STORES").is_some()
}

/// The index for a test: `index`, slowed down if [`stores_are_slow`].
pub fn index(index: Arc<dyn Index>) -> Arc<dyn Index> {
    match stores_are_slow() {
        true => Arc::new(SlowIndex::new(index)),
        false => index,
    }
}

/// An index with slow reads and commits. A read returns the value from the beginning of its delay.
/// A batch is visible at once.
pub struct SlowIndex {
    /// Holds the records. It gets no transaction numbers: it could commit them at once.
    index: Arc<dyn Index>,
    transactions: Arc<Transactions>,
    /// Whether a commit is in progress or begins at once.
    commits: Arc<AtomicBool>,
    /// Number of reads that have begun.
    pub reads: AtomicUsize,
}

impl SlowIndex {
    /// Slows down an index.
    pub fn new(index: Arc<dyn Index>) -> SlowIndex {
        SlowIndex {
            index,
            transactions: Transactions::restore(Transno::NONE, 0),
            commits: Arc::default(),
            reads: AtomicUsize::new(0),
        }
    }

    /// Begins a commit unless one is in progress. It ends when all transactions are committed.
    fn commit_in_background(&self) {
        if self.commits.swap(true, SeqCst) {
            return;
        }
        let (transactions, commits) = (self.transactions.clone(), self.commits.clone());
        cpt::spawn(async move {
            loop {
                let transno = transactions.committable();
                sleep(COMMIT_DELAY).await;
                transactions.set_committed(transno);
                commits.store(false, SeqCst);
                // A change after the beginning of this commit may have relied on its task.
                if transactions.committable() == transno || commits.swap(true, SeqCst) {
                    return;
                }
            }
        });
    }
}

impl Index for SlowIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        let key = Bytes::copy_from_slice(key);
        IndexRead::waiting(async move {
            self.reads.fetch_add(1, SeqCst);
            let value = self.index.get(&key).await;
            sleep(READ_DELAY).await;
            value
        })
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        let (from, to) = (Bytes::copy_from_slice(from), Bytes::copy_from_slice(to));
        IndexRead::waiting(async move {
            self.reads.fetch_add(1, SeqCst);
            let rows = self.index.scan(&from, &to, limit).await;
            sleep(READ_DELAY).await;
            rows
        })
    }

    fn apply(&self, mut batch: Batch) -> Result<(), OsdError> {
        let transnos: Vec<Transno> = batch.transnos().collect();
        (batch.transno, batch.joined) = (None, Vec::new());
        let applied = self.index.apply(batch);
        transnos.into_iter().for_each(|t| self.transactions.finish(t));
        self.commit_in_background();
        applied
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async {
            let transno = self.transactions.committable();
            let synced = self.index.sync().await;
            sleep(COMMIT_DELAY).await;
            self.transactions.set_committed(transno);
            synced
        })
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        self.index.throttle()
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    fn space(&self) -> &Arc<Space> {
        self.index.space()
    }
}
