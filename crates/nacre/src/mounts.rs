//! Mount points: checks before a mount, cleanup after a dead process, and the processes that
//! prevent an unmount.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use fuse::{FuseError, MountState};

use crate::output::shell_word;

/// Maximum number of processes that an error names; it counts the others.
const PROCESSES_NAMED_MAX: usize = 5;

/// Fails if there is a mount at this path that does not answer. Any other access to such a path may
/// block forever.
pub(crate) fn check_responsive(path: &Path) -> Result<()> {
    let here = path.display();
    match mount_state(path)? {
        MountState::Responds => Ok(()),
        MountState::Dead => bail!(
            "the mount on {here} is left over from a process that has ended: run `nacre umount {}`, then try again",
            shell_word(path)
        ),
        MountState::Hung => {
            bail!(
                "mount point {here} does not answer: the file system mounted there hangs; unmount it, then try again"
            )
        }
    }
}

fn mount_state(path: &Path) -> Result<MountState> {
    fuse::mount_state(path).with_context(|| format!("mount point {}", path.display()))
}

/// Checks that a file system can be mounted at this path. Creates the directory if necessary.
pub(crate) fn prepare(path: &Path) -> Result<()> {
    let here = path.display();
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        let remedy = match e.kind() {
            ErrorKind::PermissionDenied => "give this user access to the device",
            _ => "load the module (modprobe fuse), or give the container the device",
        };
        bail!(
            "cannot mount on {here}: cannot open /dev/fuse ({e}); {remedy}; servers need no mount \
             (nacre up --no-mount, nacre serve)"
        );
    }
    check_responsive(path)?;
    // An automount point waits for this mount.
    if let Some(mount) = fuse::mounted_at(path).filter(|_| !is_automount_point(path)) {
        bail!(
            "mount point {here} is busy: {} ({}) is mounted there; unmount it, or choose another mount point",
            mount.source,
            mount.fstype
        );
    }
    if path.exists() && !path.is_dir() {
        bail!("mount point {here} is not a directory");
    }
    std::fs::create_dir_all(path).map_err(|e| anyhow!("cannot create mount point {here}: {e}"))
}

/// Whether the path is an automount point (of systemd's `x-systemd.automount`) without a mount.
pub(crate) fn is_automount_point(path: &Path) -> bool {
    fuse::mounted_at(path).is_some_and(|mount| mount.fstype == "autofs")
}

/// Checks that a file system can be mounted at this path, as [`prepare`] does, and that the mount
/// would hide no files.
pub(crate) fn prepare_empty(path: &Path) -> Result<()> {
    prepare(path)?;
    let here = path.display();
    let mut entries = std::fs::read_dir(path).with_context(|| format!("cannot read mount point {here}"))?;
    if let Some(Ok(entry)) = entries.next() {
        bail!(
            "mount point {here} is not empty (it has {}), and the mount would hide its files: move them away, or choose an empty \
             or new directory",
            entry.file_name().display()
        );
    }
    Ok(())
}

/// Whether a directory without a mount has files, which a mount would hide.
pub(crate) fn has_files(path: &Path) -> bool {
    let real = fuse::real_path(path).unwrap_or_else(|_| path.to_path_buf());
    fuse::mounted_at(&real).is_none() && std::fs::read_dir(path).is_ok_and(|mut dir| dir.next().is_some())
}

/// Detaches a mount if its process is dead. Returns whether the process was dead.
pub(crate) fn detach_if_dead(path: &Path) -> Result<bool> {
    let stale = mount_state(path)? == MountState::Dead;
    if stale {
        fuse::unmount(path, true)?;
    }
    Ok(stale)
}

/// Detaches the mount of a process that is known to be killed, even if that process is blocked in
/// the kernel on its own mount and can neither answer nor exit. Returns `false` if the path has no
/// mount, or one that answers.
pub(crate) fn force_detach(path: &Path) -> Result<bool> {
    if mount_state(path)? != MountState::Hung {
        return detach_if_dead(path);
    }
    fuse::abort(path)?;
    Ok(true)
}

/// Adds the processes that use the mount to an error about a mount in use.
pub(crate) fn busy_error(error: FuseError, path: &Path) -> anyhow::Error {
    if !matches!(error, FuseError::InUse { .. }) {
        return error.into();
    }
    let users = processes_using(path);
    let named: Vec<String> = users
        .iter()
        .take(PROCESSES_NAMED_MAX)
        .map(|(pid, name)| format!("{name} ({pid})"))
        .collect();
    let more = users.len().saturating_sub(PROCESSES_NAMED_MAX);
    let by_processes = match (named.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" by {}", named.join(", ")),
        (false, more) => format!(" by {} and {more} more", named.join(", ")),
    };
    anyhow!(
        "{} is in use{by_processes}: end these processes and try again, or detach the mount with --lazy; nothing was stopped",
        path.display()
    )
}

/// Processes with an open file, working or root directory, or program at or below a path: their ids
/// and names, as far as this user may see them.
fn processes_using(path: &Path) -> Vec<(u32, String)> {
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn process_with_an_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let _open = std::fs::File::create(path.join("f")).unwrap();
        assert!(
            processes_using(&path)
                .iter()
                .any(|(pid, _)| *pid == std::process::id())
        );
    }

    #[test]
    fn invalid_mount_point_is_rejected_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        assert!(
            prepare(&file)
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        assert!(
            prepare(&file.join("x"))
                .unwrap_err()
                .to_string()
                .contains("cannot create")
        );
        assert!(
            prepare(Path::new("/proc"))
                .unwrap_err()
                .to_string()
                .contains("busy")
        );
        prepare(&dir.path().join("a/b")).unwrap();
        prepare_empty(&dir.path().join("a/b")).unwrap();
        let not_empty = prepare_empty(&dir.path().join("a")).unwrap_err().to_string();
        assert!(not_empty.contains("is not empty (it has b)"), "{not_empty}");
    }
}
