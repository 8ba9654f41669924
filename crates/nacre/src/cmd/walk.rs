//! Directory trees: sorted entries, and a walk that reports errors and continues.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{Dir, Mode, OFlags, open};

use crate::output;

/// Maximum length of a path that the kernel accepts, in bytes.
const PATH_MAX: usize = 4095;
/// Bytes at each end of a longer path that a message shows.
const SHOWN_END_BYTES: usize = 200;

/// Calls `visit` with each path at and below `top`, and with its depth: a directory first, then its
/// entries. `visit` returns whether to read the path as a directory. Prints each error with the
/// name of the command. Returns the number of errors.
pub(super) fn walk(command: &str, top: &Path, mut visit: impl FnMut(&Path, usize) -> Result<bool>) -> usize {
    let mut errors = 0;
    let mut pending = vec![(top.to_path_buf(), 0)];
    while let Some((path, depth)) = pending.pop() {
        let outcome = visit(&path, depth).and_then(|reads_entries| match reads_entries {
            true => entries(&path),
            false => Ok(Vec::new()),
        });
        match outcome {
            Ok(found) => pending.extend(found.into_iter().rev().map(|path| (path, depth + 1))),
            Err(e) => {
                output::errln!("nacre: {command}: {}", output::describe(&e));
                errors += 1;
            }
        }
    }
    errors
}

/// The paths of a directory's entries, sorted. Fails if the path is a symbolic link: another
/// program may have replaced a directory by one.
pub(super) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let context = || message_path(dir);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open_dir = open(dir, flags, Mode::empty()).with_context(context)?;
    let mut paths = Vec::new();
    for entry in Dir::new(open_dir).with_context(context)? {
        let entry = entry.with_context(context)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            paths.push(join(dir, OsStr::from_bytes(name)));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Appends a name to the path as given, without a second slash.
fn join(dir: &Path, name: &OsStr) -> PathBuf {
    let mut path = dir.as_os_str().as_bytes().to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    PathBuf::from(OsString::from_vec(path))
}

/// The text of a path for a message; only both ends of a path that is too long for the kernel.
pub(super) fn message_path(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= PATH_MAX {
        return path.display().to_string();
    }
    let (start, end) = (&bytes[..SHOWN_END_BYTES], &bytes[bytes.len() - SHOWN_END_BYTES..]);
    format!(
        "{}[...]{} (a path of {} bytes)",
        String::from_utf8_lossy(start),
        String::from_utf8_lossy(end),
        bytes.len()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use anyhow::bail;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn walk_continues_after_errors_and_counts_them() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        fs::create_dir_all(top.join("gone")).unwrap();
        fs::create_dir_all(top.join("kept/sub")).unwrap();
        fs::write(top.join("kept/bad"), "").unwrap();
        let mut seen = Vec::new();
        let errors = walk("test", top, |path, depth| {
            let is_dir = path.is_dir();
            let name = path.strip_prefix(top).unwrap().display().to_string();
            // A directory that another program removes before it is read.
            if name == "gone" {
                fs::remove_dir(path).unwrap();
            }
            if name == "kept/bad" {
                bail!("{name}");
            }
            seen.push((name, depth));
            Ok(is_dir)
        });
        let expected = [("", 0), ("gone", 1), ("kept", 1), ("kept/sub", 2)];
        assert_eq!(seen, expected.map(|(name, depth)| (name.to_owned(), depth)));
        assert_eq!(errors, 2);
    }

    #[test]
    fn directory_that_becomes_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        fs::create_dir_all(top.join("tree/sub")).unwrap();
        fs::create_dir(top.join("secret")).unwrap();
        fs::write(top.join("secret/file"), "").unwrap();
        let mut seen = Vec::new();
        let errors = walk("test", &top.join("tree"), |path, _| {
            seen.push(path.file_name().unwrap().to_owned());
            let is_dir = fs::symlink_metadata(path)?.is_dir();
            if path.ends_with("sub") {
                fs::remove_dir(path)?;
                symlink(top.join("secret"), path)?;
            }
            Ok(is_dir)
        });
        assert_eq!(seen, ["tree", "sub"]);
        assert_eq!(errors, 1);
    }

    #[test]
    fn entries_are_sorted_and_keep_the_path_as_given() {
        let dir = tempfile::tempdir().unwrap();
        for name in [&b"b"[..], b"a", b"\xff", b".c"] {
            fs::write(dir.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let base = format!("{}//", dir.path().display());
        let names = entries(Path::new(&base)).unwrap();
        let expected = [&b".c"[..], b"a", b"b", b"\xff"].map(|name| {
            let path = [base.as_bytes(), name].concat();
            OsString::from_vec(path)
        });
        assert_eq!(names, expected.map(PathBuf::from));
    }

    #[test]
    fn message_shows_both_ends_of_a_path_that_is_too_long() {
        let long = format!("/first/{}/last", "x".repeat(5000));
        let text = message_path(Path::new(&long));
        assert!(
            text.starts_with("/first/") && text.contains("/last (a path of 5012 bytes)"),
            "{text}"
        );
        assert!(text.len() < 500, "{}", text.len());
        assert_eq!(message_path(Path::new(&long[..4095])), long[..4095]);
        assert!(entries(Path::new(&long)).unwrap_err().to_string().len() < 500);
    }
}
