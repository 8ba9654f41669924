//! Requests about one object other than read and write: attributes, truncate, fallocate, seek,
//! sync; and statfs.

use ldlm::{LocalLock, LockMode, Policy};
use osd::{ObjAttr, OsdError, Seek, StatFs, obdo};
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, Fid, OBD_FL_FLUSH, OBD_FL_SRVLOCK, OBD_MD_FLBLOCKS, OBD_MD_FLFID, OBD_MD_FLFLAGS, OBD_MD_FLGROUP,
    OBD_MD_FLID, OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OS_STATFS_DEGRADED, OS_STATFS_ENOINO,
    OS_STATFS_ENOSPC, OS_STATFS_READONLY, ObdStatfs, Obdo, OstBody, OstId, Precision, Transno, WireStruct,
};

use crate::{Ost, attr, recovery};

const FALLOC_FL_KEEP_SIZE: u32 = 1;
const FALLOC_FL_PUNCH_HOLE: u32 = 2;
const FALLOC_FL_ZERO_RANGE: u32 = 0x10;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// The file system type in statfs: ext4's.
const OS_TYPE: u64 = 0xef53;
/// With less free space than this beyond the reserve, bytes, statfs reports `OS_STATFS_ENOSPC`.
const FULL_BYTES: u64 = 1 << 20;

/// A request about one object.
struct ObjectRequest {
    oa: Obdo,
    fid: Fid,
    precision: Precision,
    /// The number of the transaction that the client replays.
    replayed: Option<Transno>,
}

impl ObjectRequest {
    /// Whether these bits are all set in `o_valid`.
    fn has_valid(&self, flag: u64) -> bool {
        self.oa.o_valid & flag == flag
    }

    /// Whether a flag is set in `o_flags`.
    fn has_flag(&self, flag: u32) -> bool {
        self.has_valid(OBD_MD_FLFLAGS) && self.oa.o_flags & flag != 0
    }

    fn reply_oa(&self) -> Obdo {
        Obdo {
            o_oi: self.oa.o_oi,
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
            ..Obdo::default()
        }
    }
}

/// The precision of times negotiated with the client.
pub(crate) fn precision(req: &ServerRequest) -> Precision {
    req.export.precision()
}

fn body_reply(oa: Obdo) -> Reply {
    Reply::new(vec![OstBody { oa }.to_bytes()])
}

impl Ost {
    /// Parses a request about an object; fails if the object was never created ([`Ost::object`]).
    fn object_request(&self, req: &ServerRequest) -> Result<ObjectRequest, Errno> {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        Ok(ObjectRequest {
            oa,
            fid: self.object(&oa.o_oi)?,
            precision: precision(req),
            replayed: None,
        })
    }

    /// Parses a request that changes an object: fails with `ENOENT` if the object was destroyed.
    async fn object_request_to_change(&self, req: &ServerRequest) -> Result<ObjectRequest, Errno> {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        let replayed = self.replayed(req)?;
        Ok(ObjectRequest {
            oa,
            fid: self.object_of_change(&oa.o_oi, replayed).await?,
            precision: precision(req),
            replayed,
        })
    }

    async fn load_attr(&self, fid: Fid) -> Result<Option<ObjAttr>, Errno> {
        attr::load(&*self.objects, &self.sequences, fid)
            .await
            .map_err(|e| self.store_error("read attributes", fid, &e))
    }

