//! Checks the store of an MDT, and repairs it. In a consistent store every name leads to an inode
//! that records the name, every link is counted, every directory is below the root, and every inode
//! without a name has an orphan record. [`compare`] compares the names of inodes on other MDTs, and
//! the links of inodes to names on other MDTs, after each store was examined.
//!
//! [`examine`] walks the records of each kind in the order of their keys and changes nothing. It
//! keeps 48 bytes per inode ([`table`]) and 32 per stripe of a file ([`Claim`]), and compares names
//! as sums of hashes. A second walk collects names, but only those of inconsistent inodes.
//!
//! [`Problem::finding`] describes a problem, and [`Repairer`] repairs it. The caller examines the
//! store again after repairs, because one problem can hide another. The caller also compares the
//! files' objects ([`Claim`]) with those on the OSTs.

mod data;
mod evaluate;
mod problem;
mod ranges;
mod remote;
mod repair;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use std::{collections::BTreeMap, ops::AddAssign};

use osd::{OsdError, check::Progress};
use wire::{Fid, LuSeqRange, OstIndex};

pub use problem::{Problem, show_path};
pub use remote::compare;
pub use repair::Repairer;

use crate::{layout::StripePlace, store::Store};
use ranges::Ranges;
use remote::Remote;
use table::Table;

/// The claim of a file's stripe to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The OST.
    pub ost: OstIndex,
    /// Sequence and id of the object.
    pub object: (u64, u32),
    /// The object's place in the file's layout.
    pub place: StripePlace,
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
    /// Directory entries.
    pub names: u64,
    /// Inodes removed while open; the next start of the target destroys them.
    pub orphans: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.inodes += other.inodes;
        self.directories += other.directories;
        self.names += other.names;
        self.orphans += other.orphans;
    }
}

/// The result of examining a store.
#[derive(Debug, Default)]
pub struct Examination {
    /// The problems found.
    pub problems: Vec<Problem>,
    /// The objects of all files, unsorted.
    pub claims: Vec<Claim>,
    /// For each OST: the sequence of its objects, and the recorded bound of the used ids.
    pub last_used: BTreeMap<OstIndex, (u64, u32)>,
    /// Objects queued for destruction, by OST; sorted.
    pub destroy_queue: Vec<(OstIndex, Fid)>,
    /// The fixed ranges of MDT0000 and the valid recorded ranges of the FLDB.
    pub fldb: Vec<LuSeqRange>,
    /// Numbers of records.
    pub counts: Counts,
    /// The facts about other MDTs in the store.
    remote: Remote,
    table: Table,
}

impl Examination {
    /// The file that makes a claim.
    pub fn file(&self, claim: &Claim) -> Fid {
        self.table.rows[claim.file as usize].fid
    }
}

/// Examines the store of the MDT with index `mdt_index`. `mdt0_fldb` is the FLDB of MDT0000, for
/// another MDT; without it, sequences that this MDT does not know count as those of other MDTs.
///
/// # Errors
///
/// [`OsdError::Stopping`] if the caller stopped the check (`progress`), or an error of reading the
/// index.
pub async fn examine(
    store: &Store,
    mdt_index: u32,
    mdt0_fldb: Option<&[LuSeqRange]>,
    progress: &Progress,
) -> Result<Examination, OsdError> {
    let mut examination = Examination::default();
    let ranges = Ranges::read(store, mdt_index, mdt0_fldb, progress).await?;
    walk::inodes(store, &ranges, progress, &mut examination).await?;
    walk::names(store, &ranges, progress, &mut examination).await?;
    walk::xattrs(store, progress, &mut examination).await?;
    data::walk(store, progress, &mut examination).await?;
    walk::orphans(store, progress, &mut examination).await?;
    walk::work(store, progress, &mut examination).await?;
    remote::updates(store, mdt_index, progress, &mut examination).await?;
    walk::unknown(store, progress, &mut examination).await?;
    evaluate::evaluate(store, mdt_index, progress, &mut examination).await?;
    Ok(examination)
}
