//! Copies of an index. A temporary one for reading: the engine changes every index that it opens.
//! And a lasting one for a new generation of the target ([`copy_generation`]).
//!
//! A temporary copy is in the directory for temporary files. Only journals and small files are
//! copied. Sorted tables never change, so a symbolic link is enough. Journals are copied without
//! torn tails and damaged parts.
//!
//! A process locks its copy (`flock`) while it uses it. Before a process makes a copy, it removes
//! the copies that killed processes of the same user left behind.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::fs::{FlockOperation, flock};

use super::{copy_complete_batches, scan_all};
use crate::{OsdError, files};

/// The first part of the names of copies.
const PREFIX: &str = "nacre-index-";

/// Name of the engine's directories of sorted tables.
const TABLES: &str = "tables";

/// Number of attempts to copy an index that changes.
const COPIES_MAX: usize = 1000;

/// A copy of an index; dropping it removes the copy.
pub(crate) struct ScratchCopy {
    dir: PathBuf,
    /// Locks the directory.
    _lock: File,
}

impl ScratchCopy {
    /// Copies the index in `index`, which must not change meanwhile.
    pub(crate) fn copy_of(index: &Path) -> Result<ScratchCopy, OsdError> {
        let index = fs::canonicalize(index).map_err(OsdError::io("find", index))?;
        let temporary = std::env::temp_dir();
        remove_abandoned(&temporary);
        let scratch = new_dir(&temporary)?;
        match scratch.fill(&index) {
            // The temporary directory is full, not the target.
            Err(OsdError::NoSpace) => Err(OsdError::Io {
                op: "copy the index (set TMPDIR to use another directory) to",
                path: scratch.dir.clone(),
                source: io::Error::from_raw_os_error(libc::ENOSPC),
            }),
            filled => filled.map(|()| scratch),
        }
    }

    fn fill(&self, index: &Path) -> Result<(), OsdError> {
        copy_dir(index, &self.dir, |table, copy| symlink(table, copy))?;
        for (journal, scan) in scan_all(index)? {
            let name = journal.file_name().unwrap_or_default();
            copy_complete_batches(&journal, &scan, &self.dir.join(name))?;
        }
        Ok(())
    }

    /// The directory of the copy.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for ScratchCopy {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            tracing::warn!("cannot remove {}: {e}", self.dir.display());
        }
    }
}

/// Creates and locks a new directory in `temporary`.
fn new_dir(temporary: &Path) -> Result<ScratchCopy, OsdError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let n = NEXT.fetch_add(1, Relaxed);
        let dir = temporary.join(format!("{PREFIX}{}-{n}", std::process::id()));
        match files::create_dir(&dir) {
            Ok(()) => match try_lock(&dir) {
                Ok(Some(lock)) => return Ok(ScratchCopy { dir, _lock: lock }),
                // Another process found the directory before it was locked, and removes it: use the
                // next name.
                Ok(None) => {}
                Err(source) => {
                    let _ = fs::remove_dir(&dir);
                    return Err(OsdError::Io {
                        op: "lock (set TMPDIR to use another directory)",
                        path: dir,
                        source,
                    });
                }
            },
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(OsdError::io("make directory", dir)(e)),
        }
    }
}

/// Locks a directory. `None` if another process has locked or removed it.
fn try_lock(dir: &Path) -> io::Result<Option<File>> {
    let lock = || -> io::Result<Option<File>> {
        let file = File::open(dir)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let (locked, named) = (file.metadata()?, fs::symlink_metadata(dir)?);
        let is_same = locked.ino() == named.ino() && locked.dev() == named.dev();
        Ok(is_same.then_some(file))
    };
    match lock() {
        Err(e) if [io::ErrorKind::WouldBlock, io::ErrorKind::NotFound].contains(&e.kind()) => Ok(None),
        result => result,
    }
}

/// Removes this user's unlocked copies: their processes have ended.
fn remove_abandoned(temporary: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let is_copy = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user);
        if is_copy
            && let Ok(Some(_lock)) = try_lock(&entry.path())
            && let Err(e) = fs::remove_dir_all(entry.path())
        {
            tracing::warn!("cannot remove {}: {e}", entry.path().display());
        }
    }
}

