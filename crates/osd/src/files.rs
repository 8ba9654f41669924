//! Files and directories of a store: only the store's user can read them, and a file is replaced
//! atomically.
//!
//! Modes are set explicitly and do not depend on the umask. [`restrict_umask`] covers the files
//! that the index's engine creates.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Mode of a directory accessible to its owner only.
pub const DIR_MODE: u32 = 0o700;
/// Mode of a file readable by its owner only.
pub const FILE_MODE: u32 = 0o600;
/// Permission bits of the group and of all other users.
const GROUP_AND_OTHERS: u32 = 0o077;

/// Sets the umask: new files and directories of this process are inaccessible to other users.
/// Affects all threads.
pub fn restrict_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(GROUP_AND_OTHERS));
}

/// Creates one directory with mode 0700.
///
/// # Errors
///
/// The error of `mkdir`.
pub fn create_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(DIR_MODE).create(path)
}

/// Open options that create files with mode 0600.
pub fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Replaces a file atomically: after a crash it has either the old or the new contents. The new
/// contents are on disk when this returns. `mode` is the new file's mode.
///
/// # Errors
///
/// The error of writing, renaming or syncing. The old file stays, unless only the sync of the
/// directory fails.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let dir = parent(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = dir.join(temporary_name(&name));
    // A crash may have left the file, possibly with another mode.
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

/// The name of the temporary file that [`replace`] writes.
pub fn temporary_name(name: &str) -> String {
    format!(".{name}.new")
}

/// Waits until the entries of a directory are on disk.
///
/// # Errors
///
/// The error of opening or syncing the directory.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The parent directory of a path; `.` for a path of one component.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Removes the permissions of group and others from a file or directory; true if there were any.
/// Follows a symbolic link. A missing path is no error.
///
/// # Errors
///
/// The error of `stat` or `chmod`.
pub fn restrict(path: &Path) -> io::Result<bool> {
    let mode = match fs::metadata(path) {
        Ok(meta) => meta.permissions().mode(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if mode & GROUP_AND_OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
    Ok(true)
}

/// Removes the permissions of group and others below a directory: from directories down to `depth`
/// levels, and from files if `with_files`. Returns the number of changed entries. Does not follow
/// symbolic links below `dir`.
///
/// # Errors
///
/// The error of listing a directory, of `stat` or of `chmod`.
pub fn restrict_below(dir: &Path, depth: usize, with_files: bool) -> io::Result<u64> {
    let mut changed = 0;
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            changed += u64::from(restrict(&entry.path())?);
            changed += restrict_below(&entry.path(), depth - 1, with_files)?;
        } else if kind.is_file() && with_files {
            changed += u64::from(restrict(&entry.path())?);
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn replace_sets_the_mode_and_leaves_no_temporary_file() {
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

    #[test]
    fn restrict_below_stops_at_the_depth_and_skips_links() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        fs::write(deep.join("g"), "").unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        for path in ["a", "a/b"] {
            fs::set_permissions(dir.path().join(path), fs::Permissions::from_mode(0o755)).unwrap();
        }
        for path in ["f", "a/b/g"] {
            fs::set_permissions(dir.path().join(path), fs::Permissions::from_mode(0o664)).unwrap();
        }
        assert_eq!(restrict_below(dir.path(), 1, false).unwrap(), 1);
        assert_eq!(mode(&deep), 0o755);
        assert_eq!(restrict_below(dir.path(), 9, true).unwrap(), 3);
        assert_eq!((mode(&deep), mode(&deep.join("g"))), (0o700, 0o600));
        assert_eq!(mode(outside.path()), 0o644);
        assert_eq!(restrict_below(dir.path(), 9, true).unwrap(), 0);
        assert!(!restrict(&dir.path().join("none")).unwrap());
    }
}
