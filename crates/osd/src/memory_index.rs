//! The index in memory: an ordered map without a lock. Everything is as durable as it gets when it is applied.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use cpt::BoxFuture;
use crossbeam_skiplist::SkipMap;

use crate::{Batch, Index, OsdError, StatFs, Transactions};

/// An index in memory.
pub struct MemoryIndex {
    map: SkipMap<Bytes, Bytes>,
    transactions: Arc<Transactions>,
}

impl MemoryIndex {
    /// An empty one.
    pub fn new() -> MemoryIndex {
        MemoryIndex {
            map: SkipMap::new(),
            transactions: Transactions::restore(0, 0),
        }
    }
}

impl Default for MemoryIndex {
    fn default() -> MemoryIndex {
        MemoryIndex::new()
    }
}

impl Index for MemoryIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        Ok(self.map.get(key).map(|e| e.value().clone()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let range = self
            .map
            .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        Ok(range
            .take(limit)
            .map(|e| (e.key().clone(), e.value().clone()))
            .collect())
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        for key in &batch.deletes {
            self.map.remove(key);
        }
        for (key, value) in batch.puts {
            self.map.insert(key, value);
        }
        if let Some(transno) = batch.transno {
            self.transactions.finish(transno);
            self.transactions.set_committed(self.transactions.applied());
        }
        Ok(())
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.transactions.set_committed(self.transactions.applied());
        Box::pin(async { Ok(()) })
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    fn statfs(&self) -> Result<StatFs, OsdError> {
        Ok(memory_statfs(self.map.len() as u64))
    }
}

/// Space as memory has it: a nominal size, since nothing else limits it.
pub(crate) fn memory_statfs(used_blocks: u64) -> StatFs {
    const BLOCKS: u64 = 4 << 20;
    let free = BLOCKS.saturating_sub(used_blocks);
    StatFs {
        bsize: 4096,
        blocks: BLOCKS,
        bfree: free,
        bavail: free,
        files: BLOCKS,
        ffree: free,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn what_is_applied_is_visible_and_committed() {
        let index = MemoryIndex::new();
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
        assert_eq!(index.get(b"a1").unwrap().unwrap(), "x");
        let got = index.scan(b"a", b"b", 10).unwrap();
        assert_eq!(
            got.iter().map(|(k, _)| k.as_ref()).collect::<Vec<_>>(),
            [b"a1", b"a2"]
        );
        let mut b = Batch::new();
        b.delete(&b"a1"[..]).put(&b"a2"[..], &b"yy"[..]);
        index.apply(b).unwrap();
        assert_eq!(index.scan(b"", b"\xff", 10).unwrap().len(), 2);
        index.sync().await.unwrap();
    }
}
