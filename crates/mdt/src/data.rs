//! Requests for the data of files on the MDT (docs/protocol.md, "Data on the MDT"): those that a
//! client also sends to an OST. The object is the file itself, and the client's lock is the DOM bit
//! of its inode.
//!
//! A client gets no grant here, so it sends each write at once. The change is a transaction like
//! any other: the client keeps the request until the transaction is on disk, and replays it after a
//! restart. A replay sets the same bytes again, so the target keeps no replies.

use std::sync::Arc;

use bytes::Bytes;
use ldlm::{LocalLock, LockMode, LvbOps, Policy};
use osd::{ExtentData, ObjAttr, Seek, SetAttr, obdo};
use rpc::brw::{Brw, Span, write_reply};
use rpc::{BoxFuture, Part, Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, Fid, LdlmResId, MDS_INODELOCK_DOM, OBD_FL_SRVLOCK, OBD_MD_FLBLOCKS, OBD_MD_FLFLAGS,
    OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLSIZE, OBD_OBJECT_EOF, Obdo, OstBody, OstId, Transno, WireStruct,
};

use crate::{
    connect::BRW_SIZE_MAX,
    namespace::{self, DataChange},
    store::Store,
    target::{HandlerResult, Mdt, part_of, precision},
};

const FALLOC_FL_KEEP_SIZE: u32 = 1;
const FALLOC_FL_PUNCH_HOLE: u32 = 2;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The MDT as the target of its lock server: the value block of a file is that of its data.
pub(crate) struct Inodes(pub(crate) Arc<Store>);

impl LvbOps for Inodes {
    fn fill<'a>(&'a self, res: &'a LdlmResId) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            Some(match self.0.data_attr(Fid::from_res_id(res)).await {
                Ok(attr) => obdo::lvb(attr.as_ref()).to_bytes(),
                Err(e) => obdo::lvb_error(e).to_bytes(),
            })
        })
    }

    fn update<'a>(&'a self, _res: &'a LdlmResId, _lvb: Option<Bytes>) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn part(&self, res: &LdlmResId) -> Option<Part> {
        // The lock of renames belongs to no inode. A new client waits for it until the recovery has
        // ended, because no claim covers the ancestors of the renamed directories.
        (res.name[0] != 0).then(|| part_of(Fid::from_res_id(res)))
    }
}

/// The kind of access to a file's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// The attributes that a reply has in any case.
fn reply_oa(oi: OstId) -> Obdo {
    Obdo {
        o_oi: oi,
        o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
        ..Obdo::default()
    }
}

fn body_reply(oa: Obdo) -> Reply {
    Reply::new(vec![OstBody { oa }.to_bytes()])
}

/// Whether the client holds no lock and requests the server to take one.
fn requests_lock(oa: &Obdo) -> bool {
    oa.o_valid & OBD_MD_FLFLAGS != 0 && oa.o_flags & OBD_FL_SRVLOCK != 0
}

impl Mdt {
    /// The file of a request for its data.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none, `EINVAL` if it has no part on this MDT. `EROFS` if the client may
    /// not change the file system. `EACCES` if the client's nodemap requires capabilities and the
    /// client has not opened the file for this access.
    async fn data_file(&self, req: &ServerRequest, oi: &OstId, access: Access) -> Result<Fid, Errno> {
        let fid = oi.fid();
        if access == Access::Write {
            self.check_writable(req)?;
        }
        if self.store.inode(fid).await?.data_max().is_none() {
            return Err(Errno::EINVAL);
        }
        let allows = |writes: bool| access == Access::Read || writes;
        let needs_open = self.rights(&req.export).capabilities && !self.is_replay(req);
        let mut open_files = self.handles(&req.export).all().into_iter();
        if needs_open && !open_files.any(|f| f.fid == fid && allows(f.mode.writes())) {
            lnet::warn_rate_limited!(peer = %req.peer, client = %req.export.client_uuid, %fid, "request for data refused: the client's nodemap requires capabilities, and the client has not opened the file");
            return Err(Errno::EACCES);
        }
        Ok(fid)
    }

