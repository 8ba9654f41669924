//! The mark of a target that replaces a lost one with the same index (`nacre mkfs --replace`): an
//! empty file in the target's directory until the MGS has registered the target.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// Name of the mark's file.
pub(crate) const NAME: &str = "replace";

/// Marks the directory of a new target, and syncs the mark's file.
pub(crate) fn mark(dir: &Path) -> io::Result<()> {
    File::create(dir.join(NAME))?.sync_all()
}

/// Whether the target in this directory has the mark.
pub(crate) fn is_marked(dir: &Path) -> bool {
    dir.join(NAME).exists()
}

/// Removes the mark after the MGS has registered the target, and syncs the directory.
pub(crate) fn unmark(dir: &Path) -> Result<()> {
    let file = dir.join(NAME);
    let result = match fs::remove_file(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => Err(e),
        Ok(()) => File::open(dir).and_then(|dir| dir.sync_all()),
    };
    result.with_context(|| format!("cannot remove {}", file.display()))
}
