//! OST_READ and OST_WRITE: bulk transfer, checksums and grants (docs/protocol.md, "Data (OST)" and
//! "Bulk transfers").

use bytes::Bytes;
use ldlm::{LocalLock, LockMode, Policy};
use osd::{Extent, ExtentData, ObjAttr, OsdError, SetAttr, SpacePurpose, obdo};
use rpc::brw::{Brw, Span, write_reply};
use rpc::{Reply, ServerRequest};
use wire::{
    Errno, Fid, OBD_CONNECT_GRANT_PARAM, OBD_FL_SHRINK_GRANT, OBD_MD_FLBLOCKS, OBD_MD_FLFLAGS, OBD_MD_FLGRANT,
};

use crate::{
    Ost,
    grant::{ClientGrant, GrantReport, PendingGrant},
    object::precision,
    recovery, stats,
};

impl Ost {
    /// `OST_WRITE`: fetches and verifies the data, writes it, and grants more space.
    pub(crate) async fn write(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let mut brw = Brw::parse(&req.msg, self.brw_size_of(&req.export), self.offer.maxbytes)?;
        let replayed = self.replayed(req)?;
        if replayed.is_some() {
            // The client's grant no longer contains the space of this write.
            brw.mark_granted();
        }
        let fid = self.object_of_change(&brw.object.ioo_oid, replayed).await?;
        let data = brw.fetch(req).await?;
        let mut oa = brw.reply_oa();
        if let Some(sum) = brw.put_checksum(&mut oa, &data) {
            let (client, ty, expected, found) =
                (&req.export.client_uuid, brw.checksum, brw.oa.o_cksum(), sum);
            match replayed {
                _ if found == expected => {}
                // The client compares the sums and resends the data. Nothing is written.
                None => {
                    lnet::warn_rate_limited!(ost = %self.svname, client, %fid, ?ty, expected, found, "write refused: wrong checksum; the client resends the data");
                    return Ok(write_reply(oa, &vec![0; brw.spans.len()]));
                }
                // Nobody resends a replay. Lustre's client sends its pages as they are now, with
                // the checksum of the first attempt; later writes follow that made the difference.
                Some(_) => {
                    tracing::debug!(ost = %self.svname, client, %fid, ?ty, expected, found, "replayed data has another checksum");
                }
            }
        }
        let grant = self.grant_of(&req.export).filter(|_| replayed.is_none());
        let pending = grant.as_deref().map(|g| self.apply_grant_report(req, g, &brw));
        let _lock = self.take_requested_lock(req, &brw, LockMode::Pw).await?;
        let before = self
            .objects
            .attr(fid)
            .await
            .map_err(|e| self.store_error("read attributes", fid, &e))?;
        self.check_parent(req, replayed, &brw.oa, before.as_ref())?;
        // Fetching the data may take long. If the client was evicted meanwhile, its locks are gone
        // and nothing may be written.
        let change = req.export.change()?;
        let transaction = self.committer.begin(replayed).await;
        let transno = transaction.transno();
        let set = obdo::to_data_change(&brw.oa, precision(req), transno);
        let mut set = recovery::set_by(replayed, before.as_ref(), set);
        if self.has_later_time_change(req, fid) {
            set = set.without_times();
        }
        let (results, written) = self.write_spans(&brw, fid, data, before.as_ref(), set).await;
        self.committer
            .end_of_client(transaction, written, (fid, req.export.handle));
        drop(change);
        self.remove_if_destroyed(fid).await?;
        req.record(&[(stats::WRITE_BYTES, written)]);
        drop(pending);
        if brw.requests_sync() && written > 0 && replayed.is_none() {
            self.sync_object(fid).await?;
        }
        let after = self
            .objects
            .attr(fid)
            .await
            .map_err(|e| self.store_error("read attributes", fid, &e))?;
        obdo::put(&mut oa, after.as_ref(), precision(req));
        let status = results.iter().copied().find(|rc| *rc < 0).unwrap_or(0);
        // Clients ignore the grant in an error reply.
        if let Some(g) = grant.as_ref().filter(|_| status == 0) {
            let added = self.grow_grant(req, g, &brw).await;
            oa.o_valid |= OBD_MD_FLGRANT;
            oa.o_grant = added;
        }
        let reply = write_reply(oa, &results).with_status(status);
        Ok(if written > 0 {
            reply.with_transno(transno)
        } else {
            reply
        })
    }

    /// Writes each range. Returns the status of each range (0 or a negative errno), and the total
    /// bytes written.
    async fn write_spans(
        &self,
        brw: &Brw,
        fid: Fid,
        data: Vec<Bytes>,
        before: Option<&ObjAttr>,
        set: SetAttr,
    ) -> (Vec<i32>, u64) {
        let mut free = None;
        let mut results = vec![0; brw.spans.len()];
        // The ranges to write, with their positions in the results.
        let (mut extents, mut positions) = (Vec::with_capacity(brw.spans.len()), Vec::new());
        for (i, (span, data)) in brw.split(data).enumerate() {
            if !span.is_granted() && !overwrites(span, before) {
                let left = match free {
                    Some(left) => left,
                    None => self.grants.unreserved_bytes(self.space.avail_bytes()),
                };
                free = Some(left.saturating_sub(span.len.into()));
                if left < u64::from(span.len) {
                    results[i] = Errno::ENOSPC.status();
                    continue;
                }
            }
            // Another user of the disk may have filled the space reserved by the grant.
            let space = match span.is_granted() && !overwrites(span, before) {
                true => self.space.check(SpacePurpose::Granted),
                false => Ok(()),
            };
            if let Err(e) = space {
                results[i] = self.store_error("write", fid, &e).status();
                continue;
            }
            let offset = span.offset;
            extents.push(ExtentData { offset, data });
            positions.push(i);
        }
        if positions.is_empty() {
            return (results, 0);
        }
        let mut written = 0;
        match self.objects.write_extents(fid, extents, set).await {
            Ok(outcomes) => {
                for (i, outcome) in positions.into_iter().zip(outcomes) {
                    match outcome {
                        Ok(()) => written += u64::from(brw.spans[i].len),
                        Err(e) => results[i] = self.store_error("write", fid, &e).status(),
                    }
                }
            }
            Err(e) => {
                let status = self.store_error("write", fid, &e).status();
                positions.into_iter().for_each(|i| results[i] = status);
            }
        }
        (results, written)
    }

