//! FID sequences and their locations: the FLDB, and the allocation of sequences.
//!
//! MDT0000 is the sequence controller: it divides the space of sequences into super-sequences of
//! 2^30, allocates one for each server that requests one, and records the owner in the FLDB. Every
//! MDT allocates single sequences from its own super-sequence to clients. An allocation is on disk
//! before the reply: a sequence allocated twice would give two files the same FID.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use osd::{Batch, prefix_end};
use parking_lot::RwLock;
use tokio::sync::Mutex;
use wire::{
    Errno, FID_SEQ_DOT_LUSTRE, FID_SEQ_LOCAL_FILE, FID_SEQ_NORMAL, FID_SEQ_ROOT, LU_SEQ_RANGE_ANY,
    LU_SEQ_RANGE_MDT, LUSTRE_SEQ_BATCH_WIDTH, LUSTRE_SEQ_SUPER_WIDTH, LuSeqRange, WireStruct,
};

use crate::store::{Store, keys};

/// Name of the setting with the part of this MDT's super-sequence that is not recorded as
/// allocated.
pub(crate) const SUPER_SEQUENCE: &str = "seq.own";
/// Maximum number of ranges in the FLDB.
const RANGES_MAX: usize = 1 << 17;
/// Maximum number of ranges per server: super-sequences, and the fixed ranges of MDT0000.
const RANGES_PER_SERVER: usize = 16;

/// The sequences of one MDT.
pub(crate) struct Sequences {
    store: Arc<Store>,
    /// The MDT's index.
    index: u32,
    /// The FLDB: ranges with their servers, sorted by start.
    locations: RwLock<Vec<LuSeqRange>>,
    /// The super-sequence of this MDT.
    super_sequence: Mutex<SuperSequence>,
    /// Start and end of the free part of the super-sequence, for readers without the lock.
    free: [AtomicU64; 2],
    /// Serializes the allocation of super-sequences.
    controller: Mutex<()>,
}

/// The free part of this MDT's super-sequence.
#[derive(Clone, Copy, Default)]
struct SuperSequence {
    /// The next sequence to allocate.
    next: u64,
    /// Sequences below this one are recorded on disk as allocated.
    recorded: u64,
    /// The end of the super-sequence.
    end: u64,
}

impl Sequences {
    /// Loads the sequences from the store.
    pub(crate) async fn load(store: Arc<Store>, index: u32) -> Result<Sequences, Errno> {
        let rows = store
            .index()
            .scan(keys::LOCATIONS, &prefix_end(keys::LOCATIONS), RANGES_MAX)
            .await?;
        let mut locations = fixed_ranges();
        for (_, value) in rows {
            locations.push(LuSeqRange::from_bytes(&value)?);
        }
        locations.sort_by_key(|r| r.lsr_start);
        let own = match store.index().get(&keys::setting(SUPER_SEQUENCE)).await? {
            Some(value) => {
                let range = LuSeqRange::from_bytes(&value)?;
                SuperSequence {
                    next: range.lsr_start,
                    recorded: range.lsr_start,
                    end: range.lsr_end,
                }
            }
            None => SuperSequence::default(),
        };
        let free = [AtomicU64::new(own.next), AtomicU64::new(own.end)];
        let (locations, own) = (RwLock::new(locations), Mutex::new(own));
        Ok(Sequences {
            store,
            index,
            locations,
            super_sequence: own,
            free,
            controller: Mutex::default(),
        })
    }

    /// Answers FLD_LOOKUP: the range of the FLDB that contains the sequence `lsr_start`. `ENOENT`
    /// if there is none, or if its server is of another kind than the request names.
    pub(crate) fn lookup(&self, request: &LuSeqRange) -> Result<LuSeqRange, Errno> {
        let locations = self.locations.read();
        let after = locations.partition_point(|r| r.lsr_start <= request.lsr_start);
        let found = after.checked_sub(1).and_then(|i| locations.get(i));
        let found = found
            .filter(|r| request.lsr_start < r.lsr_end)
            .ok_or(Errno::ENOENT)?;
        let any_kind = request.lsr_flags & LU_SEQ_RANGE_ANY == LU_SEQ_RANGE_ANY;
        if !any_kind && found.lsr_flags != request.lsr_flags {
            return Err(Errno::ENOENT);
        }
        Ok(*found)
    }

