//! The precreated objects of one OST: pure bookkeeping of ids in one sequence.
//!
//! The OST creates objects in the order of their ids ([`Pool::add_precreated`]); [`Pool::take`]
//! allocates ids in that order. The store records an upper bound of the allocated ids: after a
//! crash, the OST destroys the objects above the bound, because no file has them. The bound grows
//! in steps, so most creates do not write it.

use wire::{Errno, Fid, LUSTRE_DATA_SEQ_MAX_WIDTH, Reader, WireError, Writer};

use bytes::Bytes;

/// Number of ids of the first precreation.
pub(crate) const MIN_PRECREATE: u32 = 32;
/// Maximum number of ids of one precreation.
pub(crate) const MAX_PRECREATE: u32 = 10_000;
/// Number of ids by which the recorded bound grows. The bound is ahead of the last allocated id by
/// less than this number.
pub(crate) const LAST_USED_STEP: u32 = 256;

/// The ids of objects of files that clients create again after a restart are above the bound at the
/// start minus this number: creates wait for locks while later ones complete.
const REPLAYED_BELOW: u32 = 1 << 16;
/// These ids are at most the bound at the start plus this number: the crash undid creates, and with
/// them rises of the bound.
const REPLAYED_ABOVE: u32 = 1 << 20;

/// The record of an OST's objects: the upper bound of the allocated ids (Lustre's last used id).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastUsedId {
    /// The sequence; 0: none yet.
    pub seq: u64,
    /// The bound: no id above it is allocated.
    pub used: u32,
}

impl LastUsedId {
    /// Encodes the record.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(8 + 4);
        writer.u64(self.seq);
        writer.u32(self.used);
        writer.finish()
    }

    /// Decodes a record.
    pub(crate) fn decode(value: &[u8]) -> Result<LastUsedId, WireError> {
        let mut reader = Reader::new("objects of an OST", value);
        Ok(LastUsedId {
            seq: reader.u64()?,
            used: reader.u32()?,
        })
    }
}

/// The ids of one OST.
#[derive(Debug)]
pub(crate) struct Pool {
    last_used: LastUsedId,
    /// The bound at the start.
    used_at_start: u32,
    /// The last allocated id.
    allocated: u32,
    /// The last precreated id; equal to `allocated` if no precreated id is left.
    precreated: u32,
    /// Number of ids of the next precreation.
    batch: u32,
    /// Allocated ids that no file uses. New files get these first.
    unused: Vec<u32>,
}

impl Pool {
    /// The pool after a start: all ids up to the bound count as allocated.
    pub(crate) fn new(last_used: LastUsedId) -> Pool {
        Pool {
            last_used,
            used_at_start: last_used.used,
            allocated: last_used.used,
            precreated: last_used.used,
            batch: MIN_PRECREATE,
            unused: Vec::new(),
        }
    }

    /// The sequence; 0: none yet.
    pub(crate) fn seq(&self) -> u64 {
        self.last_used.seq
    }

    /// Starts a new sequence and returns its record. The first id of a sequence is never used for
    /// a file.
    pub(crate) fn begin_sequence(&mut self, seq: u64) -> LastUsedId {
        *self = Pool::new(LastUsedId { seq, used: 1 });
        self.last_used
    }

    /// Whether the sequence has ids left for another precreation.
    pub(crate) fn has_ids_left(&self) -> bool {
        u64::from(self.precreated) + u64::from(MAX_PRECREATE) < LUSTRE_DATA_SEQ_MAX_WIDTH
    }

    /// The last allocated id: orphan cleanup must keep the objects up to it.
    pub(crate) fn last_allocated(&self) -> Fid {
        Fid::new(self.last_used.seq, self.allocated, 0)
    }

    /// The sequence, the last allocated id and the last precreated id.
    pub(crate) fn state(&self) -> (u64, u32, u32) {
        (self.last_used.seq, self.allocated, self.precreated)
    }

    /// Number of available objects.
    pub(crate) fn available(&self) -> u32 {
        self.precreated - self.allocated + self.unused.len() as u32
    }

