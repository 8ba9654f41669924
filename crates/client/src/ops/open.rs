//! Opening and closing, creating a file by opening it.

use crate::attr::{MdAttr, S_IFREG, SetAttr};
use crate::client::Client;
use crate::closes::Closing;
use crate::cred::Cred;
use crate::data::{DataFile, Descriptor, SeenLosses};
use crate::inode::Denying;
use crate::layout::LovLayout;
use crate::mdc::{IntentAsk, IntentReply};
use crate::ops::lookup::{Found, check_name};
use crate::pack::{self, CreateRec, Suppgids};
use bytes::Bytes;
use ldlm::LockMode;
use parking_lot::Mutex;
use rpc::Keep;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::{
    DISP_OPEN_CREATE, Errno, Fid, IT_CREAT, IT_OPEN, MDS_CLOSE, MDS_FMODE_EXEC, MDS_FMODE_READ,
    MDS_FMODE_WRITE, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MDS_OPEN_APPEND, MDS_OPEN_BY_FID,
    MDS_OPEN_CREAT, MDS_OPEN_DELAY_CREATE, MDS_OPEN_EXCL, MDS_OPEN_HAS_EA, MDS_OPEN_LARGEFILE, MDS_OPEN_SYNC,
    Times,
};

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// To read.
    pub read: bool,
    /// To write.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Past the cache.
    pub direct: bool,
    /// Empty it first.
    pub truncate: bool,
    /// Writes return when they are on disk.
    pub sync: bool,
    /// Reads leave the access time as it is (`O_NOATIME`).
    pub no_atime: bool,
    /// To execute it: nobody may have it open to write.
    pub exec: bool,
    /// When creating: the name must not exist.
    pub excl: bool,
    /// When creating: the file gets its objects when it is first opened to write, not now.
    pub delay_create: bool,
}

impl OpenFlags {
    /// To read.
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
    /// To read and write.
    pub const READ_WRITE: OpenFlags = OpenFlags {
        write: true,
        ..OpenFlags::READ
    };

    /// As a program says it by open(2)'s flags.
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

    fn wire(&self) -> u64 {
        let bit = |on: bool, flag: u64| if on { flag } else { 0 };
        MDS_OPEN_LARGEFILE
            | bit(self.read, MDS_FMODE_READ)
            // To cut a file is to write to it: it is refused where the file is being executed.
            | bit(self.write || self.truncate, MDS_FMODE_WRITE)
            | bit(self.exec, MDS_FMODE_EXEC)
            | bit(self.append, MDS_OPEN_APPEND)
            | bit(self.sync, MDS_OPEN_SYNC)
            | bit(self.delay_create, MDS_OPEN_DELAY_CREATE)
    }
}

/// How long a refused open waits the first time for this client's own closes, each time twice as long, and the last time: a
/// quarter of a second in all.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(128);

/// The flag of an open that brings a layout along.
fn has_ea(layout: &Bytes) -> u64 {
    if layout.is_empty() { 0 } else { MDS_OPEN_HAS_EA }
}

/// An open regular file.
pub struct OpenFile {
    /// Which file.
    pub fid: Fid,
    /// How it was opened.
    pub flags: OpenFlags,
    pub(crate) handle: u64,
    pub(crate) data: Mutex<Arc<DataFile>>,
    pub(crate) layout: Mutex<Arc<LovLayout>>,
    wrote: AtomicBool,
    /// Which losses of data it has been told of.
    pub(crate) told: SeenLosses,
    /// Whether it fails because data or locks were lost.
    pub(crate) descriptor: Descriptor,
    /// Its times at the metadata target when it was opened.
    pub(crate) opened_times: Times,
    /// Whether this open made the file.
    pub(crate) created: bool,
    keep: Mutex<Option<Keep>>,
    denying: Mutex<Option<Denying>>,
}

impl OpenFile {
    /// Whether it keeps others from opening it: who writes those who execute, and the other way round.
    fn denies(&self) -> bool {
        self.flags.exec || self.flags.write
    }

