//! Files and directories of a store: only the store's own user can read them, and they are replaced whole.
//!
//! Modes are set explicitly, so that they do not depend on the umask. [`restrict_umask`] covers the files that the
//! index's engine creates by itself.

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
/// Mode bits of the group and of all others.
const OTHERS: u32 = 0o077;

/// Files and directories that this process creates from now on are closed to other users. Affects all threads.
pub fn restrict_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(OTHERS));
}

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
    let new = dir.join(unfinished(&name));
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

/// The name that a file of this name has while [`replace`] writes it.
pub fn unfinished(name: &str) -> String {
    format!(".{name}.new")
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

/// Takes the group's and all others' permissions from a file or directory; true when it had any. Follows a symbolic
/// link. That the path does not exist is no error.
pub fn restrict(path: &Path) -> io::Result<bool> {
    let mode = match fs::metadata(path) {
        Ok(meta) => meta.permissions().mode(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if mode & OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o700))?;
    Ok(true)
}

/// The same for everything below a directory: directories down to `depth` levels, and files if `with_files`. How many
/// had permissions for others. Does not follow symbolic links below `dir`.
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

    #[test]
    fn permissions_of_others_are_taken_down_to_the_depth() {
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