    /// The last id of the next precreation, if at most half a batch of objects is available. A
    /// precreation has at most `max` ids.
    pub(crate) fn next_precreate(&self, max: u32) -> Option<Fid> {
        let batch = self.batch.min(max);
        let is_low = self.available() <= batch / 2;
        (is_low && batch > 0 && self.seq() != 0)
            .then(|| Fid::new(self.last_used.seq, self.precreated + batch, 0))
    }

    /// Removes the precreated ids that are not allocated: orphan cleanup will destroy their
    /// objects.
    pub(crate) fn drop_precreated(&mut self) {
        self.precreated = self.allocated;
    }

    /// Records the end of orphan cleanup: `last` is the OST's last id, and no precreated id is
    /// left.
    pub(crate) fn record_orphan_cleanup(&mut self, last: u32) {
        self.allocated = self.allocated.max(last);
        self.precreated = self.allocated;
    }

    /// Records that the OST precreated ids up to `last`. A complete batch doubles the size of the
    /// next one.
    pub(crate) fn add_precreated(&mut self, last: u32) {
        if last >= self.precreated.saturating_add(self.batch) {
            self.batch = (self.batch * 2).min(MAX_PRECREATE);
        }
        self.precreated = self.precreated.max(last);
    }

    /// Records that a file has this object again after a restart: later files do not get it.
    /// Returns a record with a higher bound if the id exceeds the bound: the caller stores the
    /// record before the file. `EINVAL` if the pool cannot have allocated the object before the
    /// restart, or not shortly before.
    pub(crate) fn readopt(&mut self, object: Fid) -> Result<Option<LastUsedId>, Errno> {
        let oldest = self.used_at_start.saturating_sub(REPLAYED_BELOW);
        let newest = self.used_at_start.saturating_add(REPLAYED_ABOVE);
        let is_plausible = (oldest.max(1) + 1..=newest).contains(&object.f_oid) && object.f_ver == 0;
        if object.f_seq != self.last_used.seq || !is_plausible {
            return Err(Errno::EINVAL);
        }
        self.allocated = self.allocated.max(object.f_oid);
        self.precreated = self.precreated.max(self.allocated);
        if object.f_oid <= self.last_used.used {
            return Ok(None);
        }
        self.last_used.used = object.f_oid;
        Ok(Some(self.last_used))
    }

    /// Returns an allocated id that no file uses; a later file gets the id.
    pub(crate) fn put_back(&mut self, fid: Fid) {
        if fid.f_seq == self.last_used.seq {
            self.unused.push(fid.f_oid);
        }
    }

    /// Removes and returns the allocated ids that no file uses, before a clean stop.
    pub(crate) fn take_unused(&mut self) -> Vec<Fid> {
        let seq = self.last_used.seq;
        self.unused.drain(..).map(|oid| Fid::new(seq, oid, 0)).collect()
    }

    /// Allocates an id. If it exceeds the bound, also returns a record with a higher bound: the
    /// caller stores the record before it uses the id.
    pub(crate) fn take(&mut self) -> Option<(Fid, Option<LastUsedId>)> {
        if let Some(oid) = self.unused.pop() {
            return Some((Fid::new(self.last_used.seq, oid, 0), None));
        }
        if self.available() == 0 {
            return None;
        }
        self.allocated += 1;
        if cpt::Bug::ObjectIdReused.is_planted() {
            self.unused.push(self.allocated);
        }
        let exceeds_bound = self.allocated > self.last_used.used;
        if exceeds_bound {
            self.last_used.used = self
                .allocated
                .saturating_add(LAST_USED_STEP - 1)
                .min(self.precreated);
        }
        Some((
            Fid::new(self.last_used.seq, self.allocated, 0),
            exceeds_bound.then_some(self.last_used),
        ))
    }

