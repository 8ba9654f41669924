//! Everything else that is done to one object: attributes, truncation and holes, space, sync; and statfs.

use ldlm::{LocalLock, LockMode, Policy};
use osd::{ObjAttr, OsdError, Seek};
use rpc::{Export, Reply, ServerRequest};
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, OBD_FL_FLUSH, OBD_FL_SRVLOCK, OBD_MD_FLBLOCKS, OBD_MD_FLFID, OBD_MD_FLFLAGS, OBD_MD_FLGROUP,
    OBD_MD_FLID, OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OS_STATFS_ENOINO, OS_STATFS_ENOSPC,
    ObdStatfs, Obdo, OstBody, OstId, Precision, WireStruct,
};

use crate::{Ost, attr};

const FALLOC_FL_KEEP_SIZE: u32 = 1;
const FALLOC_FL_PUNCH_HOLE: u32 = 2;
const FALLOC_FL_ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// The file system's type as statfs tells it: ext4's.
const OS_TYPE: u64 = 0xef53;
/// With less than this the target is called full.
const FULL_BYTES: u64 = 1 << 20;

/// A request about one object.
struct About {
    oa: Obdo,
    fid: Fid,
    precision: Precision,
}

impl About {
    fn has(&self, flag: u64) -> bool {
        self.oa.o_valid & flag == flag
    }

    fn flag(&self, flag: u32) -> bool {
        self.has(OBD_MD_FLFLAGS) && self.oa.o_flags & flag != 0
    }

    fn reply_oa(&self) -> Obdo {
        Obdo {
            o_oi: self.oa.o_oi,
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
            ..Obdo::default()
        }
    }
}

/// How fine the times are that a client and this target tell each other.
pub(crate) fn precision(req: &ServerRequest) -> Precision {
    Precision::agreed(&req.export.data())
}

fn answer(oa: Obdo) -> Reply {
    Reply::new(vec![OstBody { oa }.to_bytes()])
}

impl Ost {
    fn about(&self, req: &ServerRequest) -> Result<About, Errno> {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        Ok(About {
            oa,
            fid: self.object(&oa.o_oi)?,
            precision: precision(req),
        })
    }

    fn about_to_change(&self, req: &ServerRequest) -> Result<About, Errno> {
        let about = self.about(req)?;
        self.object_to_change(&about.oa.o_oi)?;
        Ok(about)
    }

    async fn attr_of(&self, fid: Fid) -> Result<Option<ObjAttr>, Errno> {
        attr::of(&*self.objects, &self.sequences, fid)
            .await
            .map_err(|e| self.failed("attributes", fid, &e))
    }

    /// Refuses a change of an object that names another file than the one that the object belongs to. A metadata target
    /// may move an object from one file to another.
    pub(crate) fn check_parent(
        &self,
        req: &ServerRequest,
        oa: &Obdo,
        fid: Fid,
        attr: Option<&ObjAttr>,
    ) -> Result<(), Errno> {
        let owner = attr.map_or(Fid::ZERO, |a| a.parent);
        let named = (oa.o_parent_seq, oa.o_parent_oid);
        let belongs = owner == Fid::ZERO || (owner.f_seq, owner.f_oid) == named;
        if oa.o_valid & OBD_MD_FLFID == 0 || belongs || req.export.is_server() {
            return Ok(());
        }
        let (client, parent) = (&req.export.client_uuid, Fid::new(named.0, named.1, 0));
        lnet::warn_seldom!(ost = %self.svname, %client, peer = %req.peer, object = %fid, %owner, %parent, "refusing a change: the client names another file than the object's");
        Err(Errno::EPERM)
    }

    async fn lock_object(
        &self,
        req: &ServerRequest,
        id: &OstId,
        mode: LockMode,
        start: u64,
        end: u64,
    ) -> Result<LocalLock, Errno> {
        self.locks
            .lock(Some(&req.export), id.res_id(), mode, Policy::extent(start, end))
            .await
    }

    /// Removes what a change has made of an object that was destroyed while it was under way: whoever destroys it says so
    /// before he removes it, so that one of the two sees the other.
    pub(crate) async fn keep_away(&self, fid: Fid) -> Result<(), Errno> {
        if !self.gone.has(&fid) {
            return Ok(());
        }
        match self.objects.destroy(fid).await {
            Ok(_) => Err(Errno::ENOENT),
            Err(e) => Err(self.failed("destroy", fid, &e)),
        }
    }

