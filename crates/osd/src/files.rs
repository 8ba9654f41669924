//! Files and directories of a store: only the store's own user can read them, and they are replaced whole.
//!
//! Modes are set explicitly, so that they do not depend on the umask.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Mode of a directory that only its owner can use.
pub const DIR_MODE: u32 = 0o700;
/// Mode of a file that only its owner can read.
pub const FILE_MODE: u32 = 0o600;

/// Creates one directory with mode 0700.
pub fn create_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(DIR_MODE).create(path)
}

/// Options to open a file which, when they create it, give it mode 0600.
pub fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Replaces a file: after a crash either the old contents are there or the new ones, never a part. The new contents are
/// on disk when this returns. `mode` is the new file's mode.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let dir = parent(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = dir.join(format!(".{name}.new"));
    // One that a crash left behind, which may have another mode.
    let _ = fs::remove_file(&new);
    let written = options()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut file| {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(contents)?;
            file.sync_all()
        });
    let replaced = written.and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced.and_then(|()| sync_dir(&dir))
}

/// Waits until the names in a directory are on disk.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The directory that a path is in.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_replaced_file_is_whole_has_its_mode_and_leaves_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (text, want) in [("one", FILE_MODE), ("two", 0o644)] {
            replace(&path, text.as_bytes(), want).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(mode(&path), want);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("none/f"), b"", FILE_MODE).is_err());
    }
}
