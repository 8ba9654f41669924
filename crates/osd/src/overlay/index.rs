//! An index that can keep later changes in memory.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use cpt::BoxFuture;
use parking_lot::RwLock;

use crate::{Batch, Index, IndexRead, OsdError, Space, Transactions};

/// Maximum size of the changes in memory, bytes.
const CHANGES_MAX: usize = 64 << 20;
/// Memory of a changed key besides key and value, bytes.
const ENTRY_BYTES: usize = 64;

/// An index that passes everything to another one until [`Index::discard_changes`]. After that,
/// changes stay in memory, up to [`CHANGES_MAX`].
pub(crate) struct OverlayIndex {
    below: Arc<dyn Index>,
    changes: OnceLock<Changes>,
}

/// Changed keys with their new values; `None`: removed.
type Entries = BTreeMap<Bytes, Option<Bytes>>;

#[derive(Default)]
struct Changes(RwLock<Changed>);

#[derive(Default)]
struct Changed {
    entries: Entries,
    /// The memory of the entries.
    bytes: usize,
}

impl OverlayIndex {
    /// Passes everything to `below`.
    pub(crate) fn new(below: Arc<dyn Index>) -> OverlayIndex {
        OverlayIndex {
            below,
            changes: OnceLock::new(),
        }
    }
}

impl Changes {
    fn add(&self, batch: &Batch) -> Result<(), OsdError> {
        let mut changed = self.0.write();
        let Changed { entries, bytes } = &mut *changed;
        let size = |key: &Bytes, value: Option<&Bytes>| key.len() + value.map_or(0, Bytes::len) + ENTRY_BYTES;
        let old_size = |entries: &Entries, key| entries.get(key).map_or(0, |old| size(key, old.as_ref()));
        let deletes = batch.deletes.iter().map(|key| (key, None));
        let puts = batch.puts.iter().map(|(key, value)| (key, Some(value)));
        let all = || deletes.clone().chain(puts.clone());
        let added: usize = all().map(|(key, value)| size(key, value)).sum();
        let replaced: usize = all().map(|(key, _)| old_size(entries, key)).sum();
        if *bytes + added > CHANGES_MAX + replaced {
            return Err(OsdError::BarrierFull {
                limit_mib: CHANGES_MAX >> 20,
            });
        }
        // A batch may have a key twice, so count again.
        for (key, value) in all() {
            *bytes = *bytes + size(key, value) - old_size(entries, key);
            entries.insert(key.clone(), value.cloned());
        }
        Ok(())
    }

    /// The entries of `below` in the range, with the changes.
    async fn scan(
        &self,
        below: &dyn Index,
        mut from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        let mut out = Vec::new();
        while from < to && out.len() < limit {
            let found = below.scan(&from, &to, limit).await?;
            // The changes up to the last key that was found; if there are no more keys, all.
            let end = match found.last() {
                Some((key, _)) if found.len() >= limit => [&key[..], &[0]].concat(),
                _ => to.clone(),
            };
            let mut merged: BTreeMap<Bytes, Bytes> = found.into_iter().collect();
            let changed = self.0.read();
            let range = changed.entries.range::<[u8], _>((
                std::ops::Bound::Included(&from[..]),
                std::ops::Bound::Excluded(&end[..]),
            ));
            for (key, value) in range {
                match value {
                    Some(value) => merged.insert(key.clone(), value.clone()),
                    None => merged.remove(key),
                };
            }
            out.extend(merged);
            from = end;
        }
        out.truncate(limit);
        Ok(out)
    }
}

impl Index for OverlayIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        if let Some(changes) = self.changes.get()
            && let Some(value) = changes.0.read().entries.get(key)
        {
            return IndexRead::ready(Ok(value.clone()));
        }
        self.below.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        match self.changes.get() {
            Some(changes) => {
                IndexRead::waiting(changes.scan(&*self.below, from.to_vec(), to.to_vec(), limit))
            }
            None => self.below.scan(from, to, limit),
        }
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        let Some(changes) = self.changes.get() else {
            return self.below.apply(batch);
        };
        let added = changes.add(&batch);
        batch.transnos().for_each(|t| self.transactions().finish(t));
        added
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.below.sync()
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        self.below.throttle()
    }

    fn transactions(&self) -> &Arc<Transactions> {
        self.below.transactions()
    }

    fn space(&self) -> &Arc<Space> {
        self.below.space()
    }

    fn discard_changes(&self) -> Result<(), OsdError> {
        self.changes.get_or_init(Changes::default);
        Ok(())
    }

    fn below(&self) -> Option<&Arc<dyn Index>> {
        Some(&self.below)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::MemoryIndex;

    fn put(index: &dyn Index, pairs: &[(&'static str, &'static str)], deletes: &[&'static str]) {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key.as_bytes(), value.as_bytes());
        }
        for key in deletes {
            batch.delete(key.as_bytes());
        }
        index.apply(batch).unwrap();
    }

    async fn scan(index: &dyn Index, from: &str, to: &str, limit: usize) -> String {
        let found = index.scan(from.as_bytes(), to.as_bytes(), limit).await.unwrap();
        let show = |(key, value): (Bytes, Bytes)| [&key[..], &value[..]].concat();
        let text: Vec<Vec<u8>> = found.into_iter().map(show).collect();
        String::from_utf8(text.join(&b' ')).unwrap()
    }

    #[tokio::test]
    async fn changes_after_the_barrier_are_visible_but_not_below() {
        let below: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let index = OverlayIndex::new(below.clone());
        put(&index, &[("a", "1"), ("c", "1"), ("e", "1"), ("g", "1")], &[]);
        index.discard_changes().unwrap();
        put(&index, &[("b", "2"), ("c", "2"), ("h", "2")], &["e"]);
        assert_eq!(scan(&index, "a", "z", 100).await, "a1 b2 c2 g1 h2");
        for limit in 1..6 {
            let all = "a1 b2 c2 g1 h2".split(' ').take(limit).collect::<Vec<_>>();
            assert_eq!(scan(&index, "a", "z", limit).await, all.join(" "));
        }
        assert_eq!(scan(&index, "b", "g", 100).await, "b2 c2");
        assert_eq!(
            (index.get(b"e").await.unwrap(), index.get(b"g").await.unwrap()),
            (None, Some("1".into()))
        );
        // A batch that removes and puts a key puts it.
        put(&index, &[("e", "3")], &["e"]);
        assert_eq!(index.get(b"e").await.unwrap(), Some("3".into()));
        assert_eq!(scan(&*below, "a", "z", 100).await, "a1 c1 e1 g1");
    }

    #[tokio::test]
    async fn too_many_changes_are_refused() {
        let index = OverlayIndex::new(Arc::new(MemoryIndex::default()));
        index.discard_changes().unwrap();
        let value = Bytes::from(vec![0; CHANGES_MAX / 2]);
        let change = |key: &'static [u8]| {
            let mut batch = Batch::new();
            batch.put(key, value.clone());
            index.apply(batch)
        };
        change(b"a").unwrap();
        let refused = change(b"b").unwrap_err();
        assert_eq!(refused.errno(), wire::Errno::ENOSPC);
        assert_eq!(index.get(b"b").await.unwrap(), None);
        // Another value of the same key takes no more memory.
        for _ in 0..4 {
            change(b"a").unwrap();
        }
    }
}
