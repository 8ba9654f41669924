//! What the kernel has mounted, and mounts that outlived their process.
//!
//! A mount is known by its line in `/proc/self/mountinfo`. It is stale when the process that served it is gone: every
//! access fails with ENOTCONN until it is detached.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// A line of the kernel's list of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelMount {
    /// Where it is.
    pub(crate) mountpoint: PathBuf,
    /// Its type, such as `fuse.nacre`.
    pub(crate) kind: String,
    /// What is mounted.
    pub(crate) source: String,
}

/// What is mounted at exactly this path, the uppermost one.
pub(crate) fn at(path: &Path) -> Option<KernelMount> {
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    parse(&list).into_iter().rev().find(|m| m.mountpoint == path)
}

fn parse(mountinfo: &str) -> Vec<KernelMount> {
    let line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        Some(KernelMount {
            mountpoint: unescape(left.split(' ').nth(4)?).into(),
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?),
        })
    };
    mountinfo.lines().filter_map(line).collect()
}

/// Undoes the kernel's octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |t, (from, to)| t.replace(from, to))
}

/// Whether what is mounted here has lost its process.
pub(crate) fn is_stale(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Checks that a file system can be mounted here; makes the directory when only that is missing.
pub(crate) fn prepare(path: &Path) -> Result<()> {
    if let Some(mount) = at(path) {
        let ours = mount.kind.starts_with("fuse");
        if ours && is_stale(path) {
            bail!(
                "mount point {} still has the mount of a process that died: run `nacre umount {}`, then try again",
                path.display(),
                path.display()
            );
        }
        bail!(
            "mount point {} is busy: {} ({}) is mounted there; unmount it or choose another with --mount",
            path.display(),
            mount.source,
            mount.kind
        );
    }
    if let Err(e) = std::fs::create_dir_all(path) {
        bail!("mount point {} cannot be made: {e}", path.display());
    }
    let meta = std::fs::metadata(path);
    if !meta.is_ok_and(|m| m.is_dir()) {
        bail!("mount point {} is not a directory", path.display());
    }
    Ok(())
}

/// Detaches a mount whose process is gone; without effect where nothing stale is mounted.
pub(crate) fn detach_stale(path: &Path) -> Result<bool> {
    if at(path).is_none() || !is_stale(path) {
        return Ok(false);
    }
    detach(path)?;
    Ok(true)
}

/// Detaches whatever is mounted here, in use or not.
pub(crate) fn detach(path: &Path) -> Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(e) => bail!("cannot unmount {}: {e}", path.display()),
    }
    // Not root: fusermount3 may, for mounts of this user.
    let done = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(path)
        .status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!(
            "cannot unmount {}: it is not a mount of this user",
            path.display()
        ),
        Err(e) => bail!(
            "cannot unmount {}: fusermount3 does not run ({e}); install fuse3",
            path.display()
        ),
    }
}

/// Processes that have a file, a mapping or their working directory below a path, as far as this user can see.
pub(crate) fn users_of(path: &Path) -> Vec<(u32, String)> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let uses = |dir: &Path| {
        let fds = std::fs::read_dir(dir.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path());
        let links = [dir.join("cwd"), dir.join("root"), dir.join("exe")]
            .into_iter()
            .chain(fds);
        links
            .filter_map(|l| std::fs::read_link(l).ok())
            .any(|target| target.starts_with(path))
    };
    let mut out = Vec::new();
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        if uses(&entry.path()) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            out.push((pid, name.trim().to_owned()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_gives_place_kind_and_source() {
        let text =
            "36 35 98:0 / /mnt/a\\040b rw,nosuid shared:1 - fuse.nacre 127.0.0.1@tcp:/nacre rw,user_id=0\n";
        let expected = KernelMount {
            mountpoint: "/mnt/a b".into(),
            kind: "fuse.nacre".to_owned(),
            source: "127.0.0.1@tcp:/nacre".to_owned(),
        };
        assert_eq!(parse(text), [expected]);
    }

    #[test]
    fn the_root_is_mounted_and_not_stale() {
        assert!(at(Path::new("/")).is_some());
        assert!(!is_stale(Path::new("/")));
    }
}
