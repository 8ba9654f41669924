//! Files of a target's directory that only its owner may read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name that a file has until it is written.
pub(crate) fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

/// Replaces a file (mode 0600). It is whole at any time, also after a power failure, and on disk when this returns.
pub(crate) fn replace(dir: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let new = dir.join(unfinished(name));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&new, dir.join(name))?;
    File::open(dir)?.sync_all()
}
