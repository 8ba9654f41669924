//! The kernel's side of a mount: mount(2) by root, its flags, and `mount -o remount`.
//!
//! Root mounts by itself, with the type `fuse.nacre` that `fusermount3` gives to the mounts of other users. The kernel changes
//! the flags of a mount without a word to FUSE; but it wakes pollers of the mount table.

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
const TABLE: &str = "/proc/self/mountinfo";

/// Mounts with the caller's own rights; gives the open device.
///
/// # Errors
/// `PermissionDenied` where the caller may not mount.
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

/// Gives a mount of Nacre other flags, as `mount -o remount` does. Flags that are not given are off.
///
/// # Errors
/// There is no mount of Nacre; the caller may not; `ResourceBusy` for a mount that becomes read-only while files are open
/// for writing.
pub fn remount(path: &Path, flags: MountFlags) -> io::Result<()> {
    match mountpoint::mounted_at(path) {
        Some(mount) if mount.is_ours() => Ok(rustix::mount::mount_remount(path, flags, c"")?),
        Some(mount) => Err(io::Error::other(format!("{} is mounted there", mount.source))),
        None => Err(io::Error::other("nothing is mounted there")),
    }
}

/// The flags that stand for a rule of access times.
pub fn atime_flags(atime: Atime, directories: bool) -> MountFlags {
    let rule = match atime {
        Atime::Relative => MountFlags::RELATIME,
        Atime::Strict => MountFlags::STRICTATIME,
        Atime::Never => MountFlags::NOATIME,
    };
    match directories {
        true => rule,
        false => rule | MountFlags::NODIRATIME,
    }
}

/// The rule of access times by a mount's options in the mount table, and whether it holds for directories.
fn atime_of(options: &[String]) -> (Atime, bool) {
    let has = |option: &str| options.iter().any(|o| o == option);
    let rule = if has("ro") || has("noatime") {
        Atime::Never
    } else if has("relatime") {
        Atime::Relative
    } else {
        Atime::Strict
    };
    (rule, !has("nodiratime"))
}

/// Has the client follow the flags of its mount from the next change of them on: by a thread that ends with the mount.
pub(crate) fn follow_flags(client: Arc<Client>, path: PathBuf, minor: u32) -> io::Result<()> {
    let table = File::open(TABLE)?;
    let follow = move || {
        if let Err(e) = until_unmounted(&table, &client, &path, minor) {
            tracing::warn!(
                "changed options of the mount {} are not seen: {e}",
                path.display()
            );
        }
    };
    std::thread::Builder::new()
        .name("mount-flags".into())
        .spawn(follow)?;
    Ok(())
}

fn until_unmounted(table: &File, client: &Client, path: &Path, minor: u32) -> io::Result<()> {
    let options = || {
        let mounts = mountpoint::mounts()?;
        let ours = mounts.into_iter().find(|m| m.minor == minor && m.path == path);
        Ok::<_, io::Error>(ours.map(|m| m.options))
    };
    let mut known = options()?;
    while let Some(before) = known {
        // The table is always readable; what counts is that it changed.
        match poll(&mut [PollFd::new(table, PollFlags::PRI)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        known = options()?;
        if let Some(now) = known.as_ref().filter(|now| **now != before) {
            let (atime, directories) = atime_of(now);
            client.set_atime(atime, directories);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::atime_of;
    use client::Atime;

    #[test]
    fn the_rule_of_access_times_follows_the_mount_table() {
        let rule = |options: &str| atime_of(&options.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(rule("rw,nosuid,relatime"), (Atime::Relative, true));
        assert_eq!(rule("rw,nosuid,nodev"), (Atime::Strict, true));
        assert_eq!(rule("rw,noatime"), (Atime::Never, true));
        assert_eq!(rule("ro,relatime"), (Atime::Never, true));
        assert_eq!(rule("rw,nodiratime,relatime"), (Atime::Relative, false));
    }
}