    /// Takes the DOM lock if the client requests it. Otherwise the client holds one: prolongs its
    /// timeout.
    async fn lock_data(
        &self,
        req: &ServerRequest,
        fid: Fid,
        mode: Option<LockMode>,
    ) -> Result<Option<LocalLock>, Errno> {
        let server = self.locks.server();
        let Some(mode) = mode else {
            server.prolong(&req.export, fid.res_id());
            return Ok(None);
        };
        let dom = Policy::ibits(MDS_INODELOCK_DOM);
        server
            .lock(Some(&req.export), fid.res_id(), mode, dom)
            .await
            .map(Some)
    }

    /// Changes a file's data, if the client is still connected.
    async fn change_data(
        &self,
        req: &ServerRequest,
        fid: Fid,
        what: &DataChange,
        set: SetAttr,
    ) -> Result<(Transno, ObjAttr), Errno> {
        // If the client was evicted meanwhile, its locks are gone and nothing may change.
        let _change = req.export.change()?;
        namespace::change_data(self.request_store(req), fid, what, set).await
    }

    /// `OST_WRITE`.
    pub(crate) async fn write_data(&self, req: &mut ServerRequest) -> HandlerResult {
        let brw = Brw::parse(&req.msg, BRW_SIZE_MAX, i64::MAX as u64)?;
        let fid = self.data_file(req, &brw.object.ioo_oid, Access::Write).await?;
        self.throttle().await;
        let data = brw.fetch(req).await?;
        let mut oa = brw.reply_oa();
        let sum = brw.put_checksum(&mut oa, &data);
        // As on an OST: the client compares the sums and resends the data. Nobody resends a replay.
        if sum.is_some_and(|sum| sum != brw.oa.o_cksum()) && !self.is_replay(req) {
            lnet::warn_rate_limited!(mdt = self.svname(), client = %req.export.client_uuid, %fid, expected = brw.oa.o_cksum(), found = sum, "write refused: wrong checksum; the client resends the data");
            return Ok(write_reply(oa, &vec![0; brw.spans.len()]));
        }
        let _lock = self
            .lock_data(req, fid, brw.requests_lock().then_some(LockMode::Pw))
            .await?;
        let extent = |(span, data): (&Span, Vec<Bytes>)| ExtentData {
            offset: span.offset,
            data,
        };
        let write = DataChange::Write(brw.split(data).map(extent).collect());
        let set = obdo::to_data_change(&brw.oa, precision(req), Transno::NONE);
        let (transno, attr) = self.change_data(req, fid, &write, set).await?;
        if brw.requests_sync() && !self.is_replay(req) {
            self.store.index().sync().await?;
        }
        obdo::put(&mut oa, Some(&attr), precision(req));
        Ok(write_reply(oa, &vec![0; brw.spans.len()]).with_transno(transno))
    }

    /// `OST_READ`: up to the end of the data.
    pub(crate) async fn read_data(&self, req: &mut ServerRequest) -> HandlerResult {
        let brw = Brw::parse(&req.msg, BRW_SIZE_MAX, u64::MAX)?;
        let fid = self.data_file(req, &brw.object.ioo_oid, Access::Read).await?;
        let sink = brw.sink(req)?;
        let lock = self
            .lock_data(req, fid, brw.requests_lock().then_some(LockMode::Pr))
            .await?;
        let mut data = Vec::new();
        for range in brw.ranges() {
            let wanted = range.end - range.start;
            let pieces = self.store.file_data(fid, range.clone()).await?.read(range);
            let found: u64 = pieces.iter().map(|p| p.len() as u64).sum();
            data.extend(pieces);
            if found < wanted {
                break;
            }
        }
        drop(lock);
        let mut oa = brw.reply_oa();
        brw.put_checksum(&mut oa, &data);
        sink.reply(req, oa, data).await
    }

