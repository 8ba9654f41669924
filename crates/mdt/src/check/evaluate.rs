//! Evaluates the counts of the walks: links, names and parents of each inode, and whether each
//! directory is below the root. A second walk collects the names of inconsistent inodes.

use std::collections::HashMap;

use bytes::Bytes;
use osd::{
    OsdError,
    check::{Progress, for_each_entry},
};
use wire::Fid;

use super::{
    Examination, Problem,
    table::{CONNECTED, LINKS_UNSUMMED, MALFORMED, NONE, ORPHAN, Table, VISITING},
};
use crate::{
    namespace::check_name,
    store::{Store, decode_entry, dot_lustre, keys, links},
};

/// A name: its directory and the name itself.
type Name = (Fid, Bytes);

/// Checks every inode.
pub(super) fn evaluate(store: &Store, progress: &Progress, found: &mut Examination) -> Result<(), OsdError> {
    if found.table.find(Fid::ROOT).is_none() {
        found.problems.push(Problem::NoRoot);
    }
    let cycles = cycles(&mut found.table);
    // Inodes for the second walk, which collects their names.
    let mut suspects: HashMap<Fid, Vec<Name>> = cycles.iter().map(|fid| (*fid, Vec::new())).collect();
    for row in &found.table.rows {
        progress.add(0)?;
        if row.has(MALFORMED) {
            continue;
        }
        let (fid, is_root) = (row.fid, row.fid.is_root());
        if row.names == 0 && fid.is_dot_lustre() {
            // The next start of the target restores its name.
            continue;
        }
        if row.names == 0 && !is_root {
            match row.is_removed() {
                true if row.has(ORPHAN) => found.counts.orphans += 1,
                true => found.problems.push(Problem::MissingOrphanRecord { fid }),
                false => found.problems.push(Problem::UnnamedInode {
                    fid,
                    kind: row.kind(),
                    nlink: row.nlink,
                }),
            }
            continue;
        }
        if row.has(ORPHAN) {
            found
                .problems
                .push(Problem::StaleOrphanRecord { fid, exists: true });
        }
        let (stored, expected) = (row.nlink, row.nlink_expected());
        if stored != expected {
            found.problems.push(Problem::WrongLinkCount {
                fid,
                stored,
                expected,
            });
        }
        let names_max = if is_root { 0 } else { 1 };
        if row.links != 0 || row.has(LINKS_UNSUMMED) || (row.is_dir() && row.names > names_max) {
            suspects.entry(fid).or_default();
        }
    }
    if !suspects.is_empty() {
        collect(store, progress, &mut suspects)?;
    }
    let mut suspects: Vec<_> = suspects.into_iter().collect();
    suspects.sort_by_key(|(fid, _)| *fid);
    for (fid, names) in suspects {
        check_names(store, fid, names, cycles.contains(&fid), found);
    }
    Ok(())
}

/// One directory of each cycle that is not connected to the root.
fn cycles(table: &mut Table) -> Vec<Fid> {
    let mut found = Vec::new();
    let mut path = Vec::new();
    for start in 0..table.rows.len() {
        let mut at = start;
        loop {
            let row = &mut table.rows[at];
            if !row.is_dir() || row.has(CONNECTED) || row.fid.is_root() {
                break;
            }
            if row.has(VISITING) {
                found.push(row.fid);
                break;
            }
            row.set(VISITING);
            path.push(at);
            if row.parent == NONE {
                break;
            }
            at = row.parent as usize;
        }
        for at in path.drain(..) {
            table.rows[at].clear(VISITING);
            table.rows[at].set(CONNECTED);
        }
    }
    found
}

/// Collects the names of the suspect inodes.
fn collect(
    store: &Store,
    progress: &Progress,
    suspects: &mut HashMap<Fid, Vec<Name>>,
) -> Result<(), OsdError> {
    for_each_entry(&**store.index(), b"d", progress, |key, value| {
        let name = keys::entry_name(&key).filter(|(_, name)| check_name(name).is_ok());
        if let (Some(dir), Some((_, name)), Ok(entry)) = (keys::fid(&key), name, decode_entry(&value))
            && let Some(names) = suspects.get_mut(&entry.fid)
        {
            names.push((dir, name));
        }
        Ok(())
    })?;
    if let Some(names) = suspects.get_mut(&Fid::DOT_LUSTRE) {
        let (dir, name) = dot_lustre::own_name();
        names.push((dir, Bytes::from_static(name)));
    }
    Ok(())
}

/// Checks one inode against the names that lead to it.
fn check_names(store: &Store, fid: Fid, mut names: Vec<Name>, in_cycle: bool, found: &mut Examination) {
    let Ok(Some(inode)) = store.find(fid) else { return };
    let extra = |(dir, name): Name| Problem::ExtraName { fid, dir, name };
    if fid.is_root() {
        found.problems.extend(names.into_iter().map(extra));
        if !inode.links.is_empty() {
            let names = Vec::new();
            found.problems.push(Problem::WrongLinks { fid, names });
        }
        return;
    }
    let known = links::parse(&inode.links);
    if inode.is_dir() {
        if in_cycle {
            found
                .problems
                .extend(
                    names
                        .into_iter()
                        .map(|(dir, name)| Problem::DirectoryCycle { fid, dir, name }),
                );
            return;
        }
        // Keep the name that the directory's links record.
        let keep = names.iter().position(|n| known.links.contains(n)).unwrap_or(0);
        if keep < names.len() {
            names.swap(0, keep);
        }
        found
            .problems
            .extend(names.drain(1.min(names.len())..).map(extra));
    }
    names.sort();
    let mut recorded: Vec<Name> = known.links.clone();
    recorded.sort();
    // After an overflow the recorded links may be incomplete, but each must be right.
    let matches = match known.overflow_time {
        0 => recorded == names,
        _ => recorded.iter().all(|link| names.binary_search(link).is_ok()),
    };
    if !matches {
        found.problems.push(Problem::WrongLinks { fid, names });
    }
}