    /// The record with the exact last id, for a clean stop.
    pub(crate) fn exact_last_used(&mut self) -> LastUsedId {
        self.last_used.used = self.allocated;
        self.last_used
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{LastUsedId, MAX_PRECREATE, MIN_PRECREATE, Pool};
    use wire::{Errno, Fid};

    /// A pool with `n` precreated objects, from id 2 on.
    fn pool_with(n: u32) -> Pool {
        let mut pool = Pool::new(LastUsedId::default());
        pool.begin_sequence(0x2_4000_0400);
        pool.add_precreated(1 + n);
        pool
    }

    #[test]
    fn ids_are_allocated_in_order_up_to_the_recorded_bound() {
        let mut pool = pool_with(1000);
        let mut last_used = LastUsedId::default();
        let mut last = 1;
        while let Some((fid, new_record)) = pool.take() {
            last_used = new_record.unwrap_or(last_used);
            assert_eq!(fid.f_oid, last + 1);
            assert!(fid.f_oid <= last_used.used && last_used.used <= 1001);
            last = fid.f_oid;
        }
        assert_eq!(last, 1001);
        let mut after_crash = Pool::new(last_used);
        assert_eq!(
            (after_crash.last_allocated().f_oid, after_crash.take()),
            (1001, None)
        );
        assert_eq!(LastUsedId::decode(&last_used.encode()).unwrap(), last_used);
    }

    #[test]
    fn replayed_objects_raise_the_bound_and_are_not_allocated_again() {
        const SEQ: u64 = 0x2_4000_0400;
        let mut pool = Pool::new(LastUsedId { seq: SEQ, used: 300 });
        let object = |oid| Fid::new(SEQ, oid, 0);
        assert_eq!(pool.readopt(object(299)), Ok(None));
        let raised = pool.readopt(object(310)).unwrap().unwrap();
        assert_eq!((raised.seq, raised.used), (SEQ, 310));
        assert_eq!(pool.readopt(object(305)), Ok(None));
        assert_eq!((pool.last_allocated().f_oid, pool.take()), (310, None));
        pool.record_orphan_cleanup(310);
        pool.add_precreated(400);
        assert_eq!(pool.take().unwrap().0, object(311));
        for refused in [object(1), object(u32::MAX), Fid::new(SEQ + 1, 305, 0)] {
            assert_eq!(pool.readopt(refused), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn unused_ids_are_allocated_again() {
        let mut pool = pool_with(3);
        let first = pool.take().unwrap().0;
        let second = pool.take().unwrap().0;
        pool.put_back(first);
        assert_eq!((pool.available(), pool.last_allocated()), (2, second));
        assert_eq!(pool.take(), Some((first, None)));
        pool.put_back(second);
        // The OST keeps the object of an allocated id across a reconnect.
        pool.drop_precreated();
        pool.record_orphan_cleanup(second.f_oid);
        assert_eq!((pool.take(), pool.take()), (Some((second, None)), None));
        pool.put_back(first);
        assert_eq!((pool.take_unused(), pool.take_unused()), (vec![first], vec![]));
    }

    #[test]
    fn precreation_grows_while_the_ost_keeps_up() {
        let mut pool = pool_with(0);
        let mut sizes = Vec::new();
        while let Some(until) = pool.next_precreate(MAX_PRECREATE) {
            sizes.push(until.f_oid - 1 - (pool.last_allocated().f_oid - 1) - pool.available());
            pool.add_precreated(until.f_oid);
            while pool.take().is_some() {}
            if sizes.len() == 12 {
                break;
            }
        }
        assert_eq!(
            (sizes[0], sizes[1], sizes[11]),
            (MIN_PRECREATE, 64, MAX_PRECREATE)
        );
    }

    #[test]
    fn administrator_limits_the_size_of_a_precreation() {
        let pool = pool_with(0);
        assert_eq!(pool.next_precreate(5).unwrap().f_oid, 1 + 5);
        assert_eq!(pool.next_precreate(0), None);
    }

    #[test]
    fn orphan_cleanup_sets_the_last_allocated_id_but_never_decreases_it() {
        let mut pool = pool_with(10);
        assert_eq!(pool.available(), 10);
        pool.record_orphan_cleanup(5);
        assert_eq!((pool.available(), pool.last_allocated().f_oid), (0, 5));
        pool.record_orphan_cleanup(3);
        assert_eq!(pool.last_allocated().f_oid, 5);
    }

    #[test]
    fn clean_stop_records_the_exact_last_id() {
        let mut pool = pool_with(100);
        let (fid, last_used) = pool.take().unwrap();
        assert_eq!(last_used.unwrap().used, 101);
        assert_eq!(pool.exact_last_used().used, fid.f_oid);
    }
}
