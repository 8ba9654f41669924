//! Tombstones of destroyed objects. A client that does not yet know that its file was unlinked may
//! still write to a destroyed object. The first write creates an object's file, so such a write
//! would create an orphan.
//!
//! Tombstones are only in memory, and their number is limited. The OST keeps the tombstones of the
//! latest destroyed objects, in two generations, and of the latest ranges of ids that were
//! precreated but never given to a file. Each write searches for a tombstone, so the search takes
//! no lock in a shard that never had one.

use std::{
    collections::{HashSet, VecDeque},
    sync::atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use wire::Fid;

const SHARDS: usize = 16;
/// Limit of objects in one generation of one shard. Both generations of all shards have at most
/// about 100 000 objects, 2 MiB.
const GENERATION_MAX: usize = 3072;
/// Limit of ranges; the oldest is dropped. Each clean-up of orphans for an MDT adds one.
const RANGES_MAX: usize = 256;

#[derive(Default)]
struct Shard {
    /// Whether the shard ever had a tombstone.
    in_use: AtomicBool,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashSet<Fid>,
    old: HashSet<Fid>,
}

/// Ranges of ids: sequence, first id, last id (inclusive).
type Ranges = VecDeque<(u64, u64, u64)>;

/// The tombstones of destroyed objects.
#[derive(Default)]
pub(crate) struct Tombstones {
    shards: [Shard; SHARDS],
    ranges: ArcSwap<Ranges>,
}

impl Tombstones {
    fn shard(&self, fid: &Fid) -> &Shard {
        &self.shards[fid.f_oid as usize % SHARDS]
    }

    /// Adds a destroyed object.
    pub(crate) fn add(&self, fid: Fid) {
        let shard = self.shard(&fid);
        let mut generations = shard.generations.lock();
        if generations.young.len() >= GENERATION_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(fid);
        shard.in_use.store(true, Ordering::SeqCst);
    }

    /// Adds the ids from `first` to `last`, which no file will ever use.
    pub(crate) fn add_range(&self, seq: u64, first: u64, last: u64) {
        self.ranges.rcu(|ranges| {
            let mut ranges = Ranges::clone(ranges);
            if ranges.len() >= RANGES_MAX {
                ranges.pop_front();
            }
            ranges.push_back((seq, first, last));
            ranges
        });
    }

    /// Whether an object has a tombstone.
    pub(crate) fn contains(&self, fid: &Fid) -> bool {
        let shard = self.shard(fid);
        if shard.in_use.load(Ordering::SeqCst) {
            let generations = shard.generations.lock();
            if generations.young.contains(fid) || generations.old.contains(fid) {
                return true;
            }
        }
        let oid = u64::from(fid.f_oid);
        let within =
            |(seq, first, last): &(u64, u64, u64)| *seq == fid.f_seq && (*first..=*last).contains(&oid);
        self.ranges.load().iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::{GENERATION_MAX, SHARDS, Tombstones};
    use wire::Fid;

    fn fid(oid: u32) -> Fid {
        Fid::new(0x2_4000_0400, oid, 0)
    }

    #[test]
    fn number_of_tombstones_is_limited_and_the_latest_are_kept() {
        let tombstones = Tombstones::default();
        for oid in 1..1_000_000 {
            tombstones.add(fid(oid));
        }
        assert!(tombstones.contains(&fid(999_999)) && tombstones.contains(&fid(960_000)));
        assert!(!tombstones.contains(&fid(1)) && !tombstones.contains(&fid(1_000_000)));
        let kept = (1..1_000_000)
            .filter(|oid| tombstones.contains(&fid(*oid)))
            .count();
        assert!(kept <= 2 * SHARDS * GENERATION_MAX);
    }

    #[test]
    fn range_covers_one_sequence_only() {
        let tombstones = Tombstones::default();
        tombstones.add_range(fid(0).f_seq, 5, 7);
        let covered: Vec<u32> = (0..10).filter(|oid| tombstones.contains(&fid(*oid))).collect();
        assert_eq!(covered, [5, 6, 7]);
        assert!(!tombstones.contains(&Fid::new(1, 6, 0)));
    }
}
