//! Replies to requests that an earlier start of the target executed.
//!
//! The store keeps the transaction, the status and further results of the last change of each slot
//! of a client ([`rpc::KeptReply`]). The rest of a reply is attributes: the rebuilt reply has them
//! as they are now, and empty ones if the inode is gone. As by the first execution, the target
//! releases the handles that the client sends with the request.

use rpc::{KeptReply, Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, Fid, LDLM_ENQUEUE, MDS_CLOSE, MDS_HSM_STATE_SET, MDS_REINT, MDS_SWAP_LAYOUTS, MdtBody,
    MdtRecReint, Precision, REINT_CREATE, REINT_LINK, REINT_RENAME, REINT_RMENTRY, REINT_SETATTR,
    REINT_SETXATTR, REINT_UNLINK, WireStruct,
};

use crate::{
    body,
    target::{HandlerResult, Mdt, precision, reply},
};

impl Mdt {
    /// Rebuilds the reply to a request that was executed. Requests that change nothing are executed
    /// again; so is `MDS_RMFID` ([`crate::rmfid`]).
    pub(crate) async fn reconstruct_reply(
        &self,
        req: &mut ServerRequest,
        mut kept: KeptReply,
    ) -> HandlerResult {
        // A client relies on that a replay does not change the number of its request.
        kept.transno = self.replayed_transno(req).unwrap_or(kept.transno);
        let rebuilt = match req.opc {
            MDS_REINT => Some(self.rebuild_reint(req).await),
            MDS_CLOSE => Some(self.rebuild_close(req, kept.data).await),
            MDS_HSM_STATE_SET | MDS_SWAP_LAYOUTS => Some(Ok(Reply::default())),
            LDLM_ENQUEUE => match self.rebuild_open(req, &kept).await {
                // Its status says whether the client has a lock.
                Some(opened) => return opened,
                None => None,
            },
            _ => None,
        };
        match rebuilt {
            None => self.dispatch(req).await,
            Some(rebuilt) => {
                let mut reply = rebuilt?.with_status(kept.status).with_transno(kept.transno);
                reply.pre_versions = kept.pre_versions;
                Ok(reply)
            }
        }
    }

    async fn rebuild_reint(&self, req: &ServerRequest) -> HandlerResult {
        let rec: MdtRecReint = req.get(bufs::REC_REINT)?;
        self.release_handles_of_reint(req, &rec).await?;
        let (first, second) = (rec.rr_fid1, rec.rr_fid2);
        let attrs_of = async |fid: Fid, count: usize| {
            let body = self.current_body(req, fid).await;
            reply(count, [body.to_bytes()])
        };
        Ok(match rec.rr_opcode {
            REINT_SETATTR => attrs_of(first, 5).await,
            REINT_SETXATTR => attrs_of(Fid::ZERO, 1).await,
            REINT_CREATE => self.append_dir_attrs(req, first, attrs_of(second, 3).await).await,
            REINT_LINK => {
                let is_nacre_client = precision(req) == Precision::Nanoseconds;
                let file = if is_nacre_client { first } else { Fid::ZERO };
                self.append_dir_attrs(req, second, attrs_of(file, 1).await).await
            }
            REINT_UNLINK => self.append_dir_attrs(req, first, attrs_of(second, 5).await).await,
            REINT_RMENTRY => {
                self.append_dir_attrs(req, first, attrs_of(Fid::ZERO, 5).await)
                    .await
            }
            // The request does not name the inode that the rename replaced.
            REINT_RENAME => attrs_of(Fid::ZERO, 5).await,
            _ => return Err(Errno::ENOTSUPP),
        })
    }

    /// The attributes of an inode as they are now; empty if it does not exist.
    async fn current_body(&self, req: &ServerRequest, fid: Fid) -> MdtBody {
        match self.store.find(fid).await {
            Ok(Some(inode)) => body::basic_body(fid, &inode, precision(req)),
            _ => MdtBody::default(),
        }
    }
}
