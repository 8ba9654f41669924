//! All the names that a directory may have, so that one that is not among them need not be asked for: listed under the
//! directory's UPDATE lock, a part with each of several lookups of names that were not there, and from then on with each
//! name that this client makes. What was removed stays among them (whether a name was made again after it was removed, or
//! before, nobody here can tell): the server is asked for it. A directory for which there is no room is not listed any more
//! while its lock stays.

use foldhash::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Instead of a number of lookups: there is no room, and nothing is listed.
const NO_ROOM: u32 = u32::MAX;
/// Lookups of names that were not there, before the first part of a directory is listed; twice as many before the next.
const MISSES: u32 = 2;
/// What a name takes.
const NAME_BYTES: u64 = 16;
/// Part of the process's memory.
const SHARE: u64 = 256;
/// Names of all directories together that may always be listed, and the most.
const NAMES: (u64, u64) = (64 << 10, 8 << 20);

/// How many names are listed in all directories together.
#[derive(Debug)]
pub(crate) struct Room {
    max: usize,
    names: AtomicUsize,
}

impl Default for Room {
    /// By the memory that the process may use.
    fn default() -> Room {
        let names = cpt::memory_bytes() / SHARE / NAME_BYTES;
        Room::new(names.clamp(NAMES.0, NAMES.1) as usize)
    }
}

impl Room {
    /// Room for so many names.
    pub(crate) fn new(max: usize) -> Room {
        Room {
            max,
            names: AtomicUsize::new(0),
        }
    }
}

/// Of one directory, under the lock with this cookie.
#[derive(Debug)]
pub(crate) struct Listed {
    cookie: u64,
    /// Lookups of names that were not there.
    misses: u32,
    /// Up to here the directory is listed.
    next: u64,
    whole: bool,
    /// Hashes of the names.
    names: HashSet<u64>,
    room: Arc<Room>,
}

impl Listed {
    /// Nothing is listed yet.
    pub(crate) fn new(cookie: u64, room: Arc<Room>) -> Listed {
        Listed {
            cookie,
            misses: 0,
            next: 0,
            whole: false,
            names: HashSet::default(),
            room,
        }
    }

    /// The lock under which this is true.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// A name was looked up and is not there: from which place the directory is to be listed on now, if at all.
    pub(crate) fn missed(&mut self) -> Option<u64> {
        self.misses = self.misses.saturating_add(1);
        // That of no room is none.
        let due = self.misses >= MISSES && self.misses.is_power_of_two();
        (due && !self.whole).then_some(self.next)
    }

    /// A part was listed, from `start` to `next`, the last one or not.
    pub(crate) fn add_part(&mut self, start: u64, next: Option<u64>, names: impl Iterator<Item = u64>) {
        if start != self.next || self.whole || self.misses == NO_ROOM {
            return;
        }
        self.whole = next.is_none();
        self.next = next.unwrap_or(start);
        names.for_each(|name| self.add(name));
    }

    /// A name is about to be made.
    pub(crate) fn add(&mut self, name: u64) {
        if self.misses == NO_ROOM || !self.names.insert(name) {
            return;
        }
        if self.room.names.fetch_add(1, Ordering::Relaxed) >= self.room.max {
            self.empty();
            (self.misses, self.whole) = (NO_ROOM, false);
        }
    }

    fn empty(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.room.names.fetch_sub(names.len(), Ordering::Relaxed);
    }

    /// Whether the directory does not have the name.
    pub(crate) fn lacks(&self, name: u64) -> bool {
        self.whole && !self.names.contains(&name)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.empty();
    }
}

#[cfg(test)]
mod tests {
    use super::{Listed, Room};
    use std::sync::Arc;

    #[test]
    fn only_a_directory_that_is_listed_to_its_end_is_known_not_to_have_a_name() {
        let mut listed = Listed::new(1, Arc::new(Room::new(100)));
        assert_eq!((listed.missed(), listed.missed()), (None, Some(0)));
        listed.add_part(0, Some(50), [1, 2].into_iter());
        assert!(!listed.lacks(7));
        assert_eq!((listed.missed(), listed.missed()), (None, Some(50)));
        listed.add(9);
        // A part that somebody else has listed meanwhile is not taken twice.
        listed.add_part(0, None, [3].into_iter());
        assert!(!listed.lacks(7));
        listed.add_part(50, None, [4].into_iter());
        assert!(listed.lacks(7));
        for there in [1, 2, 4, 9] {
            assert!(!listed.lacks(there));
        }
        let more = (0..100).filter_map(|_| listed.missed()).count();
        assert_eq!(more, 0, "there is nothing more to list");
    }

    #[test]
    fn names_are_bounded_over_all_directories() {
        let room = Arc::new(Room::new(100));
        let mut one = Listed::new(1, room.clone());
        let mut other = Listed::new(2, room.clone());
        one.add_part(0, None, 0..90);
        other.add_part(0, None, 0..20);
        assert!(one.lacks(1000) && !other.lacks(1000));
        drop(one);
        let mut third = Listed::new(3, room);
        third.add_part(0, None, 0..100);
        assert!(third.lacks(1000), "what had no room holds none");
    }

    #[test]
    fn a_directory_for_which_there_is_no_room_is_not_listed_again_and_again() {
        let mut listed = Listed::new(1, Arc::new(Room::new(10)));
        assert_eq!((listed.missed(), listed.missed()), (None, Some(0)));
        listed.add_part(0, Some(50), 0..20);
        let more = (0..1000).filter_map(|_| listed.missed()).count();
        assert_eq!(more, 0, "it does not become smaller");
        listed.add(3);
        listed.add_part(0, None, [4].into_iter());
        assert!(!listed.lacks(7) && !listed.lacks(3));
    }
}
