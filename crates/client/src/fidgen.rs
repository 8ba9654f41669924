//! Allocates FIDs: the metadata target allocates the sequences, the client counts the object IDs.
//!
//! Pure: [`FidGen`] reports when it needs a new sequence; the caller requests it.

use wire::{Fid, LUSTRE_METADATA_SEQ_MAX_WIDTH, LuSeqRange};

/// The unused FIDs of the current range of sequences.
#[derive(Debug, Default)]
pub(crate) struct FidGen {
    /// The current sequence and the unused ones after it.
    range: LuSeqRange,
    /// The last object ID allocated in the current sequence.
    last_oid: u32,
}

impl FidGen {
    /// Allocates the next FID; `None`: the caller must first [`refill`](FidGen::refill).
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

    /// Sets a new range of sequences. The rest of the old range stays unused.
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
    fn a_new_generator_needs_a_sequence_first() {
        let mut fids = FidGen::default();
        assert_eq!(fids.next(), None);
        fids.refill(LuSeqRange {
            lsr_start: 0x2_0000_0401,
            lsr_end: 0x2_0000_0402,
            ..LuSeqRange::default()
        });
        assert_eq!(fids.next(), Some(Fid::new(0x2_0000_0401, 1, 0)));
        assert_eq!(fids.next(), Some(Fid::new(0x2_0000_0401, 2, 0)));
    }

    #[test]
    fn a_full_sequence_is_followed_by_the_next_of_the_range() {
        let mut fids = FidGen::default();
        fids.refill(LuSeqRange {
            lsr_start: 5,
            lsr_end: 7,
            ..LuSeqRange::default()
        });
        let width = LUSTRE_METADATA_SEQ_MAX_WIDTH as u32;
        for _ in 0..width {
            assert_eq!(fids.next().unwrap().f_seq, 5);
        }
        assert_eq!(fids.next(), Some(Fid::new(6, 1, 0)));
        for _ in 1..width {
            fids.next().unwrap();
        }
        assert_eq!(fids.next(), None);
    }
}
