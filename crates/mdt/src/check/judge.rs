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
    Examined, Problem,
    table::{BAD, LINKS_APART, NONE, ON_THE_WAY, ORPHAN, SAFE, Table},
};
use crate::{
    namespace::check_name,
    store::{Store, decode_entry, dot_lustre, keys, links},
};

/// A name: its directory and the name itself.
type Name = (Fid, Bytes);

/// Checks every inode.
pub(super) fn judge(store: &Store, progress: &Progress, found: &mut Examined) -> Result<(), OsdError> {
    if found.table.find(Fid::ROOT).is_none() {
        found.problems.push(Problem::NoRoot);
    }
    let loops = loops(&mut found.table);
    // Inodes whose names the second walk collects.
    let mut watched: HashMap<Fid, Vec<Name>> = loops.iter().map(|fid| (*fid, Vec::new())).collect();
    for row in &found.table.rows {
        progress.add(0)?;
        if row.is(BAD) {
            continue;
        }
        let (fid, is_root) = (row.fid, row.fid.is_root());
        if row.names == 0 && fid.is_dot_lustre() {
            // The next start of the target restores its name.
            continue;
        }
        if row.names == 0 && !is_root {
            match row.is_removed() {
                true if row.is(ORPHAN) => found.counts.orphans += 1,
                true => found.problems.push(Problem::Forgotten { fid }),
                false => found.problems.push(Problem::NoName {
                    fid,
                    is: row.kind(),
                    nlink: row.nlink,
                }),
            }
            continue;
        }
        if row.is(ORPHAN) {
            found.problems.push(Problem::NoOrphan { fid, exists: true });
        }
        let (stored, expected) = (row.nlink, row.nlink_expected());
        if stored != expected {
            found.problems.push(Problem::WrongCount {
                fid,
                stored,
                expected,
            });
        }
        let names_max = if is_root { 0 } else { 1 };
        if row.links != 0 || row.is(LINKS_APART) || (row.is_dir() && row.names > names_max) {
            watched.entry(fid).or_default();
        }
    }
    if !watched.is_empty() {
        collect(store, progress, &mut watched)?;
    }
    let mut watched: Vec<_> = watched.into_iter().collect();
    watched.sort_by_key(|(fid, _)| *fid);
    for (fid, names) in watched {
        look(store, fid, names, loops.contains(&fid), found);
    }
    Ok(())
}

/// One directory of each cycle that is not connected to the root.
fn loops(table: &mut Table) -> Vec<Fid> {
    let mut found = Vec::new();
    let mut way = Vec::new();
    for start in 0..table.rows.len() {
        let mut at = start;
        loop {
            let row = &mut table.rows[at];
            if !row.is_dir() || row.is(SAFE) || row.fid.is_root() {
                break;
            }
            if row.is(ON_THE_WAY) {
                found.push(row.fid);
                break;
            }
            row.mark(ON_THE_WAY);
            way.push(at);
            if row.parent == NONE {
                break;
            }
            at = row.parent as usize;
        }
        for at in way.drain(..) {
            table.rows[at].unmark(ON_THE_WAY);
            table.rows[at].mark(SAFE);
        }
    }
    found
}

/// Collects the names of the suspect inodes.
fn collect(
    store: &Store,
    progress: &Progress,
    watched: &mut HashMap<Fid, Vec<Name>>,
) -> Result<(), OsdError> {
    for_each_entry(&**store.index(), b"d", progress, |key, value| {
        let name = keys::entry_name(&key).filter(|(_, name)| check_name(name).is_ok());
        if let (Some(dir), Some((_, name)), Ok(entry)) = (keys::fid(&key), name, decode_entry(&value))
            && let Some(names) = watched.get_mut(&entry.fid)
        {
            names.push((dir, name));
        }
        Ok(())
    })?;
    if let Some(names) = watched.get_mut(&Fid::DOT_LUSTRE) {
        let (dir, name) = dot_lustre::own_name();
        names.push((dir, Bytes::from_static(name)));
    }
    Ok(())
}

/// Checks one inode against the names that lead to it.
fn look(store: &Store, fid: Fid, mut names: Vec<Name>, in_a_loop: bool, found: &mut Examined) {
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
        if in_a_loop {
            found.problems.extend(
                names
                    .into_iter()
                    .map(|(dir, name)| Problem::Loop { fid, dir, name }),
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
    let mut is: Vec<Name> = known.links.clone();
    is.sort();
    // After an overflow the recorded links may be incomplete, but each must be right.
    let right = match known.overflow_time {
        0 => is == names,
        _ => is.iter().all(|link| names.binary_search(link).is_ok()),
    };
    if !right {
        found.problems.push(Problem::WrongLinks { fid, names });
    }
}
