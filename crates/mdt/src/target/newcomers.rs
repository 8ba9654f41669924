//! Requests of new clients while clients of an earlier start recover (docs/protocol.md,
//! "Recovery").
//!
//! Locks claim their inodes themselves ([`ldlm::LockServer`]). This module has the rest: a request
//! waits first for the inodes that it names, because it reads them before it locks them. A request
//! of a kind that is not listed waits for the end of the recovery.

use rpc::{Access, Export, Holdings, Part, ServerRequest};
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, FLD_QUERY, Fid, LDLM_CANCEL, LDLM_CONVERT, LDLM_ENQUEUE, MDS_BATCH, MDS_CLOSE, MDS_GET_ROOT,
    MDS_GETATTR, MDS_GETXATTR, MDS_READPAGE, MDS_REINT, MDS_SET_INFO, MDS_STATFS, MDS_SYNC, MdtBody,
    MdtRecCreate, MdtRecReint, OST_FALLOCATE, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK, OST_SETATTR,
    OST_SYNC, OST_WRITE, OstBody, SEQ_QUERY,
};

use super::Mdt;

/// The part of the target that an inode is.
pub(crate) fn part_of(fid: Fid) -> Part {
    Part {
        group: fid.f_seq,
        member: fid.f_oid,
        is_new: false,
    }
}

/// The precondition of a request's handler.
enum Precondition {
    /// The state of these inodes is final.
    Inodes([Fid; 2]),
    /// The recovery has ended.
    Recovered,
}

impl Precondition {
    fn of(req: &ServerRequest) -> Result<Precondition, Errno> {
        Ok(match req.opc {
            MDS_GET_ROOT | MDS_STATFS | MDS_SYNC | MDS_SET_INFO | MDS_CLOSE | FLD_QUERY | SEQ_QUERY
            | LDLM_CANCEL | LDLM_CONVERT | MDS_BATCH => Precondition::Inodes([Fid::ZERO; 2]),
            MDS_GETATTR | MDS_GETXATTR | MDS_READPAGE => {
                Precondition::Inodes([req.get::<MdtBody>(bufs::MDT_BODY)?.mbo_fid1, Fid::ZERO])
            }
            MDS_REINT => {
                let rec: MdtRecReint = req.get(bufs::REC_REINT)?;
                Precondition::Inodes([rec.rr_fid1, rec.rr_fid2])
            }
            LDLM_ENQUEUE => Precondition::Inodes(fids_of_intent(req)),
            OST_READ | OST_WRITE | OST_PUNCH | OST_FALLOCATE | OST_SETATTR | OST_GETATTR | OST_SEEK => {
                let file = req.get::<OstBody>(bufs::OST_BODY)?.oa.o_oi.fid();
                Precondition::Inodes([file, Fid::ZERO])
            }
            OST_SYNC => Precondition::Inodes([Fid::ZERO; 2]),
            _ => Precondition::Recovered,
        })
    }
}

/// The inodes that an intent names, other than by the lock's resource.
fn fids_of_intent(req: &ServerRequest) -> [Fid; 2] {
    let is_open = req.buf(bufs::INTENT).first().is_some_and(|opc| opc & OPENS != 0);
    if is_open {
        let rec = req.msg.get::<MdtRecCreate>(bufs::OPEN_REC).ok();
        return rec.map_or([Fid::ZERO; 2], |rec| [rec.cr_fid1, rec.cr_fid2]);
    }
    let body = req.msg.get::<MdtBody>(bufs::INTENT_BODY).ok();
    body.map_or([Fid::ZERO; 2], |body| [body.mbo_fid1, body.mbo_fid2])
}

/// The bits of an intent's operation that open or create a file.
const OPENS: u8 = (wire::IT_OPEN | wire::IT_CREAT) as u8;

impl Mdt {
    /// Lets a request of a new client wait until the present state of the inodes that it names is
    /// final.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected, `EPROTO` if the request is malformed.
    pub(super) async fn wait_as_newcomer(&self, req: &ServerRequest) -> Result<(), Errno> {
        if !req.export.is_newcomer() {
            return Ok(());
        }
        match Precondition::of(req)? {
            Precondition::Recovered => req.export.wait_until_recovered().await,
            Precondition::Inodes(fids) => {
                for fid in fids.into_iter().filter(|fid| *fid != Fid::ZERO) {
                    req.export.wait_until_free(part_of(fid), Access::Read).await?;
                }
                Ok(())
            }
        }
    }

    /// The inodes that a client has locked or open.
    pub(super) fn holdings_of_client(&self, export: &Arc<Export>) -> Holdings {
        let mut holdings = self.locks.server().holdings_of(export);
        for file in self.handles(export).all() {
            let access = match file.mode.writes() {
                true => Access::Write,
                false => Access::Read,
            };
            holdings.add_part(&part_of(file.fid), access);
        }
        holdings
    }
}