    /// Whether anything was written through it.
    pub fn has_written(&self) -> bool {
        self.wrote.load(Ordering::Acquire)
    }
}

impl Client {
    /// Before something is written through a file. Whether it is the first time.
    pub(crate) fn begin_write(&self, file: &OpenFile) -> bool {
        if file.has_written() {
            return false;
        }
        // Whoever else has it open has taken the lock away that this rests on.
        if file.created {
            self.inodes.written(file.fid);
        }
        !file.wrote.swap(true, Ordering::AcqRel)
    }

    /// Opens a file by its FID.
    pub async fn open(&self, cred: &Cred, fid: Fid, flags: OpenFlags) -> Result<Arc<OpenFile>, Errno> {
        self.open_with(cred, fid, flags, Bytes::new()).await
    }

    /// Repeats for a while what the MDT refuses with ETXTBSY while this client itself has the file open to write or to execute
    /// it: a kernel does not wait for the close of a file, and runs a program that was written before the MDT knows of the close.
    pub(crate) async fn while_busy<T, F>(&self, fid: Fid, ask: impl Fn() -> F) -> Result<T, Errno>
    where
        F: Future<Output = Result<T, Errno>>,
    {
        let mut pause = BUSY_PAUSE;
        loop {
            let denied = self.inodes.denies(fid);
            match ask().await {
                Err(Errno::ETXTBSY) if denied && pause <= BUSY_PAUSE_MAX => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
    }

    /// Opens a file by its FID, and gives it a layout (`lov_user_md`) if it has none yet.
    pub(crate) async fn open_with(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: OpenFlags,
        eadata: Bytes,
    ) -> Result<Arc<OpenFile>, Errno> {
        self.while_busy(fid, async || {
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
        let mdc = self.lmv.of(fid).await?;
        let rec = CreateRec {
            parent: fid,
            child: fid,
            mode: S_IFREG,
            rdev: 0,
            flags: flags.wire() | MDS_OPEN_BY_FID | has_ea(&eadata),
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, fid).await, crate::cred::NO_GROUP),
        };
        let bufs = pack::open_intent(cred, &rec, b"", eadata);
        let ask = IntentAsk {
            opens: true,
            elc: mdc.elc(&[], &[(fid, 0)]),
            ..IntentAsk::new(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP, IT_OPEN, bufs)
        };
        let reply = mdc.intent(ask).await?;
        reply.status?;
        let md = self.learn(&reply, None);
        let file = self.opened(&reply, &md, flags).await?;
        drop(reply);
        if flags.truncate && flags.write {
            let empty = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            if let Err(e) = self.setattr(cred, fid, &empty, Some(&file)).await {
                let _ = self.release(&file).await;
                return Err(e);
            }
        }
        Ok(file)
    }

    /// Opens a name, and creates it if it is not there. Tells what was opened.
    pub async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Found, Arc<OpenFile>), Errno> {
        self.create_with(cred, (parent, name), mode, flags, Bytes::new())
            .await
    }

    /// The same; a file that is made gets this layout (`lov_user_md`; empty: what its directory gives).
    pub async fn create_with(
        &self,
        cred: &Cred,
        (parent, name): (Fid, &[u8]),
        mode: u32,
        flags: OpenFlags,
        layout: Bytes,
    ) -> Result<(Found, Arc<OpenFile>), Errno> {
        check_name(name)?;
        let mdc = self.lmv.of(parent).await?;
        let child = mdc.new_fid().await?;
        let excl = if flags.excl { MDS_OPEN_EXCL } else { 0 };
        let rec = CreateRec {
            parent,
            child,
            mode: S_IFREG | mode & 0o7777,
            rdev: 0,
            flags: flags.wire() | MDS_OPEN_CREAT | excl | has_ea(&layout),
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, parent).await, crate::cred::NO_GROUP),
        };
        let bufs = pack::open_intent(cred, &rec, name, layout);
        let elc = mdc.elc(&[parent], &[]);
        let ask = IntentAsk::new(
            parent,
            LockMode::Cw,
            MDS_INODELOCK_UPDATE,
            IT_OPEN | IT_CREAT,
            bufs,
        );
        let ask = IntentAsk {
            elc,
            opens: true,
            ..ask
        };
        let change = mdc.begin(cred, parent, Some(name));
        let reply = mdc.open_or_make(change, ask).await?;
        reply.status?;
        if reply.is_negative() && reply.disposition & DISP_OPEN_CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        let md = self.learn(&reply, Some((parent, name)));
        let file = self.opened(&reply, &md, flags).await?;
        let created = reply.made_file();
        drop(reply);
        if !created && flags.truncate {
            let empty = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            if let Err(e) = self.setattr(cred, file.fid, &empty, Some(&file)).await {
                let _ = self.release(&file).await;
                return Err(e);
            }
        }
        if created && flags.write && !self.is_unwritten(mdc, file.fid) {
            let data = file.data.lock().clone();
            data.claim().await;
        }
        let found = self.named(cred, file.fid, md, (parent, name)).await?;
        Ok((found, file))
    }

    /// The file that an open's reply opened. What is not a file is closed again.
    async fn opened(
        &self,
        reply: &IntentReply,
        md: &MdAttr,
        flags: OpenFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let fid = reply.body.mbo_fid1;
        let layout = match &md.layout {
            Some(layout) => layout.clone(),
            None if md.attr.is_file() => self.layout(fid).await?,
            None => Arc::new(LovLayout::empty()),
        };
        let file = Arc::new(OpenFile {
            fid,
            flags,
            handle: reply.body.mbo_open_handle.cookie,
            data: Mutex::new(self.data(fid, layout.clone()).await),
            layout: Mutex::new(layout),
            wrote: AtomicBool::new(false),
            told: self.lov.losses().opened(fid),
            descriptor: self.lov.losses().descriptor(fid),
            opened_times: md.attr.times(),
            created: reply.made_file(),
            keep: Mutex::new(reply.reply.keep.clone()),
            denying: Mutex::default(),
        });
        if md.attr.is_file() {
            if file.denies() {
                *file.denying.lock() = Some(self.inodes.denying(fid));
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

    /// Closes a file: the metadata target learns size and times as this client knows them, also when nobody waits for that.
    pub async fn release(&self, file: &OpenFile) -> Result<(), Errno> {
        let mdc = self.lmv.of(file.fid).await?;
        let rec = self.close_rec(mdc, file);
        let unwritten = || file.created && !file.has_written() && self.is_unwritten(mdc, file.fid);
        let harmless = || !file.denies() || !file.flags.exec && unwritten();
        let mut closing = Closing {
            handle: file.handle,
            fid: file.fid,
            denying: file.denying.lock().take(),
        };
        let keep = file.keep.lock().take();
        if rec.sa_valid == 0 && harmless() {
            match mdc.close_later(closing) {
                Ok(()) => {
                    // Somebody else may just have asked for it.
                    if !harmless() {
                        mdc.close_now(file.fid).await;
                    }
                    return Ok(());
                }
                Err(now) => closing = now,
            }
        }
        let req = rpc::Request::modifying(MDS_CLOSE, pack::close(file.handle, &rec));
        let import = mdc.import.clone();
        let whole = async move {
            let done = import.call(req).await;
            drop((keep, closing));
            done
        };
        match cpt::to_its_end(whole).await.map_err(Errno::from) {
            // The server forgot the handle when it forgot this client: nothing is left to close.
            Ok(_) | Err(Errno::ESTALE) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OpenFlags;

    #[test]
    fn access_modes_are_told_apart() {
        let of = OpenFlags::from_posix;
        assert!(of(libc::O_RDONLY).read && !of(libc::O_RDONLY).write);
        assert!(!of(libc::O_WRONLY).read && of(libc::O_WRONLY).write);
        let both = of(libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
        assert!(both.read && both.write && both.append && both.sync && !both.direct);
    }
}