    /// A change of an object in a transaction of its own, for a client that is still there. Who does not destroy it calls
    /// [`Ost::keep_away`] afterwards.
    pub(crate) async fn change(
        &self,
        export: &Arc<Export>,
        fid: Fid,
        what: &str,
        f: impl AsyncFnOnce(u64) -> Result<(), OsdError>,
    ) -> Result<u64, Errno> {
        let _change = export.change()?;
        let transaction = self.committer.begin().await;
        let transno = transaction.transno();
        let done = f(transno).await;
        self.committer.end(transaction, 0);
        done.map_err(|e| self.failed(what, fid, &e))?;
        Ok(transno)
    }

    /// `OST_GETATTR`: also asks for the data's version.
    pub(crate) async fn getattr(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let about = self.about(req)?;
        let _lock = match about.flag(OBD_FL_SRVLOCK) {
            // Flushing takes the data from those who write, else only their sizes are waited for.
            true if about.flag(OBD_FL_FLUSH) => Some(
                self.lock_object(req, &about.oa.o_oi, LockMode::Pw, 0, u64::MAX)
                    .await?,
            ),
            true => Some(
                self.lock_object(req, &about.oa.o_oi, LockMode::Pr, 0, u64::MAX)
                    .await?,
            ),
            false => None,
        };
        let a = self.attr_of(about.fid).await?;
        let mut oa = about.reply_oa();
        attr::put(&mut oa, a.as_ref(), about.precision);
        attr::put_version(&mut oa, a.as_ref());
        Ok(answer(oa))
    }

    /// `OST_SETATTR`.
    pub(crate) async fn setattr(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let about = self.about_to_change(req)?;
        self.check_parent(req, &about.oa, about.fid, self.attr_of(about.fid).await?.as_ref())?;
        let set = attr::to_set(&about.oa, about.precision);
        if about.has(OBD_MD_FLMTIME) {
            self.sets_times(req, about.fid);
        }
        let transno = self.change(&req.export, about.fid, "set attributes", async |_| {
            self.objects.setattr(about.fid, set).await
        });
        let transno = transno.await?;
        self.keep_away(about.fid).await?;
        let mut oa = about.reply_oa();
        attr::put(&mut oa, self.attr_of(about.fid).await?.as_ref(), about.precision);
        Ok(answer(oa).with_transno(transno))
    }

