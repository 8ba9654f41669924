//! The kernel's part of a mount: mount(2), mount flags, and `mount -o remount`.
//!
//! A process with the privilege to mount calls mount(2) directly, with the type `fuse.nacre`.
//! Otherwise `fusermount3` mounts, with the same type ([`crate::session`]). The kernel does not
//! tell FUSE about changed mount flags, but it wakes pollers of the mount table.

use crate::mountpoint::{self, SUBTYPE};
use client::{Atime, Client};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::MountFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The mount table of this process.
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// Mounts with the caller's privileges; returns the open FUSE device.
///
/// # Errors
///
/// `PermissionDenied` if the caller may not mount; otherwise the error of opening `/dev/fuse`, of
/// examining the mount point, or of mounting.
pub(crate) fn mount(path: &Path, source: &str, flags: MountFlags, allow_other: bool) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let mode = path.metadata()?.permissions().mode();
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let others = if allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions{others}\0",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let data = std::ffi::CString::from_vec_with_nul(data.into_bytes()).map_err(io::Error::other)?;
    let fstype = format!("fuse.{SUBTYPE}");
    match rustix::mount::mount(source, path, fstype, flags, data.as_c_str()) {
        Ok(()) => Ok(device.into()),
        Err(rustix::io::Errno::PERM) => Err(io::ErrorKind::PermissionDenied.into()),
        Err(e) => Err(e.into()),
    }
}

/// Changes the flags of a Nacre mount, as `mount -o remount` does. Flags that are not in `flags`
/// are cleared.
///
/// # Errors
///
/// There is no Nacre mount at `path`; the caller may not mount; `ResourceBusy` if the mount would
/// become read-only while files are open for writing.
pub fn remount(path: &Path, flags: MountFlags) -> io::Result<()> {
    match mountpoint::mounted_at(path) {
        Some(mount) if mount.is_nacre() => Ok(rustix::mount::mount_remount(path, flags, c"")?),
        Some(mount) => Err(io::Error::other(format!("{} is mounted there", mount.source))),
        None => Err(io::Error::other("nothing is mounted there")),
    }
}

/// The mount flags for an access time policy; `directories`: whether it applies to directories.
pub fn atime_flags(atime: Atime, directories: bool) -> MountFlags {
    let policy = match atime {
        Atime::Relative => MountFlags::RELATIME,
        Atime::Strict => MountFlags::STRICTATIME,
        Atime::Never => MountFlags::NOATIME,
    };
    match directories {
        true => policy,
        false => policy | MountFlags::NODIRATIME,
    }
}

/// The access time policy in a mount's options, and whether it applies to directories. A read-only
/// mount has the policy `Never`.
fn parse_atime(options: &[String]) -> (Atime, bool) {
    let has = |option: &str| options.iter().any(|o| o == option);
    let policy = if has("ro") || has("noatime") {
        Atime::Never
    } else if has("relatime") {
        Atime::Relative
    } else {
        Atime::Strict
    };
    (policy, !has("nodiratime"))
}

/// Starts a thread that applies changes of the mount's access time flags to the client. The thread
/// ends with the mount. `minor`: the mount's minor device number.
pub(crate) fn watch_flags(client: Arc<Client>, path: PathBuf, minor: u32) -> io::Result<()> {
    let table = File::open(MOUNT_TABLE)?;
    let watch = move || {
        if let Err(e) = poll_flags(&table, &client, &path, minor) {
            tracing::warn!(
                "mount {}: cannot watch for changed mount options, so a remount has no effect on access times: {e}",
                path.display()
            );
        }
    };
    std::thread::Builder::new()
        .name("mount-flags".into())
        .spawn(watch)?;
    Ok(())
}

/// Waits for changes of the mount table until the mount ends. When the mount's options have
/// changed, applies their access time policy.
fn poll_flags(table: &File, client: &Client, path: &Path, minor: u32) -> io::Result<()> {
    // `None`: the mount has ended.
    let read_options = || {
        let mounts = mountpoint::mounts()?;
        let mount = mounts.into_iter().find(|m| m.minor == minor && m.path == path);
        Ok::<_, io::Error>(mount.map(|m| m.options))
    };
    let mut current = read_options()?;
    while let Some(old) = current {
        // The table is always readable; PRI signals a change.
        match poll(&mut [PollFd::new(table, PollFlags::PRI)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        current = read_options()?;
        if let Some(new) = current.as_ref().filter(|new| **new != old) {
            let (atime, directories) = parse_atime(new);
            client.set_atime(atime, directories);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_atime;
    use client::Atime;

    #[test]
    fn atime_policy_follows_the_mount_options() {
        let policy = |options: &str| parse_atime(&options.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(policy("rw,nosuid,relatime"), (Atime::Relative, true));
        assert_eq!(policy("rw,nosuid,nodev"), (Atime::Strict, true));
        assert_eq!(policy("rw,noatime"), (Atime::Never, true));
        assert_eq!(policy("ro,relatime"), (Atime::Never, true));
        assert_eq!(policy("rw,nodiratime,relatime"), (Atime::Relative, false));
    }
}
