//! What is remembered of each inode while the names are walked: 48 bytes.

use std::hash::{BuildHasher, RandomState};

use wire::Fid;

use crate::store::S_IFDIR;

/// No row.
pub(super) const NONE: u32 = u32::MAX;

/// The record cannot be read; names may lead to it all the same.
pub(super) const BAD: u8 = 1;
/// It is noted as removed while open.
pub(super) const ORPHAN: u8 = 2;
/// A directory in which there are names.
pub(super) const HAS_NAMES: u8 = 4;
/// It says that it has attributes in records of their own.
pub(super) const HAS_XATTRS: u8 = 8;
/// Its links cannot be compared as a sum: too many for the attribute, or not readable.
pub(super) const LINKS_APART: u8 = 16;
/// A directory that is known to be below the root, or below what has no name.
pub(super) const SAFE: u8 = 32;
/// A directory on the way that is being followed.
pub(super) const ON_THE_WAY: u8 = 64;

/// An inode.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) fid: Fid,
    /// Names that the inode knows less those that lead to it, as a sum of hashes: 0 when they are the same.
    pub(super) links: u64,
    pub(super) nlink: u32,
    /// Names that lead to it.
    pub(super) names: u32,
    /// Names in it that lead to directories.
    pub(super) subdirs: u32,
    /// A directory's parent: where the first name that leads to it is.
    pub(super) parent: u32,
    /// The four type bits of the mode.
    kind: u8,
    is: u8,
}

impl Row {
    pub(super) fn new(fid: Fid, mode: u32, nlink: u32) -> Row {
        Row {
            fid,
            links: 0,
            nlink,
            names: 0,
            subdirs: 0,
            parent: NONE,
            kind: (mode >> 12) as u8,
            is: 0,
        }
    }

    pub(super) fn kind(&self) -> u32 {
        u32::from(self.kind) << 12
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    pub(super) fn is(&self, mark: u8) -> bool {
        self.is & mark != 0
    }

    pub(super) fn mark(&mut self, mark: u8) {
        self.is |= mark;
    }

    pub(super) fn unmark(&mut self, mark: u8) {
        self.is &= !mark;
    }

    /// The links that it should have.
    pub(super) fn nlink_expected(&self) -> u32 {
        if self.is_dir() {
            2 + self.subdirs
        } else {
            self.names
        }
    }

    /// Removed while open: no name, no link, nothing in it.
    pub(super) fn is_removed(&self) -> bool {
        self.names == 0 && self.nlink == 0 && !self.is(HAS_NAMES)
    }
}

/// All inodes, sorted by FID.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    hasher: RandomState,
}

impl Table {
    pub(super) fn find(&self, fid: Fid) -> Option<usize> {
        self.rows.binary_search_by_key(&fid, |r| r.fid).ok()
    }

    /// A name's part in the sum of names.
    pub(super) fn sum(&self, parent: Fid, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }
}

#[cfg(test)]
mod tests {
    use super::Row;

    #[test]
    fn a_row_is_as_small_as_is_said() {
        assert_eq!(size_of::<Row>(), 48);
        assert_eq!(size_of::<super::super::Claim>(), 32);
    }
}
