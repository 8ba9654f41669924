//! The FUSE operations: a request of the kernel becomes calls of the client.
//!
//! The kernel itself checks modes and ACLs (`default_permissions`), because it walks cached names
//! without a request. The MDT checks its requests again.

use crate::convert::{enoent_to_estale, errno, open_flags, set_time};
use crate::creds::{caller, cred};
use crate::inode_flags::FlagsIoctl;
use crate::pending_open::PendingOpen;
use crate::reply::{reply_ioctl, reply_xattr};
use crate::requester::Requester;
use crate::state::State;
use crate::{flock, init, readdir};
use bytes::Bytes;
use client::{Client, Cred, DirHandle, DirItem, Fallocate, FoundFile, Seek, SetAttr, StatFs};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The FUSE file system of one mount.
pub(crate) struct Fs(pub(crate) Arc<State>);

/// Unwraps the value, or replies with the error and returns.
macro_rules! or_reply {
    ($value:expr, $reply:ident) => {
        match $value {
            Ok(v) => v,
            Err(e) => return $reply.error(e),
        }
    };
}

/// The program that sent a request, as its requester.
fn requester(req: &Request) -> Requester {
    Requester::Program(caller(req))
}

/// Returns the function that replies with a file found or created in this directory.
fn reply_entry(dir: INodeNo) -> impl FnOnce(&State, FoundFile, ReplyEntry) + Send + 'static {
    move |state, found, reply| state.send_entry(dir, found, reply)
}

/// Replies with success.
fn reply_ok(_: &State, (): (), reply: ReplyEmpty) {
    reply.ok();
}

impl Fs {
    /// The client, the caller's credentials and a name, for a call of the client.
    fn call_args(&self, req: &Request, umask: u32, name: &OsStr) -> (Arc<Client>, Cred, Vec<u8>) {
        (self.0.client.clone(), cred(req, umask), name.as_bytes().to_vec())
    }
}

