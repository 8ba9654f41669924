//! `MDS_REINT`: changes of the name space or attributes, each one record and one transaction
//! (docs/protocol.md, "Metadata (MDS)").
//!
//! The client lists its own conflicting locks in `DLM_REQ` (ELC); the target cancels them first.
//! Then it takes the locks of the operation ([`crate::locks`]), executes the operation, and replies
//! with the transaction number before the change is on disk.

mod attr;
mod names;

use bytes::Bytes;
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, HasTime, MdtRecReint, REINT_CREATE, REINT_LINK, REINT_RENAME, REINT_RMENTRY, REINT_SETATTR,
    REINT_SETXATTR, REINT_UNLINK, Time, WireStruct,
};

use crate::{
    body,
    cred::Cred,
    namespace::ChangeResult,
    target::{HandlerResult, Mdt, precision, reply},
};

impl Mdt {
    /// Executes `MDS_REINT`.
    pub(crate) async fn reint(&self, req: &mut ServerRequest) -> HandlerResult {
        let rec: MdtRecReint = req.get(bufs::REC_REINT)?;
        self.release_handles_of_reint(req, &rec).await?;
        self.check_writable(req)?;
        self.throttle().await;
        let cred = self.effective_cred(req, claimed_cred(&rec));
        match rec.rr_opcode {
            REINT_SETATTR => self.reint_setattr(req, &cred).await,
            REINT_CREATE => self.reint_create(req, &cred).await,
            REINT_LINK => self.reint_link(req, &cred).await,
            REINT_UNLINK => self.reint_unlink(req, &cred).await,
            REINT_RMENTRY => self.reint_rm_entry(req, &cred).await,
            REINT_RENAME => self.reint_rename(req, &cred).await,
            _ => self.reint_setxattr(req, &cred).await,
        }
    }

    /// Releases the handles that a client sends with `MDS_REINT`. `ENOTSUPP` for an unknown
    /// operation.
    pub(crate) async fn release_handles_of_reint(
        &self,
        req: &ServerRequest,
        rec: &MdtRecReint,
    ) -> Result<(), Errno> {
        let dlm_req = match rec.rr_opcode {
            REINT_SETATTR => bufs::SETATTR_DLM_REQ,
            REINT_CREATE => bufs::CREATE_DLM_REQ,
            REINT_LINK => bufs::LINK_DLM_REQ,
            REINT_UNLINK | REINT_RMENTRY => bufs::UNLINK_DLM_REQ,
            REINT_RENAME => bufs::RENAME_DLM_REQ,
            REINT_SETXATTR => bufs::SETXATTR_DLM_REQ,
            _ => return Err(Errno::ENOTSUPP),
        };
        self.release_handles(req, &ldlm::handles_to_cancel(req.buf(dlm_req), 0))
            .await;
        Ok(())
    }
}

/// The identity that a record claims. A setattr record has only one supplementary group.
fn claimed_cred(rec: &MdtRecReint) -> Cred {
    let has_one_group = rec.rr_opcode == REINT_SETATTR;
    Cred {
        fsuid: rec.rr_fsuid,
        fsgid: rec.rr_fsgid,
        suppgids: [
            rec.rr_suppgid1,
            if has_one_group { u32::MAX } else { rec.rr_suppgid2 },
        ],
        cap: rec.rr_cap,
        umask: rec.rr_umask,
        is_replay: false,
    }
}

/// The time of a record, at the negotiated precision.
fn time_of(req: &ServerRequest, rec: &impl HasTime) -> Time {
    precision(req).of(rec.time())
}

/// The reply to a change: `count` buffers. The first one has the attributes of the change's inode
/// if `has_attrs`, otherwise an empty body.
fn change_reply(req: &ServerRequest, change: &ChangeResult, count: usize, has_attrs: bool) -> Reply {
    let body = if has_attrs {
        body::basic_body(change.fid, &change.inode, precision(req))
    } else {
        Default::default()
    };
    with_transaction(reply(count, [body.to_bytes()]), change)
}

/// The reply with the transaction number and the versions of a change.
fn with_transaction(mut reply: Reply, change: &ChangeResult) -> Reply {
    (reply.transno, reply.pre_versions) = (change.transno, change.pre_versions);
    reply
}

/// A string of a request, without its NUL.
fn without_nul(buf: &Bytes) -> Bytes {
    buf.slice(..wire::before_nul(buf).len())
}
