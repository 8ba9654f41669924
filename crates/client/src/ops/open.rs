//! Opening and closing of files, and creation by open.

use crate::attr::{MdAttr, S_IFREG, SetAttr};
use crate::client::Client;
use crate::cred::Cred;
use crate::data::{DataFile, DataWatch, Descriptor, LossCursor};
use crate::deferred_closes::PendingClose;
use crate::inode::OpenDenyGuard;
use crate::layout::FileLayout;
use crate::mdc::{IntentReply, IntentRequest, NameChange};
use crate::ops::found::FoundFile;
use crate::ops::lookup::check_name;
use crate::pack::{self, CreateRec, Suppgids};
use crate::stats::Operation;
use bytes::Bytes;
use ldlm::LockMode;
use parking_lot::Mutex;
use rpc::UncommittedGuard;
use rpc::job::{self, JobId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::{
    DISP_OPEN_CREATE, Errno, Fid, IT_CREAT, IT_OPEN, MDS_CLOSE, MDS_FMODE_EXEC, MDS_FMODE_READ,
    MDS_FMODE_WRITE, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MDS_OPEN_APPEND, MDS_OPEN_BY_FID,
    MDS_OPEN_CREAT, MDS_OPEN_DELAY_CREATE, MDS_OPEN_EXCL, MDS_OPEN_HAS_EA, MDS_OPEN_LARGEFILE, MDS_OPEN_SYNC,
    Times,
};

/// The mode of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Each write appends to the file (`O_APPEND`).
    pub append: bool,
    /// Reads and writes bypass the cache (`O_DIRECT`).
    pub direct: bool,
    /// Truncate the file to size 0 (`O_TRUNC`).
    pub truncate: bool,
    /// Each write returns when the data is on disk (`O_DSYNC`).
    pub sync: bool,
    /// Reads do not update the access time (`O_NOATIME`).
    pub no_atime: bool,
    /// Open for execution: fails with `ETXTBSY` while the file is open for writing.
    pub exec: bool,
    /// With creation: fail with `EEXIST` if the name exists (`O_EXCL`).
    pub excl: bool,
    /// With creation: allocate the objects at the first open for writing, not now.
    pub delay_create: bool,
}

impl OpenFlags {
    /// Open for reading.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        direct: false,
        truncate: false,
        sync: false,
        no_atime: false,
        exec: false,
        excl: false,
        delay_create: false,
    };
    /// Open for reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags {
        write: true,
        ..OpenFlags::READ
    };

    /// The mode for open(2)'s flags.
    pub fn from_posix(flags: i32) -> OpenFlags {
        let access = flags & libc::O_ACCMODE;
        OpenFlags {
            read: access == libc::O_RDONLY || access == libc::O_RDWR,
            write: access == libc::O_WRONLY || access == libc::O_RDWR,
            append: flags & libc::O_APPEND != 0,
            direct: flags & libc::O_DIRECT != 0,
            truncate: flags & libc::O_TRUNC != 0,
            sync: flags & libc::O_DSYNC != 0,
            no_atime: flags & libc::O_NOATIME != 0,
            excl: flags & libc::O_EXCL != 0,
            exec: false,
            delay_create: false,
        }
    }

    /// Whether the open needs permission to write, and excludes execution: it writes or truncates.
    fn needs_write(self) -> bool {
        self.write || self.truncate
    }

    fn to_wire(self) -> u64 {
        let bit = |on: bool, flag: u64| if on { flag } else { 0 };
        MDS_OPEN_LARGEFILE
            | bit(self.read, MDS_FMODE_READ)
            | bit(self.needs_write(), MDS_FMODE_WRITE)
            | bit(self.exec, MDS_FMODE_EXEC)
            | bit(self.append, MDS_OPEN_APPEND)
            | bit(self.sync, MDS_OPEN_SYNC)
            | bit(self.delay_create, MDS_OPEN_DELAY_CREATE)
    }
}

