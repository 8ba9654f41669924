//! Copies trees of files and compares two trees: names, types, modes, modification times, targets
//! of symbolic links, and contents. Leaves out the directories `target` and `.git`.

use std::fs::{self, File, FileTimes};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::cmd::walk;

/// Number of bytes to compare at once.
const PIECE_BYTES: usize = 1 << 18;

/// Numbers of entries of a tree by type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) files: u64,
    pub(super) dirs: u64,
    /// Symbolic links.
    pub(super) links: u64,
    /// Bytes in all regular files.
    pub(super) bytes: u64,
}

impl Count {
    /// The number of entries of all types.
    pub(super) fn entries(&self) -> u64 {
        self.files + self.dirs + self.links
    }
}

/// Whether to skip a path: build output or repository metadata.
fn is_skipped(path: &Path) -> bool {
    path.ends_with("target") || path.ends_with(".git")
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = walk::entries(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    paths.retain(|path| !is_skipped(path));
    Ok(paths)
}

/// The path of the other tree's entry with the same name.
fn same_name(dir: &Path, entry: &Path) -> PathBuf {
    dir.join(entry.file_name().unwrap_or_default())
}

/// Copies the tree `from` to the new path `to`, with modes and times. Leaves out special files.
pub(super) fn copy(from: &Path, to: &Path, count: &mut Count) -> Result<()> {
    let cannot_copy = || format!("cannot copy {} to {}", from.display(), to.display());
    let meta = fs::symlink_metadata(from).with_context(cannot_copy)?;
    let times = FileTimes::new()
        .set_accessed(meta.accessed()?)
        .set_modified(meta.modified()?);
    if meta.is_symlink() {
        symlink(fs::read_link(from).with_context(cannot_copy)?, to).with_context(cannot_copy)?;
        let time = |seconds, nanoseconds| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        };
        let times = Timestamps {
            last_access: time(meta.atime(), meta.atime_nsec()),
            last_modification: time(meta.mtime(), meta.mtime_nsec()),
        };
        utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(cannot_copy)?;
        count.links += 1;
    } else if meta.is_dir() {
        fs::create_dir(to).with_context(cannot_copy)?;
        for entry in entries(from)? {
            copy(&entry, &same_name(to, &entry), count)?;
        }
        fs::set_permissions(to, meta.permissions()).with_context(cannot_copy)?;
        File::open(to)
            .and_then(|d| d.set_times(times))
            .with_context(cannot_copy)?;
        count.dirs += 1;
    } else if meta.is_file() {
        fs::copy(from, to).with_context(cannot_copy)?;
        File::options()
            .write(true)
            .open(to)
            .and_then(|f| f.set_times(times))
            .with_context(cannot_copy)?;
        count.files += 1;
        count.bytes += meta.len();
    }
    Ok(())
}

/// Appends a line to `differences` for each difference of tree `b` from tree `a`, and counts the
/// compared entries.
pub(super) fn compare(a: &Path, b: &Path, count: &mut Count, differences: &mut Vec<String>) -> Result<()> {
    let (meta_a, meta_b) = (fs::symlink_metadata(a)?, fs::symlink_metadata(b));
    let mut differs =
        |what: &str| differences.push(format!("{}: {what} differs from {}", b.display(), a.display()));
    let Ok(meta_b) = meta_b else {
        differs("presence");
        return Ok(());
    };
    if meta_a.file_type() != meta_b.file_type() {
        differs("type");
        return Ok(());
    }
    if meta_a.mode() != meta_b.mode() && !meta_a.is_symlink() {
        differs("mode");
    }
    if (meta_a.mtime(), meta_a.mtime_nsec()) != (meta_b.mtime(), meta_b.mtime_nsec()) {
        differs("time");
    }
    if meta_a.is_symlink() {
        count.links += 1;
        if fs::read_link(a)? != fs::read_link(b)? {
            differs("link");
        }
    } else if meta_a.is_file() {
        count.files += 1;
        count.bytes += meta_a.len();
        if meta_a.len() != meta_b.len() || !same_contents(a, b)? {
            differs("contents");
        }
    } else if meta_a.is_dir() {
        count.dirs += 1;
        let (entries_a, entries_b) = (entries(a)?, entries(b)?);
        if entries_a.len() != entries_b.len() {
            differs("number of entries");
        }
        for entry in entries_a {
            compare(&entry, &same_name(b, &entry), count, differences)?;
        }
    }
    Ok(())
}

fn same_contents(a: &Path, b: &Path) -> Result<bool> {
    let (mut file_a, mut file_b) = (File::open(a)?, File::open(b)?);
    let (mut piece_a, mut piece_b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    loop {
        let (len_a, len_b) = (fill(&mut file_a, &mut piece_a)?, fill(&mut file_b, &mut piece_b)?);
        if piece_a[..len_a] != piece_b[..len_b] {
            return Ok(false);
        }
        if len_a < PIECE_BYTES {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn fill(file: &mut File, buf: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match file.read(&mut buf[len..])? {
            0 => break,
            n => len += n,
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn comparison_finds_changed_and_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir_all(a.join("x/y")).unwrap();
        fs::write(a.join("x/f"), vec![7; 300_000]).unwrap();
        fs::write(a.join("x/empty"), "").unwrap();
        symlink("f", a.join("x/link")).unwrap();
        fs::create_dir(a.join("target")).unwrap();
        let mut copied = Count::default();
        copy(&a, &b, &mut copied).unwrap();
        assert_eq!(
            (copied.files, copied.dirs, copied.links, copied.bytes),
            (2, 3, 1, 300_000)
        );

        let compare_again = || {
            let (mut count, mut differences) = (Count::default(), Vec::new());
            compare(&a, &b, &mut count, &mut differences).unwrap();
            (count, differences)
        };
        assert_eq!(compare_again(), (copied, Vec::new()));
        let mut bytes = fs::read(b.join("x/f")).unwrap();
        bytes[299_999] = 8;
        fs::write(b.join("x/f"), bytes).unwrap();
        fs::remove_file(b.join("x/empty")).unwrap();
        let differences = compare_again().1.join("\n");
        assert!(
            differences.contains("contents") && differences.contains("presence"),
            "{differences}"
        );
    }
}