    /// `OST_PUNCH`: truncation, up and down, or a hole.
    pub(crate) async fn punch(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let about = self.about_to_change(req)?;
        if !about.has(OBD_MD_FLSIZE | OBD_MD_FLBLOCKS) {
            return Err(Errno::EPROTO);
        }
        let (start, end) = (about.oa.o_size, about.oa.o_blocks);
        let reaches_too_far = end != OBD_OBJECT_EOF && end > self.offer.maxbytes;
        if start > end || start > self.offer.maxbytes || reaches_too_far {
            return Err(Errno::EFBIG);
        }
        self.check_parent(req, &about.oa, about.fid, self.attr_of(about.fid).await?.as_ref())?;
        let _lock = match about.flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &about.oa.o_oi, LockMode::Pw, start, end)
                    .await?,
            ),
            false => {
                self.locks.prolong(&req.export, about.oa.o_oi.res_id());
                None
            }
        };
        self.sets_times(req, about.fid);
        let transno = self.change(&req.export, about.fid, "truncate", async |transno| {
            let set = attr::to_change(&about.oa, about.precision, transno);
            let end = if end == OBD_OBJECT_EOF { u64::MAX } else { end };
            self.objects.punch(about.fid, start, end, set).await
        });
        let transno = transno.await?;
        self.keep_away(about.fid).await?;
        let a = self.attr_of(about.fid).await?;
        let mut oa = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLBLOCKS,
            ..about.reply_oa()
        };
        oa.o_blocks = a.map_or(0, |a| a.blocks);
        Ok(answer(oa).with_transno(transno))
    }

    /// `OST_FALLOCATE`.
    pub(crate) async fn fallocate(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let about = self.about_to_change(req)?;
        let (start, end) = (about.oa.o_size, about.oa.o_blocks);
        if !about.has(OBD_MD_FLSIZE | OBD_MD_FLBLOCKS) || start >= end {
            return Err(Errno::EINVAL);
        }
        if end > self.offer.maxbytes {
            return Err(Errno::EFBIG);
        }
        let _lock = match about.flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &about.oa.o_oi, LockMode::Pw, start, end - 1)
                    .await?,
            ),
            false => None,
        };
        let mode = about.oa.o_falloc_mode();
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let fid = about.fid;
        let attr = self.attr_of(fid).await?;
        self.check_parent(req, &about.oa, fid, attr.as_ref())?;
        let size = attr.map_or(0, |a| a.size);
        let transno = self.change(&req.export, fid, "allocate", async |transno| {
            let set = attr::to_change(&about.oa, about.precision, transno);
            if mode & FALLOC_FL_PUNCH_HOLE == 0 {
                self.may_allocate(start, end, attr.as_ref())?;
            }
            match mode & !FALLOC_FL_KEEP_SIZE {
                0 => {
                    self.objects.fallocate(fid, start, end, keep_size).await?;
                    self.objects.setattr(fid, set).await
                }
                FALLOC_FL_PUNCH_HOLE => self.objects.punch(fid, start, end, set).await,
                FALLOC_FL_ZERO_RANGE => {
                    self.objects
                        .punch(fid, start, end.min(size.max(start)), set)
                        .await?;
                    self.objects.fallocate(fid, start, end, keep_size).await
                }
                _ => Err(OsdError::Unsupported("this way to allocate space")),
            }
        });
        let transno = transno.await?;
        self.keep_away(about.fid).await?;
        let mut oa = about.reply_oa();
        attr::put(&mut oa, self.attr_of(fid).await?.as_ref(), about.precision);
        Ok(answer(oa).with_transno(transno))
    }

    /// Whether there is space for a range. What the object has may be in the range, unless that begins at its end.
    fn may_allocate(&self, start: u64, end: u64, attr: Option<&ObjAttr>) -> Result<(), OsdError> {
        let has = attr.filter(|a| start < a.size).map_or(0, |a| a.blocks * 512);
        let left = self.grants.left(self.space.avail_bytes());
        match (end - start).saturating_sub(has) <= left {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// `OST_SEEK`: the next data or hole; not there is an offset of `-ENXIO`.
    pub(crate) async fn seek(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let about = self.about(req)?;
        let what = match about.oa.o_mode {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        // What clients have cached is data too: they write it back first. Who holds a lock of its own does not let it go
        // before it has the answer.
        let _lock = match about.flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &about.oa.o_oi, LockMode::Pr, about.oa.o_size, u64::MAX)
                    .await?,
            ),
            false => None,
        };
        let found = match self.objects.seek(about.fid, about.oa.o_size, what).await {
            Ok(at) => at,
            Err(OsdError::NotFound) => i64::from(Errno::ENXIO.status()) as u64,
            Err(e) => return Err(self.failed("seek", about.fid, &e)),
        };
        Ok(answer(Obdo {
            o_mode: about.oa.o_mode,
            o_size: found,
            ..about.reply_oa()
        }))
    }

    /// `OST_SYNC`: one object, or all of the target.
    pub(crate) async fn sync(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        if oa.o_oi == OstId::default() {
            self.committer
                .commit()
                .await
                .map_err(|e| self.failed("sync", Fid::ZERO, &e))?;
            return Ok(answer(Obdo::default()));
        }
        let about = self.about(req)?;
        self.objects
            .sync(Some(about.fid))
            .await
            .map_err(|e| self.failed("sync", about.fid, &e))?;
        let mut oa = about.reply_oa();
        attr::put(&mut oa, self.attr_of(about.fid).await?.as_ref(), about.precision);
        Ok(answer(oa))
    }

    /// `OST_STATFS`.
    pub(crate) async fn statfs(&self) -> Result<Reply, Errno> {
        let s = self
            .space
            .statfs()
            .map_err(|e| self.failed("statfs", Fid::ZERO, &e))?;
        let s = self.share.of(s);
        let mut state = 0;
        if s.bavail * u64::from(s.bsize) < FULL_BYTES {
            state |= OS_STATFS_ENOSPC;
        }
        if s.files != 0 && s.ffree == 0 {
            state |= OS_STATFS_ENOINO;
        }
        let out = ObdStatfs {
            os_type: OS_TYPE,
            os_blocks: s.blocks,
            os_bfree: s.bfree,
            os_bavail: s.bavail,
            os_files: s.files,
            os_ffree: s.ffree,
            os_bsize: s.bsize,
            os_namelen: 255,
            os_maxbytes: self.offer.maxbytes,
            os_state: state,
            ..ObdStatfs::default()
        };
        Ok(Reply::new(vec![out.to_bytes()]))
    }
}