/// Copies the index of an earlier generation to `to`, a new directory, although the server of that
/// generation may still be changing it. The copy is durable when this returns.
///
/// The copy has every batch that was durable when this was called: the journals are copied first,
/// and the copy is repeated if the server has removed a journal or changed a list of tables
/// meanwhile.
///
/// # Errors
///
/// [`OsdError::Io`] or [`OsdError::NoSpace`] if a file cannot be copied.
pub(crate) fn copy_generation(from: &Path, to: &Path) -> Result<(), OsdError> {
    for _ in 0..COPIES_MAX {
        match fs::remove_dir_all(to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(OsdError::io("remove", to)(e)),
            _ => {}
        }
        let before = Contents::read(from)?;
        files::create_dir(to).map_err(OsdError::io("make directory", to))?;
        let copied = copy_journals(from, to)
            .and_then(|()| copy_dir(from, to, |table, copy| fs::hard_link(table, copy)));
        if Contents::read(from)? != before {
            continue;
        }
        copied?;
        return fs::File::open(to)
            .and_then(|dir| Ok(rustix::fs::syncfs(dir)?))
            .map_err(OsdError::io("sync", to));
    }
    Err(OsdError::Invalid(
        "the old server changes its index too fast to copy it: stop that server",
    ))
}

/// Copies the journals, with torn tails and damaged parts.
fn copy_journals(from: &Path, to: &Path) -> Result<(), OsdError> {
    for entry in fs::read_dir(from).map_err(OsdError::io("list", from))? {
        let path = entry.map_err(OsdError::io("list", from))?.path();
        if path.extension().is_some_and(|e| e == "jnl") {
            let copy = to.join(path.file_name().unwrap_or_default());
            fs::copy(&path, copy).map_err(OsdError::io("copy", &path))?;
        }
    }
    Ok(())
}

/// The paths of an index's files, and the contents of the small ones.
#[derive(PartialEq, Eq)]
struct Contents(BTreeMap<PathBuf, Vec<u8>>);

impl Contents {
    fn read(index: &Path) -> Result<Contents, OsdError> {
        let mut contents = BTreeMap::new();
        let mut dirs = vec![index.to_owned()];
        while let Some(dir) = dirs.pop() {
            let is_tables = dir.file_name().is_some_and(|name| name == TABLES);
            for entry in fs::read_dir(&dir).map_err(OsdError::io("list", &dir))? {
                let path = entry.map_err(OsdError::io("list", &dir))?.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if !is_tables {
                    let is_journal = path.extension().is_some_and(|e| e == "jnl");
                    let read = match is_journal {
                        true => Ok(Vec::new()),
                        false => fs::read(&path),
                    };
                    match read {
                        Ok(small) => drop(contents.insert(path, small)),
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(OsdError::io("read", path)(e)),
                    }
                }
            }
        }
        Ok(Contents(contents))
    }
}

/// Copies all files except journals; calls `link` for sorted tables instead.
fn copy_dir(from: &Path, to: &Path, link: fn(&Path, &Path) -> io::Result<()>) -> Result<(), OsdError> {
    let in_tables = from.file_name().is_some_and(|name| name == TABLES);
    for entry in fs::read_dir(from).map_err(OsdError::io("list", from))? {
        let entry = entry.map_err(OsdError::io("list", from))?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            files::create_dir(&copy).map_err(OsdError::io("make directory", &copy))?;
            copy_dir(&source, &copy, link)?;
        } else if in_tables {
            link(&source, &copy).map_err(OsdError::io("link to", &source))?;
        } else if source.extension().is_none_or(|e| e != "jnl") {
            fs::copy(&source, &copy).map_err(OsdError::io("copy", &source))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{new_dir, remove_abandoned, try_lock};
    use std::fs;

    #[test]
    fn only_copies_of_killed_processes_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let abandoned = temporary.path().join("nacre-index-1-0");
        fs::create_dir_all(abandoned.join("tables")).unwrap();
        let other = temporary.path().join("nacre-other");
        fs::create_dir(&other).unwrap();
        let used = new_dir(temporary.path()).unwrap();
        remove_abandoned(temporary.path());
        assert!(!abandoned.exists());
        assert!(used.path().exists() && other.exists());
    }

    #[test]
    fn locked_or_removed_directory_is_none_and_other_failures_are_errors() {
        let temporary = tempfile::tempdir().unwrap();
        let copy = new_dir(temporary.path()).unwrap();
        assert!(try_lock(copy.path()).unwrap().is_none(), "it is locked");
        assert!(try_lock(&temporary.path().join("removed")).unwrap().is_none());
        try_lock(&temporary.path().join("x".repeat(300))).unwrap_err();
    }
}