/// First and longest pause before the client repeats a request that failed with `ETXTBSY`
/// ([`Client::retry_busy`]). Each pause is twice as long as the one before; all pauses together are
/// a quarter of a second.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(128);

/// Space for data in the reply to an open, in bytes; the limit of Lustre's clients.
const DATA_WITH_OPEN_MAX: u32 = 64 << 10;

/// `MDS_OPEN_HAS_EA` for an open that carries a layout, else 0.
fn has_ea(layout: &Bytes) -> u64 {
    if layout.is_empty() { 0 } else { MDS_OPEN_HAS_EA }
}

/// An open regular file.
pub struct OpenFile {
    /// FID of the file.
    pub fid: Fid,
    /// The mode of the open.
    pub flags: OpenFlags,
    /// The MDT's handle of this open.
    pub(crate) handle: u64,
    /// The file's data, striped by `layout`.
    pub(crate) data: Mutex<Arc<DataFile>>,
    /// The layout that this descriptor used last.
    pub(crate) layout: Mutex<Arc<FileLayout>>,
    written: AtomicBool,
    /// The losses of data that this descriptor has reported.
    pub(crate) loss_cursor: LossCursor,
    /// Fails with `EIO` after data or locks were lost.
    pub(crate) descriptor: Descriptor,
    /// The file's times at the metadata target at the open.
    pub(crate) opened_times: Times,
    /// Whether this open created the file.
    pub(crate) created: bool,
    /// Keeps the open request in the import until the close.
    uncommitted_guard: Mutex<Option<UncommittedGuard>>,
    deny_guard: Mutex<Option<OpenDenyGuard>>,
    /// The job that opened the file. The close carries it, because the kernel's request to close
    /// the file names no process.
    job: JobId,
}

impl OpenFile {
    /// Whether this open makes opens of other modes fail with `ETXTBSY`: an open for writing
    /// excludes execution, and an open for execution excludes writers.
    fn denies_others(&self) -> bool {
        self.flags.exec || self.flags.needs_write()
    }

    /// Whether the open created the file.
    pub fn was_created(&self) -> bool {
        self.created
    }

    /// Whether this descriptor has written.
    pub fn has_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }
}

/// Largest number of attempts to create or open a name.
const CREATES_MAX: usize = 8;

impl Client {
    /// Prepares a write through this descriptor. Returns whether it is the first write.
    pub(crate) fn begin_write(&self, file: &OpenFile) -> bool {
        if file.has_written() {
            return false;
        }
        // The file can have the unwritten mark only if this open created it: any other open for
        // writing has revoked the lock that covers the mark.
        if file.created {
            self.inodes.clear_unwritten(file.fid);
        }
        !file.written.swap(true, Ordering::AcqRel)
    }

    /// Opens a file by its FID.
    ///
    /// # Errors
    ///
    /// `ENOENT` or `ESTALE`: no such file; `ETXTBSY`; `EISDIR`; `EOPNOTSUPP`: a special file; or
    /// another error of the MDT such as `EACCES`.
    pub async fn open(&self, cred: &Cred, fid: Fid, flags: OpenFlags) -> Result<Arc<OpenFile>, Errno> {
        let _timer = self.stats.time(Operation::Open);
        self.open_with(cred, fid, flags, Bytes::new()).await
    }

