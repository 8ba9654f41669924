//! Executes steps on a real file system with system calls relative to the sequence's directory in
//! each mount.

use crate::model::USER;
use crate::outcome::{Answer, Attr, Bytes, Outcome};
use crate::step::{FallocateKind, Lock, Op, OpenHow, RenameMode, SetxattrMode, Step};
use rustix::fs::{
    Access, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Stat,
    Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Maximum number of retries after ESTALE.
const STALE_RETRIES_MAX: usize = 100;

/// The directory of a sequence through each mount, and its open files.
pub(crate) struct RealFs {
    pub(crate) roots: Vec<OwnedFd>,
    slots: BTreeMap<usize, OwnedFd>,
}

/// Lets this thread act as the ordinary user until dropped.
struct UserCredGuard;

impl UserCredGuard {
    fn new() -> UserCredGuard {
        let (root, user) = ((Uid::ROOT, Gid::ROOT), (Uid::from_raw(USER), Gid::from_raw(USER)));
        rustix::thread::set_thread_res_gid(root.1, user.1, root.1).unwrap();
        rustix::thread::set_thread_res_uid(root.0, user.0, root.0).unwrap();
        UserCredGuard
    }
}

impl Drop for UserCredGuard {
    fn drop(&mut self) {
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).unwrap();
    }
}

