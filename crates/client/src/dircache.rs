//! Limits the number of cached entries of all directories of a mount. Evicts the oldest chunks
//! first.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use wire::Fid;
use wire::dirpage::DirEntry;

/// Assumed memory of one entry in bytes, with its name and its share of the page.
const ENTRY_BYTES: u64 = 128;
/// The limit is the process's memory divided by this and by [`ENTRY_BYTES`], within
/// [`ENTRIES_RANGE`].
const MEMORY_DIVISOR: u64 = 64;
/// Least and largest limit, in entries. The largest takes 256 MiB.
const ENTRIES_RANGE: (u64, u64) = (32 << 10, 2 << 20);

/// A chunk of a directory's entries, from one request.
#[derive(Debug)]
pub(crate) struct DirChunk {
    /// The hash from which the entries were requested.
    pub(crate) start: u64,
    /// In order of their hash.
    pub(crate) entries: Vec<DirEntry>,
    /// The hash at which the next chunk starts; after the last chunk, the largest file offset.
    pub(crate) next: u64,
}

impl DirChunk {
    /// Whether the chunk covers this hash, even if the directory has no entry there.
    pub(crate) fn spans(&self, hash: u64) -> bool {
        (self.start..self.next).contains(&hash)
    }
}

/// Number of a cached chunk, in the order of insertion.
pub(crate) type ChunkId = u64;

/// The order and sizes of the cached chunks. The chunks themselves are in the directories' inodes.
#[derive(Debug)]
pub(crate) struct DirChunkFifo {
    /// The limit, in entries.
    entries_max: usize,
    chunks: Mutex<ChunkQueue>,
}

#[derive(Debug, Default)]
struct ChunkQueue {
    /// In order of insertion: directory and number of entries.
    order: BTreeMap<ChunkId, (Fid, usize)>,
    /// Number of the next added chunk.
    next: ChunkId,
    /// Number of entries in all chunks.
    entries: usize,
}

impl Default for DirChunkFifo {
    /// The limit that fits the memory of the process.
    fn default() -> DirChunkFifo {
        let entries = cpt::memory_bytes() / MEMORY_DIVISOR / ENTRY_BYTES;
        DirChunkFifo::new(entries.clamp(ENTRIES_RANGE.0, ENTRIES_RANGE.1) as usize)
    }
}

impl DirChunkFifo {
    /// A limit of `entries_max` entries.
    pub(crate) fn new(entries_max: usize) -> DirChunkFifo {
        DirChunkFifo {
            entries_max,
            chunks: Mutex::default(),
        }
    }

    /// Adds a chunk of `entries` entries. Returns its number and the chunks to evict. `None`: the
    /// chunk alone exceeds the limit.
    pub(crate) fn add(&self, dir: Fid, entries: usize) -> Option<(ChunkId, Vec<(Fid, ChunkId)>)> {
        if entries > self.entries_max {
            return None;
        }
        let mut chunks = self.chunks.lock();
        let mut evicted = Vec::new();
        while chunks.entries + entries > self.entries_max
            && let Some((id, (dir, count))) = chunks.order.pop_first()
        {
            chunks.entries -= count;
            evicted.push((dir, id));
        }
        let id = chunks.next;
        chunks.next += 1;
        chunks.entries += entries;
        chunks.order.insert(id, (dir, entries));
        Some((id, evicted))
    }

    /// Removes a chunk; no effect if it was evicted.
    pub(crate) fn remove(&self, id: ChunkId) {
        let mut chunks = self.chunks.lock();
        if let Some((_, count)) = chunks.order.remove(&id) {
            chunks.entries -= count;
        }
    }

    /// Number of cached entries.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.chunks.lock().entries
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::DirChunkFifo;
    use wire::Fid;

    #[test]
    fn the_oldest_chunks_are_evicted_only_as_far_as_needed() {
        let fifo = DirChunkFifo::new(100);
        let dir = |oid| Fid::new(0x400, oid, 0);
        let (first, none) = fifo.add(dir(1), 40).unwrap();
        assert!(none.is_empty());
        let (second, _) = fifo.add(dir(2), 40).unwrap();
        let (_, evicted) = fifo.add(dir(3), 50).unwrap();
        assert_eq!(evicted, [(dir(1), first)]);
        assert_eq!(fifo.entries(), 90);
        fifo.remove(first);
        fifo.remove(second);
        assert_eq!(fifo.entries(), 50);
        assert!(fifo.add(dir(4), 101).is_none());
    }
}
