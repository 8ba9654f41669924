//! Objects that were destroyed, as long as somebody may still write to them: a client that does not know yet that its file
//! is gone. An object is made by its first write, so that such a write would leave one that is nobody's.
//!
//! Only in memory, and bounded: the latest destroyed, in two generations, and the ranges of ids that no file got.

use std::collections::{HashSet, VecDeque};

use parking_lot::{Mutex, RwLock};
use wire::Fid;

const SHARDS: usize = 16;
/// Objects of one generation of one shard: a hundred thousand in all at most, two MiB.
const GENERATION: usize = 3072;
/// Ranges at most: one comes with each start of an MDT.
const RANGES: usize = 256;

#[derive(Default)]
struct Shard {
    young: HashSet<Fid>,
    old: HashSet<Fid>,
}

/// What is known to be gone.
#[derive(Default)]
pub(crate) struct Gone {
    shards: [Mutex<Shard>; SHARDS],
    /// Sequence, first and last id.
    ranges: RwLock<VecDeque<(u64, u64, u64)>>,
}

impl Gone {
    fn shard(&self, fid: &Fid) -> &Mutex<Shard> {
        &self.shards[fid.f_oid as usize % SHARDS]
    }

    /// An object is destroyed.
    pub(crate) fn add(&self, fid: Fid) {
        let mut shard = self.shard(&fid).lock();
        if shard.young.len() >= GENERATION {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(fid);
    }

    /// No file has any of these objects, and none will.
    pub(crate) fn add_range(&self, seq: u64, first: u64, last: u64) {
        let mut ranges = self.ranges.write();
        if ranges.len() >= RANGES {
            ranges.pop_front();
        }
        ranges.push_back((seq, first, last));
    }

    /// Whether an object is gone.
    pub(crate) fn has(&self, fid: &Fid) -> bool {
        let shard = self.shard(fid).lock();
        if shard.young.contains(fid) || shard.old.contains(fid) {
            return true;
        }
        drop(shard);
        let oid = u64::from(fid.f_oid);
        let within =
            |(seq, first, last): &(u64, u64, u64)| *seq == fid.f_seq && (*first..=*last).contains(&oid);
        self.ranges.read().iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::{GENERATION, Gone, SHARDS};
    use wire::Fid;

    fn fid(oid: u32) -> Fid {
        Fid::new(0x2_4000_0400, oid, 0)
    }

    #[test]
    fn the_latest_are_known_and_no_more_than_a_bound() {
        let gone = Gone::default();
        for oid in 1..1_000_000 {
            gone.add(fid(oid));
        }
        assert!(gone.has(&fid(999_999)) && gone.has(&fid(960_000)));
        assert!(!gone.has(&fid(1)) && !gone.has(&fid(1_000_000)));
        let kept = (1..1_000_000).filter(|oid| gone.has(&fid(*oid))).count();
        assert!(kept <= 2 * SHARDS * GENERATION);
    }

    #[test]
    fn a_range_is_of_one_sequence() {
        let gone = Gone::default();
        gone.add_range(fid(0).f_seq, 5, 7);
        let known: Vec<u32> = (0..10).filter(|oid| gone.has(&fid(*oid))).collect();
        assert_eq!(known, [5, 6, 7]);
        assert!(!gone.has(&Fid::new(1, 6, 0)));
    }
}