/// Retries on ESTALE. When another mount has moved a directory, Linux accepts the new place only
/// while no rename runs in the same mount, and returns ESTALE otherwise (`__d_unalias`); other
/// sequences rename concurrently.
fn retry_stale<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..STALE_RETRIES_MAX {
        match call() {
            Err(Errno::STALE) => std::thread::sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
    call()
}

impl RealFs {
    pub(crate) fn new(roots: Vec<OwnedFd>) -> RealFs {
        RealFs {
            roots,
            slots: BTreeMap::new(),
        }
    }

    pub(crate) fn execute(&mut self, step: &Step, mount: usize) -> Outcome {
        let _user = step.user.then(UserCredGuard::new);
        retry_stale(|| self.execute_op(&step.op, mount))
    }

    fn execute_op(&mut self, op: &Op, mount: usize) -> Outcome {
        let root = &self.roots[mount];
        let to_outcome = |result: Result<(), Errno>| result.map(|()| Answer::Done);
        match op {
            Op::Open {
                slot,
                path,
                how,
                mode,
            } => {
                self.slots.remove(slot);
                let mode = Mode::from_raw_mode(*mode);
                let file = rustix::fs::openat(root, path.as_str(), open_flags(*how), mode)?;
                self.slots.insert(*slot, file);
                Ok(Answer::Done)
            }
            Op::Close { slot } => self.slots.remove(slot).map(|_| Answer::Done).ok_or(Errno::BADF),
            Op::Mkdir { path, mode } => to_outcome(rustix::fs::mkdirat(
                root,
                path.as_str(),
                Mode::from_raw_mode(*mode),
            )),
            Op::Symlink { target, path } => {
                to_outcome(rustix::fs::symlinkat(target.as_str(), root, path.as_str()))
            }
            Op::Rmdir { path } => to_outcome(rustix::fs::unlinkat(root, path.as_str(), AtFlags::REMOVEDIR)),
            Op::Unlink { path } => to_outcome(rustix::fs::unlinkat(root, path.as_str(), AtFlags::empty())),
            Op::Rename { from, to, flags } => {
                let flags = match flags {
                    RenameMode::Plain => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                let rename = || rustix::fs::renameat_with(root, from.as_str(), root, to.as_str(), flags);
                to_outcome(rename().or_else(|e| match e {
                    // rename returns ESTALE if another mount has moved the directory
                    // (`__d_unalias`). Look both paths up first, as mv does.
                    Errno::STALE => {
                        for path in [from, to] {
                            let _ = self.stat(mount, path, false);
                        }
                        rename()
                    }
                    e => Err(e),
                }))
            }
            Op::Link { from, to } => to_outcome(rustix::fs::linkat(
                root,
                from.as_str(),
                root,
                to.as_str(),
                AtFlags::empty(),
            )),
            Op::Readlink { path } => {
                let target = rustix::fs::readlinkat(root, path.as_str(), Vec::new())?;
                Ok(Answer::Text(target.to_string_lossy().into_owned()))
            }
            Op::Stat { path, follow } => Ok(Answer::Attr(attr(&self.stat(mount, path, *follow)?))),
            Op::Readdir { path } => Ok(Answer::Names(self.names(mount, path)?)),
            Op::Access { path, want } => {
                let want = Access::from_bits_truncate(*want);
                to_outcome(rustix::fs::accessat(root, path.as_str(), want, AtFlags::EACCESS))
            }
            Op::Truncate { path, size } => {
                // There is no truncateat; opening the file for writing checks the same permission.
                let how = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::openat(root, path.as_str(), how, Mode::empty())?;
                to_outcome(rustix::fs::ftruncate(&file, *size))
            }
            Op::Chmod { path, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                to_outcome(rustix::fs::chmodat(root, path.as_str(), mode, AtFlags::empty()))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                to_outcome(rustix::fs::chownat(
                    root,
                    path.as_str(),
                    uid,
                    gid,
                    AtFlags::empty(),
                ))
            }
            Op::Utimens { path, mtime } => {
                let timespec = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
                let times = Timestamps {
                    last_access: timespec(0, UTIME_OMIT),
                    last_modification: timespec(*mtime, 0),
                };
                to_outcome(rustix::fs::utimensat(
                    root,
                    path.as_str(),
                    &times,
                    AtFlags::empty(),
                ))
            }
            Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. } => {
                self.xattr(op, mount)
            }
            Op::Statfs => rustix::fs::fstatvfs(root).map(|_| Answer::Done),
            op => self.execute_on_handle(self.slots.get(&op.slot().unwrap()).ok_or(Errno::BADF)?, op),
        }
    }

    fn execute_on_handle(&self, file: &OwnedFd, op: &Op) -> Outcome {
        let to_outcome = |result: Result<(), Errno>| result.map(|()| Answer::Done);
        match *op {
            Op::Pread { at, len, .. } => read(file, at, len).map(|data| Answer::Bytes(Bytes(data))),
            Op::Pwrite { at, len, fill, .. } => {
                rustix::io::pwrite(file, &vec![fill; len], at).map(Answer::Count)
            }
            Op::Ftruncate { size, .. } => to_outcome(rustix::fs::ftruncate(file, size)),
            Op::Fallocate { kind, at, len, .. } => {
                let mode = match kind {
                    FallocateKind::Allocate => FallocateFlags::empty(),
                    FallocateKind::Keep => FallocateFlags::KEEP_SIZE,
                    FallocateKind::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                };
                to_outcome(rustix::fs::fallocate(file, mode, at, len))
            }
            Op::Fsync { .. } => to_outcome(rustix::fs::fsync(file)),
            Op::Fstat { .. } => Ok(Answer::Attr(attr(&rustix::fs::fstat(file)?))),
            Op::Flock { kind, .. } => {
                rustix::fs::flock(file, FlockOperation::Unlock)?;
                to_outcome(rustix::fs::flock(file, flock_operation(kind)))
            }
            Op::Fcntl { kind, .. } => {
                to_outcome(
                    rustix::fs::fcntl_lock(file, flock_operation(kind)).map_err(|e| match e {
                        // POSIX permits both errors for a conflict.
                        Errno::ACCESS => Errno::AGAIN,
                        e => e,
                    }),
                )
            }
            ref other => panic!("needs no open file: {other:?}"),
        }
    }

    /// The xattr system calls have no directory argument, so paths go through `/proc`.
    fn xattr(&self, op: &Op, mount: usize) -> Outcome {
        use std::os::fd::AsRawFd;
        let to_outcome = |result: Result<(), Errno>| result.map(|()| Answer::Done);
        // Use the process's directory in /proc: the thread's directory belongs to root, and
        // the user cannot access it.
        let proc_path = |path: &str| format!("/proc/self/fd/{}/{path}", self.roots[mount].as_raw_fd());
        let mut buffer = vec![0; 1 << 16];
        match op {
            Op::Setxattr {
                path,
                name,
                value,
                how,
            } => {
                let flags = match how {
                    SetxattrMode::Either => XattrFlags::empty(),
                    SetxattrMode::Create => XattrFlags::CREATE,
                    SetxattrMode::Replace => XattrFlags::REPLACE,
                };
                to_outcome(rustix::fs::setxattr(
                    proc_path(path),
                    name.as_str(),
                    value.as_bytes(),
                    flags,
                ))
            }
            Op::Removexattr { path, name } => {
                to_outcome(rustix::fs::removexattr(proc_path(path), name.as_str()))
            }
            Op::Getxattr { path, name } => {
                let n = rustix::fs::getxattr(proc_path(path), name.as_str(), &mut buffer)?;
                Ok(Answer::Text(String::from_utf8_lossy(&buffer[..n]).into_owned()))
            }
            Op::Listxattr { path } => {
                let n = rustix::fs::listxattr(proc_path(path), &mut buffer)?;
                Ok(Answer::Names(own_names(&buffer[..n])))
            }
            other => panic!("no extended attribute: {other:?}"),
        }
    }

    pub(crate) fn stat(&self, mount: usize, path: &str, follow: bool) -> Result<Stat, Errno> {
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        retry_stale(|| rustix::fs::statat(&self.roots[mount], path, flags))
    }

    pub(crate) fn names(&self, mount: usize, path: &str) -> Result<BTreeSet<String>, Errno> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = retry_stale(|| rustix::fs::openat(&self.roots[mount], path, how, Mode::empty()))?;
        let mut names = BTreeSet::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                assert!(names.insert(name.clone()), "{name} is in {path} twice");
            }
        }
        Ok(names)
    }

    /// The contents of a file, up to `len` bytes.
    pub(crate) fn content(&self, mount: usize, path: &str, len: usize) -> Result<Vec<u8>, Errno> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = retry_stale(|| rustix::fs::openat(&self.roots[mount], path, how, Mode::empty()))?;
        read(&file, 0, len)
    }

    /// Names of a path's extended attributes, as root sees them.
    pub(crate) fn xattr_names(&self, mount: usize, path: &str) -> Outcome {
        let list = Op::Listxattr {
            path: path.to_owned(),
        };
        retry_stale(|| self.xattr(&list, mount))
    }
}

