//! Compares the counts of the walks (links, names and parents of each inode). Checks that each
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
    table::{LINK_SUM_INVALID, MALFORMED, NO_ROW, ORPHAN, REMOTE_NAME, SEARCHED, Table, VISITING},
};
use crate::{
    namespace::check_name,
    store::{Store, decode_entry, dot_lustre, keys, links},
};

/// A name: its directory and the name itself.
type Name = (Fid, Bytes);

/// Reports the inconsistent inodes.
pub(super) async fn evaluate(
    store: &Store,
    mdt_index: u32,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    if mdt_index == 0 && examination.table.find(Fid::ROOT).is_none() {
        examination.problems.push(Problem::NoRoot);
    }
    let cycles = find_cycles(&mut examination.table);
    // The second walk collects the names of these inodes.
    let mut suspects: HashMap<Fid, Vec<Name>> = cycles.iter().map(|fid| (*fid, Vec::new())).collect();
    for row in &examination.table.rows {
        // Fails if the caller has stopped the check.
        progress.add(0)?;
        if row.has(MALFORMED) {
            continue;
        }
        let (fid, is_root) = (row.fid, row.fid.is_root());
        if row.names == 0 && fid.is_dot_lustre() {
            // The next start of the target restores the name.
            continue;
        }
        if row.names == 0 && !is_root && (row.is_removed() || !row.has(REMOTE_NAME)) {
            match row.is_removed() {
                true if row.has(ORPHAN) => examination.counts.orphans += 1,
                true => examination.problems.push(Problem::MissingOrphanRecord { fid }),
                false => examination.problems.push(Problem::UnnamedInode {
                    fid,
                    kind: row.kind(),
                    nlink: row.nlink,
                }),
            }
            continue;
        }
        if row.has(ORPHAN) {
            examination
                .problems
                .push(Problem::StaleOrphanRecord { fid, exists: true });
        }
        let (stored, expected) = (row.nlink, row.nlink_expected());
        if stored != expected && (row.is_dir() || !row.has(REMOTE_NAME)) {
            examination.problems.push(Problem::WrongLinkCount {
                fid,
                stored,
                expected,
            });
        }
        let names_max = if is_root { 0 } else { 1 };
        let has_other_links = row.link_difference != 0 || row.has(LINK_SUM_INVALID);
        if (has_other_links && !row.has(REMOTE_NAME)) || (row.is_dir() && row.names > names_max) {
            suspects.entry(fid).or_default();
        }
    }
    if !suspects.is_empty() {
        collect_names(store, progress, &mut suspects).await?;
    }
    let mut suspects: Vec<_> = suspects.into_iter().collect();
    suspects.sort_by_key(|(fid, _)| *fid);
    for (fid, names) in suspects {
        check_names(store, fid, names, cycles.contains(&fid), examination).await;
    }
    Ok(())
}

/// One directory of each cycle of directories.
fn find_cycles(table: &mut Table) -> Vec<Fid> {
    let mut cycles = Vec::new();
    let mut path = Vec::new();
    for start in 0..table.rows.len() {
        let mut current = start;
        loop {
            let row = &mut table.rows[current];
            if !row.is_dir() || row.has(SEARCHED) || row.fid.is_root() {
                break;
            }
            if row.has(VISITING) {
                cycles.push(row.fid);
                break;
            }
            row.set(VISITING);
            path.push(current);
            if row.parent == NO_ROW {
                break;
            }
            current = row.parent as usize;
        }
        for visited in path.drain(..) {
            table.rows[visited].clear(VISITING);
            table.rows[visited].set(SEARCHED);
        }
    }
    cycles
}

/// Collects the valid names of the suspect inodes.
async fn collect_names(
    store: &Store,
    progress: &Progress,
    suspects: &mut HashMap<Fid, Vec<Name>>,
) -> Result<(), OsdError> {
    for_each_entry(&**store.index(), keys::ENTRIES, progress, |key, value| {
        let name = keys::entry_name(&key).filter(|(_, name)| check_name(name).is_ok());
        if let (Some(dir), Some((_, name)), Ok(entry)) = (keys::fid(&key), name, decode_entry(&value))
            && let Some(names) = suspects.get_mut(&entry.fid)
        {
            names.push((dir, name));
        }
        Ok(())
    })
    .await?;
    if let Some(names) = suspects.get_mut(&Fid::DOT_LUSTRE) {
        let (dir, name) = dot_lustre::own_name();
        names.push((dir, Bytes::from_static(name)));
    }
    Ok(())
}

/// Compares the recorded links of an inode with the names that lead to it.
async fn check_names(
    store: &Store,
    fid: Fid,
    mut names: Vec<Name>,
    in_cycle: bool,
    examination: &mut Examination,
) {
    let Ok(Some(inode)) = store.find(fid).await else {
        return;
    };
    let extra_name = |(dir, name): Name| Problem::ExtraName { fid, dir, name };
    if fid.is_root() {
        examination.problems.extend(names.into_iter().map(extra_name));
        if !inode.links.is_empty() {
            let names = Vec::new();
            examination.problems.push(Problem::WrongLinks { fid, names });
        }
        return;
    }
    let link_ea = links::parse(&inode.links);
    if inode.is_dir() {
        if in_cycle {
            examination
                .problems
                .extend(
                    names
                        .into_iter()
                        .map(|(dir, name)| Problem::DirectoryCycle { fid, dir, name }),
                );
            return;
        }
        // Keep the name that the directory's links record.
        let keep = names.iter().position(|n| link_ea.links.contains(n)).unwrap_or(0);
        if keep < names.len() {
            names.swap(0, keep);
        }
        examination
            .problems
            .extend(names.drain(1.min(names.len())..).map(extra_name));
    }
    names.sort();
    let mut recorded: Vec<Name> = link_ea.links.clone();
    recorded.sort();
    // After an overflow the recorded links may be incomplete, but each must match a name.
    let matches = match link_ea.overflow_time {
        0 => recorded == names,
        _ => recorded.iter().all(|link| names.binary_search(link).is_ok()),
    };
    if !matches {
        examination.problems.push(Problem::WrongLinks { fid, names });
    }
}
