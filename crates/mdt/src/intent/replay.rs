//! Opens after a restart: replays, and resent opens that an earlier start executed.
//!
//! A client replays each open that the crash may have undone, and each open of a file that it still
//! has open. A replay names the file by its FID (`cr_fid2`), whatever the name leads to now. It has
//! the file's layout, and the cookie of the handle (`cr_open_handle_old`), which the new handle
//! keeps: further replays name it. No lock is granted: the client replays its locks separately.

use bytes::Bytes;
use rpc::{KeptReply, ServerRequest};
use wire::format::bufs;
use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, DISP_OPEN_LEASE,
    Errno, Fid, MDS_OPEN_CREAT, MdtBody, MdtRecCreate, WireStruct,
};

use super::{IntentResult, OPEN, OPEN_CREAT, intent_opc, open::OpenRequest};
use crate::{
    layout,
    namespace::{self, Resolved},
    target::{HandlerResult, Mdt},
};

/// The file that an open by FID, or a replayed open, names.
fn file_of(rec: &MdtRecCreate) -> Fid {
    match rec.cr_fid2 {
        Fid::ZERO => rec.cr_fid1,
        fid => fid,
    }
}

impl Mdt {
    /// Executes a replayed open: opens the file by its FID, or creates it again if it is missing.
    pub(super) async fn replay_open(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        out: &mut IntentResult,
    ) -> Result<(), Errno> {
        self.throttle().await;
        out.disposition |= DISP_LOOKUP_EXECD;
        let fid = file_of(&request.rec);
        let transno = self.replayed_transno(req);
        match self.store.find(fid).await? {
            Some(inode) => {
                out.disposition |= DISP_LOOKUP_POS;
                if inode.is_file() && inode.lov.is_empty() {
                    self.replay_layout(req, request, fid, out.disposition).await?;
                }
            }
            None if request.flags.has(MDS_OPEN_CREAT) => {
                let disposition = out.disposition | DISP_LOOKUP_NEG | DISP_OPEN_CREATE;
                let unused = self.check_new_file(req, request).await?;
                let (parent, cred) = (request.rec.cr_fid1, &request.cred);
                let mut resolved = Resolved::read(&self.store, cred, parent, &request.name).await?;
                if request.is_volatile() {
                    resolved.entry = None;
                }
                let node = request.new_file(self.replayed_layout(request)?);
                let change = self
                    .make_file(req, request, &node, resolved, unused, disposition)
                    .await?;
                (out.disposition, out.pre_versions) = (disposition, change.pre_versions);
            }
            None => {
                out.disposition |= DISP_LOOKUP_NEG;
                return Err(Errno::ENOENT);
            }
        }
        let inode = self.store.inode(fid).await?;
        let handle = self
            .open_handle(req, request, (fid, &inode), transno, out)
            .await?;
        if request.flags.is_lease() {
            out.disposition |= DISP_OPEN_LEASE;
        }
        self.put_opened(req, (fid, request.flags), handle, out).await
    }

    /// The layout of a file that a client creates again; empty if the file had none. The MDT
    /// allocates no objects for a replay.
    fn replayed_layout(&self, request: &OpenRequest) -> Result<Bytes, Errno> {
        let lov = request.known_layout.clone().unwrap_or_default();
        for object in layout::objects(&lov)? {
            self.osts.readopt(object).inspect_err(|e| {
                lnet::warn_rate_limited!(file = %request.rec.cr_fid2, object = %object.fid, "replay refused: the object cannot belong to the file: {e}");
            })?;
        }
        Ok(lov)
    }

    /// Sets the layout again that the first execution of an open set on an existing file.
    async fn replay_layout(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        file: Fid,
        disposition: u64,
    ) -> Result<(), Errno> {
        let lov = self.replayed_layout(request)?;
        if lov.is_empty() {
            return Ok(());
        }
        let store = self.request_store(req).with_data(disposition);
        namespace::set_layout(store, file, lov).await?;
        Ok(())
    }

    /// Rebuilds the reply to an open that an earlier start executed; `None` if the request is no
    /// open. Opens the file again, but creates nothing.
    pub(crate) async fn rebuild_open(&self, req: &ServerRequest, kept: &KeptReply) -> Option<HandlerResult> {
        let opc = intent_opc(req)?;
        match opc {
            OPEN | OPEN_CREAT => Some(self.open_again(req, kept).await),
            _ => None,
        }
    }

    async fn open_again(&self, req: &ServerRequest, kept: &KeptReply) -> HandlerResult {
        self.release_handles(req, &ldlm::handles_to_cancel(req.buf(bufs::DLM_REQ), 1))
            .await;
        let mut request = OpenRequest::parse(self, req)?;
        // The first execution checked the permissions, but the client may now name another file.
        request.cred.is_replay = self.trusts(req);
        let disposition = match kept.data {
            // The record belongs to a later request of the slot.
            0 => DISP_IT_EXECD | DISP_LOOKUP_EXECD | DISP_LOOKUP_POS,
            disposition => disposition,
        };
        let mut out = IntentResult {
            disposition,
            bufs: vec![MdtBody::default().to_bytes()],
            ..IntentResult::default()
        };
        let opened = async {
            let fid = self.opened_file(&request, kept).await?;
            let inode = self.store.inode(fid).await?;
            request.cred.is_replay |= inode.uid == request.cred.fsuid;
            let opened = (fid, &inode);
            let handle = self
                .open_handle(req, &request, opened, Some(kept.transno), &mut out)
                .await?;
            self.put_opened(req, (fid, request.flags), handle, &mut out).await
        };
        let opened = opened.await;
        out.errno = opened.err();
        (out.transno, out.pre_versions) = (kept.transno, kept.pre_versions);
        self.open_reply(req, out).await
    }

    /// The file of an open that was executed.
    async fn opened_file(&self, request: &OpenRequest, kept: &KeptReply) -> Result<Fid, Errno> {
        let rec = &request.rec;
        // A client names a new file in each open that may create. If the file existed, the reply
        // told the client its FID, which a replay has. A resent request does not have it.
        let is_named = kept.data & DISP_LOOKUP_POS != 0 && !request.opens_by_fid();
        if !is_named || self.store.find(rec.cr_fid2).await?.is_some() {
            return Ok(file_of(rec));
        }
        let entry = namespace::lookup(&self.store, &request.cred, rec.cr_fid1, &request.name).await?;
        Ok(entry.ok_or(Errno::ENOENT)?.fid)
    }
}
