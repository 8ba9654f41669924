//! The objects of one OST that may be given to new files: pure bookkeeping of ids in one sequence.
//!
//! The OST makes ids in order ([`Pool::precreated`]); [`Pool::take`] gives them out in order. What is on disk is a mark
//! that no id given out lies above, so that after a crash everything above it can be removed without touching a file's
//! objects. The mark moves in steps, so that most creates do not write it.

use wire::{Fid, LUSTRE_DATA_SEQ_MAX_WIDTH, Reader, WireError, Writer};

use bytes::Bytes;

/// Ids that the first precreation asks for.
pub(crate) const MIN_PRECREATE: u32 = 32;
/// Ids that one precreation asks for at most.
pub(crate) const MAX_PRECREATE: u32 = 10_000;
/// By how much the mark on disk runs ahead of what is given out.
pub(crate) const MARK_STEP: u32 = 256;

/// What the store keeps of an OST's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The sequence; 0: none yet.
    pub seq: u64,
    /// No id above this one is in use.
    pub used: u32,
}

impl Mark {
    /// The record's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(12);
        w.u64(self.seq);
        w.u32(self.used);
        w.finish()
    }

    /// Reads a record.
    pub(crate) fn decode(value: &[u8]) -> Result<Mark, WireError> {
        let mut r = Reader::new("objects of an OST", value);
        Ok(Mark {
            seq: r.u64()?,
            used: r.u32()?,
        })
    }
}

/// Ids of one OST.
#[derive(Debug)]
pub(crate) struct Pool {
    mark: Mark,
    /// The last id given out.
    given: u32,
    /// The last id that the OST has made; equal to `given` while none is at hand.
    made: u32,
    /// How many to ask for next.
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

    /// Begins a new sequence. Its first object is the base that nothing is below.
    pub(crate) fn begin_sequence(&mut self, seq: u64) -> Mark {
        *self = Pool::new(Mark { seq, used: 1 });
        self.mark
    }

    /// Whether ids remain in the sequence for another precreation.
    pub(crate) fn has_width(&self) -> bool {
        u64::from(self.made) + u64::from(MAX_PRECREATE) < LUSTRE_DATA_SEQ_MAX_WIDTH
    }

    /// The last id given out: what an OST that reconnects must keep.
    pub(crate) fn last_given(&self) -> Fid {
        Fid::new(self.mark.seq, self.given, 0)
    }

    /// The sequence, the last id given out and the last one made.
    pub(crate) fn state(&self) -> (u64, u32, u32) {
        (self.mark.seq, self.given, self.made)
    }

    /// Ids at hand.
    pub(crate) fn ready(&self) -> u32 {
        self.made - self.given
    }

    /// What to ask the OST to make: the last id of a new range, when too few are at hand.
    pub(crate) fn wants(&self) -> Option<Fid> {
        let few = self.ready() <= self.batch / 2;
        (few && self.seq() != 0).then(|| Fid::new(self.mark.seq, self.made + self.batch, 0))
    }

    /// Nothing is at hand: what was will be removed as orphans.
    pub(crate) fn forget_ready(&mut self) {
        self.made = self.given;
    }

    /// After cleaning up orphans, the OST's last id is `last`: nothing is at hand.
    pub(crate) fn cleaned(&mut self, last: u32) {
        self.given = self.given.max(last);
        self.made = self.given;
    }

    /// The OST has made ids up to `last`. A full batch makes the next one larger.
    pub(crate) fn precreated(&mut self, last: u32) {
        if last >= self.made.saturating_add(self.batch) {
            self.batch = (self.batch * 2).min(MAX_PRECREATE);
        }
        self.made = self.made.max(last);
    }

    /// Gives out an id. A new mark must be in the store before the id is used.
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

    /// The exact mark, for a stop in good order.
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
    fn no_id_is_given_out_twice_and_none_above_the_mark() {
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
    fn an_ost_that_made_less_leaves_less() {
        let mut pool = ready(10);
        assert_eq!(pool.ready(), 10);
        pool.cleaned(5);
        assert_eq!((pool.ready(), pool.last_given().f_oid), (0, 5));
        pool.cleaned(3);
        assert_eq!(pool.last_given().f_oid, 5);
    }

    #[test]
    fn a_stop_in_good_order_leaves_an_exact_mark() {
        let mut pool = ready(100);
        let (fid, mark) = pool.take().unwrap();
        assert_eq!(mark.unwrap().used, 101);
        assert_eq!(pool.exact_mark().used, fid.f_oid);
    }
}
