//! An index that simulates a power loss: it loses applied but uncommitted batches, from a chosen
//! batch on.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;
use osd::{Batch, Index, IndexRead, OsdError, Space, Transactions};
use parking_lot::Mutex;

/// Number of batches in one commit.
const BATCHES_PER_COMMIT: usize = 20;

type Map = BTreeMap<Bytes, Bytes>;

/// The simulated index.
pub struct CrashIndex {
    state: Mutex<State>,
    space: Arc<Space>,
    transactions: Arc<Transactions>,
}

#[derive(Default)]
struct State {
    /// The contents at the start.
    initial: Map,
    /// The contents with all applied batches.
    current: Map,
    /// Batches applied since the start.
    applied: Vec<Batch>,
    /// Number of the applied batches that are on disk.
    durable: usize,
    /// Whether the power is off.
    powered_off: bool,
}

/// Applies a batch to the contents.
fn apply_to(map: &mut Map, batch: &Batch) {
    for key in &batch.deletes {
        map.remove(key);
    }
    map.extend(batch.puts.iter().cloned());
}

impl CrashIndex {
    /// An empty index.
    pub fn new() -> Arc<CrashIndex> {
        CrashIndex::with_contents(Map::new(), Transactions::restore(wire::Transno::NONE, 0))
    }

    /// An index with these contents.
    fn with_contents(map: Map, transactions: Arc<Transactions>) -> Arc<CrashIndex> {
        let state = State {
            initial: map.clone(),
            current: map,
            ..State::default()
        };
        Arc::new(CrashIndex {
            state: Mutex::new(state),
            space: Space::of_memory(1 << 30),
            transactions,
        })
    }

    /// Loses power. Returns an index with all committed batches and the first `keep(n)` of the `n`
    /// uncommitted batches.
    pub fn lose_power(&self, keep: impl FnOnce(usize) -> usize) -> Arc<CrashIndex> {
        let mut state = self.state.lock();
        state.powered_off = true;
        let kept = state.durable + keep(state.applied.len() - state.durable);
        let mut map = state.initial.clone();
        state.applied[..kept].iter().for_each(|b| apply_to(&mut map, b));
        let transactions = Transactions::restore(self.transactions.committed(), self.transactions.epoch());
        CrashIndex::with_contents(map, transactions)
    }

    /// Commits all applied batches. False: the power is off.
    fn commit(&self, state: &mut State) -> bool {
        if !state.powered_off {
            // Every finished transaction is among the applied batches.
            self.transactions.set_committed(self.transactions.applied());
            state.durable = state.applied.len();
        }
        !state.powered_off
    }
}

impl Index for CrashIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        IndexRead::ready(Ok(self.state.lock().current.get(key).cloned()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        if from >= to {
            return IndexRead::ready(Ok(Vec::new()));
        }
        let state = self.state.lock();
        let range = (Bound::Included(from), Bound::Excluded(to));
        let rows = state.current.range::<[u8], _>(range).take(limit);
        IndexRead::ready(Ok(rows.map(|(k, v)| (k.clone(), v.clone())).collect()))
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        let mut state = self.state.lock();
        apply_to(&mut state.current, &batch);
        batch.transnos().for_each(|t| self.transactions.finish(t));
        state.applied.push(batch);
        if state.applied.len() - state.durable >= BATCHES_PER_COMMIT {
            self.commit(&mut state);
        }
        Ok(())
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        let committed = self.commit(&mut self.state.lock());
        Box::pin(async move { committed.then_some(()).ok_or(OsdError::NoSpace) })
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    fn space(&self) -> &Arc<Space> {
        &self.space
    }
}