    /// `OST_READ`: reads the ranges and sends them, up to the end of the object.
    pub(crate) async fn read(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let brw = Brw::parse(&req.msg, self.brw_size_of(&req.export), u64::MAX)?;
        let fid = self.object(&brw.object.ioo_oid)?;
        if let Some(g) = self.grant_of(&req.export) {
            drop(self.apply_grant_report(req, &g, &brw));
        }
        let sink = brw.sink(req)?;
        let lock = self.take_requested_lock(req, &brw, LockMode::Pr).await?;
        let mut data = Vec::new();
        let mut bytes = 0u64;
        let extents = brw.spans.iter().map(|span| Extent {
            offset: span.offset,
            len: span.len,
        });
        let read = self.objects.read_extents(fid, extents.collect()).await;
        let read = read.map_err(|e| self.store_error("read", fid, &e))?;
        for (span, pieces) in brw.spans.iter().zip(read) {
            let found: u64 = pieces.iter().map(|p| p.len() as u64).sum();
            data.extend(pieces);
            bytes += found;
            if found < u64::from(span.len) {
                break;
            }
        }
        drop(lock);
        req.record(&[(stats::READ_BYTES, bytes)]);
        let mut oa = brw.reply_oa();
        oa.o_valid |= OBD_MD_FLGRANT;
        brw.put_checksum(&mut oa, &data);
        sink.reply(req, oa, data).await
    }

    /// Applies the client's grant report, if the request carries one. The used grant stays reserved
    /// until the result is dropped.
    fn apply_grant_report(
        &self,
        req: &ServerRequest,
        grant: &ClientGrant,
        brw: &Brw,
    ) -> Option<PendingGrant<'_>> {
        let oa = &brw.oa;
        let both = OBD_MD_FLBLOCKS | OBD_MD_FLGRANT;
        if oa.o_valid & both != both {
            return None;
        }
        if oa.o_valid & OBD_MD_FLFLAGS != 0 && oa.o_flags & OBD_FL_SHRINK_GRANT != 0 {
            self.grants.shrink(grant, oa.o_grant);
        }
        let is_write = req.opc == wire::OST_WRITE;
        let used_bytes = match req.export.has(OBD_CONNECT_GRANT_PARAM) {
            _ if !is_write => 0,
            true => oa.o_grant_used(),
            false => brw.page_bytes_from_grant(),
        };
        let report = GrantReport {
            dirty_bytes: oa.o_dirty(),
            dropped_bytes: oa.o_dropped().into(),
            used_bytes,
        };
        Some(self.grants.apply_report(grant, &report))
    }

    /// Grants more after a write, unless the client returns grant. Returns the added bytes.
    async fn grow_grant(&self, req: &ServerRequest, grant: &ClientGrant, brw: &Brw) -> u64 {
        let oa = &brw.oa;
        if oa.o_valid & OBD_MD_FLFLAGS != 0 && oa.o_flags & OBD_FL_SHRINK_GRANT != 0 {
            return 0;
        }
        // The free space belongs first to the clients that recover.
        if req.export.is_newcomer() {
            return 0;
        }
        let wanted = u64::from(oa.o_undirty()).saturating_add(oa.o_dirty());
        let chunk = self.offer.chunk_bytes(self.brw_size_of(&req.export));
        let free = self.space.avail_bytes();
        self.grants
            .grow(grant, wanted, chunk, 1 << self.offer.block_bits, free)
    }

    /// Takes the lock that the client requests (`SRVLOCK`). If the client requests none, it holds
    /// locks of its own: prolongs the timeouts of these locks.
    async fn take_requested_lock(
        &self,
        req: &ServerRequest,
        brw: &Brw,
        mode: LockMode,
    ) -> Result<Option<LocalLock>, Errno> {
        let res = brw.object.ioo_oid.res_id();
        if !brw.requests_lock() {
            self.locks.prolong(&req.export, res);
            return Ok(None);
        }
        let (start, end) = brw.extent();
        self.locks
            .lock(Some(&req.export), res, mode, Policy::extent(start, end))
            .await
            .map(Some)
    }

    /// The errno for the client after the store failed to do `what`, such as "read attributes".
    /// Logs the error, except for lack of space and missing objects. After an error of the disk,
    /// the MDT puts no new files on this OST.
    pub(crate) fn store_error(&self, what: &str, fid: Fid, e: &OsdError) -> Errno {
        self.space.note_error(e);
        match e {
            OsdError::NoSpace | OsdError::NotFound => {}
            e => tracing::error!(ost = %self.svname, %fid, "cannot {what}: {e}"),
        }
        e.errno()
    }
}

/// Whether the range needs no new space: it ends within the object, and the object has blocks for
/// its whole size.
fn overwrites(span: &Span, before: Option<&ObjAttr>) -> bool {
    before.is_some_and(|a| span.end() <= a.size && a.blocks * 512 >= a.size)
}
