//! Requests of MDTs: allocate sequences, precreate and destroy objects; and `OST_GET_INFO` and
//! `OST_SET_INFO` of MDTs and clients (docs/protocol.md, "Data (OST)").

use std::time::Duration;

use osd::Batch;
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, Fid, LuSeqRange, OBD_FL_DELORPHAN, OBD_MD_FLFLAGS, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLOBJCOUNT,
    OBD_MD_FLSIZE, OST_MAX_PRECREATE, Obdo, OstBody, OstId, SEQ_ALLOC_META, Transno, WireStruct,
};

use crate::{
    Ost, attr,
    sequence::{SEQ_WIDTH, plan_precreate},
};

/// Maximum time that an MDT's request for a sequence waits for the super-sequence.
const SUPER_SEQUENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Free space that precreation needs in addition to the reserve, bytes; with less it fails with
/// `ENOSPC`.
const CREATE_BYTES_MIN: u64 = 1 << 20;

impl Ost {
    /// `OST_CREATE`: precreates objects or, after an MDT has connected, destroys orphans.
    pub(crate) async fn create(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let request = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        let wanted = self.sequences.fid(&request.o_oi);
        let sequence = self.sequences.find(wanted.f_seq).ok_or_else(|| {
            lnet::warn_rate_limited!(ost = %self.svname, seq = wanted.f_seq, "OST_CREATE refused: the sequence was not allocated by this target");
            Errno::EINVAL
        })?;
        if u64::from(wanted.f_oid) > SEQ_WIDTH {
            return Err(Errno::ENOSPC);
        }
        // A replay must not destroy: files may use objects created since the original request.
        let destroys_orphans = request.o_valid & OBD_MD_FLFLAGS != 0
            && request.o_flags & OBD_FL_DELORPHAN != 0
            && !req.is_replay();
        let _create = sequence.create_lock.lock().await;
        let last = sequence.last();
        let plan = plan_precreate(last, wanted.f_oid.into(), destroys_orphans);
        if plan.last > last && !destroys_orphans && self.space.avail_bytes() < CREATE_BYTES_MIN {
            return Err(Errno::ENOSPC);
        }
        let transaction = self.committer.begin(None).await;
        let transno = transaction.transno();
        if let Some(above) = plan.destroy_above {
            self.tombstones.add_range(wanted.f_seq, above + 1, last);
        }
        let result = async {
            for oid in plan.destroy_above.map_or(0..0, |above| above + 1..last + 1) {
                self.objects
                    .destroy(Fid::new(wanted.f_seq, oid as u32, 0))
                    .await?;
            }
            let mut batch = Batch::new();
            self.sequences.set_last(&sequence, plan.last, &mut batch);
            self.index.apply(batch)
        };
        let result = result.await;
        self.committer.end(transaction, 0);
        result.map_err(|e| self.store_error("create objects", wanted, &e))?;
        if destroys_orphans {
            // The MDT of the sequence uses no object above `plan.last`, so all objects of earlier
            // runs are known now.
            sequence.confirm_up_to(plan.last);
        }
        if let Some(mdt) = mgc::mdt_index_of(&self.fsname, &req.export.client_uuid) {
            let config = self.config.borrow().clone();
            self.sequences
                .mark_in_use(&sequence, mdt, config.mdts.iter().map(|t| t.index));
        }
        let oa = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLSIZE,
            o_oi: OstId::from(Fid::new(wanted.f_seq, plan.report as u32, 0)),
            o_size: SEQ_WIDTH,
            ..Obdo::default()
        };
        Ok(Reply::new(vec![OstBody { oa }.to_bytes()]).with_transno(transno))
    }

    /// `OST_DESTROY`: revokes the locks of the objects, so that clients drop cached data, and
    /// destroys them.
    pub(crate) async fn destroy(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let request = req.get::<OstBody>(bufs::OST_BODY)?.oa;
        self.locks.cancel(
            &req.export,
            &ldlm::handles_to_cancel(req.buf(bufs::DESTROY_DLM_REQ), 0),
        );
        let count = if request.o_valid & OBD_MD_FLOBJCOUNT != 0 {
            request.o_misc
        } else {
            1
        };
        if count > OST_MAX_PRECREATE {
            return Err(Errno::EINVAL);
        }
        let first = self.sequences.fid(&request.o_oi);
        if !self.sequences.is_created(&first) {
            return Err(Errno::ENOENT);
        }
        let mut transno = Transno::NONE;
        for oid in (first.f_oid..).take(count as usize) {
            let fid = Fid::new(first.f_seq, oid, 0);
            if !self.sequences.is_created(&fid) {
                break;
            }
            let client = Some(&*req.export);
            let _lock = self.locks.lock_to_destroy(client, fid.res_id()).await?;
            self.tombstones.add(fid);
            transno = self
                .change(req, None, fid, "destroy", async |_| {
                    match attr::cached(&*self.objects, &self.sequences, fid) {
                        // Never written: the store has nothing to remove.
                        osd::CachedAttr::Absent => Ok(()),
                        _ => self.objects.destroy(fid).await.map(drop),
                    }
                })
                .await?;
        }
        let oa = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
            o_oi: request.o_oi,
            ..Obdo::default()
        };
        Ok(Reply::new(vec![OstBody { oa }.to_bytes()]).with_transno(transno))
    }

    /// `OST_GET_INFO`: the extents of an object, the file of an object, or the last object of a
    /// sequence.
    pub(crate) async fn get_info(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        match wire::before_nul(req.buf(bufs::GET_INFO_KEY)) {
            b"fiemap" => self.fiemap(req).await,
            b"last_fid" => {
                let request: Fid = req.get(bufs::LAST_FID)?;
                let last = self.sequences.find(request.f_seq).map_or(0, |s| s.last());
                Ok(Reply::new(vec![
                    Fid::new(request.f_seq, last as u32, 0).to_bytes(),
                ]))
            }
            b"last_id" => {
                let idif = self.sequences.fid(&OstId::default());
                let last = self.sequences.find(idif.f_seq).map_or(0, |s| s.last());
                Ok(Reply::new(vec![last.to_le_bytes().to_vec().into()]))
            }
            b"fid2path" => self.fid2path(req).await,
            key => {
                tracing::debug!(key = %String::from_utf8_lossy(key), "OST_GET_INFO refused: unknown key");
                Err(Errno::EOPNOTSUPP)
            }
        }
    }

    /// `OST_SET_INFO`: takes back grant that a client returns; accepts two hints that need no
    /// action.
    pub(crate) fn set_info(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        match wire::before_nul(req.buf(bufs::SET_INFO_KEY)) {
            b"grant_shrink" => {
                let mut body = req.get::<OstBody>(bufs::GRANT_BODY)?;
                if let Some(grant) = self.grant_of(&req.export) {
                    self.grants.shrink(&grant, body.oa.o_grant);
                }
                body.oa.o_grant = 0;
                Ok(Reply::new(vec![body.to_bytes()]))
            }
            b"checksum" | b"mds_conn" => Ok(Reply::status(0)),
            key => {
                tracing::debug!(key = %String::from_utf8_lossy(key), "OST_SET_INFO refused: unknown key");
                Err(Errno::EINVAL)
            }
        }
    }

    /// `SEQ_QUERY`: allocates a sequence to an MDT, for the objects that it creates here.
    pub(crate) async fn seq_query(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let opc = req.buf(bufs::QUERY_OPC).first_chunk::<4>().ok_or(Errno::EPROTO)?;
        let request: LuSeqRange = req.get(bufs::QUERY_RANGE)?;
        if u32::from_le_bytes(*opc) != SEQ_ALLOC_META {
            return Err(Errno::EINVAL);
        }
        // At a file system's first start the target waits for MDT0, and the MDTs wait for the
        // target. Waiting here avoids the MDTs' retries.
        if !self.sequences.wait_for_range(SUPER_SEQUENCE_TIMEOUT).await {
            return Err(Errno::EINPROGRESS);
        }
        let allocated = self.sequences.allocate(request.lsr_index).await;
        let allocated = allocated.map_err(|e| self.store_error("allocate a sequence", Fid::ZERO, &e))?;
        allocated
            .map(|range| Reply::new(vec![range.to_bytes()]))
            .ok_or(Errno::ENOSPC)
    }
}
