//! Barriers in front of a target's stores, for tests of recovery: Lustre's `lctl notransno` and
//! `lctl readonly`.
//!
//! After [`Barrier::hold_committed`], the target reports no further transaction as committed. After
//! [`Barrier::discard_changes`], each further change takes place in memory only: it is visible and
//! answered as usual, but the next start of the target does not find it. The changes before that
//! are on disk. So the next start is in the state of a target that lost power, with a known border
//! between kept and lost changes.

mod index;
mod objects;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use params::Param;
use parking_lot::Mutex;
use wire::Transno;

use crate::{Index, Objects, OsdError, Transactions};

pub(crate) use index::OverlayIndex;
pub(crate) use objects::OverlayObjects;

/// Time limit of waiting for the transactions, or the changes of objects, in progress.
const IN_PROGRESS_MAX: Duration = Duration::from_secs(10);
/// Interval of looking for transactions in progress.
const IN_PROGRESS_POLL: Duration = Duration::from_millis(1);

/// The barrier of one target.
pub struct Barrier {
    index: Arc<dyn Index>,
    /// The objects of an OST.
    objects: Option<Arc<dyn Objects>>,
    /// The transactions that the target reports as committed.
    transactions: Arc<Transactions>,
    /// The transaction that never ends. It outlives the barrier: an ordinary stop of the target
    /// must not count the later ones as committed either.
    held: OnceLock<Transno>,
    /// The text that the parameter shows.
    state: Mutex<String>,
}

impl Barrier {
    /// No barrier yet.
    pub fn new(
        index: Arc<dyn Index>,
        objects: Option<Arc<dyn Objects>>,
        transactions: Arc<Transactions>,
    ) -> Arc<Barrier> {
        Arc::new(Barrier {
            index,
            objects,
            transactions,
            held: OnceLock::new(),
            state: Mutex::new("none".to_owned()),
        })
    }

    /// Reports no later transaction as committed. Returns the number below which transactions
    /// still count.
    pub fn hold_committed(&self) -> Transno {
        *self.held.get_or_init(|| self.transactions.hold())
    }

    /// Keeps all later changes in memory only. The earlier ones are on disk when this returns.
    ///
    /// # Errors
    ///
    /// [`OsdError::Unsupported`] if the target's stores are in memory; [`OsdError::Busy`] if
    /// transactions do not end; or the error of the last sync.
    pub async fn discard_changes(&self) -> Result<(), OsdError> {
        if self.index.below().is_none() {
            return Err(OsdError::Unsupported("a barrier of a store in memory"));
        }
        let held = self.hold_committed();
        // The earlier transactions will count as committed, so they must change the stores below.
        let ended = async {
            while self.transactions.in_flight(held).any(|t| t != held) {
                tokio::time::sleep(IN_PROGRESS_POLL).await;
            }
        };
        let ended = tokio::time::timeout(IN_PROGRESS_MAX, ended).await;
        ended.map_err(|_| OsdError::Busy)?;
        self.index.discard_changes()?;
        if let Some(objects) = &self.objects {
            objects.discard_changes().await?;
        }
        if let Some(objects) = &self.objects {
            objects.sync(None).await?;
        }
        self.index.sync().await
    }

    /// The parameter `barrier`: `none`, `notransno` or `readonly`. `pending` while the target waits
    /// for changes in progress.
    pub fn param(self: &Arc<Barrier>) -> Param {
        let (shown, barrier) = (self.clone(), self.clone());
        let set = move |text: &str| match text.trim() {
            "notransno" => {
                barrier.hold_committed();
                let mut state = barrier.state.lock();
                if *state == "none" {
                    *state = "notransno".to_owned();
                }
                Ok(())
            }
            "readonly" => {
                barrier.clone().begin_discarding();
                Ok(())
            }
            text => Err(format!(
                "expected notransno or readonly, found '{text}'; a restart of the target ends its barrier"
            )),
        };
        Param::read_write(move || shown.state.lock().clone(), set).about(
            "for tests of recovery. notransno: no later change counts as committed; readonly: later changes stay in memory, and a restart loses them",
        )
    }

    fn begin_discarding(self: Arc<Barrier>) {
        *self.state.lock() = "pending".to_owned();
        cpt::spawn(async move {
            let result = self.discard_changes().await;
            if let Err(e) = &result {
                tracing::error!("cannot keep the changes in memory: {e}");
            }
            *self.state.lock() = match result {
                Ok(()) => "readonly".to_owned(),
                Err(e) => format!("failed: {e}"),
            };
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Batch, MemoryIndex};

    #[tokio::test]
    async fn held_transactions_are_never_committed() {
        let below: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let index: Arc<dyn Index> = Arc::new(OverlayIndex::new(below));
        let transactions = index.transactions().clone();
        let barrier = Barrier::new(index.clone(), None, transactions.clone());
        let change = || {
            let transaction = transactions.begin();
            let mut batch = Batch::new();
            batch.put(&b"k"[..], &b"v"[..]).transno = Some(transaction.transno());
            index.apply(batch).unwrap();
            transaction.transno()
        };
        let before = change();
        barrier.hold_committed();
        let after = change();
        assert!(transactions.committable() >= before && transactions.committable() < after);
        barrier.discard_changes().await.unwrap();
        change();
        assert!(transactions.committable() < after);
        // Nor when the target stops.
        drop(barrier);
        assert!(transactions.committable() < after);
    }

    #[tokio::test]
    async fn store_in_memory_has_no_barrier() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let transactions = index.transactions().clone();
        let barrier = Barrier::new(index, None, transactions);
        let refused = barrier.discard_changes().await;
        assert!(matches!(refused, Err(OsdError::Unsupported(_))), "{refused:?}");
    }
}
