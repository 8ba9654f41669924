//! The images of an index: the entries on disk, and the batches that are not on disk yet.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use osd::Batch;
use tokio::time::Instant;

/// An index's entries.
pub(super) type Entries = BTreeMap<Bytes, Bytes>;

/// Applies a batch.
pub(super) fn apply_to(entries: &mut Entries, batch: &Batch) {
    for key in &batch.deletes {
        entries.remove(key);
    }
    entries.extend(batch.puts.iter().cloned());
}

/// The images of an index.
#[derive(Default)]
pub(super) struct Journal {
    on_disk: Entries,
    /// Batches that are not on disk, in order, with their time.
    pending: VecDeque<(Instant, Batch)>,
    /// Number of batches that have reached the disk.
    durable: u64,
}

impl Journal {
    /// The entries on disk.
    pub(super) fn on_disk(&self) -> &Entries {
        &self.on_disk
    }

    /// The entries that readers see.
    pub(super) fn visible(&self) -> Entries {
        let mut entries = self.on_disk.clone();
        self.pending
            .iter()
            .for_each(|(_, batch)| apply_to(&mut entries, batch));
        entries
    }

    /// Number of batches on disk, since the disk was new.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Number of batches appended since the disk was new, without lost ones.
    pub(super) fn appended(&self) -> u64 {
        self.durable + self.pending.len() as u64
    }

    /// Number of batches that are not on disk.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Number of batches that were appended after `since` and are not on disk.
    pub(super) fn pending_since(&self, since: Instant) -> usize {
        self.pending
            .iter()
            .rev()
            .take_while(|(at, _)| *at > since)
            .count()
    }

    /// Appends a batch.
    pub(super) fn append(&mut self, batch: Batch) {
        self.pending.push_back((Instant::now(), batch));
    }

    /// Makes the first batches durable, so that `count` are on disk.
    pub(super) fn sync_to(&mut self, count: u64) {
        while self.durable < count
            && let Some((_, batch)) = self.pending.pop_front()
        {
            apply_to(&mut self.on_disk, &batch);
            self.durable += 1;
        }
    }

    /// Loses the last `count` batches that are not on disk.
    pub(super) fn lose(&mut self, count: usize) {
        self.pending.truncate(self.pending.len().saturating_sub(count));
    }
}