    /// Whether this MDT may have allocated the sequence: one of its super-sequences contains the
    /// sequence, and the free part does not. Also true for sequences that an earlier start of the
    /// target recorded as allocated, but gave to no client.
    pub(crate) fn was_allocated(&self, seq: u64) -> bool {
        let request = LuSeqRange {
            lsr_start: seq,
            lsr_flags: LU_SEQ_RANGE_MDT,
            ..Default::default()
        };
        let is_own = self
            .lookup(&request)
            .is_ok_and(|range| range.lsr_index == self.index);
        let [next, end] = &self.free;
        let free = next.load(Ordering::Acquire)..end.load(Ordering::Acquire);
        seq >= FID_SEQ_NORMAL && is_own && !free.contains(&seq)
    }

    /// Allocates a super-sequence for the server with the index and kind in `request`. `EOPNOTSUPP`
    /// if this MDT is not MDT0000, `ENOSPC` if the server or the FLDB has the maximum number of
    /// ranges.
    pub(crate) async fn allocate_super(&self, request: &LuSeqRange) -> Result<LuSeqRange, Errno> {
        if self.index != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let _guard = self.controller.lock().await;
        let start = {
            let locations = self.locations.read();
            let of_server =
                |r: &&LuSeqRange| (r.lsr_index, r.lsr_flags) == (request.lsr_index, request.lsr_flags);
            if locations.iter().filter(of_server).count() >= RANGES_PER_SERVER
                || locations.len() >= RANGES_MAX
            {
                lnet::warn_rate_limited!(
                    "super-sequence refused: server {} (flags {:#x}) has the limit of {RANGES_PER_SERVER} ranges, or the FLDB the limit of {RANGES_MAX}",
                    request.lsr_index,
                    request.lsr_flags
                );
                return Err(Errno::ENOSPC);
            }
            locations
                .iter()
                .map(|r| r.lsr_end)
                .max()
                .unwrap_or(0)
                .max(FID_SEQ_NORMAL)
        };
        let end = start.checked_add(LUSTRE_SEQ_SUPER_WIDTH).ok_or(Errno::ENOSPC)?;
        let (lsr_index, lsr_flags) = (request.lsr_index, request.lsr_flags);
        let range = LuSeqRange {
            lsr_start: start,
            lsr_end: end,
            lsr_index,
            lsr_flags,
        };
        self.save(keys::location(start), range.to_bytes()).await?;
        self.locations.write().push(range);
        Ok(range)
    }

    /// Allocates one sequence for a client.
    pub(crate) async fn allocate_meta(&self) -> Result<LuSeqRange, Errno> {
        let mut own = self.super_sequence.lock().await;
        if own.next == own.end {
            let request = LuSeqRange {
                lsr_index: self.index,
                lsr_flags: LU_SEQ_RANGE_MDT,
                ..Default::default()
            };
            let range = self.allocate_super(&request).await?;
            *own = SuperSequence {
                next: range.lsr_start,
                recorded: range.lsr_start,
                end: range.lsr_end,
            };
        }
        if own.next == own.recorded {
            let recorded = (own.recorded + u64::from(LUSTRE_SEQ_BATCH_WIDTH)).min(own.end);
            let unrecorded = LuSeqRange {
                lsr_start: recorded,
                lsr_end: own.end,
                ..Default::default()
            };
            self.save(keys::setting(SUPER_SEQUENCE), unrecorded.to_bytes())
                .await?;
            own.recorded = recorded;
        }
        let start = own.next;
        own.next += 1;
        let [next, end] = &self.free;
        next.store(own.next, Ordering::Release);
        end.store(own.end, Ordering::Release);
        Ok(LuSeqRange {
            lsr_start: start,
            lsr_end: start + 1,
            lsr_index: self.index,
            lsr_flags: LU_SEQ_RANGE_MDT,
        })
    }

    /// Stores a value, and waits until it is on disk.
    async fn save(&self, key: Bytes, value: Bytes) -> Result<(), Errno> {
        let mut batch = Batch::new();
        batch.put_twice(key, value);
        self.store.index().apply(batch)?;
        Ok(self.store.index().sync().await?)
    }
}

