//! Copies trees of files and compares two trees: names, types, modes, owners, times, links and
//! contents.

use std::fs::{self, File, FileTimes};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

/// Number of bytes compared at once.
const PIECE: usize = 1 << 18;

/// Statistics of a tree.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) files: u64,
    pub(super) dirs: u64,
    pub(super) links: u64,
    pub(super) bytes: u64,
}

impl Count {
    /// The number of entries of all types.
    pub(super) fn entries(&self) -> u64 {
        self.files + self.dirs + self.links
    }
}

/// Whether to skip a name: build output and repository metadata.
fn is_skipped(name: &std::ffi::OsStr) -> bool {
    name == "target" || name == ".git"
}

fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>> {
    let list = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut list = list
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("cannot read {}", dir.display()))?;
    list.retain(|e| !is_skipped(&e.file_name()));
    list.sort_by_key(fs::DirEntry::file_name);
    Ok(list)
}

/// Copies the tree `from` to the new path `to`.
pub(super) fn copy(from: &Path, to: &Path, count: &mut Count) -> Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    let meta = fs::symlink_metadata(from).with_context(failed)?;
    let times = FileTimes::new()
        .set_accessed(meta.accessed()?)
        .set_modified(meta.modified()?);
    if meta.is_symlink() {
        symlink(fs::read_link(from).with_context(failed)?, to).with_context(failed)?;
        let time = |s, ns| Timespec {
            tv_sec: s,
            tv_nsec: ns,
        };
        let times = Timestamps {
            last_access: time(meta.atime(), meta.atime_nsec()),
            last_modification: time(meta.mtime(), meta.mtime_nsec()),
        };
        utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(failed)?;
        count.links += 1;
    } else if meta.is_dir() {
        fs::create_dir(to).with_context(failed)?;
        for entry in entries(from)? {
            copy(&entry.path(), &to.join(entry.file_name()), count)?;
        }
        fs::set_permissions(to, meta.permissions()).with_context(failed)?;
        File::open(to)
            .and_then(|d| d.set_times(times))
            .with_context(failed)?;
        count.dirs += 1;
    } else if meta.is_file() {
        fs::copy(from, to).with_context(failed)?;
        File::options()
            .write(true)
            .open(to)
            .and_then(|f| f.set_times(times))
            .with_context(failed)?;
        count.files += 1;
        count.bytes += meta.len();
    }
    Ok(())
}

/// Appends a line for each difference between two trees, and counts the compared entries.
pub(super) fn compare(a: &Path, b: &Path, count: &mut Count, differences: &mut Vec<String>) -> Result<()> {
    let (of_a, of_b) = (fs::symlink_metadata(a)?, fs::symlink_metadata(b));
    let mut differs =
        |what: &str| differences.push(format!("{}: {what} differs from {}", b.display(), a.display()));
    let Ok(of_b) = of_b else {
        differs("presence");
        return Ok(());
    };
    if of_a.file_type() != of_b.file_type() {
        differs("type");
        return Ok(());
    }
    if of_a.mode() != of_b.mode() && !of_a.is_symlink() {
        differs("mode");
    }
    if (of_a.mtime(), of_a.mtime_nsec()) != (of_b.mtime(), of_b.mtime_nsec()) {
        differs("time");
    }
    if of_a.is_symlink() {
        count.links += 1;
        if fs::read_link(a)? != fs::read_link(b)? {
            differs("link");
        }
    } else if of_a.is_file() {
        count.files += 1;
        count.bytes += of_a.len();
        if of_a.len() != of_b.len() || !same_contents(a, b)? {
            differs("contents");
        }
    } else if of_a.is_dir() {
        count.dirs += 1;
        let (in_a, in_b) = (entries(a)?, entries(b)?);
        if in_a.len() != in_b.len() {
            differs("number of entries");
        }
        for entry in in_a {
            compare(&entry.path(), &b.join(entry.file_name()), count, differences)?;
        }
    }
    Ok(())
}

fn same_contents(a: &Path, b: &Path) -> Result<bool> {
    let (mut file_a, mut file_b) = (File::open(a)?, File::open(b)?);
    let (mut in_a, mut in_b) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let (n, m) = (fill(&mut file_a, &mut in_a)?, fill(&mut file_b, &mut in_b)?);
        if in_a[..n] != in_b[..m] {
            return Ok(false);
        }
        if n < PIECE {
            return Ok(true);
        }
    }
}

fn fill(file: &mut File, buf: &mut [u8]) -> Result<usize> {
    let mut at = 0;
    while at < buf.len() {
        match file.read(&mut buf[at..])? {
            0 => break,
            n => at += n,
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn comparison_finds_a_changed_byte() {
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

        let compared = || {
            let (mut count, mut differences) = (Count::default(), Vec::new());
            compare(&a, &b, &mut count, &mut differences).unwrap();
            (count, differences)
        };
        assert_eq!(compared(), (copied, Vec::new()));
        let mut bytes = fs::read(b.join("x/f")).unwrap();
        bytes[299_999] = 8;
        fs::write(b.join("x/f"), bytes).unwrap();
        fs::remove_file(b.join("x/empty")).unwrap();
        let found = compared().1.join("\n");
        assert!(
            found.contains("contents") && found.contains("presence"),
            "{found}"
        );
    }
}
