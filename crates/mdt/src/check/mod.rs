//! Checks the store of an MDT, and repairs it. In a consistent store every name leads to an inode
//! that records it, every link is counted, every directory is below the root, and no inode is
//! unreachable.
//!
//! [`examine`] walks the store record by record in the order of keys and changes nothing. It keeps
//! 48 bytes per inode ([`table`]) and 32 per object of a file, and compares names as sums of
//! hashes. Only for inconsistent inodes a second walk collects the names. Each [`Problem`]
//! describes itself, and [`repair`] repairs it; then the store is examined again, because one
//! problem can hide another. The comparison with the OSTs' objects is left to the caller, which
//! gets the [`Claim`]s.

mod evaluate;
mod problem;
mod ranges;
mod repair;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeMap;

use osd::{OsdError, check::Progress};
use wire::{Fid, LuSeqRange, OstIndex};

pub use problem::{Problem, show_path};
pub use repair::Repairer;

use crate::store::Store;
use table::Table;

/// A stripe's claim on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The OST.
    pub ost: OstIndex,
    /// The object's sequence and id.
    pub object: (u64, u32),
    /// The index of the stripe in the file.
    pub stripe: u16,
    /// The file's row in the table of inodes.
    file: u32,
}

/// Numbers of records in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Inodes removed while open; the next start of the target destroys them.
    pub orphans: u64,
}

/// The result of examining a store.
#[derive(Debug, Default)]
pub struct Examination {
    /// The problems found.
    pub problems: Vec<Problem>,
    /// The objects of all files, unsorted.
    pub claims: Vec<Claim>,
    /// For each OST: the sequence of its objects and the last used id.
    pub last_used: BTreeMap<OstIndex, (u64, u32)>,
    /// Objects queued for destruction, by OST; sorted.
    pub destroy_queue: Vec<(OstIndex, Fid)>,
    /// The ranges of the FLDB.
    pub fldb: Vec<LuSeqRange>,
    /// Numbers of records.
    pub counts: Counts,
    table: Table,
}

impl Examination {
    /// The file of a claim.
    pub fn file(&self, claim: &Claim) -> Fid {
        self.table.rows[claim.file as usize].fid
    }
}

/// Examines the store of the MDT with index `mdt_index`.
///
/// # Errors
///
/// [`OsdError::Stopping`] if the check is to stop, or an error of reading the index.
pub fn examine(store: &Store, mdt_index: u32, progress: &Progress) -> Result<Examination, OsdError> {
    let mut found = Examination::default();
    walk::inodes(store, mdt_index, progress, &mut found)?;
    walk::names(store, progress, &mut found)?;
    walk::xattrs(store, progress, &mut found)?;
    walk::orphans(store, progress, &mut found)?;
    walk::work(store, progress, &mut found)?;
    walk::unknown(store, progress, &mut found)?;
    evaluate::evaluate(store, progress, &mut found)?;
    Ok(found)
}