    /// Sends a request. Repeats it for a quarter of a second while it fails with ETXTBSY and this
    /// client itself has the file open for writing or execution. The kernel does not wait for a
    /// close, so it may execute a file before the MDT has received the close.
    pub(crate) async fn retry_busy<T, F>(&self, fid: Fid, send: impl Fn() -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, Errno>>,
    {
        let mut pause = BUSY_PAUSE;
        loop {
            let has_own_open = self.inodes.denies_others(fid);
            match send().await {
                Err(Errno::ETXTBSY) if has_own_open && pause <= BUSY_PAUSE_MAX => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
    }

    /// Opens a file by its FID. `eadata`: the layout (`lov_user_md`) to set on a file that has
    /// none; empty: the open sets no layout.
    pub(crate) async fn open_with(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: OpenFlags,
        eadata: Bytes,
    ) -> Result<Arc<OpenFile>, Errno> {
        self.retry_busy(fid, async || {
            self.open_once(cred, fid, flags, eadata.clone()).await
        })
        .await
    }

    async fn open_once(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: OpenFlags,
        eadata: Bytes,
    ) -> Result<Arc<OpenFile>, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let rec = CreateRec {
            parent: fid,
            child: fid,
            mode: S_IFREG,
            rdev: 0,
            flags: flags.to_wire() | MDS_OPEN_BY_FID | has_ea(&eadata),
            layout_version: 0,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, fid).await, crate::cred::NO_GROUP),
        };
        let bufs = pack::open_intent(cred, &rec, b"", eadata);
        let watch = self.lov.watch_data(fid);
        let intent = IntentRequest {
            opens: true,
            elc: mdc.elc(&[], &[(fid, 0)]),
            reply_len: self.data_space(Some(fid), flags, &watch),
            ..IntentRequest::new(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP, IT_OPEN, bufs)
        };
        let truncate = flags.truncate.then(|| self.kernel.begin_truncate(fid));
        let reply = mdc.intent(intent).await?;
        reply.status?;
        let md = self.cache_reply(&reply, None);
        let file = self.finish_open(&reply, &md, flags, &watch).await?;
        drop((reply, truncate));
        if flags.truncate {
            self.truncate_opened(cred, &file).await?;
        }
        Ok(file)
    }

    /// Opens a name; creates the file if it is missing. Returns the file found or created.
    ///
    /// # Errors
    ///
    /// `EEXIST` (with `excl`), `EISDIR`, `ETXTBSY`, `ENAMETOOLONG`; `EOPNOTSUPP`: a special file;
    /// or an error of the MDT such as `EACCES`, `ENOSPC`.
    pub async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(FoundFile, Arc<OpenFile>), Errno> {
        self.create_with(cred, (parent, name), mode, flags, Bytes::new())
            .await
    }

    /// As [`Client::create`], with a layout for a new file (`lov_user_md`; empty: the directory's
    /// default).
    ///
    /// # Errors
    ///
    /// As [`Client::create`].
    pub async fn create_with(
        &self,
        cred: &Cred,
        (parent, name): (Fid, &[u8]),
        mode: u32,
        flags: OpenFlags,
        layout: Bytes,
    ) -> Result<(FoundFile, Arc<OpenFile>), Errno> {
        let _timer = self.stats.time(Operation::Open);
        check_name(name)?;
        for _ in 0..CREATES_MAX {
            let created = self.try_create(cred, (parent, name), mode, flags, layout.clone());
            if let Some(opened) = created.await? {
                return Ok(opened);
            }
        }
        Err(Errno::ESTALE)
    }

