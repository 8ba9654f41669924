//! The index in memory: a lock-free ordered map. The map could replace a value only by removing and
//! inserting its key, and readers would miss the key meanwhile; so each value has a lock of its
//! own. An applied batch counts as committed at once. Entries count against the target's space.
//!
//! Callers must not change the same key concurrently; the targets' own locks ensure that.

use std::{mem::replace, ops::Bound, sync::Arc};
use wire::Transno;

use bytes::Bytes;
use cpt::BoxFuture;
use crossbeam_skiplist::SkipMap;
use parking_lot::RwLock;

use crate::{Batch, Index, IndexRead, OsdError, Space, SpacePurpose, Transactions};

/// Assumed overhead of an entry, bytes.
const ENTRY_BYTES: u64 = 96;

/// An index in memory.
pub struct MemoryIndex {
    map: SkipMap<Bytes, RwLock<Bytes>>,
    space: Arc<Space>,
    transactions: Arc<Transactions>,
}

impl MemoryIndex {
    /// Creates an empty index.
    pub fn new(space: Arc<Space>) -> MemoryIndex {
        MemoryIndex {
            map: SkipMap::new(),
            space,
            transactions: Transactions::restore(Transno::NONE, 0),
        }
    }
}

impl MemoryIndex {
    /// Applies a batch for which the caller has reserved space. Releases the space of removed and
    /// replaced entries.
    fn apply_reserved(&self, batch: Batch) {
        let mut freed = 0;
        for key in batch.deletes {
            freed += self
                .map
                .remove(&key)
                .map_or(0, |e| entry_bytes(e.key(), &e.value().read()));
        }
        for (key, value) in batch.puts {
            let mut new = Some(value);
            let entry = self
                .map
                .get_or_insert_with(key, || RwLock::new(new.take().unwrap_or_default()));
            if let Some(value) = new {
                freed += entry_bytes(entry.key(), &replace(&mut *entry.value().write(), value));
            }
        }
        self.space.release(freed);
    }
}

impl Default for MemoryIndex {
    /// An index limited by the process's memory.
    fn default() -> MemoryIndex {
        MemoryIndex::new(Space::of_memory(cpt::memory_bytes()))
    }
}

/// The space that an entry counts for, bytes.
fn entry_bytes(key: &[u8], value: &[u8]) -> u64 {
    ENTRY_BYTES + (key.len() + value.len()) as u64
}

impl Index for MemoryIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        IndexRead::ready(Ok(self.map.get(key).map(|e| e.value().read().clone())))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        if from >= to {
            return IndexRead::ready(Ok(Vec::new()));
        }
        // The map's iterators leak the entries that they pass (crossbeam, pull request 1217).
        let mut rows = Vec::new();
        let mut next = self.map.lower_bound::<[u8]>(Bound::Included(from));
        while let Some(entry) = next.filter(|e| rows.len() < limit && e.key()[..] < *to) {
            rows.push((entry.key().clone(), entry.value().read().clone()));
            next = entry.next();
        }
        IndexRead::ready(Ok(rows))
    }

    fn apply(&self, mut batch: Batch) -> Result<(), OsdError> {
        let added = batch.puts.iter().map(|(k, v)| entry_bytes(k, v)).sum();
        let reserved = self
            .space
            .check(SpacePurpose::Upkeep)
            .and_then(|()| self.space.reserve(added));
        let (transno, joined) = (batch.transno, std::mem::take(&mut batch.joined));
        if reserved.is_ok() {
            self.apply_reserved(batch);
        }
        if transno.is_some() || !joined.is_empty() {
            transno
                .into_iter()
                .chain(joined)
                .for_each(|t| self.transactions.finish(t));
            self.transactions.set_committed(self.transactions.applied());
        }
        reserved
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.transactions.set_committed(self.transactions.applied());
        Box::pin(async { Ok(()) })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn applied_batch_is_visible_and_committed() {
        let index = MemoryIndex::default();
        let t = index.transactions().begin();
        let mut b = Batch {
            transno: Some(t.transno()),
            ..Batch::default()
        };
        b.put(&b"a1"[..], &b"x"[..])
            .put(&b"a2"[..], &b"y"[..])
            .put(&b"b"[..], &b"z"[..]);
        index.apply(b).unwrap();
        assert_eq!(index.transactions().committed(), t.transno());
        assert_eq!(index.get(b"a1").wait().unwrap().unwrap(), "x");
        let entries = index.scan(b"a", b"b", 10).wait().unwrap();
        assert_eq!(
            entries.iter().map(|(k, _)| k.as_ref()).collect::<Vec<_>>(),
            [b"a1", b"a2"]
        );
        let mut b = Batch::new();
        b.delete(&b"a1"[..]).put(&b"a2"[..], &b"yy"[..]);
        index.apply(b).unwrap();
        assert_eq!(index.scan(b"", b"\xff", 10).wait().unwrap().len(), 2);
        index.sync().await.unwrap();
    }

    #[test]
    fn replacing_a_value_never_hides_the_key() {
        let index = MemoryIndex::default();
        let put = |n: u64| {
            let mut b = Batch::new();
            b.put(&b"key"[..], n.to_be_bytes().to_vec());
            index.apply(b).unwrap();
        };
        put(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = [0; 8];
                while last != 100_000u64.to_be_bytes() {
                    let value = index.get(b"key").wait().unwrap().expect("the key always exists");
                    assert!(*value >= last[..]);
                    last.copy_from_slice(&value);
                    assert_eq!(index.scan(b"a", b"z", 9).wait().unwrap().len(), 1);
                }
            });
            (1..=100_000).for_each(put);
            reader.join().unwrap();
        });
    }

    #[test]
    fn full_index_refuses_batches_until_deletes_release_space() {
        let space = Space::of_memory(64 << 10);
        let index = MemoryIndex::new(space.clone());
        let put = |n: u32| {
            let mut b = Batch::new();
            b.put(n.to_be_bytes().to_vec(), vec![0; 1000]);
            index.apply(b)
        };
        let accepted = (0..100).take_while(|n| put(*n).is_ok()).count() as u32;
        assert!((55..62).contains(&accepted), "{accepted}");
        assert!(index.get(&accepted.to_be_bytes()).wait().unwrap().is_none());
        put(0).unwrap_err();
        let mut all = Batch::new();
        for n in 0..accepted {
            all.delete(n.to_be_bytes().to_vec());
        }
        index.apply(all).unwrap();
        assert_eq!((space.avail_bytes(), put(1).is_ok()), (63 << 10, true));
    }
}
