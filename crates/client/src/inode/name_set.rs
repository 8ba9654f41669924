//! The complete set of names that a directory may have, so that lookups of other names need no
//! request.
//!
//! After the second, fourth, eighth (and so on) failed lookup in a directory, the client lists the
//! next part of the directory under the directory's UPDATE lock. The client also adds each name
//! that it creates. Removed names stay in the set, because the client does not know the order in
//! which the server removed and created a name. A lookup of a removed name needs a request. If the
//! set exceeds the limit, the client does not list the directory again under the same lock.

use cpt::HashSet;
use ldlm::LockCookie;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Value of `misses` for a directory that exceeded the limit.
const OVER_LIMIT: u32 = u32::MAX;
/// Failed lookups before the first part of a directory is listed. The number doubles for each next
/// part.
const MISSES_BEFORE_LISTING: u32 = 2;
/// Assumed memory of one name, in bytes: the set stores hashes.
const NAME_BYTES: u64 = 16;
/// The limit is the process's memory divided by this and by [`NAME_BYTES`], within [`NAMES_RANGE`].
const MEMORY_DIVISOR: u64 = 256;
/// Least and largest limit, in names of all directories together.
const NAMES_RANGE: (u64, u64) = (64 << 10, 8 << 20);

/// Limit and number of the names in the sets of all directories together.
#[derive(Debug)]
pub(crate) struct NameSetLimit {
    max: usize,
    names: AtomicUsize,
}

impl Default for NameSetLimit {
    /// The limit that fits the memory of the process.
    fn default() -> NameSetLimit {
        let names = cpt::memory_bytes() / MEMORY_DIVISOR / NAME_BYTES;
        NameSetLimit::new(names.clamp(NAMES_RANGE.0, NAMES_RANGE.1) as usize)
    }
}

impl NameSetLimit {
    /// A limit of `max` names.
    pub(crate) fn new(max: usize) -> NameSetLimit {
        NameSetLimit {
            max,
            names: AtomicUsize::new(0),
        }
    }
}

/// The names of one directory, valid under the lock with this cookie.
#[derive(Debug)]
pub(crate) struct DirNameSet {
    cookie: LockCookie,
    /// Failed lookups so far, or [`OVER_LIMIT`].
    misses: u32,
    /// The client has listed the directory up to this position (the server's hash of a name).
    next: u64,
    /// Whether the client has listed the directory to its end.
    complete: bool,
    /// This client's hashes of the names.
    names: HashSet<u64>,
    limit: Arc<NameSetLimit>,
}

impl DirNameSet {
    /// An empty set: no part of the directory is listed.
    pub(crate) fn new(cookie: LockCookie, limit: Arc<NameSetLimit>) -> DirNameSet {
        DirNameSet {
            cookie,
            misses: 0,
            next: 0,
            complete: false,
            names: HashSet::default(),
            limit,
        }
    }

    /// The cookie of the lock under which the set is valid.
    pub(crate) fn cookie(&self) -> LockCookie {
        self.cookie
    }

    /// Counts a failed lookup. Returns the position from which the caller should list the next part
    /// now; `None`: not now.
    pub(crate) fn note_miss(&mut self) -> Option<u64> {
        self.misses = self.misses.saturating_add(1);
        // `OVER_LIMIT` is not a power of two.
        let due = self.misses >= MISSES_BEFORE_LISTING && self.misses.is_power_of_two();
        (due && !self.complete).then_some(self.next)
    }

    /// Adds the hashes of the names in a part listed from position `start` (the server's hash of a
    /// name). `next`: where the next part starts; `None`: the directory ends.
    pub(crate) fn add_part(&mut self, start: u64, next: Option<u64>, name_hashes: impl Iterator<Item = u64>) {
        if start != self.next || self.complete || self.misses == OVER_LIMIT {
            return;
        }
        self.complete = next.is_none();
        self.next = next.unwrap_or(start);
        name_hashes.for_each(|hash| self.add(hash));
    }

    /// Adds the hash of a name that is listed or about to be created. Clears the set if the limit
    /// is exceeded.
    pub(crate) fn add(&mut self, name_hash: u64) {
        if self.misses == OVER_LIMIT || !self.names.insert(name_hash) {
            return;
        }
        if self.limit.names.fetch_add(1, Ordering::Relaxed) >= self.limit.max {
            self.clear();
            (self.misses, self.complete) = (OVER_LIMIT, false);
        }
    }

    fn clear(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.limit.names.fetch_sub(names.len(), Ordering::Relaxed);
    }

    /// Whether the set proves that the directory lacks the name with this hash.
    pub(crate) fn lacks(&self, name_hash: u64) -> bool {
        self.complete && !self.names.contains(&name_hash)
    }
}

impl Drop for DirNameSet {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{DirNameSet, NameSetLimit};
    use ldlm::LockCookie;
    use std::sync::Arc;

    #[test]
    fn only_a_complete_listing_proves_that_a_name_is_missing() {
        let mut listed = DirNameSet::new(LockCookie(1), Arc::new(NameSetLimit::new(100)));
        assert_eq!((listed.note_miss(), listed.note_miss()), (None, Some(0)));
        listed.add_part(0, Some(50), [1, 2].into_iter());
        assert!(!listed.lacks(7));
        assert_eq!((listed.note_miss(), listed.note_miss()), (None, Some(50)));
        listed.add(9);
        // A part that another lookup has listed meanwhile is not added twice.
        listed.add_part(0, None, [3].into_iter());
        assert!(!listed.lacks(7));
        listed.add_part(50, None, [4].into_iter());
        assert!(listed.lacks(7));
        for name in [1, 2, 4, 9] {
            assert!(!listed.lacks(name));
        }
        let parts_to_list = (0..100).filter_map(|_| listed.note_miss()).count();
        assert_eq!(parts_to_list, 0, "the listing is complete");
    }

    #[test]
    fn the_limit_holds_for_all_directories_together() {
        let limit = Arc::new(NameSetLimit::new(100));
        let mut one = DirNameSet::new(LockCookie(1), limit.clone());
        let mut other = DirNameSet::new(LockCookie(2), limit.clone());
        one.add_part(0, None, 0..90);
        other.add_part(0, None, 0..20);
        assert!(one.lacks(1000) && !other.lacks(1000));
        drop(one);
        let mut third = DirNameSet::new(LockCookie(3), limit);
        third.add_part(0, None, 0..100);
        assert!(third.lacks(1000), "a set over the limit holds no names");
    }

    #[test]
    fn a_directory_over_the_limit_is_not_listed_again() {
        let mut listed = DirNameSet::new(LockCookie(1), Arc::new(NameSetLimit::new(10)));
        assert_eq!((listed.note_miss(), listed.note_miss()), (None, Some(0)));
        listed.add_part(0, Some(50), 0..20);
        let parts_to_list = (0..1000).filter_map(|_| listed.note_miss()).count();
        assert_eq!(parts_to_list, 0);
        listed.add(3);
        listed.add_part(0, None, [4].into_iter());
        assert!(!listed.lacks(7) && !listed.lacks(3));
    }
}