impl Filesystem for Fs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        init::negotiate(&self.0, config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let dir = or_reply!(self.0.lookup_dir(parent, name.as_bytes()), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let work = async move { state.lookup(&cred, dir, &name).await };
        self.0
            .run_interruptible(requester(req), reply, work, reply_entry(parent));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.0.nodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (client, cred, requester) = (self.0.client.clone(), cred(req, 0), requester(req));
        let work = async move {
            let found = tokio::select! {
                biased;
                found = client.getattr(&cred, fid) => found,
                () = requester.link_timeout() => client.getattr_promptly(&cred, fid).await,
            };
            Ok((ino, found.map_err(enoent_to_estale)?))
        };
        self.0.run_interruptible(requester, reply, work, State::send_attr);
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
            // A mode together with a size is the kernel's request to clear set-ID bits; the server
            // does that on truncate.
            mode: mode.filter(|_| size.is_none()).map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            kill_priv: uid.is_some() || gid.is_some(),
        };
        let file = fh
            .and_then(|fh| self.0.files.get(fh.0))
            .filter(|f| f.flags.write && size.is_some());
        let (state, cred) = (self.0.clone(), cred(req, 0));
        let work = async move {
            let found = state.client.setattr(&cred, fid, &set, file.as_ref()).await?;
            state.invalidate_alias(ino, None).await;
            Ok((ino, found))
        };
        self.0
            .run_to_completion(requester(req), reply, work, State::send_attr);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        let work = async move { client.readlink(&cred, fid).await };
        let answer = |_: &State, target: Bytes, reply: ReplyData| reply.data(&target);
        self.0.run_interruptible(requester(req), reply, work, answer);
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
        let answer = reply_entry(parent);
        let parent = or_reply!(self.0.fid(parent), reply);
        let (client, cred, name) = self.call_args(req, umask, name);
        let work = async move { client.mknod(&cred, parent, &name, mode, rdev).await };
        self.0.run_to_completion(requester(req), reply, work, answer);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let answer = reply_entry(parent);
        let parent = or_reply!(self.0.fid(parent), reply);
        let (client, cred, name) = self.call_args(req, umask, name);
        let work = async move { client.mkdir(&cred, parent, &name, mode).await };
        self.0.run_to_completion(requester(req), reply, work, answer);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let work = async move {
            let result = state.client.unlink(&cred, fid, &name).await;
            state.invalidate_alias(parent, Some(&name)).await;
            result
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let work = async move {
            let result = state.client.rmdir(&cred, fid, &name).await;
            state.invalidate_alias(parent, Some(&name)).await;
            result
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let answer = reply_entry(parent);
        let parent = or_reply!(self.0.fid(parent), reply);
        let (client, cred, name) = self.call_args(req, 0, link_name);
        let target = target.as_os_str().as_bytes().to_vec();
        let work = async move { client.symlink(&cred, parent, &name, &target).await };
        self.0.run_to_completion(requester(req), reply, work, answer);
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
        let flags = or_reply!(wire::RenameFlags::from_bits(flags.bits()).map_err(errno), reply);
        let (from, to) = (
            or_reply!(self.0.fid(parent), reply),
            or_reply!(self.0.fid(newparent), reply),
        );
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let newname = newname.as_bytes().to_vec();
        let work = async move {
            let result = state
                .client
                .rename_with(&cred, (from, &name), (to, &newname), flags)
                .await;
            state.invalidate_alias(parent, Some(&name)).await;
            state.invalidate_alias(newparent, Some(&newname)).await;
            result
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (fid, parent) = (
            or_reply!(self.0.fid(ino), reply),
            or_reply!(self.0.fid(newparent), reply),
        );
        let (client, cred, name) = self.call_args(req, 0, newname);
        let work = async move { client.link(&cred, fid, parent, &name).await };
        self.0
            .run_to_completion(requester(req), reply, work, reply_entry(newparent));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred, flags) = (self.0.clone(), cred(req, 0), open_flags(flags.0));
        let work = async move {
            let file = state.client.open(&cred, fid, flags).await?;
            Ok(PendingOpen::new(state, file))
        };
        let answer = move |state: &State, opened: PendingOpen, reply: ReplyOpen| {
            reply.opened(opened.handle(), state.fopen_flags(&flags));
        };
        self.0.run_to_completion(requester(req), reply, work, answer);
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
        let dir = or_reply!(self.0.fid(parent), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, umask), name.as_bytes().to_vec());
        let flags = open_flags(flags);
        let work = async move {
            let (found, file) = state.client.create(&cred, dir, &name, mode, flags).await?;
            Ok((found, PendingOpen::new(state, file)))
        };
        let answer = move |state: &State, (found, opened): (FoundFile, PendingOpen), reply: ReplyCreate| {
            let node = state.entry_attr(parent, &found);
            let (ttl, fopen) = (node.attr_ttl.min(node.name_ttl), state.fopen_flags(&flags));
            let generation = state.nodes.generation(found.attr.fid);
            reply.created(&ttl, &node.attr, generation, opened.handle(), fopen);
        };
        self.0.run_to_completion(requester(req), reply, work, answer);
    }

    fn read(
        &self,
        req: &Request,
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
        // While the kernel reads pages, it wakes a killed program itself.
        let requester = lock_owner.map_or(Requester::Kernel, |_| requester(req));
        let work = async move { state.read(&file, offset, size as usize, lock_owner).await };
        let answer = |_: &State, pieces: Vec<Bytes>, reply: ReplyData| match &pieces[..] {
            [piece] => reply.data(piece),
            pieces => reply.data(&pieces.concat()),
        };
        self.0.run_interruptible(requester, reply, work, answer);
    }

    fn write(
        &self,
        req: &Request,
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
        let (state, cred, data) = (self.0.clone(), cred(req, 0), Bytes::copy_from_slice(data));
        // The kernel does not retry a failed write of a page, so an interruption would lose data.
        let requester = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            Requester::Kernel
        } else {
            requester(req)
        };
        let work = async move { state.write(&cred, &file, offset, data, write_flags).await };
        let answer = |_: &State, n: usize, reply: ReplyWrite| reply.written(n as u32);
        self.0.run_interruptible(requester, reply, work, answer);
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let file = or_reply!(self.0.file(fh), reply);
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        let work = async move {
            let unlocked = client.release_locks(&cred, fid, lock_owner.0, cred.pid).await;
            client.write_back(&file).await.and(unlocked)
        };
        self.0
            .run_to_completion(Requester::Closer(caller(req)), reply, work, reply_ok);
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
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        // Must run before this thread reads the next request, which may request a lock.
        let locks = self.0.lock_owners.begin_release(fid, fh);
        let work = async move {
            flock::complete(locks, &client, &cred).await;
            client.release(&file).await
        };
        self.0.run_to_completion(Requester::Kernel, reply, work, reply_ok);
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let file = or_reply!(self.0.file(fh), reply);
        let client = self.0.client.clone();
        let work = async move { client.fsync(&file, datasync).await };
        self.0.run_interruptible(requester(req), reply, work, reply_ok);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (client, cred, flags) = (self.0.client.clone(), cred(req, 0), open_flags(flags.0));
        let work = async move {
            let opened = client.opendir_with(&cred, fid, flags).await;
            opened.map_err(enoent_to_estale)
        };
        let answer = |state: &State, dir: Arc<DirHandle>, reply: ReplyOpen| {
            reply.opened(FileHandle(state.dirs.insert(dir)), FopenFlags::empty());
        };
        self.0.run_interruptible(requester(req), reply, work, answer);
    }

    fn readdir(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let dir = or_reply!(self.0.dir(fh), reply);
        let (client, reply_dir) = (self.0.client.clone(), dir.clone());
        let work = async move { client.readdir(&dir, offset).await };
        let answer = move |state: &State, items: Vec<DirItem>, reply| {
            readdir::reply_names(state, &reply_dir, &items, reply)
        };
        self.0.run_interruptible(requester(req), reply, work, answer);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let dir = or_reply!(self.0.dir(fh), reply);
        let (state, cred, reply_dir) = (self.0.clone(), cred(req, 0), dir.clone());
        let work = async move { readdir::lookup_entries(&state, &cred, &dir, offset).await };
        let answer =
            move |state: &State, found, reply| readdir::reply_entries(state, ino, &reply_dir, found, reply);
        self.0.run_interruptible(requester(req), reply, work, answer);
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

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let client = self.0.client.clone();
        let work = async move { client.fsyncdir(fid).await };
        self.0.run_interruptible(requester(req), reply, work, reply_ok);
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let client = self.0.client.clone();
        let work = async move { client.statfs().await };
        let answer = |_: &State, s: StatFs, reply: ReplyStatfs| {
            reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.bsize,
            );
        };
        self.0.run_interruptible(requester(req), reply, work, answer);
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
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let (value, flags) = (value.to_vec(), flags as u32);
        let work = async move {
            let result = state.client.setxattr(&cred, fid, &name, &value, flags).await;
            state.invalidate_alias(ino, None).await;
            result
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (client, cred, name) = self.call_args(req, 0, name);
        let work = async move { client.getxattr(&cred, fid, &name).await };
        let answer = move |_: &State, value, reply| reply_xattr(&value, size, reply);
        self.0.run_interruptible(requester(req), reply, work, answer);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        argument: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let ioctl = or_reply!(FlagsIoctl::parse(command, argument), reply);
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        let work = async move { ioctl.run(&client, &cred, fid).await };
        self.0.run_to_completion(requester(req), reply, work, reply_ioctl);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        let work = async move { client.listxattr(&cred, fid).await };
        let answer = move |_: &State, names, reply| reply_xattr(&names, size, reply);
        self.0.run_interruptible(requester(req), reply, work, answer);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fid = or_reply!(self.0.fid(ino), reply);
        let (state, cred, name) = (self.0.clone(), cred(req, 0), name.as_bytes().to_vec());
        let work = async move {
            let result = state.client.removexattr(&cred, fid, &name).await;
            state.invalidate_alias(ino, None).await;
            result
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
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
        let fid = or_reply!(self.0.fid(ino), reply);
        let range = or_reply!(flock::lock_range(typ, (start, end), lock_owner, pid), reply);
        let (state, cred) = (self.0.clone(), cred(req, 0));
        let work = async move { flock::find_conflict(&state, &cred, fid, range).await };
        let answer = move |_: &State, conflict, reply| flock::reply_conflict(conflict, (start, end), reply);
        self.0.run_interruptible(requester(req), reply, work, answer);
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
        let fid = or_reply!(self.0.fid(ino), reply);
        let range = or_reply!(flock::lock_range(typ, (start, end), lock_owner, pid), reply);
        let (state, cred, caller) = (self.0.clone(), cred(req, 0), req.pid());
        let waiter = sleep.then_some(caller);
        let work = async move { flock::set_lock(&state, &cred, (fid, fh), range, waiter).await };
        self.0.run_interruptible(requester(req), reply, work, reply_ok);
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let op = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (client, cred) = (self.0.client.clone(), cred(req, 0));
        let work = async move {
            client.kill_priv(&cred, &file).await?;
            client.fallocate(&file, op, offset, length).await
        };
        self.0.run_to_completion(requester(req), reply, work, reply_ok);
    }

    fn lseek(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let file = or_reply!(self.0.file(fh), reply);
        let op = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let client = self.0.client.clone();
        let work = async move { client.seek(&file, op, offset).await };
        let answer = |_: &State, found: u64, reply: ReplyLseek| reply.offset(found as i64);
        self.0.run_interruptible(requester(req), reply, work, answer);
    }
}
