//! Compares names with inodes of other MDTs, after each store was examined.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use osd::{
    OsdError,
    check::{Progress, for_each_entry},
};
use wire::{Fid, LU_SEQ_RANGE_MDT};

use super::{Examination, Problem, walk::report_malformed};
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

/// The names without an inode and the inodes without a name, each with the index of its MDT. Only
/// MDTs that were examined are compared. Inodes of operations that an MDT completes at its next
/// start are left out.
pub fn compare(mdts: &BTreeMap<u32, Examination>) -> Vec<(u32, Problem)> {
    let unfinished = unfinished_inodes(mdts);
    let fldb = mdts.get(&0).map(|mdt0| &mdt0.fldb[..]).unwrap_or_default();
    let mdt_of = |fid: Fid| {
        let after = fldb.partition_point(|range| range.lsr_start <= fid.f_seq);
        let range = after.checked_sub(1).and_then(|at| fldb.get(at))?;
        let is_of_mdt = fid.f_seq < range.lsr_end && range.lsr_flags == LU_SEQ_RANGE_MDT;
        mdts.get(&range.lsr_index).filter(|_| is_of_mdt)
    };
    let mut problems = Vec::new();
    for (index, mdt) in mdts {
        let is_finished = |link: &&RemoteLink| !unfinished.contains(&link.fid);
        for name in mdt.remote.names.iter().filter(is_finished) {
            let is_missing = |owner: &Examination| !owner.remote.links.contains(name);
            if mdt_of(name.fid).is_some_and(is_missing) {
                let RemoteLink { fid, dir, name } = name.clone();
                problems.push((*index, Problem::DanglingName { dir, name, fid }));
            }
        }
        for link in mdt.remote.links.iter().filter(is_finished) {
            let is_missing = |owner: &Examination| !owner.remote.names.contains(link);
            let row = mdt.table.find(link.fid).map(|row| &mdt.table.rows[row]);
            if let Some(row) = row.filter(|row| row.names == 0 && !row.is_removed())
                && mdt_of(link.dir).is_some_and(is_missing)
            {
                problems.push((
                    *index,
                    Problem::UnnamedInode {
                        fid: link.fid,
                        kind: row.kind(),
                        nlink: row.nlink,
                    },
                ));
            }
        }
    }
    problems
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

/// The inodes that a share creates, or whose names it changes.
fn inodes_of(share: &Share) -> impl Iterator<Item = Fid> + '_ {
    let made = share.mutations.iter().filter_map(Mutation::inode_of);
    made.chain(share.relinks.iter().map(|relink| relink.fid))
}
