//! Directory entries that are kept, of all directories of a mount together: so many at most. The run that was brought
//! first leaves first, so a directory that is larger than all the room passes through it, and small ones stay.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use wire::Fid;
use wire::dirpage::DirEntry;

/// What an entry takes, with its name and its part of the page that it came in.
const ENTRY_BYTES: u64 = 128;
/// Part of the process's memory.
const SHARE: u64 = 64;
/// Entries that may always be kept, and the most: what one request brings, several times; and 256 MiB.
const ENTRIES: (u64, u64) = (32 << 10, 2 << 20);

/// A run of a directory's entries, as one request brought them.
#[derive(Debug)]
pub(crate) struct DirChunk {
    /// The hash that it was asked for.
    pub(crate) start: u64,
    /// In order of their hash.
    pub(crate) entries: Vec<DirEntry>,
    /// Where the next run starts; `MDS_DIR_END_OFF` at the end.
    pub(crate) next: u64,
}

impl DirChunk {
    /// Whether it says what there is from this hash on.
    pub(crate) fn spans(&self, hash: u64) -> bool {
        (self.start..self.next).contains(&hash)
    }
}

/// A run's place among those that are kept.
pub(crate) type Ticket = u64;

/// Which runs are kept. Their directories have them; they are counted here.
#[derive(Debug)]
pub(crate) struct Kept {
    entries_max: usize,
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    /// In the order in which they came: whose they are, and how many entries.
    order: BTreeMap<Ticket, (Fid, usize)>,
    next: Ticket,
    entries: usize,
}

impl Default for Kept {
    /// By the memory that the process may use.
    fn default() -> Kept {
        let entries = cpt::memory_bytes() / SHARE / ENTRY_BYTES;
        Kept::new(entries.clamp(ENTRIES.0, ENTRIES.1) as usize)
    }
}

impl Kept {
    /// Room for so many entries.
    pub(crate) fn new(entries_max: usize) -> Kept {
        Kept {
            entries_max,
            runs: Mutex::default(),
        }
    }

    /// A run of so many entries is kept from now on; which others have to leave for it. `None`: it is too long itself.
    pub(crate) fn add(&self, dir: Fid, entries: usize) -> Option<(Ticket, Vec<(Fid, Ticket)>)> {
        if entries > self.entries_max {
            return None;
        }
        let mut runs = self.runs.lock();
        let mut leaving = Vec::new();
        while runs.entries + entries > self.entries_max
            && let Some((ticket, (dir, count))) = runs.order.pop_first()
        {
            runs.entries -= count;
            leaving.push((dir, ticket));
        }
        let ticket = runs.next;
        runs.next += 1;
        runs.entries += entries;
        runs.order.insert(ticket, (dir, entries));
        Some((ticket, leaving))
    }

    /// A run is not kept any more.
    pub(crate) fn remove(&self, ticket: Ticket) {
        let mut runs = self.runs.lock();
        if let Some((_, count)) = runs.order.remove(&ticket) {
            runs.entries -= count;
        }
    }

    /// How many entries are kept.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.runs.lock().entries
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Kept;
    use wire::Fid;

    #[test]
    fn what_came_first_leaves_first_and_only_as_far_as_there_is_no_room() {
        let kept = Kept::new(100);
        let dir = |oid| Fid::new(0x400, oid, 0);
        let (first, none) = kept.add(dir(1), 40).unwrap();
        assert!(none.is_empty());
        let (second, _) = kept.add(dir(2), 40).unwrap();
        let (_, leaving) = kept.add(dir(3), 50).unwrap();
        assert_eq!(leaving, [(dir(1), first)]);
        assert_eq!(kept.entries(), 90);
        kept.remove(first);
        kept.remove(second);
        assert_eq!(kept.entries(), 50);
        assert!(kept.add(dir(4), 101).is_none());
    }
}
