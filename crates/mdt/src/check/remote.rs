//! Compares names with inodes of other MDTs, after each store was examined.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use osd::{
    OsdError,
    check::{Progress, for_each_entry},
};
use wire::{Fid, LU_SEQ_RANGE_MDT};

use super::{
    Examination, Problem,
    table::{REMOTE_NAME, Row},
    walk::report_malformed,
};
use crate::{
    namespace::Share,
    store::{Mutation, Store, keys},
    updates::{Ledger, UpdateRecord, read_ledger},
};

/// A name and an inode on different MDTs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RemoteLink {
    /// The inode.
    pub(super) fid: Fid,
    /// The directory of the name.
    pub(super) dir: Fid,
    /// The name.
    pub(super) name: Bytes,
}

/// The facts about inodes and names of other MDTs in the store of one MDT.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// The names that lead to inodes of other MDTs.
    pub(super) names: BTreeSet<RemoteLink>,
    /// The names on other MDTs that the inodes record.
    pub(super) links: BTreeSet<RemoteLink>,
    /// The update records that the MDT keeps.
    records: Vec<UpdateRecord>,
    ledger: Ledger,
}

/// Walks the update records.
pub(super) async fn updates(
    store: &Store,
    mdt_index: u32,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    let mut records = Vec::new();
    for_each_entry(&**store.index(), keys::UPDATES, progress, |key, value| {
        match UpdateRecord::decode(&value) {
            Ok(record) if record.share_of(mdt_index).is_some() => records.push(record),
            Ok(_) => report_malformed(examination, key, "update", "it does not name this MDT"),
            Err(e) => report_malformed(examination, key, "update", e),
        }
        Ok::<(), OsdError>(())
    })
    .await?;
    match read_ledger(store, mdt_index, &records).await {
        Ok(ledger) => examination.remote.ledger = ledger,
        Err(e) => report_malformed(examination, keys::setting(""), "update marks", e),
    }
    examination.remote.records = records;
    Ok(())
}

/// The names without an inode, the inodes without a name, and the files with other names on other
/// MDTs than recorded, each with the index of its MDT. Only MDTs that were examined are compared.
/// Inodes of operations that an MDT completes at its next start are left out.
pub fn compare(mdts: &BTreeMap<u32, Examination>) -> Vec<(u32, Problem)> {
    let unfinished = unfinished_inodes(mdts);
    let is_finished = |link: &&RemoteLink| !unfinished.contains(&link.fid);
    let fldb = mdts.get(&0).map(|mdt0| &mdt0.fldb[..]).unwrap_or_default();
    let mdt_of = |fid: Fid| {
        let after = fldb.partition_point(|range| range.lsr_start <= fid.f_seq);
        let range = after.checked_sub(1).and_then(|at| fldb.get(at))?;
        let is_of_mdt = fid.f_seq < range.lsr_end && range.lsr_flags == LU_SEQ_RANGE_MDT;
        mdts.get(&range.lsr_index).filter(|_| is_of_mdt)
    };
    let mut problems = Vec::new();
    // The names of files on other MDTs.
    let mut names_of_files: BTreeMap<Fid, Vec<(Fid, Bytes)>> = BTreeMap::new();
    for (index, mdt) in mdts {
        for link in mdt.remote.names.iter().filter(is_finished) {
            let Some(owner) = mdt_of(link.fid) else { continue };
            let RemoteLink { fid, dir, name } = link.clone();
            let existing = row_of(owner, fid).filter(|row| !row.is_removed());
            let is_file = existing.map(|row| !row.is_dir());
            match is_file {
                Some(true) => names_of_files.entry(fid).or_default().push((dir, name)),
                Some(false) if owner.remote.links.contains(link) => {}
                _ => problems.push((*index, Problem::DanglingName { dir, name, fid })),
            }
        }
    }
    for (index, mdt) in mdts {
        for link in mdt.remote.links.iter().filter(is_finished) {
            let is_missing = |owner: &Examination| !owner.remote.names.contains(link);
            let unnamed = |row: &&Row| row.is_dir() && row.names == 0 && !row.is_removed();
            if let Some(row) = row_of(mdt, link.fid).filter(unnamed)
                && mdt_of(link.dir).is_some_and(is_missing)
            {
                problems.push((*index, unnamed_inode(row)));
            }
        }
        let has_all = fldb
            .iter()
            .all(|range| range.lsr_flags != LU_SEQ_RANGE_MDT || mdts.contains_key(&range.lsr_index));
        for row in mdt.table.rows.iter().filter(|_| has_all) {
            let names = names_of_files.remove(&row.fid);
            let may_have_names = row.has(REMOTE_NAME) || names.is_some();
            if may_have_names && !row.is_dir() && !row.is_removed() && !unfinished.contains(&row.fid) {
                let problem = names_problem(mdt, row, names.unwrap_or_default());
                problems.extend(problem.map(|problem| (*index, problem)));
            }
        }
    }
    problems
}

fn row_of(mdt: &Examination, fid: Fid) -> Option<&Row> {
    mdt.table.find(fid).map(|row| &mdt.table.rows[row])
}

fn unnamed_inode(row: &Row) -> Problem {
    Problem::UnnamedInode {
        fid: row.fid,
        kind: row.kind(),
        nlink: row.nlink,
    }
}

/// The problem of a file that may have names on other MDTs; it has these.
fn names_problem(mdt: &Examination, row: &Row, mut names: Vec<(Fid, Bytes)>) -> Option<Problem> {
    let (fid, stored) = (row.fid, row.nlink);
    let expected = row.names + names.len() as u32;
    if expected == 0 {
        return Some(unnamed_inode(row));
    }
    if stored != expected {
        return Some(Problem::WrongLinkCount {
            fid,
            stored,
            expected,
        });
    }
    names.sort();
    let of_file = mdt.remote.links.iter().filter(|link| link.fid == fid);
    let recorded: Vec<(Fid, Bytes)> = of_file.map(|link| (link.dir, link.name.clone())).collect();
    // After an overflow, fewer names are recorded than there are.
    let is_recorded = row.names > 0 || recorded.len() < names.len() || recorded == names;
    (!is_recorded).then_some(Problem::WrongLinks { fid, names })
}

/// The inodes of records that one MDT keeps and another one lacks: a crash has left them, and the
/// next start applies them.
fn unfinished_inodes(mdts: &BTreeMap<u32, Examination>) -> BTreeSet<Fid> {
    let mut fids = BTreeSet::new();
    for (index, mdt) in mdts {
        for record in &mdt.remote.records {
            let lacks = |other: &u32| {
                mdts.get(other).is_none_or(|examined| {
                    let named = record.share_of(*other).map(|(_, named)| named);
                    named.is_none_or(|named| !examined.remote.ledger.has(record.batchid, &named))
                })
            };
            if record.shares.keys().filter(|other| *other != index).any(lacks) {
                fids.extend(record.shares.values().flat_map(inodes_of));
            }
        }
    }
    fids
}

/// The inodes that a share creates or renames.
fn inodes_of(share: &Share) -> impl Iterator<Item = Fid> + '_ {
    let made = share.mutations.iter().filter_map(Mutation::inode_of);
    made.chain(share.relinks.iter().map(|relink| relink.fid))
}
