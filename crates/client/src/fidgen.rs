//! New FIDs: a sequence from the metadata target, object numbers from here.
//!
//! Pure: [`FidGen`] hands out numbers of the sequences it was given and says when it needs another; the request to the
//! target is the caller's.

use wire::{Fid, LUSTRE_METADATA_SEQ_MAX_WIDTH, LuSeqRange};

/// What is left of the sequence in use.
#[derive(Debug, Default)]
pub(crate) struct FidGen {
    range: LuSeqRange,
    last_oid: u32,
}

impl FidGen {
    /// The next FID; `None` when a new range is needed first.
    pub(crate) fn next(&mut self) -> Option<Fid> {
        if self.last_oid >= LUSTRE_METADATA_SEQ_MAX_WIDTH as u32 {
            self.range.lsr_start += 1;
            self.last_oid = 0;
        }
        if self.range.lsr_start >= self.range.lsr_end {
            return None;
        }
        self.last_oid += 1;
        Some(Fid::new(self.range.lsr_start, self.last_oid, 0))
    }

    /// Goes on with these sequences; what was left of the old one is never used.
    pub(crate) fn refill(&mut self, range: LuSeqRange) {
        self.range = range;
        self.last_oid = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Fid, FidGen, LUSTRE_METADATA_SEQ_MAX_WIDTH, LuSeqRange};

    #[test]
    fn a_new_generator_asks_for_a_sequence_first() {
        let mut g = FidGen::default();
        assert_eq!(g.next(), None);
        g.refill(LuSeqRange {
            lsr_start: 0x2_0000_0401,
            lsr_end: 0x2_0000_0402,
            ..LuSeqRange::default()
        });
        assert_eq!(g.next(), Some(Fid::new(0x2_0000_0401, 1, 0)));
        assert_eq!(g.next(), Some(Fid::new(0x2_0000_0401, 2, 0)));
    }

    #[test]
    fn a_sequence_ends_at_its_width() {
        let mut g = FidGen::default();
        g.refill(LuSeqRange {
            lsr_start: 5,
            lsr_end: 7,
            ..LuSeqRange::default()
        });
        let width = LUSTRE_METADATA_SEQ_MAX_WIDTH as u32;
        for _ in 0..width {
            assert_eq!(g.next().unwrap().f_seq, 5);
        }
        assert_eq!(g.next(), Some(Fid::new(6, 1, 0)));
        for _ in 1..width {
            g.next().unwrap();
        }
        assert_eq!(g.next(), None);
    }
}
