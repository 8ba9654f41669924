//! FID sequences and their locations: the FLDB, and the allocation of sequences.
//!
//! MDT0000 is the sequence controller: it divides the space of sequences into super-sequences of
//! 2^30, allocates one for each server that requests one, and records the owner in the FLDB. Every
//! MDT allocates single sequences from its own super-sequence to clients. An allocation is on disk
//! before the reply: a sequence allocated twice would give two files the same FID.
//!
//! The other MDTs get their super-sequences from MDT0000. Each records its own ranges, and those of
//! other MDTs as soon as a client asks for them: it answers clients also while MDT0000 is down. For
//! an unknown range it asks MDT0000 or, if MDT0000 does not answer, the MDT that has the range.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cpt::JoinSet;
use osd::{Batch, prefix_end};
use parking_lot::RwLock;
use rpc::{Import, Request, RpcError};
use tokio::{sync::Mutex, time::sleep};
use wire::format::bufs;
use wire::{
    Errno, FID_SEQ_DOT_LUSTRE, FID_SEQ_LOCAL_FILE, FID_SEQ_NORMAL, FID_SEQ_ROOT, FLD_LOOKUP, FLD_QUERY, Fid,
    LU_SEQ_RANGE_ANY, LU_SEQ_RANGE_MDT, LUSTRE_SEQ_BATCH_WIDTH, LUSTRE_SEQ_SUPER_WIDTH, LuSeqRange,
    SEQ_ALLOC_SUPER, SEQ_CONTROLLER_PORTAL, SEQ_QUERY, WireStruct,
};

use crate::{
    peers::Peers,
    store::{Store, keys},
};

