//! A target that takes the place of another one with its index (`nacre mkfs --replace`). An empty file in its directory
//! says so until the MGS has registered the target.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// The file's name.
pub(crate) const NAME: &str = "replace";

/// Marks a new target's directory.
pub(crate) fn mark(dir: &Path) -> io::Result<()> {
    File::create(dir.join(NAME))?.sync_all()
}

/// Whether the target in this directory is to replace another one.
pub(crate) fn is_wanted(dir: &Path) -> bool {
    dir.join(NAME).exists()
}

/// Removes the mark of a target that the MGS has registered. It stays removed after a power failure.
pub(crate) fn done(dir: &Path) -> Result<()> {
    let file = dir.join(NAME);
    let removed = match fs::remove_file(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => Err(e),
        Ok(()) => File::open(dir).and_then(|dir| dir.sync_all()),
    };
    removed.with_context(|| format!("cannot remove {}", file.display()))
}
