//! Mount points: reads the mount table, probes mount points, and unmounts.

use crate::error::FuseError;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// The FUSE subtype of Nacre mounts: the kernel shows them as `fuse.nacre`.
pub(crate) const SUBTYPE: &str = "nacre";
/// A mount point that takes longer than this to respond counts as hung.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A mounted file system: a line of /proc/self/mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Minor device number; for FUSE, the number of the connection.
    pub minor: u32,
    /// The mount point.
    pub path: PathBuf,
    /// The file system type: `fuse.nacre`, `ext4`, ...
    pub fstype: String,
    /// The mount source: a device or `10.0.0.1@tcp:/testfs`.
    pub source: String,
    /// The options of this mount, not of its file system: `rw`, `nosuid`, `relatime`, ...
    pub options: Vec<String>,
    /// The user that mounted it, for types that record the user, such as FUSE.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Whether this is a Nacre mount.
    pub fn is_nacre(&self) -> bool {
        self.fstype.strip_prefix("fuse.") == Some(SUBTYPE)
    }
}

/// All mounts, in the order of the mount table: of several on one path, the topmost is the last.
///
/// # Errors
///
/// The mount table cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(std::fs::read("/proc/self/mountinfo")?
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// Parses a line: ID, parent ID, device, root, mount point, options of the mount, optional fields,
/// `-`, type, source, options of the file system.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let minor = device.split_once(':')?.1.parse().ok()?;
    let path = words.nth(1)?;
    let text = |b: &[u8]| String::from_utf8_lossy(&unescape(b)).into_owned();
    let options = words.next()?.split(|b| *b == b',').map(text).collect();
    let mut rest = words.skip_while(|w| *w != b"-").skip(1);
    let (fstype, source) = (rest.next()?, rest.next()?);
    let fs_options = rest.next().unwrap_or_default().split(|b| *b == b',');
    let user = fs_options.filter_map(|o| o.strip_prefix(b"user_id=")).next();
    Some(MountEntry {
        user: user.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok()),
        minor,
        path: PathBuf::from(OsStr::from_bytes(&unescape(path))),
        fstype: text(fstype),
        source: text(source),
        options,
    })
}

/// Replaces escapes (backslash and three octal digits) for blanks and other special bytes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&b, tail)) = rest.split_first() {
        let octal = || {
            let digits = std::str::from_utf8(tail.get(..3)?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match (b, octal()) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

/// The topmost mount at exactly this path; `None` also if the mount table cannot be read.
pub fn mounted_at(path: &Path) -> Option<MountEntry> {
    mounts().ok()?.into_iter().rev().find(|m| m.path == path)
}

/// The absolute path of a mount point, with only its parent directory resolved: resolving the last
/// component would block on a hung mount. A path without a last name (`/`, or one that ends with
/// `..`) is resolved completely.
///
/// # Errors
///
/// The directory to resolve does not exist or cannot be searched.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// The result of probing a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountState {
    /// The file system at this path responds, possibly with an error. Paths that do not exist
    /// respond, too.
    Responds,
    /// The process of the mount is dead.
    Dead,
    /// No response within five seconds.
    Hung,
}

/// Probes a mount point, for at most five seconds.
///
/// # Errors
///
/// The probing thread cannot be started.
pub fn mount_state(path: &Path) -> io::Result<MountState> {
    use rustix::io::Errno;
    Ok(match with_timeout(path, |path| rustix::fs::statfs(path))? {
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => MountState::Dead,
        Some(_) => MountState::Responds,
        None => MountState::Hung,
    })
}

/// Calls `probe` in a thread, because a hung mount blocks the caller of `probe`. `None`: `probe`
/// has not returned after [`PROBE_TIMEOUT`].
fn with_timeout<T: Send + 'static>(path: &Path, probe: fn(&Path) -> T) -> io::Result<Option<T>> {
    let (path, (tx, rx)) = (path.to_owned(), mpsc::channel());
    let run = move || {
        let _ = tx.send(probe(&path));
    };
    std::thread::Builder::new()
        .name("mount-point".into())
        .spawn(run)?;
    Ok(rx.recv_timeout(PROBE_TIMEOUT).ok())
}

/// Checks that a path can be mounted on; returns its canonical path.
pub(crate) fn check_mount_point(path: &Path) -> Result<PathBuf, FuseError> {
    let path = path.to_owned();
    let found = match with_timeout(&path, |path| std::fs::metadata(path)) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(FuseError::Hung { path }),
        Err(source) => return Err(FuseError::Probe { path, source }),
    };
    match found {
        Ok(meta) if !meta.is_dir() => return Err(FuseError::NotDir { path }),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(FuseError::Missing { path }),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return Err(FuseError::Stale { path }),
        Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => return Err(FuseError::Stale { path }),
        Err(source) => return Err(FuseError::Probe { path, source }),
    }
    let real = path.canonicalize().map_err(|source| FuseError::Probe {
        path: path.clone(),
        source,
    })?;
    match mounted_at(&real) {
        Some(m) if m.is_nacre() => Err(FuseError::AlreadyMounted {
            path,
            source_name: m.source,
        }),
        _ => Ok(real),
    }
}

