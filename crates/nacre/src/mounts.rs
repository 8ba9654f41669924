//! Mount points: whether one can be used, what is left of a process that died, who is in the way of an unmount.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use fuse::{FuseError, MountState};

/// Processes named in an error; more are counted.
const NAMED_MAX: usize = 5;

/// Refuses a mount point where what is mounted answers nobody. Until this has been asked, looking at one may take forever.
pub(crate) fn answers(path: &Path) -> Result<()> {
    let here = path.display();
    match state(path)? {
        MountState::Answers => Ok(()),
        MountState::Dead => bail!(
            "mount point {here} is left over from a process that died: run `nacre umount {here}`, then try again"
        ),
        MountState::Hangs => {
            bail!(
                "mount point {here} does not answer: what is mounted there hangs; unmount it, then try again"
            )
        }
    }
}

fn state(path: &Path) -> Result<MountState> {
    fuse::mount_state(path).with_context(|| format!("mount point {}", path.display()))
}

/// Checks that a file system can be mounted here; makes the directory when only that is missing.
pub(crate) fn prepare(path: &Path) -> Result<()> {
    let here = path.display();
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        bail!(
            "nothing can be mounted on {here}: /dev/fuse cannot be opened ({e}); load the module (modprobe fuse), or give \
             the container the device; servers alone need neither (nacre up --no-mount, nacre serve)"
        );
    }
    answers(path)?;
    if let Some(mount) = fuse::mounted_at(path) {
        bail!(
            "mount point {here} is busy: {} ({}) is mounted there; unmount it, or choose another mount point",
            mount.source,
            mount.fstype
        );
    }
    if path.exists() && !path.is_dir() {
        bail!("mount point {here} is not a directory");
    }
    std::fs::create_dir_all(path).map_err(|e| anyhow!("mount point {here} cannot be made: {e}"))
}

/// Detaches a mount whose process is gone; without effect where there is none.
pub(crate) fn detach_stale(path: &Path) -> Result<bool> {
    let stale = state(path)? == MountState::Dead;
    if stale {
        fuse::unmount(path, true)?;
    }
    Ok(stale)
}

/// Detaches the mount of a process that was killed, also of one that waits in the kernel for its own mount, and so can
/// neither answer nor end.
pub(crate) fn detach_of_dead(path: &Path) -> Result<bool> {
    if state(path)? != MountState::Hangs {
        return detach_stale(path);
    }
    fuse::abandon(path)?;
    Ok(true)
}

/// Says of a mount that cannot be unmounted who uses it.
pub(crate) fn in_use(error: FuseError, path: &Path) -> anyhow::Error {
    if !matches!(error, FuseError::InUse { .. }) {
        return error.into();
    }
    let users = users_of(path);
    let named: Vec<String> = users
        .iter()
        .take(NAMED_MAX)
        .map(|(pid, name)| format!("{name} ({pid})"))
        .collect();
    let more = users.len().saturating_sub(NAMED_MAX);
    let by = match (named.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" by {}", named.join(", ")),
        (false, more) => format!(" by {} and {more} more", named.join(", ")),
    };
    anyhow!(
        "{} is in use{by}: end that and try again, or detach it with --lazy; nothing was stopped",
        path.display()
    )
}

/// Processes that have a file, or their working directory, below a path, as far as this user can see.
fn users_of(path: &Path) -> Vec<(u32, String)> {
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
    fn whoever_has_a_file_open_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let _open = std::fs::File::create(path.join("f")).unwrap();
        assert!(users_of(&path).iter().any(|(pid, _)| *pid == std::process::id()));
    }

    #[test]
    fn what_cannot_be_a_mount_point_is_refused_with_the_reason() {
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
                .contains("cannot be made")
        );
        assert!(
            prepare(Path::new("/proc"))
                .unwrap_err()
                .to_string()
                .contains("busy")
        );
        prepare(&dir.path().join("a/b")).unwrap();
    }
}
