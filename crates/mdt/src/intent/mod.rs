//! Enqueues with an intent: one request executes an operation and grants a lock on the operation's
//! inode (docs/protocol.md, "Metadata (MDS)" and "Locks (LDLM)").
//!
//! Disposition bits in `lock_policy_res1` state which steps were executed, and `lock_policy_res2`
//! is the status of the operation. A reply without a lock has the status `ELDLM_LOCK_ABORTED`, even
//! after success. The target grants the client's lock before it releases its own lock of the name:
//! the name cannot change between the lookup and the grant.

mod batch;
mod getattr;
mod getxattr;
mod layout;
mod open;
mod open_data;
mod replay;

pub(crate) use open_data::DataWithOpen;

use bytes::Bytes;
use ldlm::GrantedLock;
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    DISP_OPEN_CREATE, ELDLM_LOCK_ABORTED, Errno, HasTimes, IT_BRW, IT_CREAT, IT_GETATTR, IT_GETXATTR,
    IT_GLIMPSE, IT_LAYOUT, IT_LOOKUP, IT_OPEN, IT_READDIR, LDLM_FL_HAS_INTENT, LdlmReply, LdlmRequest,
    MdtBody, MdtRecCreate, OBD_MD_DOM_SIZE, OBD_MD_FLATIME, OBD_MD_FLCTIME, OBD_MD_FLMTIME, OstLvb, Transno,
    WireStruct,
};

use crate::target::{HandlerResult, Mdt};

// The supported intents.
const OPEN: u64 = IT_OPEN;
const OPEN_CREAT: u64 = IT_OPEN | IT_CREAT;
const GETATTR: u64 = IT_GETATTR;
const LOOKUP: u64 = IT_LOOKUP;
const LAYOUT: u64 = IT_LAYOUT;
const GETXATTR: u64 = IT_GETXATTR;
const READDIR: u64 = IT_READDIR;
const BRW: u64 = IT_BRW;
const GLIMPSE: u64 = IT_GLIMPSE;

/// The number of buffers in the reply to an open, after DLM_REP.
const OPEN_REPLY_BUFS: usize = 9;

/// The result of an intent.
#[derive(Debug, Default)]
struct IntentResult {
    /// Executed steps: `DISP_*`.
    disposition: u64,
    /// The error of the operation.
    errno: Option<Errno>,
    /// The granted lock, if any.
    lock: GrantedLock,
    /// The reply's buffers after DLM_REP.
    bufs: Vec<Bytes>,
    /// The transaction number of the change or open; 0 without one.
    transno: Transno,
    /// The versions of the inodes before the change (`pb_pre_versions`).
    pre_versions: [u64; 4],
}

impl IntentResult {
    /// Builds the reply: DLM_REP, and the `count` further buffers of the intent's reply format.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the operation ended because the client's connection did, for example when the
    /// target stops. As the result of the operation, programs would see this error. As the status
    /// of the request, it makes the client reconnect and send the request again.
    fn reply(mut self, count: usize) -> HandlerResult {
        if self.errno == Some(Errno::ENOTCONN) {
            return Err(Errno::ENOTCONN);
        }
        let mut rep = LdlmReply {
            lock_policy_res1: self.disposition,
            ..LdlmReply::default()
        };
        rep.set_intent_status(self.errno.map_or(0, Errno::status));
        if self.lock.is_some() {
            rep.lock_flags = LDLM_FL_HAS_INTENT as u32;
            self.lock.put_into(&mut rep);
        }
        self.bufs.resize(count, Bytes::new());
        self.bufs.insert(0, rep.to_bytes());
        let status = if self.lock.is_some() {
            0
        } else {
            ELDLM_LOCK_ABORTED as i32
        };
        let mut reply = Reply::new(self.bufs)
            .with_status(status)
            .with_transno(self.transno);
        reply.pre_versions = self.pre_versions;
        Ok(reply)
    }
}

impl Mdt {
    /// Executes `LDLM_ENQUEUE` with an intent.
    pub(crate) async fn execute_intent(&self, req: &mut ServerRequest) -> HandlerResult {
        let dlm: LdlmRequest = req.get(bufs::DLM_REQ)?;
        self.release_handles(req, &ldlm::handles_to_cancel(req.buf(bufs::DLM_REQ), 1))
            .await;
        let cookie = dlm.lock_handle[0];
        let opc = intent_opc(req).ok_or(Errno::EPROTO)?;
        match opc {
            OPEN | OPEN_CREAT => {
                let result = self.intent_open(req).await?;
                self.open_reply(req, result).await
            }
            GETATTR | LOOKUP => self.intent_getattr(req, cookie, opc).await?.reply(7),
            LAYOUT => self.intent_layout(req, cookie, &dlm).await?.reply(1),
            GETXATTR => self.intent_getxattr(req, cookie).await?.reply(6),
            // Equivalent to a plain enqueue of the directory's UPDATE bit.
            READDIR => self.locks.server().enqueue(req).await,
            BRW | GLIMPSE => {
                let glimpses = opc == GLIMPSE;
                let reply = self.locks.server().enqueue_or_glimpse(req, glimpses).await?;
                data_reply(reply)
            }
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// The reply to an open.
    async fn open_reply(&self, req: &ServerRequest, result: IntentResult) -> HandlerResult {
        let creates = result.disposition & DISP_OPEN_CREATE != 0;
        let reply = result.reply(OPEN_REPLY_BUFS)?;
        if !creates {
            return Ok(reply);
        }
        let parent = req.get::<MdtRecCreate>(bufs::OPEN_REC)?.cr_fid1;
        Ok(self.append_dir_attrs(req, parent, reply).await)
    }
}

/// The reply to a lock on data in the format of intents: Lustre's clients take the size and times
/// from the body. A queued lock's completion callback has a value block instead.
fn data_reply(mut reply: Reply) -> HandlerResult {
    let lvb = reply.bufs.get(1).map(|lvb| OstLvb::from_bytes(lvb));
    let mut body = MdtBody::default();
    if let Some(Ok(lvb)) = lvb {
        body.mbo_valid = OBD_MD_DOM_SIZE | OBD_MD_FLATIME | OBD_MD_FLMTIME | OBD_MD_FLCTIME;
        (body.mbo_dom_size, body.mbo_dom_blocks) = (lvb.lvb_size, lvb.lvb_blocks);
        body.set_times(lvb.times());
    }
    reply.bufs.truncate(1);
    reply.bufs.extend([body.to_bytes(), Bytes::new(), Bytes::new()]);
    Ok(reply)
}

/// The operation of an enqueue's intent.
fn intent_opc(req: &ServerRequest) -> Option<u64> {
    let opc = req.buf(bufs::INTENT).first_chunk::<8>()?;
    Some(u64::from_le_bytes(*opc))
}

#[cfg(test)]
mod tests {
    use super::IntentResult;
    use wire::{ELDLM_LOCK_ABORTED, Errno};

    #[test]
    fn end_of_the_connection_is_no_result_of_an_operation() {
        let ended_by = |errno| IntentResult {
            errno: Some(errno),
            ..IntentResult::default()
        };
        let failed = ended_by(Errno::EACCES).reply(7);
        assert_eq!(failed.map(|reply| reply.status), Ok(ELDLM_LOCK_ABORTED as i32));
        let disconnected = ended_by(Errno::ENOTCONN).reply(7);
        assert_eq!(disconnected.map(|reply| reply.status), Err(Errno::ENOTCONN));
    }
}