    /// Checks the parent FID in a change: the FID of the object's file. Only an MDT may assign an
    /// object to another file. A replay was checked before.
    ///
    /// # Errors
    ///
    /// `EPERM` if a client's parent FID differs from the object's.
    pub(crate) fn check_parent(
        &self,
        req: &ServerRequest,
        replayed: Option<Transno>,
        oa: &Obdo,
        attr: Option<&ObjAttr>,
    ) -> Result<(), Errno> {
        let expected = attr.map_or(Fid::ZERO, |a| a.parent);
        let found = Fid::new(oa.o_parent_seq, oa.o_parent_oid, 0);
        // The `f_ver` of a stored parent is the stripe index.
        let is_same = expected == Fid::ZERO || (expected.f_seq, expected.f_oid) == (found.f_seq, found.f_oid);
        if oa.o_valid & OBD_MD_FLFID == 0 || is_same || replayed.is_some() || req.export.is_server() {
            return Ok(());
        }
        let (client, fid) = (&req.export.client_uuid, self.sequences.fid(&oa.o_oi));
        lnet::warn_rate_limited!(ost = %self.svname, %client, peer = %req.peer, object = %fid, %expected, %found, "change refused: the client's parent FID differs from the object's");
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

    /// Removes the data written to an object that another request destroyed meanwhile. A destroy
    /// adds the tombstone before it removes the object: either this call sees the tombstone, or the
    /// destroy removes the data.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the object was destroyed.
    pub(crate) async fn remove_if_destroyed(&self, fid: Fid) -> Result<(), Errno> {
        if !self.tombstones.contains(&fid) {
            return Ok(());
        }
        match self.objects.destroy(fid).await {
            Ok(_) => Err(Errno::ENOENT),
            Err(e) => Err(self.store_error("destroy", fid, &e)),
        }
    }

    /// Changes an object in one transaction, if the client is still connected; returns the
    /// transaction number. A replay keeps its number. Except for a destroy, the caller calls
    /// [`Ost::remove_if_destroyed`] afterwards.
    pub(crate) async fn change(
        &self,
        req: &ServerRequest,
        replayed: Option<Transno>,
        fid: Fid,
        what: &str,
        f: impl AsyncFnOnce(Transno) -> Result<(), OsdError>,
    ) -> Result<Transno, Errno> {
        let _change = req.export.change()?;
        let transaction = self.committer.begin(replayed).await;
        let transno = transaction.transno();
        let result = f(transno).await;
        match req.export.is_server() {
            true => self.committer.end(transaction, 0),
            false => self
                .committer
                .end_of_client(transaction, 0, (fid, req.export.handle)),
        }
        result.map_err(|e| self.store_error(what, fid, &e))?;
        Ok(transno)
    }

    /// `OST_GETATTR`: attributes and data version.
    pub(crate) async fn getattr(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let object = self.object_request(req)?;
        let _lock = match object.has_flag(OBD_FL_SRVLOCK) {
            // PW revokes the locks of all other clients, so that they also drop cached data. PR
            // revokes only those of writers, which then write back.
            true if object.has_flag(OBD_FL_FLUSH) => Some(
                self.lock_object(req, &object.oa.o_oi, LockMode::Pw, 0, u64::MAX)
                    .await?,
            ),
            true => Some(
                self.lock_object(req, &object.oa.o_oi, LockMode::Pr, 0, u64::MAX)
                    .await?,
            ),
            false => None,
        };
        let a = self.load_attr(object.fid).await?;
        let mut oa = object.reply_oa();
        obdo::put(&mut oa, a.as_ref(), object.precision);
        obdo::put_version(&mut oa, a.as_ref());
        Ok(body_reply(oa))
    }

    /// `OST_SETATTR`: owner, project, times, file and layout version.
    pub(crate) async fn setattr(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let object = self.object_request_to_change(req).await?;
        let attr = self.load_attr(object.fid).await?;
        self.check_parent(req, object.replayed, &object.oa, attr.as_ref())?;
        let set = obdo::to_set_attr(&object.oa, object.precision);
        let set = recovery::set_by(object.replayed, attr.as_ref(), set);
        if object.has_valid(OBD_MD_FLMTIME) {
            self.record_time_change(req, object.fid);
        }
        let transno = self.change(req, object.replayed, object.fid, "set attributes", async |_| {
            self.objects.setattr(object.fid, set).await
        });
        let transno = transno.await?;
        self.remove_if_destroyed(object.fid).await?;
        let mut oa = object.reply_oa();
        obdo::put(
            &mut oa,
            self.load_attr(object.fid).await?.as_ref(),
            object.precision,
        );
        Ok(body_reply(oa).with_transno(transno))
    }

    /// `OST_PUNCH`: truncates or extends the object, or punches a hole.
    pub(crate) async fn punch(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let object = self.object_request_to_change(req).await?;
        if !object.has_valid(OBD_MD_FLSIZE | OBD_MD_FLBLOCKS) {
            return Err(Errno::EPROTO);
        }
        let (start, end) = (object.oa.o_size, object.oa.o_blocks);
        let exceeds_maxbytes = end != OBD_OBJECT_EOF && end > self.offer.maxbytes;
        if start > end || start > self.offer.maxbytes || exceeds_maxbytes {
            return Err(Errno::EFBIG);
        }
        let attr = self.load_attr(object.fid).await?;
        self.check_parent(req, object.replayed, &object.oa, attr.as_ref())?;
        let _lock = match object.has_flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &object.oa.o_oi, LockMode::Pw, start, end)
                    .await?,
            ),
            false => {
                self.locks.prolong(&req.export, object.oa.o_oi.res_id());
                None
            }
        };
        self.record_time_change(req, object.fid);
        let transno = self.change(req, object.replayed, object.fid, "truncate", async |transno| {
            let set = obdo::to_data_change(&object.oa, object.precision, transno);
            let set = recovery::set_by(object.replayed, attr.as_ref(), set);
            let end = if end == OBD_OBJECT_EOF { u64::MAX } else { end };
            self.objects.punch(object.fid, start, end, set).await
        });
        let transno = transno.await?;
        self.remove_if_destroyed(object.fid).await?;
        let a = self.load_attr(object.fid).await?;
        let mut oa = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLBLOCKS,
            ..object.reply_oa()
        };
        oa.o_blocks = a.map_or(0, |a| a.blocks);
        Ok(body_reply(oa).with_transno(transno))
    }

    /// `OST_FALLOCATE`: allocates space, punches a hole, or zeroes a range.
    pub(crate) async fn fallocate(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let object = self.object_request_to_change(req).await?;
        let (start, end) = (object.oa.o_size, object.oa.o_blocks);
        if !object.has_valid(OBD_MD_FLSIZE | OBD_MD_FLBLOCKS) || start >= end {
            return Err(Errno::EINVAL);
        }
        if end > self.offer.maxbytes {
            return Err(Errno::EFBIG);
        }
        let _lock = match object.has_flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &object.oa.o_oi, LockMode::Pw, start, end - 1)
                    .await?,
            ),
            false => None,
        };
        let mode = object.oa.o_falloc_mode();
        let keep_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        let fid = object.fid;
        let attr = self.load_attr(fid).await?;
        self.check_parent(req, object.replayed, &object.oa, attr.as_ref())?;
        let size = attr.map_or(0, |a| a.size);
        let transno = self.change(req, object.replayed, fid, "allocate", async |transno| {
            let set = obdo::to_data_change(&object.oa, object.precision, transno);
            let set = recovery::set_by(object.replayed, attr.as_ref(), set);
            // The space of a replayed allocation was free.
            if mode & FALLOC_FL_PUNCH_HOLE == 0 && object.replayed.is_none() {
                self.check_space(start, end, attr.as_ref())?;
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
                _ => Err(OsdError::Unsupported("fallocate mode")),
            }
        });
        let transno = transno.await?;
        self.remove_if_destroyed(object.fid).await?;
        let mut oa = object.reply_oa();
        obdo::put(&mut oa, self.load_attr(fid).await?.as_ref(), object.precision);
        Ok(body_reply(oa).with_transno(transno))
    }

    /// Fails with `NoSpace` if a range does not fit. Space that the object already uses counts
    /// towards the range, unless the range begins at or after the end of the object.
    fn check_space(&self, start: u64, end: u64, attr: Option<&ObjAttr>) -> Result<(), OsdError> {
        let own_bytes = attr.filter(|a| start < a.size).map_or(0, |a| a.blocks * 512);
        let left = self.grants.unreserved_bytes(self.space.avail_bytes());
        match (end - start).saturating_sub(own_bytes) <= left {
            true => Ok(()),
            false => Err(OsdError::NoSpace),
        }
    }

    /// `OST_SEEK`: the offset of the next data or hole; `-ENXIO` as offset if there is none.
    pub(crate) async fn seek(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let object = self.object_request(req)?;
        let kind = match object.oa.o_mode {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        // Data in other clients' caches counts: the lock makes these clients write it back. Without
        // the flag the client itself holds a lock until the reply.
        let _lock = match object.has_flag(OBD_FL_SRVLOCK) {
            true => Some(
                self.lock_object(req, &object.oa.o_oi, LockMode::Pr, object.oa.o_size, u64::MAX)
                    .await?,
            ),
            false => None,
        };
        let found = match self.objects.seek(object.fid, object.oa.o_size, kind).await {
            Ok(offset) => offset,
            Err(OsdError::NotFound) => i64::from(Errno::ENXIO.status()) as u64,
            Err(e) => return Err(self.store_error("seek", object.fid, &e)),
        };
        Ok(body_reply(Obdo {
            o_mode: object.oa.o_mode,
            o_size: found,
            ..object.reply_oa()
        }))
    }

    /// `OST_SYNC`: writes one object to disk, or all objects of the target if the request names
    /// none.
    pub(crate) async fn sync(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        if oa.o_oi == OstId::default() {
            self.committer
                .commit()
                .await
                .map_err(|e| self.store_error("sync", Fid::ZERO, &e))?;
            return Ok(body_reply(Obdo::default()));
        }
        let object = self.object_request(req)?;
        self.sync_object(object.fid).await?;
        let mut oa = object.reply_oa();
        obdo::put(
            &mut oa,
            self.load_attr(object.fid).await?.as_ref(),
            object.precision,
        );
        Ok(body_reply(oa))
    }

    /// Writes an object to disk, so that a later restart of the target changes nothing of it.
    pub(crate) async fn sync_object(&self, fid: Fid) -> Result<(), Errno> {
        let synced = match self.committer.syncs_all_for(&fid) {
            true => self.committer.commit().await,
            false => self.objects.sync(Some(fid)).await,
        };
        synced.map_err(|e| self.store_error("sync", fid, &e))
    }

    /// `OST_STATFS`: the target's share of the disk.
    pub(crate) async fn statfs(&self) -> Result<Reply, Errno> {
        // A disk that cannot tell its free space has none for new files.
        let s = self.space.statfs().unwrap_or_else(|e| {
            self.store_error("get the free space", Fid::ZERO, &e);
            StatFs::default()
        });
        let s = self.share.part_of(s);
        let mut state = 0;
        if !self.space.failure().is_empty() {
            state |= OS_STATFS_READONLY;
        }
        if !self.space.disk_error().is_empty() {
            state |= OS_STATFS_DEGRADED;
        }
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
