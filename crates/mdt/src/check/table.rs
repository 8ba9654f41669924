//! The table of inodes, 48 bytes each. The walk over inodes adds the rows; the walk over names
//! counts links and names in them.

use std::hash::{BuildHasher, RandomState};

use wire::Fid;

use crate::store::S_IFDIR;

/// The index that stands for "no row".
pub(super) const NO_ROW: u32 = u32::MAX;

// Flags of a row.
/// The record is malformed; names may lead to the inode nevertheless.
pub(super) const MALFORMED: u8 = 1;
/// The inode has an orphan record.
pub(super) const ORPHAN: u8 = 2;
/// The directory has entries.
pub(super) const HAS_ENTRIES: u8 = 4;
/// The inode has the flag for extended attributes.
pub(super) const HAS_XATTRS: u8 = 8;
/// [`Row::link_difference`] has no meaning: the recorded links overflowed or are malformed.
pub(super) const LINK_SUM_INVALID: u8 = 16;
/// The search for cycles has ended for this directory.
pub(super) const SEARCHED: u8 = 32;
/// The directory is on the path of the current search for cycles.
pub(super) const VISITING: u8 = 64;
/// A recorded link has its name on another MDT.
pub(super) const REMOTE_NAME: u8 = 128;

/// The state of one inode.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) fid: Fid,
    /// Sum of the hashes of the recorded links, minus those of the names found: 0 if links and
    /// names are equal.
    pub(super) link_difference: u64,
    /// The stored link count.
    pub(super) nlink: u32,
    /// Number of names that lead to the inode.
    pub(super) names: u32,
    /// For a directory, the number of its entries that lead to directories.
    pub(super) subdirs: u32,
    /// For a directory, the row of its parent by the first name found, or [`NO_ROW`].
    pub(super) parent: u32,
    /// The four type bits of the mode.
    kind: u8,
    flags: u8,
}

impl Row {
    pub(super) fn new(fid: Fid, mode: u32, nlink: u32) -> Row {
        Row {
            fid,
            link_difference: 0,
            nlink,
            names: 0,
            subdirs: 0,
            parent: NO_ROW,
            kind: (mode >> 12) as u8,
            flags: 0,
        }
    }

    pub(super) fn kind(&self) -> u32 {
        u32::from(self.kind) << 12
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8) {
        self.flags |= flag;
    }

    pub(super) fn clear(&mut self, flag: u8) {
        self.flags &= !flag;
    }

    /// The link count that follows from the names found.
    pub(super) fn nlink_expected(&self) -> u32 {
        if self.is_dir() {
            2 + self.subdirs
        } else {
            self.names
        }
    }

    /// Whether the inode was removed while open: no name, no link, no entries.
    pub(super) fn is_removed(&self) -> bool {
        self.names == 0 && self.nlink == 0 && !self.has(HAS_ENTRIES)
    }
}

/// All inodes, sorted by FID.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    hasher: RandomState,
}

impl Table {
    /// The index of an inode's row.
    pub(super) fn find(&self, fid: Fid) -> Option<usize> {
        self.rows.binary_search_by_key(&fid, |r| r.fid).ok()
    }

    /// The hash of a name, one summand of [`Row::link_difference`].
    pub(super) fn name_hash(&self, parent: Fid, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }
}

#[cfg(test)]
mod tests {
    use super::Row;

    #[test]
    fn rows_and_claims_have_the_documented_size() {
        assert_eq!(size_of::<Row>(), 48);
        assert_eq!(size_of::<super::super::Claim>(), 32);
    }
}