/// Reads `len` bytes or to the end of the file; a single read may return less.
fn read(file: &OwnedFd, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match rustix::io::pread(file, &mut data[filled..], at + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    data.truncate(filled);
    Ok(data)
}

/// The names that sequences set. The kernel and the file system add others.
fn own_names(list: &[u8]) -> BTreeSet<String> {
    let names = list.split(|b| *b == 0).map(String::from_utf8_lossy);
    names
        .filter(|name| name.starts_with("user.") || name.starts_with("trusted.x"))
        .map(|name| name.into_owned())
        .collect()
}

pub(crate) fn attr(stat: &Stat) -> Attr {
    let (kind, size) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => ('f', stat.st_size as u64),
        FileType::Directory => ('d', 0),
        FileType::Symlink => ('l', stat.st_size as u64),
        _ => ('?', 0),
    };
    Attr {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: stat.st_nlink as u32,
        size,
    }
}

fn flock_operation(kind: Lock) -> FlockOperation {
    match kind {
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Lock::Unlock => FlockOperation::NonBlockingUnlock,
    }
}

fn open_flags(how: OpenHow) -> OFlags {
    let access = match (how.read, how.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    [
        (how.append, OFlags::APPEND),
        (how.create, OFlags::CREATE),
        (how.exclusive, OFlags::EXCL),
        (how.truncate, OFlags::TRUNC),
        (how.nofollow, OFlags::NOFOLLOW),
        (how.directory, OFlags::DIRECTORY),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(access | OFlags::CLOEXEC, |flags, (_, flag)| flags | flag)
}