/// Name of the setting with the part of this MDT's super-sequence that is not recorded as
/// allocated.
pub(crate) const SUPER_SEQUENCE: &str = "seq.own";
/// Maximum number of ranges in the FLDB.
const RANGES_MAX: usize = 1 << 17;
/// Maximum number of ranges per server: super-sequences, and the fixed ranges of MDT0000.
const RANGES_PER_SERVER: usize = 16;
/// Time limit of a request to another MDT; a client that waits for the answer asks again later.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause before an MDT requests its super-sequence again, doubled for each further request up
/// to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

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
    /// The other MDTs; `None` in a check of a store.
    peers: Option<Arc<Peers>>,
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
    /// Loads the sequences from the store of the MDT with this index. Without `peers`, it asks no
    /// other MDT.
    pub(crate) async fn load(
        store: Arc<Store>,
        index: u32,
        peers: Option<Arc<Peers>>,
    ) -> Result<Sequences, Errno> {
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
            peers,
        })
    }

    /// The task of an MDT other than MDT0000: gets its first super-sequence as soon as MDT0000
    /// answers, before clients need it.
    pub(crate) async fn keep_super_sequence(self: Arc<Self>) {
        let mut retry = RETRY_MIN;
        while self.index != 0 && !self.has_super_sequence().await {
            match self
                .fill_super_sequence(&mut *self.super_sequence.lock().await)
                .await
            {
                Ok(()) => return,
                Err(e) => tracing::debug!("MDT{:04x}: no super-sequence yet: {e}; retrying", self.index),
            }
            sleep(retry).await;
            retry = RETRY_MAX.min(2 * retry);
        }
    }

    async fn has_super_sequence(&self) -> bool {
        let own = self.super_sequence.lock().await;
        own.next < own.end
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

    /// Answers FLD_LOOKUP of a client: as [`Sequences::lookup`], but asks other MDTs for a range
    /// that this MDT does not know, and records their answer.
    ///
    /// # Errors
    ///
    /// `ENOENT` as [`Sequences::lookup`]; `EINPROGRESS` if MDT0000 does not answer, and no other
    /// MDT has the sequence: the client asks again.
    pub(crate) async fn locate(&self, request: &LuSeqRange) -> Result<LuSeqRange, Errno> {
        let found = self.lookup(request);
        let Some(peers) = self.peers.as_ref().filter(|_| self.index != 0) else {
            return found;
        };
        if found != Err(Errno::ENOENT) || request.lsr_start < FID_SEQ_NORMAL || self.is_known(request) {
            return found;
        }
        let range = match query_location(peers.get(0)?.import(), request).await {
            Ok(range) => range,
            Err(RpcError::Status(Errno::ENOENT)) => return Err(Errno::ENOENT),
            Err(_) => self.ask_owner(peers, request).await.ok_or(Errno::EINPROGRESS)?,
        };
        if let Err(e) = self.record(range) {
            let start = range.lsr_start;
            lnet::warn_rate_limited!("cannot record the range of sequences from {start:#x} on: {e}");
        }
        Ok(range)
    }

    /// Whether a range of the FLDB contains the sequence, with a server of any kind.
    fn is_known(&self, request: &LuSeqRange) -> bool {
        let any = LuSeqRange {
            lsr_flags: LU_SEQ_RANGE_ANY,
            ..*request
        };
        self.lookup(&any).is_ok()
    }

    /// Asks all connected MDTs for a range, because the one that has it answers.
    async fn ask_owner(&self, peers: &Peers, request: &LuSeqRange) -> Option<LuSeqRange> {
        let mut queries = JoinSet::new();
        for peer in peers.all().values().filter(|peer| peer.is_connected()) {
            let (import, request) = (peer.import().clone(), *request);
            queries.spawn(async move { query_location(&import, &request).await.ok() });
        }
        while let Some(found) = queries.join_next().await {
            if let Ok(Some(range)) = found {
                return Some(range);
            }
        }
        None
    }

    /// Adds a range that another MDT has reported to the FLDB. The next start of the target knows
    /// it, too. `EEXIST` if it overlaps another range, `ENOSPC` if the FLDB is full.
    fn record(&self, range: LuSeqRange) -> Result<(), Errno> {
        let mut locations = self.locations.write();
        let at = locations.partition_point(|r| r.lsr_start < range.lsr_start);
        let overlaps = |r: &LuSeqRange| r.lsr_start < range.lsr_end && range.lsr_start < r.lsr_end;
        let neighbours = locations.iter().skip(at.saturating_sub(1)).take(2);
        if neighbours.into_iter().any(overlaps) {
            return Err(Errno::EEXIST);
        }
        if locations.len() >= RANGES_MAX {
            return Err(Errno::ENOSPC);
        }
        let mut batch = Batch::new();
        batch.put_twice(keys::location(range.lsr_start), range.to_bytes());
        self.store.index().apply(batch)?;
        locations.insert(at, range);
        Ok(())
    }

    /// The request for the MDT of a FID.
    pub(crate) fn range_of(fid: Fid) -> LuSeqRange {
        LuSeqRange {
            lsr_start: fid.f_seq,
            lsr_flags: LU_SEQ_RANGE_MDT,
            ..LuSeqRange::default()
        }
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
            self.fill_super_sequence(&mut own).await?;
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

    /// Gets a new super-sequence, in place of a used one.
    async fn fill_super_sequence(&self, own: &mut SuperSequence) -> Result<(), Errno> {
        if own.next < own.end {
            return Ok(());
        }
        let request = LuSeqRange {
            lsr_index: self.index,
            lsr_flags: LU_SEQ_RANGE_MDT,
            ..Default::default()
        };
        let range = match (self.index, &self.peers) {
            (0, _) => self.allocate_super(&request).await?,
            (_, None) => return Err(Errno::EOPNOTSUPP),
            (_, Some(peers)) => {
                let mdt0 = peers.get(0).map_err(|_| Errno::EINPROGRESS)?;
                let range = query_super_sequence(mdt0.import(), &request).await;
                let range = range.map_err(|e| match e {
                    RpcError::Status(Errno::ENOSPC) => Errno::ENOSPC,
                    _ => Errno::EINPROGRESS,
                })?;
                if range.lsr_start >= range.lsr_end || range.lsr_start < FID_SEQ_NORMAL {
                    return Err(Errno::EPROTO);
                }
                self.record(range)?;
                range
            }
        };
        // From now on a restart of the target needs no other super-sequence.
        self.save(keys::setting(SUPER_SEQUENCE), range.to_bytes()).await?;
        *own = SuperSequence {
            next: range.lsr_start,
            recorded: range.lsr_start,
            end: range.lsr_end,
        };
        Ok(())
    }

    /// Stores a value, and waits until it is on disk.
    async fn save(&self, key: Bytes, value: Bytes) -> Result<(), Errno> {
        let mut batch = Batch::new();
        batch.put_twice(key, value);
        self.store.index().apply(batch)?;
        Ok(self.store.index().sync().await?)
    }
}

/// Asks MDT0000 for a super-sequence. Fails at once if MDT0000 is not connected.
async fn query_super_sequence(mdt0: &Import, request: &LuSeqRange) -> Result<LuSeqRange, RpcError> {
    let opc = Bytes::copy_from_slice(&SEQ_ALLOC_SUPER.to_le_bytes());
    let request = Request {
        portal: Some(SEQ_CONTROLLER_PORTAL),
        ..query(SEQ_QUERY, opc, request)
    };
    let reply = mdt0.call(request).await?;
    reply.get(bufs::QUERY_REPLY_RANGE).map_err(RpcError::Status)
}

/// Asks another MDT for the range that contains a sequence. Fails at once if it is not connected.
async fn query_location(mdt: &Import, request: &LuSeqRange) -> Result<LuSeqRange, RpcError> {
    let opc = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
    let reply = mdt.call(query(FLD_QUERY, opc, request)).await?;
    let range: LuSeqRange = reply.get(bufs::QUERY_REPLY_RANGE).map_err(RpcError::Status)?;
    match (range.lsr_start..range.lsr_end).contains(&request.lsr_start) {
        true => Ok(range),
        false => Err(RpcError::Status(Errno::EPROTO)),
    }
}

/// A query of sequences that waits neither for a connection nor for long.
fn query(opc: u32, operation: Bytes, range: &LuSeqRange) -> Request {
    Request {
        timeout: Some(QUERY_TIMEOUT),
        no_delay: true,
        no_resend: true,
        ..Request::new(opc, vec![operation, range.to_bytes()])
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
            let sequences = Sequences::load(store.clone(), 0, None).wait().unwrap();
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
        let sequences = Sequences::load(store.clone(), 0, None).wait().unwrap();
        assert!(!sequences.was_allocated(0x2_0000_0400));
        let own = sequences.allocate_meta().await.unwrap().lsr_start;
        let ost = LuSeqRange {
            lsr_index: 0,
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        let objects = sequences.allocate_super(&ost).await.unwrap().lsr_start;
        for sequences in [sequences, Sequences::load(store, 0, None).wait().unwrap()] {
            assert!(sequences.was_allocated(own));
            assert!(!sequences.was_allocated(own + 100_000) && !sequences.was_allocated(objects));
            assert!(!sequences.was_allocated(FID_SEQ_ROOT) && !sequences.was_allocated(u64::MAX));
        }
    }

    #[tokio::test]
    async fn super_sequences_per_server_are_limited() {
        let sequences = Sequences::load(Arc::new(Store::new(Arc::new(MemoryIndex::default()))), 0, None)
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
        let sequences = Sequences::load(store.clone(), 0, None).wait().unwrap();
        let own = sequences.allocate_meta().await.unwrap().lsr_start;
        let ost = LuSeqRange {
            lsr_index: 7,
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        let range = sequences.allocate_super(&ost).await.unwrap();
        assert_eq!((range.lsr_start, range.lsr_end), (0x2_4000_0400, 0x2_8000_0400));
        for sequences in [sequences, Sequences::load(store, 0, None).wait().unwrap()] {
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
