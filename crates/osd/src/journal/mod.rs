//! The engine's journals (`N.jnl` in the index's directory): checked before the engine opens them, repaired, and synced.
//!
//! The engine takes the first thing in a journal that it cannot read for the torn tail of a crash, and cuts off all that
//! follows. So the journals are read here first ([`scan`]): a torn tail is cut off, damage is an error.

mod scan;
mod scratch;
mod sync;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    io::{Read, Seek},
    ops::Range,
    path::{Path, PathBuf},
};

use scan::Scan;

use crate::{OsdError, files, target};

pub(crate) use scan::COMMIT_KEY;
pub(crate) use scratch::Scratch;
pub(crate) use sync::{Journals, SyncThread};

/// Copies of damaged journals begin with this, in the target's directory.
const KEPT: &str = "damaged-";
/// A journal that is being repaired, in the target's directory.
const REPAIRED: &str = "journal.new";

/// A part of a journal that cannot be read, and is not the torn tail of a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The journal.
    pub journal: PathBuf,
    /// The bytes of it that are damaged.
    pub bytes: Range<u64>,
    /// Bytes of whole batches after the damage, in this journal.
    pub whole_after: u64,
}

/// The damage in the journals of a target's index; changes nothing. Waits for the disk.
pub fn damage(target: &Path) -> Result<Vec<Damage>, OsdError> {
    let scans = scan_all(&target.join(target::INDEX))?;
    Ok(scans
        .iter()
        .flat_map(|(path, scan)| damage_in(path, scan))
        .collect())
}

/// Removes what is damaged from the journals of a target's index. Each journal is kept beside the index as it was:
/// the copies. Waits for the disk.
pub fn repair(target: &Path) -> Result<Vec<PathBuf>, OsdError> {
    let mut copies = Vec::new();
    for (path, scan) in scan_all(&target.join(target::INDEX))? {
        if scan.damaged.is_empty() {
            continue;
        }
        let copy = keep(target, &path)?;
        let new = target.join(REPAIRED);
        copy_whole(&path, &scan, &new)?;
        fs::rename(&new, &path).map_err(OsdError::io("rename", &new))?;
        let index = files::parent(&path);
        files::sync_dir(&index).map_err(OsdError::io("sync", index))?;
        copies.push(copy);
    }
    Ok(copies)
}

/// Makes the journals in an index's directory ready for the engine: cuts off torn tails. Damage is an error, and nothing
/// is changed then.
pub(crate) fn prepare(index: &Path) -> Result<(), OsdError> {
    let scans = scan_all(index)?;
    if let Some(damage) = scans.iter().find_map(|(path, scan)| damage_in(path, scan).next()) {
        return Err(OsdError::DamagedJournal(damage));
    }
    for (path, scan) in scans {
        let Some(torn) = scan.torn else { continue };
        tracing::info!(
            "{}: the last batch, from byte {torn}, was not written completely: removed",
            path.display()
        );
        let cut = || {
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            file.set_len(torn)?;
            file.sync_all()
        };
        cut().map_err(OsdError::io("truncate", &path))?;
    }
    Ok(())
}

/// Scans all journals of an index, the oldest first.
fn scan_all(index: &Path) -> Result<Vec<(PathBuf, Scan)>, OsdError> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(index).map_err(OsdError::io("list", index))? {
        let path = entry.map_err(OsdError::io("list", index))?.path();
        if path.extension().is_some_and(|e| e == "jnl") {
            let number = path.file_stem().and_then(|n| n.to_str()?.parse::<u64>().ok());
            let number = number.ok_or_else(|| corrupt(index, &path, "its name is not a number"))?;
            journals.push((number, path));
        }
    }
    if journals.is_empty() {
        return Err(corrupt(
            index,
            &index.join("*.jnl"),
            "there is none, expected at least one",
        ));
    }
    journals.sort();
    let mut scans: Vec<(PathBuf, Scan)> = Vec::new();
    let mut sequence = None;
    for (_, path) in journals {
        // A journal is on disk as a whole before the next one begins.
        if let Some((_, before)) = scans.last_mut()
            && let Some(torn) = before.torn.take()
        {
            before.damaged.push(torn..before.len);
        }
        let scan = scan::scan(&path, sequence).map_err(OsdError::io("read", &path))?;
        sequence = scan.sequence.or(sequence);
        scans.push((path, scan));
    }
    Ok(scans)
}

fn corrupt(index: &Path, journal: &Path, why: &str) -> OsdError {
    OsdError::Corrupt {
        path: index.into(),
        what: format!("journal {}", journal.display()),
        why: why.into(),
    }
}

fn damage_in<'a>(path: &'a Path, scan: &'a Scan) -> impl Iterator<Item = Damage> + 'a {
    scan.damaged.iter().map(|bytes| {
        let after = scan.whole.iter().filter(|w| w.start >= bytes.end);
        Damage {
            journal: path.into(),
            bytes: bytes.clone(),
            whole_after: after.map(|w| w.end - w.start).sum(),
        }
    })
}

/// Keeps a journal as it is under a name that is free, in the target's directory.
fn keep(target: &Path, journal: &Path) -> Result<PathBuf, OsdError> {
    let name = journal.file_name().unwrap_or_default().to_string_lossy();
    let mut n = 0;
    loop {
        let copy = target.join(format!("{KEPT}{n}-{name}"));
        match fs::hard_link(journal, &copy) {
            Ok(()) => {
                files::sync_dir(target).map_err(OsdError::io("sync", target))?;
                return Ok(copy);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => n += 1,
            Err(e) => return Err(OsdError::io("keep a copy as", copy)(e)),
        }
    }
}

/// What repairs have left in a target's directory: the journals as they were.
pub(crate) fn copies(target: &Path) -> io::Result<Vec<PathBuf>> {
    let mut copies = vec![target.join(REPAIRED)];
    for entry in fs::read_dir(target)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(KEPT) && name.ends_with(".jnl") {
            copies.push(target.join(&*name));
        }
    }
    Ok(copies)
}

/// Writes the whole batches of a journal to another file, which is on disk when this returns.
fn copy_whole(journal: &Path, scan: &Scan, to: &Path) -> Result<(), OsdError> {
    let copy = || -> io::Result<()> {
        let mut from = fs::File::open(journal)?;
        let mut out = files::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(to)?;
        for part in &scan.whole {
            from.seek(io::SeekFrom::Start(part.start))?;
            io::copy(&mut (&mut from).take(part.end - part.start), &mut out)?;
        }
        out.sync_all()
    };
    copy().map_err(OsdError::io("copy the journal to", to))
}
