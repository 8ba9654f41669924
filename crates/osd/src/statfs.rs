//! Space of the local file system that a store lives on.

use std::path::Path;

use crate::{OsdError, StatFs};

pub(crate) fn of_path(path: &Path) -> Result<StatFs, OsdError> {
    let s = rustix::fs::statvfs(path).map_err(|e| OsdError::io("statfs", path)(e.into()))?;
    // Blocks are counted in fragments.
    Ok(StatFs {
        bsize: u32::try_from(s.f_frsize).unwrap_or(4096),
        blocks: s.f_blocks,
        bfree: s.f_bfree,
        bavail: s.f_bavail,
        files: s.f_files,
        ffree: s.f_ffree,
    })
}