    /// `OST_PUNCH`: sets the size of the data, or makes a hole.
    pub(crate) async fn punch_data(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        if oa.o_valid & OBD_MD_FLSIZE == 0 || oa.o_valid & OBD_MD_FLBLOCKS == 0 || oa.o_size > oa.o_blocks {
            return Err(Errno::EPROTO);
        }
        let end = if oa.o_blocks == OBD_OBJECT_EOF {
            u64::MAX
        } else {
            oa.o_blocks
        };
        self.punch(req, oa, (oa.o_size, end)).await
    }

    /// `OST_FALLOCATE`: only holes, as in Lustre.
    pub(crate) async fn allocate_data(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        if oa.o_falloc_mode() != FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE {
            return Err(Errno::EOPNOTSUPP);
        }
        if oa.o_size >= oa.o_blocks {
            return Err(Errno::EINVAL);
        }
        // `u64::MAX` as the end would set the size.
        self.punch(req, oa, (oa.o_size, oa.o_blocks.min(u64::MAX - 1)))
            .await
    }

    async fn punch(&self, req: &ServerRequest, oa: Obdo, (start, end): (u64, u64)) -> HandlerResult {
        let fid = self.data_file(req, &oa.o_oi, Access::Write).await?;
        self.throttle().await;
        let _lock = self
            .lock_data(req, fid, requests_lock(&oa).then_some(LockMode::Pw))
            .await?;
        let set = obdo::to_data_change(&oa, precision(req), Transno::NONE);
        let (transno, attr) = self
            .change_data(req, fid, &DataChange::Punch(start, end), set)
            .await?;
        let mut reply = reply_oa(oa.o_oi);
        obdo::put(&mut reply, Some(&attr), precision(req));
        Ok(body_reply(reply).with_transno(transno))
    }

    /// `OST_SETATTR`: the times of the data.
    pub(crate) async fn set_data_times(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        let fid = self.data_file(req, &oa.o_oi, Access::Write).await?;
        let set = obdo::to_set_attr(&oa, precision(req));
        let (transno, attr) = self.change_data(req, fid, &DataChange::Times, set).await?;
        let mut reply = reply_oa(oa.o_oi);
        obdo::put(&mut reply, Some(&attr), precision(req));
        Ok(body_reply(reply).with_transno(transno))
    }

    /// `OST_GETATTR`: attributes and version of the data.
    pub(crate) async fn data_attributes(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        let fid = self.data_file(req, &oa.o_oi, Access::Read).await?;
        let _lock = self
            .lock_data(req, fid, requests_lock(&oa).then_some(LockMode::Pr))
            .await?;
        let attr = self.store.data_attr(fid).await?;
        let mut reply = reply_oa(oa.o_oi);
        obdo::put(&mut reply, attr.as_ref(), precision(req));
        obdo::put_version(&mut reply, attr.as_ref());
        Ok(body_reply(reply))
    }

    /// `OST_SEEK`: the offset of the next data or hole; `-ENXIO` as offset if there is none.
    pub(crate) async fn seek_data(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        let kind = match oa.o_mode {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let fid = self.data_file(req, &oa.o_oi, Access::Read).await?;
        let _lock = self
            .lock_data(req, fid, requests_lock(&oa).then_some(LockMode::Pr))
            .await?;
        let data = self.store.file_data(fid, 0..u64::MAX).await?;
        let none = i64::from(Errno::ENXIO.status()) as u64;
        Ok(body_reply(Obdo {
            o_mode: oa.o_mode,
            o_size: data.seek(oa.o_size, kind).unwrap_or(none),
            ..reply_oa(oa.o_oi)
        }))
    }

    /// `OST_SYNC`: the data of a file is on disk with all other changes.
    pub(crate) async fn sync_data(&self, req: &ServerRequest) -> HandlerResult {
        let oa = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        self.store.index().sync().await?;
        Ok(body_reply(reply_oa(oa.o_oi)))
    }
}
