//! The kernel's requests: each becomes a call of the client.
//!
//! Permissions: the kernel checks modes and ACLs with the attributes it has (`default_permissions`), because it walks along
//! names that it keeps without asking anybody; the servers check again whatever reaches them.

use crate::convert::{errno, open_flags, set_time};
use crate::creds::cred;
use crate::flock;
use crate::readdir;
use crate::reply::{empty, xattr};
use crate::state::State;
use bytes::Bytes;
use client::{Fallocate, FlockRange, Seek, SetAttr};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Bytes of one write request.
const MAX_WRITE: u32 = 1 << 20;
/// Requests that the kernel may have under way in the background (read-ahead, asynchronous direct I/O).
const MAX_BACKGROUND: u16 = 128;

/// The file system that the kernel sees.
pub(crate) struct Fs(pub(crate) Arc<State>);

/// Gives the value, or answers with the error and returns.
macro_rules! or_reply {
    ($value:expr, $reply:ident) => {
        match $value {
            Ok(v) => v,
            Err(e) => return $reply.error(e),
        }
    };
}

impl Filesystem for Fs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!("this kernel has no {flag:?}");
            }
        }
        let mapped = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if self.0.past_pages() && config.add_capabilities(mapped).is_err() {
            tracing::info!(
                "this kernel is older than 6.6 and maps only files that it keeps pages of: \
                 what other clients append may be seen late by who has a file open"
            );
            self.0.keep_pages();
        }
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let finest = if self.0.client.has_nanoseconds() {
            Duration::from_nanos(1)
        } else {
            Duration::from_secs(1)
        };
        let _ = config.set_time_granularity(finest);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        self.0.run(async move {
            let found = state.client.lookup(&cred, parent, &name).await;
            state.entry(found, reply);
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.0.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0.run(async move {
            let found = state.client.getattr(&cred, fid).await;
            state.attr(ino, found, reply);
        });
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let set = SetAttr {
            // With a size it is the kernel's wish that set-ID bits go: the server takes them at a truncation.
            mode: mode.filter(|_| size.is_none()).map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let file = fh
            .and_then(|fh| self.0.files.get(fh.0))
            .filter(|f| f.flags.write && size.is_some());
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0.run(async move {
            let found = state.setattr(&cred, fid, &set, file.as_ref()).await;
            state.attr(ino, found, reply);
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0.run(async move {
            match state.client.readlink(&cred, fid).await {
                Ok(target) => reply.data(&target),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, umask), name.as_bytes().to_vec());
        self.0.run(async move {
            let found = state.client.mknod(&cred, parent, &name, mode, rdev).await;
            state.entry(found, reply);
        });
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, umask), name.as_bytes().to_vec());
        self.0.run(async move {
            let found = state.client.mkdir(&cred, parent, &name, mode).await;
            state.entry(found, reply);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        self.0
            .run(async move { empty(state.client.unlink(&cred, parent, &name).await, reply) });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        self.0
            .run(async move { empty(state.client.rmdir(&cred, parent, &name).await, reply) });
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), link_name.as_bytes().to_vec());
        let target = target.as_os_str().as_bytes().to_vec();
        self.0.run(async move {
            let found = state.client.symlink(&cred, parent, &name, &target).await;
            state.entry(found, reply);
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // The protocol's rename has no flags; who asked for more than a rename must learn that he did not get it.
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = (
            or_reply!(self.0.fid(parent), reply),
            or_reply!(self.0.fid(newparent), reply),
        );
        let (state, cred) = (self.0.clone(), cred(req, 0));
        let (name, newname) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.0.run(async move {
            empty(
                state.client.rename(&cred, (from, &name), (to, &newname)).await,
                reply,
            );
        });
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (fid, parent) = (
            or_reply!(self.0.fid(ino), reply),
            or_reply!(self.0.fid(newparent), reply),
        );
        let (state, cred, name) = (self.0.clone(), cred(req, 0), newname.as_bytes().to_vec());
        self.0.run(async move {
            let found = state.client.link(&cred, fid, parent, &name).await;
            state.entry(found, reply);
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred, flags) = (self.0.clone(), cred(req, 0), open_flags(flags.0));
        self.0.run(async move {
            match state.client.open(&cred, fid, flags).await {
                Ok(file) => reply.opened(FileHandle(state.files.insert(file)), state.fopen_flags(&flags)),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let parent = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, umask), name.as_bytes().to_vec());
        let flags = open_flags(flags);
        self.0.run(async move {
            match state.client.create(&cred, parent, &name, mode, flags).await {
                Ok((found, file)) => {
                    let fid = found.attr.fid;
                    let attr = crate::convert::file_attr(state.nodes.reference(fid), &found.attr);
                    let ttl = crate::state::ttl(found.attr_cached && found.name_cached);
                    let fh = FileHandle(state.files.insert(file));
                    reply.created(
                        &ttl,
                        &attr,
                        crate::convert::generation(fid),
                        fh,
                        state.fopen_flags(&flags),
                    );
                }
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let state = self.0.clone();
        self.0.run(async move {
            match state.read(&file, offset, size as usize, lock_owner).await {
                Ok(pieces) => match &pieces[..] {
                    [one] => reply.data(one),
                    many => reply.data(&many.concat()),
                },
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let (state, data) = (self.0.clone(), Bytes::copy_from_slice(data));
        self.0.run(async move {
            match state.write(&file, offset, data, write_flags).await {
                Ok(n) => reply.written(n as u32),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let file = or_reply!(self.0.file(fh), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0.run(async move {
            let unlocked = state
                .client
                .release_locks(&cred, fid, lock_owner.0, cred.pid)
                .await;
            empty(state.client.write_back(&file).await.and(unlocked), reply);
        });
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let Some(file) = self.0.files.remove(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        let owners = self.0.lockers.take(fh.0);
        self.0.run(async move {
            for owner in owners {
                let _ = state.client.release_locks(&cred, fid, owner, cred.pid).await;
            }
            empty(state.client.release(&file).await, reply);
        });
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let file = or_reply!(self.0.file(fh), reply);
        let state = self.0.clone();
        self.0
            .run(async move { empty(state.client.fsync(&file, datasync).await, reply) });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0.run(async move {
            match state.client.opendir(&cred, fid).await {
                Ok(dir) => reply.opened(FileHandle(state.dirs.insert(dir)), FopenFlags::empty()),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let dir = or_reply!(self.0.dir(fh), reply);
        let state = self.0.clone();
        self.0
            .run(async move { readdir::plain(&state, &dir, offset, reply).await });
    }

    fn readdirplus(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let dir = or_reply!(self.0.dir(fh), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0
            .run(async move { readdir::plus(&state, &cred, &dir, offset, reply).await });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.dirs.remove(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let state = self.0.clone();
        self.0
            .run(async move { empty(state.client.fsyncdir(fid).await, reply) });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let state = self.0.clone();
        self.0.run(async move {
            match state.client.statfs().await {
                Ok(s) => reply.statfs(
                    s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.bsize,
                ),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.0.run(async move {
            empty(
                state
                    .client
                    .setxattr(&cred, fid, &name, &value, flags as u32)
                    .await,
                reply,
            );
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        self.0
            .run(async move { xattr(state.client.getxattr(&cred, fid, &name).await, size, reply) });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0
            .run(async move { xattr(state.client.listxattr(&cred, fid).await, size, reply) });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        self.0
            .run(async move { empty(state.client.removexattr(&cred, fid, &name).await, reply) });
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let (fid, ty) = (
            or_reply!(self.0.fid(ino), reply),
            or_reply!(flock::of_kernel(typ), reply),
        );
        let want = FlockRange {
            ty,
            start,
            end,
            owner: lock_owner.0,
            pid,
        };
        let (state, cred) = (self.0.clone(), cred(req, 0));
        self.0
            .run(async move { flock::get(&state, &cred, fid, want, reply).await });
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (fid, ty) = (
            or_reply!(self.0.fid(ino), reply),
            or_reply!(flock::of_kernel(typ), reply),
        );
        let want = FlockRange {
            ty,
            start,
            end,
            owner: lock_owner.0,
            pid,
        };
        let (state, cred, caller) = (self.0.clone(), cred(req, 0), req.pid());
        let waits = sleep.then_some(caller);
        self.0
            .run(async move { empty(flock::set(&state, &cred, (fid, fh), want, waits).await, reply) });
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let state = self.0.clone();
        self.0
            .run(async move { empty(state.client.fallocate(&file, what, offset, length).await, reply) });
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let state = self.0.clone();
        self.0.run(async move {
            match state.client.seek(&file, what, offset).await {
                Ok(at) => reply.offset(at as i64),
                Err(e) => reply.error(errno(e)),
            }
        });
    }
}
