//! Copies trees of files and compares two trees: names, types, modes, modification times, targets
//! of symbolic links, and contents. Leaves out every entry with the name `target` or `.git`.

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

/// The path in `dir` with the name of `entry`.
fn counterpart(dir: &Path, entry: &Path) -> PathBuf {
    dir.join(entry.file_name().unwrap_or_default())
}

/// Called before each entry with the number of entries so far. An error ends the work.
pub(super) type OnEntry<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// The number of entries of a tree, itself included.
pub(super) fn count_entries(tree: &Path) -> Result<u64> {
    let is_dir = fs::symlink_metadata(tree).is_ok_and(|meta| meta.is_dir());
    let below = match is_dir {
        true => entries(tree)?,
        false => Vec::new(),
    };
    below
        .iter()
        .try_fold(1, |sum, entry| Ok(sum + count_entries(entry)?))
}

/// Copies the tree `from` to the new path `to`, with modes and times. Leaves out special files.
pub(super) fn copy(from: &Path, to: &Path, count: &mut Count, on_entry: OnEntry) -> Result<()> {
    on_entry(count.entries())?;
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
            copy(&entry, &counterpart(to, &entry), count, on_entry)?;
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

/// Appends a line to `differences` for each difference of tree `copy` from tree `source`, and
/// counts the compared entries.
pub(super) fn compare(
    source: &Path,
    copy: &Path,
    count: &mut Count,
    differences: &mut Vec<String>,
    on_entry: OnEntry,
) -> Result<()> {
    on_entry(count.entries())?;
    let (source_meta, copy_meta) = (fs::symlink_metadata(source)?, fs::symlink_metadata(copy));
    let copy_meta = match copy_meta {
        Ok(copy_meta) => copy_meta,
        Err(e) => {
            let source = source.display();
            differences.push(format!("{}: {e} (copy of {source})", copy.display()));
            return Ok(());
        }
    };
    let mut differs = |what: &str| {
        differences.push(format!(
            "{}: {what} differs from {}",
            copy.display(),
            source.display()
        ))
    };
    if source_meta.file_type() != copy_meta.file_type() {
        differs("type");
        return Ok(());
    }
    if source_meta.mode() != copy_meta.mode() && !source_meta.is_symlink() {
        differs("mode");
    }
    if (source_meta.mtime(), source_meta.mtime_nsec()) != (copy_meta.mtime(), copy_meta.mtime_nsec()) {
        differs("modification time");
    }
    if source_meta.is_symlink() {
        count.links += 1;
        if fs::read_link(source)? != fs::read_link(copy)? {
            differs("link target");
        }
    } else if source_meta.is_file() {
        count.files += 1;
        count.bytes += source_meta.len();
        if source_meta.len() != copy_meta.len() || !same_contents(source, copy)? {
            differs("contents");
        }
    } else if source_meta.is_dir() {
        count.dirs += 1;
        let (source_entries, copy_entries) = (entries(source)?, entries(copy)?);
        if source_entries.len() != copy_entries.len() {
            differs("number of entries");
        }
        for entry in source_entries {
            compare(&entry, &counterpart(copy, &entry), count, differences, on_entry)?;
        }
    }
    Ok(())
}

fn same_contents(source: &Path, copy: &Path) -> Result<bool> {
    let (mut source_file, mut copy_file) = (File::open(source)?, File::open(copy)?);
    let (mut source_piece, mut copy_piece) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    loop {
        let (source_len, copy_len) = (
            fill(&mut source_file, &mut source_piece)?,
            fill(&mut copy_file, &mut copy_piece)?,
        );
        if source_piece[..source_len] != copy_piece[..copy_len] {
            return Ok(false);
        }
        if source_len < PIECE_BYTES {
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
    use crate::interrupt::Interrupted;

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
        let mut seen = Vec::new();
        copy(&a, &b, &mut copied, &mut |n| {
            seen.push(n);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.len() as u64, count_entries(&a).unwrap());
        assert_eq!(
            (copied.files, copied.dirs, copied.links, copied.bytes),
            (2, 3, 1, 300_000)
        );

        let compare_again = || {
            let (mut count, mut differences) = (Count::default(), Vec::new());
            compare(&a, &b, &mut count, &mut differences, &mut |_| Ok(())).unwrap();
            (count, differences)
        };
        assert_eq!(compare_again(), (copied, Vec::new()));
        let mut bytes = fs::read(b.join("x/f")).unwrap();
        bytes[299_999] = 8;
        fs::write(b.join("x/f"), bytes).unwrap();
        fs::remove_file(b.join("x/empty")).unwrap();
        let differences = compare_again().1.join("\n");
        assert!(
            differences.contains("contents") && differences.contains("No such file"),
            "{differences}"
        );
    }

    #[test]
    fn copy_ends_at_an_interruption() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("f"), "").unwrap();
        let mut count = Count::default();
        let result = copy(&a, &b, &mut count, &mut |_| match b.exists() {
            true => Err(Interrupted.into()),
            false => Ok(()),
        });
        assert!(result.unwrap_err().is::<Interrupted>());
        assert!(!b.join("f").exists());
    }
}
