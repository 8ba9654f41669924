//! Is the store of a metadata target consistent? Every name leads to an inode that knows it, every link is counted, every
//! directory is below the root, nothing is lost; and repairing what is not so.
//!
//! [`examine`] walks the store record by record, in the order of keys, and keeps 48 bytes for each inode ([`table`]) and 32
//! for each object of a file; names are compared as sums of their hashes. Only of what is damaged does a second walk collect
//! the names. It changes nothing. What is found is a [`Problem`], which tells itself and repairs itself ([`repair`]); after
//! repairs the store is examined again, since one damage may have hidden another. What concerns objects (does each have
//! one file, is it there?) is examined by who sees the object targets too, from the [`Claim`]s.

mod judge;
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

/// An object that a file's layout names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The OST.
    pub ost: OstIndex,
    /// The object's sequence and id.
    pub object: (u64, u32),
    /// Which stripe of the file it is.
    pub stripe: u16,
    /// The file's place in the table of inodes.
    file: u32,
}

/// What the store holds, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Inodes that were removed while open, which the next start destroys.
    pub orphans: u64,
}

/// What an examination brings.
#[derive(Debug, Default)]
pub struct Examined {
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// The objects of all files, in no order.
    pub claims: Vec<Claim>,
    /// For each OST the sequence of its objects, and the id that none in use is above.
    pub marks: BTreeMap<OstIndex, (u64, u32)>,
    /// Objects that are queued to be destroyed, by OST; sorted.
    pub destroyed: Vec<(OstIndex, Fid)>,
    /// Whose sequences are whose.
    pub located: Vec<LuSeqRange>,
    /// Numbers.
    pub counts: Counts,
    table: Table,
}

impl Examined {
    /// The file that a claim is of.
    pub fn file(&self, claim: &Claim) -> Fid {
        self.table.rows[claim.file as usize].fid
    }
}

/// Examines the store of the MDT of this index.
pub fn examine(store: &Store, mdt_index: u32, progress: &Progress) -> Result<Examined, OsdError> {
    let mut found = Examined::default();
    walk::inodes(store, mdt_index, progress, &mut found)?;
    walk::names(store, progress, &mut found)?;
    walk::xattrs(store, progress, &mut found)?;
    walk::orphans(store, progress, &mut found)?;
    walk::work(store, progress, &mut found)?;
    walk::unknown(store, progress, &mut found)?;
    judge::judge(store, progress, &mut found)?;
    Ok(found)
}