/// Unmounts the topmost mount at a path, whether this process, another process or a dead process
/// has mounted it.
///
/// `lazy`: detaches the mount at once; it ends when its last file is closed.
///
/// # Errors
///
/// Nothing is mounted there, the mount is in use, or the caller may not unmount it.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), FuseError> {
    unmount_with(
        path,
        if lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::NOFOLLOW
        },
    )
}

/// Unmounts the mount of this FUSE connection (a minor device number) from this path, but never
/// another mount there: a user may have unmounted this one and mounted another.
///
/// # Errors
///
/// As for [`unmount`]; `InUse` also if another mount hides this one.
pub(crate) fn unmount_connection(path: &Path, minor: u32, lazy: bool) -> Result<(), FuseError> {
    let here = mounts()
        .unwrap_or_default()
        .into_iter()
        .filter(|m| m.path == path);
    let minors: Vec<u32> = here.map(|m| m.minor).collect();
    let path = path.to_owned();
    match minors.last() {
        Some(topmost) if *topmost == minor => unmount(&path, lazy),
        Some(_) if minors.contains(&minor) => Err(FuseError::InUse { path }),
        _ => Err(FuseError::NotMounted { path }),
    }
}

/// Aborts the mount of an unresponsive process: detaches the mount, and fails all waiting requests.
/// Without root's privileges, failing the requests needs write access to
/// `/sys/fs/fuse/connections`.
///
/// # Errors
///
/// As for [`unmount`].
pub fn abort(path: &Path) -> Result<(), FuseError> {
    unmount_with(path, UnmountFlags::FORCE | UnmountFlags::DETACH)
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> Result<(), FuseError> {
    let real = real_path(path).map_err(|source| FuseError::Unmount {
        path: path.to_owned(),
        source,
    })?;
    let Some(mount) = mounted_at(&real) else {
        return Err(FuseError::NotMounted { path: real });
    };
    match rustix::mount::unmount(&real, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            if flags.contains(UnmountFlags::FORCE) {
                let control = format!("/sys/fs/fuse/connections/{}/abort", mount.minor);
                if let Err(e) = std::fs::write(&control, "1") {
                    tracing::warn!(
                        "cannot abort FUSE connection of {}: waiting programs stay blocked: {control}: {e}",
                        real.display()
                    );
                }
            }
            unmount_by_fusermount(real, flags.contains(UnmountFlags::DETACH))
        }
        Err(rustix::io::Errno::BUSY) => Err(FuseError::InUse { path: real }),
        Err(e) => Err(FuseError::Unmount {
            path: real,
            source: e.into(),
        }),
    }
}

/// Unmounts with `fusermount3`, for users other than root.
fn unmount_by_fusermount(path: PathBuf, lazy: bool) -> Result<(), FuseError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    match command.arg("--").arg(&path).output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let message = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            if message.contains("busy") {
                return Err(FuseError::InUse { path });
            }
            Err(FuseError::Unmount {
                path,
                source: io::Error::other(message),
            })
        }
        Err(e) => Err(FuseError::Unmount {
            path,
            source: io::Error::new(e.kind(), format!("cannot run fusermount3 (package fuse3): {e}")),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{check_mount_point, mounted_at, parse_line};
    use crate::error::FuseError;
    use std::path::Path;

    #[test]
    fn mountinfo_line_with_escaped_blanks_parses() {
        let line =
            b"36 35 0:50 / /mnt/my\\040files rw,nosuid shared:1 master:2 - fuse.nacre 10.0.0.1@tcp:/fs rw,user_id=12,group_id=0";
        let m = parse_line(line).unwrap();
        assert_eq!((m.minor, m.path.as_path()), (50, Path::new("/mnt/my files")));
        assert_eq!((m.source.as_str(), m.user), ("10.0.0.1@tcp:/fs", Some(12)));
        assert!(m.is_nacre());
        assert!(parse_line(b"").is_none());
        assert_eq!(m.options, ["rw", "nosuid"]);
        let other = parse_line(b"36 35 0:50 / /m rw - fuse.sshfs host:/x rw").unwrap();
        assert!(!other.is_nacre());
    }

    #[test]
    fn proc_is_mounted_and_not_nacre() {
        let m = mounted_at(Path::new("/proc")).unwrap();
        assert_eq!(m.fstype, "proc");
        assert!(!m.is_nacre());
    }

    #[test]
    fn check_rejects_missing_paths_and_files() {
        assert!(matches!(
            check_mount_point(Path::new("/nonexistent/x")),
            Err(FuseError::Missing { .. })
        ));
        assert!(matches!(
            check_mount_point(Path::new("/proc/self/status")),
            Err(FuseError::NotDir { .. })
        ));
        assert!(check_mount_point(&std::env::temp_dir()).is_ok());
    }
}
