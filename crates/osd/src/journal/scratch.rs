//! A temporary copy of an index for reading: the engine changes every index that it opens.
//!
//! The copy is in the directory for temporary files. Only journals and small files are copied.
//! Sorted tables never change, so a symbolic link is enough. Journals are copied without torn tails
//! and damaged parts.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{copy_whole, scan_all};
use crate::{OsdError, files};

/// Directories of the engine that hold sorted tables.
const TABLES: &str = "tables";

/// A copy of an index; dropping it removes the copy.
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// Copies the index in `index`, which must not change meanwhile.
    pub(crate) fn of(index: &Path) -> Result<Scratch, OsdError> {
        let index = fs::canonicalize(index).map_err(OsdError::io("find", index))?;
        let scratch = Scratch { dir: new_dir()? };
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
        copy_dir(index, &self.dir)?;
        for (journal, scan) in scan_all(index)? {
            let name = journal.file_name().unwrap_or_default();
            copy_whole(&journal, &scan, &self.dir.join(name))?;
        }
        Ok(())
    }

    /// The directory of the copy.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            tracing::warn!("cannot remove {}: {e}", self.dir.display());
        }
    }
}

/// Creates a new directory for temporary files.
fn new_dir() -> Result<PathBuf, OsdError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let n = NEXT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("nacre-index-{}-{n}", std::process::id()));
        match files::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(OsdError::io("make directory", dir)(e)),
        }
    }
}

/// Copies all files except journals.
fn copy_dir(from: &Path, to: &Path) -> Result<(), OsdError> {
    let in_tables = from.file_name().is_some_and(|name| name == TABLES);
    for entry in fs::read_dir(from).map_err(OsdError::io("list", from))? {
        let entry = entry.map_err(OsdError::io("list", from))?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            files::create_dir(&copy).map_err(OsdError::io("make directory", &copy))?;
            copy_dir(&source, &copy)?;
        } else if in_tables {
            symlink(&source, &copy).map_err(OsdError::io("link to", &source))?;
        } else if source.extension().is_none_or(|e| e != "jnl") {
            fs::copy(&source, &copy).map_err(OsdError::io("copy", &source))?;
        }
    }
    Ok(())
}
