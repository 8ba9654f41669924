//! Mount points: whether one can be mounted on, and how to unmount one.

use crate::error::FuseError;
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// The type of our mounts, as the kernel shows it.
pub(crate) const SUBTYPE: &str = "nacre";
/// How long a mount point may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A mounted file system, as /proc/self/mountinfo shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Minor number of its device; of a FUSE mount, the number of its connection.
    pub minor: u32,
    /// Where it is.
    pub path: PathBuf,
    /// `fuse.nacre`, `ext4`, ...
    pub fstype: String,
    /// What is mounted.
    pub source: String,
    /// The options of this mount, not of its file system: `rw`, `nosuid`, `relatime`, ...
    pub options: Vec<String>,
    /// The user who mounted it, where its type says so, as FUSE does.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Whether it is a mount of this program.
    pub fn is_ours(&self) -> bool {
        self.fstype.strip_prefix("fuse.") == Some(SUBTYPE)
    }
}

/// All mounts, the latest last.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(std::fs::read("/proc/self/mountinfo")?
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// A line: id, parent, device, root, mount point, options, optional fields, `-`, type, source, options.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let minor = device.split_once(':')?.1.parse().ok()?;
    let path = words.nth(1)?;
    let text = |b: &[u8]| String::from_utf8_lossy(&unescape(b)).into_owned();
    let options = words.next()?.split(|b| *b == b',').map(text).collect();
    let mut rest = words.skip_while(|w| *w != b"-").skip(1);
    let (fstype, source) = (rest.next()?, rest.next()?);
    let of_fs = rest.next().unwrap_or_default().split(|b| *b == b',');
    let user = of_fs.filter_map(|o| o.strip_prefix(b"user_id=")).next();
    Some(MountEntry {
        user: user.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok()),
        minor,
        path: PathBuf::from(OsStr::from_bytes(&unescape(path))),
        fstype: text(fstype),
        source: text(source),
        options,
    })
}

/// Blanks and the like are written as a backslash and three octal digits.
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

/// What is mounted on this very path, if anything: the last mounted is on top.
pub fn mounted_at(path: &Path) -> Option<MountEntry> {
    mounts().ok()?.into_iter().rev().find(|m| m.path == path)
}

/// The mount point's real path, made without asking a mount that may hang on it for anything. Fails where the directory that it
/// is in does not exist.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// How whoever looks at a mount point fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountState {
    /// It answers, whatever is there.
    Answers,
    /// A mount is there whose process is gone.
    Dead,
    /// It does not answer.
    Hangs,
}

/// How a mount point is; says so in bounded time.
pub fn state(path: &Path) -> io::Result<MountState> {
    use rustix::io::Errno;
    Ok(match look(path, |path| rustix::fs::statfs(path))? {
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => MountState::Dead,
        Some(_) => MountState::Answers,
        None => MountState::Hangs,
    })
}

/// Looks at a path that whoever looks at may hang; nothing when it does.
fn look<T: Send + 'static>(path: &Path, look: fn(&Path) -> T) -> io::Result<Option<T>> {
    let (path, (tx, rx)) = (path.to_owned(), mpsc::channel());
    let looks = move || {
        let _ = tx.send(look(&path));
    };
    std::thread::Builder::new()
        .name("mount-point".into())
        .spawn(looks)?;
    Ok(rx.recv_timeout(ANSWER).ok())
}

/// Refuses a path that cannot be mounted on, with the reason; else gives its real path.
pub(crate) fn check(path: &Path) -> Result<PathBuf, FuseError> {
    let path = path.to_owned();
    let found = match look(&path, |path| std::fs::metadata(path)) {
        Ok(Some(found)) => found,
        Ok(None) => return Err(FuseError::Hung { path }),
        Err(source) => return Err(FuseError::MountPoint { path, source }),
    };
    match found {
        Ok(meta) if !meta.is_dir() => return Err(FuseError::NotDir { path }),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(FuseError::Missing { path }),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return Err(FuseError::Stale { path }),
        Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => return Err(FuseError::Stale { path }),
        Err(source) => return Err(FuseError::MountPoint { path, source }),
    }
    let real = path.canonicalize().map_err(|source| FuseError::MountPoint {
        path: path.clone(),
        source,
    })?;
    match mounted_at(&real) {
        Some(m) if m.is_ours() => Err(FuseError::Busy {
            path,
            source_name: m.source,
        }),
        _ => Ok(real),
    }
}

/// Unmounts whatever is on top of a mount point: of this process, of another, or of one that died.
///
/// `lazy`: it goes from the tree at once, and ends when what is open there is closed.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), FuseError> {
    detach(
        path,
        if lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::NOFOLLOW
        },
    )
}

/// Ends a mount whose process will never answer: it goes from the tree, and who waits for it gets an error.
///
/// Without root's rights the second needs `/sys/fs/fuse/connections`.
pub fn abandon(path: &Path) -> Result<(), FuseError> {
    detach(path, UnmountFlags::FORCE | UnmountFlags::DETACH)
}

fn detach(path: &Path, flags: UnmountFlags) -> Result<(), FuseError> {
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
                let abort = format!("/sys/fs/fuse/connections/{}/abort", mount.minor);
                if let Err(e) = std::fs::write(&abort, "1") {
                    tracing::warn!("who waits for {} goes on waiting: {abort}: {e}", real.display());
                }
            }
            by_fusermount(real, flags.contains(UnmountFlags::DETACH))
        }
        Err(rustix::io::Errno::BUSY) => Err(FuseError::InUse { path: real }),
        Err(e) => Err(FuseError::Unmount {
            path: real,
            source: e.into(),
        }),
    }
}

/// Who is not root asks the helper that is.
fn by_fusermount(path: PathBuf, lazy: bool) -> Result<(), FuseError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    match command.arg("--").arg(&path).output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            if said.contains("busy") {
                return Err(FuseError::InUse { path });
            }
            Err(FuseError::Unmount {
                path,
                source: io::Error::other(said),
            })
        }
        Err(source) => Err(FuseError::Unmount { path, source }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{check, mounted_at, parse_line};
    use crate::error::FuseError;
    use std::path::Path;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_blanks() {
        let line =
            b"36 35 0:50 / /mnt/my\\040files rw,nosuid shared:1 master:2 - fuse.nacre 10.0.0.1@tcp:/fs rw,user_id=12,group_id=0";
        let m = parse_line(line).unwrap();
        assert_eq!((m.minor, m.path.as_path()), (50, Path::new("/mnt/my files")));
        assert_eq!((m.source.as_str(), m.user), ("10.0.0.1@tcp:/fs", Some(12)));
        assert!(m.is_ours());
        assert!(parse_line(b"").is_none());
        assert_eq!(m.options, ["rw", "nosuid"]);
        let other = parse_line(b"36 35 0:50 / /m rw - fuse.sshfs host:/x rw").unwrap();
        assert!(!other.is_ours());
    }

    #[test]
    fn proc_is_mounted_and_not_ours() {
        let m = mounted_at(Path::new("/proc")).unwrap();
        assert_eq!(m.fstype, "proc");
        assert!(!m.is_ours());
    }

    #[test]
    fn what_cannot_be_mounted_on_is_refused_with_its_reason() {
        assert!(matches!(
            check(Path::new("/nonexistent/x")),
            Err(FuseError::Missing { .. })
        ));
        assert!(matches!(
            check(Path::new("/proc/self/status")),
            Err(FuseError::NotDir { .. })
        ));
        assert!(check(&std::env::temp_dir()).is_ok());
    }
}
