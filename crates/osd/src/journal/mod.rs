//! Checks the journals of the index's storage engine, fjall (`N.jnl` in the index's directory),
//! before the engine opens them, repairs damaged ones, and syncs them.
//!
//! The engine treats the first unreadable bytes of a journal as the torn tail of a crash, and
//! truncates the journal there. If the bytes were damaged instead, the engine would delete good
//! batches. This module therefore reads the journals before the engine ([`scan`]): it truncates
//! torn tails, and reports damage as an error.

mod changes;
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

pub use changes::{RecordChange, for_each_change};
pub(crate) use scratch::{ScratchCopy, copy_generation};
pub(crate) use sync::{Journals, SyncThread};

/// File name prefix of the copies of damaged journals, in the target's directory.
const COPY_PREFIX: &str = "damaged-";
/// File name of a journal's replacement during a repair, in the target's directory.
const REPLACEMENT: &str = "journal.new";

/// An unreadable part of a journal that is not the torn tail of a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The journal.
    pub journal: PathBuf,
    /// The damaged byte range.
    pub bytes: Range<u64>,
    /// Bytes of complete batches after the damage, in this journal.
    pub complete_after: u64,
}

/// Finds the damage in the journals of a target's index; changes nothing. Blocks on the disk.
///
/// # Errors
///
/// [`OsdError::Io`] if a journal cannot be read, [`OsdError::Corrupt`] if there is no journal, or
/// one with a wrong name.
pub fn find_damage(target: &Path) -> Result<Vec<Damage>, OsdError> {
    let scans = scan_all(&target::index_dir(target))?;
    Ok(scans
        .iter()
        .flat_map(|(path, scan)| damage_in(path, scan))
        .collect())
}

/// Removes the damaged parts from the journals of a target's index. Keeps a copy of each damaged
/// journal in the target's directory and returns the paths of the copies. Blocks on the disk.
///
/// # Errors
///
/// [`OsdError::Io`] if a journal cannot be read or replaced, [`OsdError::Corrupt`] if there is no
/// journal, or one with a wrong name.
pub fn repair(target: &Path) -> Result<Vec<PathBuf>, OsdError> {
    let mut copies = Vec::new();
    for (path, scan) in scan_all(&target::index_dir(target))? {
        if scan.damaged.is_empty() {
            continue;
        }
        let copy = keep_copy(target, &path)?;
        let new = target.join(REPLACEMENT);
        copy_complete_batches(&path, &scan, &new)?;
        fs::rename(&new, &path).map_err(OsdError::io("rename", &new))?;
        let index = files::parent(&path);
        files::sync_dir(&index).map_err(OsdError::io("sync", index))?;
        copies.push(copy);
    }
    Ok(copies)
}

/// Prepares the journals of an index for the engine: truncates torn tails. If a journal is damaged,
/// fails and changes nothing.
pub(crate) fn prepare(index: &Path) -> Result<(), OsdError> {
    let scans = scan_all(index)?;
    if let Some(damage) = scans.iter().find_map(|(path, scan)| damage_in(path, scan).next()) {
        return Err(OsdError::DamagedJournal(damage));
    }
    for (path, scan) in scans {
        let Some(torn) = scan.torn else { continue };
        tracing::info!(
            "{}: removed the incomplete last batch, from byte {torn}",
            path.display()
        );
        let truncate = || {
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            file.set_len(torn)?;
            file.sync_all()
        };
        truncate().map_err(OsdError::io("truncate", &path))?;
    }
    Ok(())
}

/// Scans all journals of an index, oldest first.
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
            "no journal, expected at least one",
        ));
    }
    journals.sort();
    let mut scans: Vec<(PathBuf, Scan)> = Vec::new();
    let mut sequence = None;
    for (_, path) in journals {
        // The engine syncs a journal before it begins the next, so only the last one can have a
        // torn tail.
        if let Some((_, previous)) = scans.last_mut()
            && let Some(torn) = previous.torn.take()
        {
            previous.damaged.push(torn..previous.len);
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
        record: format!("journal {}", journal.display()),
        why: why.into(),
    }
}

fn damage_in<'a>(path: &'a Path, scan: &'a Scan) -> impl Iterator<Item = Damage> + 'a {
    scan.damaged.iter().map(|bytes| {
        let batches_after = scan.complete.iter().filter(|batches| batches.start >= bytes.end);
        Damage {
            journal: path.into(),
            bytes: bytes.clone(),
            complete_after: batches_after.map(|batches| batches.end - batches.start).sum(),
        }
    })
}

/// Links a journal to an unused name in the target's directory. A repair replaces the journal's
/// file, so the link keeps the damaged contents.
fn keep_copy(target: &Path, journal: &Path) -> Result<PathBuf, OsdError> {
    let name = journal.file_name().unwrap_or_default().to_string_lossy();
    let mut n = 0;
    loop {
        let copy = target.join(format!("{COPY_PREFIX}{n}-{name}"));
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

/// Paths of the files that repairs leave in a target's directory: copies of journals, and an
/// unfinished replacement. The replacement need not exist.
pub(crate) fn repair_files(target: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![target.join(REPLACEMENT)];
    for entry in fs::read_dir(target)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(COPY_PREFIX) && name.ends_with(".jnl") {
            files.push(target.join(&*name));
        }
    }
    Ok(files)
}

/// Copies the complete batches of a journal to another file and syncs it.
fn copy_complete_batches(journal: &Path, scan: &Scan, to: &Path) -> Result<(), OsdError> {
    let copy = || -> io::Result<()> {
        let mut from = fs::File::open(journal)?;
        let mut out = files::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(to)?;
        for part in &scan.complete {
            from.seek(io::SeekFrom::Start(part.start))?;
            io::copy(&mut (&mut from).take(part.end - part.start), &mut out)?;
        }
        out.sync_all()
    };
    copy().map_err(OsdError::io("copy the journal to", to))
}
