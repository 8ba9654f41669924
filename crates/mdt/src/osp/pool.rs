//! The precreated objects of one OST: pure bookkeeping of ids in one sequence.
//!
//! The OST creates ids in order ([`Pool::precreated`]); [`Pool::take`] allocates them in order. The
//! store records an upper bound of the allocated ids, so after a crash everything above it can be
//! destroyed without touching a file's objects. The bound grows in steps, so most creates do not
//! write it.

use wire::{Fid, LUSTRE_DATA_SEQ_MAX_WIDTH, Reader, WireError, Writer};

use bytes::Bytes;

/// Number of ids of the first precreation.
pub(crate) const MIN_PRECREATE: u32 = 32;
/// Maximum number of ids of one precreation.
pub(crate) const MAX_PRECREATE: u32 = 10_000;
/// Number of ids by which the recorded bound is ahead of the last allocated id.
pub(crate) const MARK_STEP: u32 = 256;

/// The record of an OST's objects: the bound of the allocated ids (Lustre's last used id).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The sequence; 0: none yet.
    pub seq: u64,
    /// No id above this one is allocated.
    pub used: u32,
}

impl Mark {
    /// Encodes the record.
    pub(crate) fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(12);
        w.u64(self.seq);
        w.u32(self.used);
        w.finish()
    }

    /// Decodes a record.
    pub(crate) fn decode(value: &[u8]) -> Result<Mark, WireError> {
        let mut r = Reader::new("objects of an OST", value);
        Ok(Mark {
            seq: r.u64()?,
            used: r.u32()?,
        })
    }
}

/// The ids of one OST.
#[derive(Debug)]
pub(crate) struct Pool {
    mark: Mark,
    /// The last allocated id.
    given: u32,
    /// The last precreated id; equal to `given` if no object is available.
    made: u32,
    /// Number of ids of the next precreation.
    batch: u32,
}

impl Pool {
    /// The pool after a start.
    pub(crate) fn new(mark: Mark) -> Pool {
        Pool {
            mark,
            given: mark.used,
            made: mark.used,
            batch: MIN_PRECREATE,
        }
    }

    /// The sequence; 0: none yet.
    pub(crate) fn seq(&self) -> u64 {
        self.mark.seq
    }

    /// Starts a new sequence. Its first id is never used for a file.
    pub(crate) fn begin_sequence(&mut self, seq: u64) -> Mark {
        *self = Pool::new(Mark { seq, used: 1 });
        self.mark
    }

    /// Whether the sequence has ids left for another precreation.
    pub(crate) fn has_width(&self) -> bool {
        u64::from(self.made) + u64::from(MAX_PRECREATE) < LUSTRE_DATA_SEQ_MAX_WIDTH
    }

    /// The last allocated id: a reconnecting OST must keep the objects up to it.
    pub(crate) fn last_given(&self) -> Fid {
        Fid::new(self.mark.seq, self.given, 0)
    }

    /// The sequence, the last allocated id and the last precreated id.
    pub(crate) fn state(&self) -> (u64, u32, u32) {
        (self.mark.seq, self.given, self.made)
    }

    /// Number of available objects.
    pub(crate) fn ready(&self) -> u32 {
        self.made - self.given
    }

    /// The last id of the next precreation, if too few objects are available.
    pub(crate) fn wants(&self) -> Option<Fid> {
        let few = self.ready() <= self.batch / 2;
        (few && self.seq() != 0).then(|| Fid::new(self.mark.seq, self.made + self.batch, 0))
    }

    /// Drops the available objects: orphan cleanup will destroy them.
    pub(crate) fn forget_ready(&mut self) {
        self.made = self.given;
    }

    /// Records that orphan cleanup left `last` as the OST's last id: no object is available.
    pub(crate) fn cleaned(&mut self, last: u32) {
        self.given = self.given.max(last);
        self.made = self.given;
    }

    /// Records that the OST precreated ids up to `last`. A complete batch doubles the next one.
    pub(crate) fn precreated(&mut self, last: u32) {
        if last >= self.made.saturating_add(self.batch) {
            self.batch = (self.batch * 2).min(MAX_PRECREATE);
        }
        self.made = self.made.max(last);
    }

    /// Allocates an id. A returned record must be in the store before the id is used.
    pub(crate) fn take(&mut self) -> Option<(Fid, Option<Mark>)> {
        if self.ready() == 0 {
            return None;
        }
        self.given += 1;
        let passed = self.given > self.mark.used;
        if passed {
            self.mark.used = self.given.saturating_add(MARK_STEP - 1).min(self.made);
        }
        Some((
            Fid::new(self.mark.seq, self.given, 0),
            passed.then_some(self.mark),
        ))
    }

    /// The record with the exact last id, for a clean stop.
    pub(crate) fn exact_mark(&mut self) -> Mark {
        self.mark.used = self.given;
        self.mark
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{MAX_PRECREATE, MIN_PRECREATE, Mark, Pool};

    fn ready(n: u32) -> Pool {
        let mut pool = Pool::new(Mark::default());
        pool.begin_sequence(0x2_4000_0400);
        pool.precreated(1 + n);
        pool
    }

    #[test]
    fn ids_are_allocated_once_and_below_the_recorded_bound() {
        let mut pool = ready(1000);
        let mut mark = Mark::default();
        let mut last = 1;
        while let Some((fid, new)) = pool.take() {
            mark = new.unwrap_or(mark);
            assert_eq!(fid.f_oid, last + 1);
            assert!(fid.f_oid <= mark.used && mark.used <= 1001);
            last = fid.f_oid;
        }
        assert_eq!(last, 1001);
        let mut after_crash = Pool::new(mark);
        assert_eq!((after_crash.last_given().f_oid, after_crash.take()), (1001, None));
        assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
    }

    #[test]
    fn precreation_grows_while_the_ost_keeps_up() {
        let mut pool = ready(0);
        let mut sizes = Vec::new();
        while let Some(wanted) = pool.wants() {
            sizes.push(wanted.f_oid - 1 - (pool.last_given().f_oid - 1) - pool.ready());
            pool.precreated(wanted.f_oid);
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
    fn partial_precreation_and_cleanup_adjust_the_pool() {
        let mut pool = ready(10);
        assert_eq!(pool.ready(), 10);
        pool.cleaned(5);
        assert_eq!((pool.ready(), pool.last_given().f_oid), (0, 5));
        pool.cleaned(3);
        assert_eq!(pool.last_given().f_oid, 5);
    }

    #[test]
    fn clean_stop_records_the_exact_last_id() {
        let mut pool = ready(100);
        let (fid, mark) = pool.take().unwrap();
        assert_eq!(mark.unwrap().used, 101);
        assert_eq!(pool.exact_mark().used, fid.f_oid);
    }
}