    /// As [`Client::create_with`]; `None` if the name led to an inode of another target that is
    /// removed meanwhile.
    async fn try_create(
        &self,
        cred: &Cred,
        (parent, name): (Fid, &[u8]),
        mode: u32,
        flags: OpenFlags,
        layout: Bytes,
    ) -> Result<Option<(FoundFile, Arc<OpenFile>)>, Errno> {
        let dir = match self.dir_for_new_name(cred, parent, name).await {
            // While the MDTs move the directory's names, its old stripe has the name.
            Err(Errno::EEXIST) if !flags.excl => {
                return self.open_name(cred, parent, name, flags).await.map(Some);
            }
            dir => dir?,
        };
        let mdc = dir.mdc;
        let child = mdc.new_fid().await?;
        let excl = if flags.excl { MDS_OPEN_EXCL } else { 0 };
        let rec = CreateRec {
            parent: dir.fid,
            child,
            mode: S_IFREG | mode & 0o7777,
            rdev: 0,
            flags: flags.to_wire() | MDS_OPEN_CREAT | excl | has_ea(&layout),
            layout_version: dir.layout_version,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, parent).await, crate::cred::NO_GROUP),
        };
        let bufs = pack::open_intent(cred, &rec, name, layout);
        let elc = mdc.elc(&[dir.fid], &[]);
        let intent = IntentRequest::new(
            dir.fid,
            LockMode::Cw,
            MDS_INODELOCK_UPDATE,
            IT_OPEN | IT_CREAT,
            bufs,
        );
        let watch = DataWatch::default();
        let intent = IntentRequest {
            elc,
            opens: true,
            reply_len: self.data_space(None, flags, &watch),
            ..intent
        };
        let change = NameChange::begin(cred, &dir, Some(name));
        let reply = mdc.open_or_create(change, intent).await?;
        reply.status?;
        if reply.is_negative() && reply.disposition & DISP_OPEN_CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        if reply.is_elsewhere() {
            self.cache_name(&reply, (dir.fid, name));
            drop(reply);
            if flags.excl {
                return Err(Errno::EEXIST);
            }
            return match self.open_name(cred, parent, name, flags).await {
                Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
                opened => opened.map(Some),
            };
        }
        let md = self.cache_reply(&reply, Some((dir.fid, name)));
        let file = self.finish_open(&reply, &md, flags, &watch).await?;
        let created = reply.created_file();
        drop(reply);
        if !created && flags.truncate {
            self.truncate_opened(cred, &file).await?;
        }
        if created && flags.write && !self.is_unwritten(mdc, file.fid) {
            let data = file.data.lock().clone();
            data.lock_for_writing().await;
        }
        let found = self.found_by_name(cred, file.fid, md, (&dir, name)).await?;
        Ok(Some((found, file)))
    }

    /// Opens the existing file of a name: another target than the name's may have it.
    async fn open_name(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        flags: OpenFlags,
    ) -> Result<(FoundFile, Arc<OpenFile>), Errno> {
        // On the heap: the future of every create contains these. The first lookup's locks must go
        // before the open: a truncate waits for their cancellation, and its size is the new one.
        let fid = Box::pin(self.lookup(cred, parent, name)).await?.attr.fid;
        let file = Box::pin(self.open_with(cred, fid, flags, Bytes::new())).await?;
        match Box::pin(self.getattr_with(cred, fid, self.default_size_wait())).await {
            Ok(found) => Ok((found, file)),
            Err(e) => {
                let _ = self.release(&file).await;
                Err(e)
            }
        }
    }

    /// Truncates a file that was just opened; closes it if that fails.
    async fn truncate_opened(&self, cred: &Cred, file: &Arc<OpenFile>) -> Result<(), Errno> {
        let empty = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        // On the heap: the futures of all opens contain this one, and each move copies it.
        let truncated = Box::pin(self.setattr(cred, file.fid, &empty, Some(file))).await;
        if truncated.is_err() {
            let _ = self.release(file).await;
        }
        truncated.map(drop)
    }

    /// Space in the reply to an open for the data of a small file on the metadata target, in bytes;
    /// 0 if the open needs no data, or the file is known to have none there.
    fn data_space(&self, fid: Option<Fid>, flags: OpenFlags, watch: &DataWatch) -> u32 {
        let reads = (flags.read || flags.exec) && !flags.truncate && !flags.direct;
        let layout = fid.and_then(|fid| self.inodes.layout(fid));
        let may_be_on_mdt = layout.is_none_or(|layout| layout.is_on_mdt());
        match reads && may_be_on_mdt && !watch.has_cached_bytes() {
            true => DATA_WITH_OPEN_MAX,
            false => 0,
        }
    }

    /// Builds the open file from the reply to an open, and caches the data in the reply. `watch`
    /// began before the request. Closes the handle and fails if the file is not a regular file.
    async fn finish_open(
        &self,
        reply: &IntentReply,
        md: &MdAttr,
        flags: OpenFlags,
        watch: &DataWatch,
    ) -> Result<Arc<OpenFile>, Errno> {
        let fid = reply.body.mbo_fid1;
        let layout = match &md.layout {
            Some(layout) => layout.clone(),
            None if md.attr.is_file() => self.layout(fid).await?,
            None => Arc::new(FileLayout::empty()),
        };
        let data = self.data(fid, layout.clone()).await;
        if let Some(opened) = reply.opened_data() {
            data.take_opened(&opened, watch);
        }
        let file = Arc::new(OpenFile {
            fid,
            flags,
            handle: reply.body.mbo_open_handle.cookie,
            data: Mutex::new(data),
            layout: Mutex::new(layout),
            written: AtomicBool::new(false),
            loss_cursor: self.lov.losses().cursor(fid),
            descriptor: self.lov.losses().descriptor(fid),
            opened_times: md.attr.times(),
            created: reply.created_file(),
            uncommitted_guard: Mutex::new(reply.reply.uncommitted_guard.clone()),
            deny_guard: Mutex::default(),
            job: job::current(),
        });
        if md.attr.is_file() {
            if file.denies_others() {
                *file.deny_guard.lock() = Some(self.inodes.deny_others(fid));
            }
            return Ok(file);
        }
        if file.handle != 0 {
            self.release(&file).await?;
        }
        Err(if md.attr.is_dir() {
            Errno::EISDIR
        } else {
            Errno::EOPNOTSUPP
        })
    }

    /// Closes a file. If the descriptor has written, the request reports the size and times that
    /// this client knows. It also reports an updated access time. A close that reports nothing may
    /// be deferred (`deferred_closes`). The request runs to its end even if the caller stops
    /// waiting.
    ///
    /// # Errors
    ///
    /// An error of the MDT; an unknown handle (`ESTALE`) counts as closed.
    pub async fn release(&self, file: &OpenFile) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Close);
        let mdc = self.lmv.mdc_of(file.fid).await?;
        let rec = self.close_rec(mdc, file);
        let unwritten = || file.created && !file.has_written() && self.is_unwritten(mdc, file.fid);
        let may_defer = || !file.denies_others() || !file.flags.exec && unwritten();
        let mut closing = PendingClose {
            handle: file.handle,
            fid: file.fid,
            deny_guard: file.deny_guard.lock().take(),
            job: file.job,
        };
        let uncommitted_guard = file.uncommitted_guard.lock().take();
        if rec.sa_valid == 0 && may_defer() {
            match mdc.close_later(closing) {
                Ok(()) => {
                    // Another client's open may have revoked the lock of the unwritten file.
                    if !may_defer() {
                        mdc.close_now(file.fid).await;
                    }
                    return Ok(());
                }
                Err(returned) => closing = returned,
            }
        }
        let req = rpc::Request {
            jobid: file.job,
            ends_open: uncommitted_guard,
            ..rpc::Request::modifying(MDS_CLOSE, pack::close(file.handle, &rec))
        };
        let import = mdc.import.clone();
        let close = async move {
            let reply = import.call(req).await;
            drop(closing);
            reply
        };
        match cpt::detach_on_drop(close).await.map_err(Errno::from) {
            // The server evicted this client and closed its handles.
            Ok(_) | Err(Errno::ESTALE) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OpenFlags;

    #[test]
    fn posix_flags_set_the_mode_of_the_open() {
        let parse = OpenFlags::from_posix;
        assert!(parse(libc::O_RDONLY).read && !parse(libc::O_RDONLY).write);
        assert!(!parse(libc::O_WRONLY).read && parse(libc::O_WRONLY).write);
        let mode = parse(libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
        assert!(mode.read && mode.write && mode.append && mode.sync && !mode.direct);
    }
}