/// The fixed ranges of MDT0000: of its local files, of `.lustre`, and of the root directory.
pub(crate) fn fixed_ranges() -> Vec<LuSeqRange> {
    [FID_SEQ_LOCAL_FILE, FID_SEQ_DOT_LUSTRE, FID_SEQ_ROOT]
        .map(|start| LuSeqRange {
            lsr_start: start,
            lsr_end: start + 1,
            lsr_index: 0,
            lsr_flags: LU_SEQ_RANGE_MDT,
        })
        .to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use testbase::Wait;

    use super::Sequences;
    use crate::store::Store;
    use osd::MemoryIndex;
    use wire::{Errno, FID_SEQ_ROOT, LU_SEQ_RANGE_ANY, LU_SEQ_RANGE_OST, LuSeqRange};

    fn lookup_request(lsr_start: u64) -> LuSeqRange {
        LuSeqRange {
            lsr_start,
            ..LuSeqRange::default()
        }
    }

    #[tokio::test]
    async fn sequences_are_allocated_once_across_restarts() {
        let store = Arc::new(Store::new(Arc::new(MemoryIndex::default())));
        let mut allocated = Vec::new();
        for _ in 0..3 {
            let sequences = Sequences::load(store.clone(), 0).wait().unwrap();
            for _ in 0..5 {
                let range = sequences.allocate_meta().await.unwrap();
                assert_eq!(range.lsr_end, range.lsr_start + 1);
                allocated.push(range.lsr_start);
            }
        }
        assert_eq!(allocated[0], 0x2_0000_0400);
        let mut unique = allocated.clone();
        unique.dedup();
        assert_eq!(unique.len(), 15);
    }

    #[tokio::test]
    async fn was_allocated_is_false_for_free_fixed_and_foreign_sequences() {
        let store = Arc::new(Store::new(Arc::new(MemoryIndex::default())));
        let sequences = Sequences::load(store.clone(), 0).wait().unwrap();
        assert!(!sequences.was_allocated(0x2_0000_0400));
        let own = sequences.allocate_meta().await.unwrap().lsr_start;
        let ost = LuSeqRange {
            lsr_index: 0,
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        let objects = sequences.allocate_super(&ost).await.unwrap().lsr_start;
        for sequences in [sequences, Sequences::load(store, 0).wait().unwrap()] {
            assert!(sequences.was_allocated(own));
            assert!(!sequences.was_allocated(own + 100_000) && !sequences.was_allocated(objects));
            assert!(!sequences.was_allocated(FID_SEQ_ROOT) && !sequences.was_allocated(u64::MAX));
        }
    }

    #[tokio::test]
    async fn super_sequences_per_server_are_limited() {
        let sequences = Sequences::load(Arc::new(Store::new(Arc::new(MemoryIndex::default()))), 0)
            .wait()
            .unwrap();
        let ost = LuSeqRange {
            lsr_index: 3,
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        for _ in 0..16 {
            sequences.allocate_super(&ost).await.unwrap();
        }
        assert_eq!(sequences.allocate_super(&ost).await.unwrap_err(), Errno::ENOSPC);
        assert!(
            sequences
                .allocate_super(&LuSeqRange { lsr_index: 4, ..ost })
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn fld_lookup_finds_the_range_and_server_of_a_sequence() {
        let store = Arc::new(Store::new(Arc::new(MemoryIndex::default())));
        let sequences = Sequences::load(store.clone(), 0).wait().unwrap();
        let own = sequences.allocate_meta().await.unwrap().lsr_start;
        let ost = LuSeqRange {
            lsr_index: 7,
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        let range = sequences.allocate_super(&ost).await.unwrap();
        assert_eq!((range.lsr_start, range.lsr_end), (0x2_4000_0400, 0x2_8000_0400));
        for sequences in [sequences, Sequences::load(store, 0).wait().unwrap()] {
            let found = sequences.lookup(&lookup_request(own)).unwrap();
            assert_eq!(
                (found.lsr_start, found.lsr_end, found.lsr_index),
                (0x2_0000_0400, 0x2_4000_0400, 0)
            );
            assert_eq!(
                sequences.lookup(&lookup_request(FID_SEQ_ROOT)).unwrap().lsr_index,
                0
            );
            assert_eq!(
                sequences.lookup(&lookup_request(range.lsr_start)).unwrap_err(),
                Errno::ENOENT
            );
            let any = LuSeqRange {
                lsr_flags: LU_SEQ_RANGE_ANY,
                ..lookup_request(range.lsr_start + 5)
            };
            assert_eq!(sequences.lookup(&any).unwrap(), range);
            assert_eq!(
                sequences.lookup(&lookup_request(range.lsr_end)).unwrap_err(),
                Errno::ENOENT
            );
        }
    }
}
