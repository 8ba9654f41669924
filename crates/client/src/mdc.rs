//! The connection to one metadata target: requests, intents with their locks, FID allocation.

mod changes;
mod replay;

pub(crate) use changes::NameChange;
pub(crate) use replay::replay_mkdir;

use crate::attr::{MdAttr, parse_default};
use crate::data::OpenedData;
use crate::deferred_closes::DeferredCloses;
use crate::fidgen::FidGen;
use crate::inode::{ChangeStamp, Inodes, OpenDenyGuard};
use crate::kernel::Kernel;
use crate::ops::Flocks;
use bytes::Bytes;
use ldlm::{Enqueue, EnqueueReply, Intent, LockClient, LockMode, LockRef, Policy};
use rpc::{EditReplay, Import, ImportState, ReplyMsg, Request, RpcError};
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, Errno, Fid, IT_LAYOUT, LockTerms, LuSeqRange,
    MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MDS_REINT, MdtBody, OBD_CONNECT2_BATCH_RPC,
    OBD_MD_DEFAULT_MEA, OBD_MD_MDS, Precision, RenameFlags, SEQ_ALLOC_META, SEQ_QUERY, WireStruct,
};

/// Reply space in bytes: a layout with a moderate stripe count, an ACL and the fixed parts.
const REPLY_LEN: u32 = 8192;

/// Reply space in bytes for each intent of a batch: enough for a short layout. A longer reply uses
/// the space that the other replies of the batch leave free.
const BATCHED_REPLY_LEN: u32 = 768;

/// One metadata target.
pub(crate) struct Mdc {
    pub(crate) index: u32,
    pub(crate) import: Arc<Import>,
    pub(crate) locks: Arc<LockClient>,
    inodes: Arc<Inodes>,
    kernel: Kernel,
    pub(crate) closes: DeferredCloses,
    pub(crate) flocks: Flocks,
    /// Unused FIDs. Stays locked during a request for more sequences, so one request serves all
    /// waiting callers.
    fids: tokio::sync::Mutex<FidGen>,
}

/// An intent: an operation sent with a lock request.
pub(crate) struct IntentRequest {
    /// The file to lock. The server may instead return a lock on the file that the operation found.
    pub(crate) res: Fid,
    pub(crate) mode: LockMode,
    /// `MDS_INODELOCK_*`.
    pub(crate) bits: u64,
    /// `IT_*`.
    pub(crate) opc: u64,
    /// The buffers of the operation.
    pub(crate) bufs: Vec<Bytes>,
    /// The client's own locks to cancel, and files to close, with the request (early lock cancel).
    pub(crate) elc: Elc,
    /// Reply space in bytes beyond [`REPLY_LEN`].
    pub(crate) reply_len: u32,
    /// Whether the operation opens a file: the import then keeps the request until the close.
    pub(crate) opens: bool,
}

impl IntentRequest {
    /// An intent on `res` that opens no file.
    pub(crate) fn new(res: Fid, mode: LockMode, bits: u64, opc: u64, bufs: Vec<Bytes>) -> IntentRequest {
        IntentRequest {
            res,
            mode,
            bits,
            opc,
            bufs,
            elc: Elc::default(),
            reply_len: 0,
            opens: false,
        }
    }
}

/// Early lock cancel: the server's handles of this client's locks that the operation would revoke,
/// and of files to close. The value lives until the reply, which confirms the cancellations and
/// closes.
#[derive(Default)]
pub(crate) struct Elc {
    handles: Vec<u64>,
    _deny_guards: Vec<OpenDenyGuard>,
}

impl std::ops::Deref for Elc {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.handles
    }
}

/// The answer to a modifying request.
#[expect(
    clippy::large_enum_variant,
    reason = "almost all answers are the large variant"
)]
pub(crate) enum Reint {
    /// The target has executed it.
    Done(ReplyMsg),
    /// The target that has this file must execute it.
    Elsewhere(Fid),
}

impl Reint {
    /// The reply of a target that always executes such requests. `EREMOTE`: it did not.
    pub(crate) fn done(self) -> Result<ReplyMsg, Errno> {
        match self {
            Reint::Done(reply) => Ok(reply),
            Reint::Elsewhere(_) => Err(Errno::EREMOTE),
        }
    }
}

/// The reply to an intent.
pub(crate) struct IntentReply {
    /// `DISP_*`.
    pub(crate) disposition: u64,
    /// The status of the operation.
    pub(crate) status: Result<(), Errno>,
    pub(crate) body: MdtBody,
    /// The precision of the times in the body.
    precision: Precision,
    /// The stamp of the mount's last change of names before the request was sent.
    pub(crate) sent_at: ChangeStamp,
    /// The granted lock, if any.
    pub(crate) lock: Option<LockRef>,
    pub(crate) reply: ReplyMsg,
}

impl IntentReply {
    /// Whether the lookup found no such name.
    pub(crate) fn is_negative(&self) -> bool {
        self.disposition & DISP_LOOKUP_NEG != 0
    }

    /// Whether the name to create already existed.
    fn name_existed(&self) -> bool {
        self.disposition & DISP_LOOKUP_POS != 0 && !self.created_file()
    }

    /// Whether the open found no such name. A successful open has then created the file.
    pub(crate) fn created_file(&self) -> bool {
        self.disposition & (DISP_OPEN_CREATE | DISP_LOOKUP_NEG) != 0
    }

    /// Whether another metadata target has the found file: the reply has only its FID.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.body.mbo_valid & OBD_MD_MDS != 0
    }

    /// The size of data on the target, if the lock covers the data.
    pub(crate) fn locked_data(&self) -> Option<OpenedData<'_>> {
        OpenedData::parse(self.lock.as_ref()?, &self.body, &[])
    }

    /// As [`IntentReply::locked_data`], with the bytes in the reply to an open.
    pub(crate) fn opened_data(&self) -> Option<OpenedData<'_>> {
        let buf = self.reply.buf(bufs::OPEN_REPLY_DATA);
        OpenedData::parse(self.lock.as_ref()?, &self.body, buf)
    }

    /// The attributes in the reply to a getattr or open intent: body, layouts, ACL.
    pub(crate) fn md(&self) -> MdAttr {
        let mut md = MdAttr::from_reply(
            &self.body,
            &self.reply.bytes(bufs::INTENT_REPLY_MD),
            &self.reply.bytes(bufs::INTENT_REPLY_ACL),
            self.precision,
        );
        if self.body.mbo_valid & OBD_MD_DEFAULT_MEA != 0 {
            md.default_dir_layout = parse_default(self.reply.buf(bufs::INTENT_REPLY_DEFAULT_MD));
        }
        md
    }
}

/// The lock request of an intent, and the state to keep until its reply.
fn build_enqueue(intent: IntentRequest) -> (Enqueue, Elc) {
    let mut enqueue = Enqueue::new(intent.res.res_id(), intent.mode, Policy::ibits(intent.bits));
    enqueue.intent = Some(Intent {
        opc: intent.opc,
        bufs: intent.bufs,
    });
    enqueue.elc = intent.elc.to_vec();
    enqueue.request.reply_len = REPLY_LEN + intent.reply_len;
    // A layout intent for an EX lock creates objects.
    enqueue.request.modifies = intent.opens || (intent.opc == IT_LAYOUT && intent.mode == LockMode::Ex);
    enqueue.request.keep_until_closed = intent.opens;
    enqueue.request.edit_replay = intent.opens.then_some(replay::replay_open);
    (enqueue, intent.elc)
}

impl Mdc {
    pub(crate) fn new(
        index: u32,
        import: Arc<Import>,
        locks: Arc<LockClient>,
        (inodes, kernel): (Arc<Inodes>, Kernel),
    ) -> Mdc {
        Mdc {
            index,
            import,
            locks,
            inodes,
            kernel,
            closes: DeferredCloses::default(),
            flocks: Flocks::default(),
            fids: tokio::sync::Mutex::default(),
        }
    }

    /// The precision of times agreed with the target.
    pub(crate) fn precision(&self) -> Precision {
        self.import.precision()
    }

    /// The lock terms agreed with the target.
    pub(crate) fn lock_terms(&self) -> LockTerms {
        self.import.lock_terms()
    }

    /// Allocates a FID for a new file on this target; requests more sequences if necessary.
    pub(crate) async fn new_fid(&self) -> Result<Fid, Errno> {
        let mut fids = self.fids.lock().await;
        if let Some(fid) = fids.next() {
            return Ok(fid);
        }
        let op = Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes());
        let req = Request::new(SEQ_QUERY, vec![op, LuSeqRange::default().to_bytes()]);
        let range: LuSeqRange = self.import.call(req).await?.get(bufs::QUERY_REPLY_RANGE)?;
        fids.refill(range);
        fids.next().ok_or(Errno::EPROTO)
    }

    /// Whether the target can answer requests now.
    pub(crate) fn is_connected(&self) -> bool {
        self.import.state() == ImportState::Full
    }

    /// Sends a modifying request (`REINT_*`). It runs to its end even if the caller stops waiting:
    /// its modify slot stays in use until the target answers.
    pub(crate) async fn reint(&self, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        self.reint_request(bufs, None).await?.done()
    }

    /// As [`Mdc::reint`], for requests that another target may have to execute. `edit_replay` makes
    /// the request's replay from its reply.
    async fn reint_request(&self, bufs: Vec<Bytes>, edit_replay: Option<EditReplay>) -> Result<Reint, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            return_error_replies: true,
            edit_replay,
            ..Request::modifying(MDS_REINT, bufs)
        };
        let import = self.import.clone();
        let reply = cpt::detach_on_drop(async move { import.call(req).await }).await?;
        match Errno::from_status(reply.status) {
            None => Ok(Reint::Done(reply)),
            Some(errno @ (Errno::EREMOTE | Errno::EXDEV)) => match reply.get::<MdtBody>(bufs::MDT_BODY) {
                Ok(body) if body.mbo_valid & OBD_MD_MDS != 0 => Ok(Reint::Elsewhere(body.mbo_fid1)),
                _ => Err(errno),
            },
            Some(errno) => Err(RpcError::Status(errno).into()),
        }
    }

    /// Sends a request that modifies nothing.
    pub(crate) async fn call(&self, opc: u32, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// Sends a request that modifies nothing, with `len` bytes of reply space beyond [`REPLY_LEN`].
    pub(crate) async fn call_large(&self, opc: u32, bufs: Vec<Bytes>, len: u32) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN + len,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// As [`Mdc::call_large`], but a reply with an error status is returned too.
    pub(crate) async fn call_for_status(
        &self,
        opc: u32,
        bufs: Vec<Bytes>,
        len: u32,
    ) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN + len,
            return_error_replies: true,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// Whether the target has agreed to accept flags of renames.
    pub(crate) fn accepts_rename_flags(&self) -> bool {
        RenameFlags::agreed(&self.import.connect_data())
    }

    /// Whether the target supports batches of intents in one request.
    pub(crate) fn supports_batches(&self) -> bool {
        self.import.has2(OBD_CONNECT2_BATCH_RPC)
    }

    /// Sends many lookups in one request. The server answers each without waiting for a lock.
    pub(crate) async fn intents(
        &self,
        lookups: Vec<IntentRequest>,
    ) -> Result<Vec<Result<IntentReply, Errno>>, Errno> {
        let mut enqueues = Vec::with_capacity(lookups.len());
        for intent in lookups {
            let (mut enqueue, _) = build_enqueue(intent);
            enqueue.request.reply_len = BATCHED_REPLY_LEN;
            enqueues.push(enqueue);
        }
        let sent_at = self.inodes.change_stamp();
        let replies = self.locks.enqueue_batch(enqueues).await?;
        let replies = replies.into_iter().map(|reply| self.parse_reply(reply?, sent_at));
        Ok(replies.collect())
    }

    /// Sends an intent and waits for its reply.
    pub(crate) async fn intent(&self, intent: IntentRequest) -> Result<IntentReply, Errno> {
        let (enqueue, _elc_until_reply) = build_enqueue(intent);
        let sent_at = self.inodes.change_stamp();
        let reply = self.locks.enqueue(enqueue).await?;
        self.parse_reply(reply, sent_at)
    }

    fn parse_reply(&self, reply: EnqueueReply, sent_at: ChangeStamp) -> Result<IntentReply, Errno> {
        let body = if reply.msg.buf(bufs::INTENT_REPLY_BODY).len() >= MdtBody::SIZE {
            reply.msg.get(bufs::INTENT_REPLY_BODY)?
        } else {
            MdtBody::default()
        };
        let status = Errno::from_status(reply.rep.lock_policy_res2 as i32).map_or(Ok(()), Err);
        Ok(IntentReply {
            disposition: reply.rep.lock_policy_res1,
            status,
            body,
            precision: self.precision(),
            sent_at,
            lock: reply.lock,
            reply: reply.msg,
        })
    }

    /// A granted lock on a file with at least these bits, if the client holds one.
    pub(crate) fn find(&self, fid: Fid, mode: LockMode, bits: u64) -> Option<LockRef> {
        self.locks.find(&fid.res_id(), mode, Policy::ibits(bits))
    }

    /// Whether such a lock is cached at this moment.
    pub(crate) fn has_lock(&self, fid: Fid, mode: LockMode, bits: u64) -> bool {
        self.locks.has(&fid.res_id(), mode, Policy::ibits(bits))
    }

    /// Collects the client's own locks that an operation would revoke; the request carries their
    /// handles. Locks on the changed directories `dirs` are included only on Lustre's lock terms.
    /// Adds deferred closes, first the closes of `files`. Names that the operation does not touch
    /// stay cached: to remove them, the client would have to invalidate them in the kernel first,
    /// and the kernel may hold their directory.
    pub(crate) fn elc(&self, dirs: &[Fid], files: &[(Fid, u64)]) -> Elc {
        let own_locks = |(fid, bits): (Fid, u64)| {
            // A file that loses a name loses its locks with all their bits.
            let whole = bits & MDS_INODELOCK_LOOKUP != 0;
            self.locks.elc(&fid.res_id(), bits, whole)
        };
        let dirs = match self.lock_terms() {
            LockTerms::Lustre => dirs,
            LockTerms::Nacre => &[],
        };
        let mut elc = Elc::default();
        let locks = dirs
            .iter()
            .map(|dir| (*dir, MDS_INODELOCK_UPDATE))
            .chain(files.iter().copied())
            .filter(|(fid, bits)| !fid.is_zero() && *bits != 0)
            .flat_map(own_locks);
        elc.handles.extend(locks);
        let closing = self
            .closes
            .take_for_request(|fid| files.iter().any(|(file, _)| *file == fid));
        for close in closing {
            elc.handles.push(close.handle);
            elc._deny_guards.extend(close.deny_guard);
        }
        elc
    }

    /// Cancels the client's own unused locks with any of `bits` on a file, because a request to
    /// another target will revoke them. The client sends the cancels later.
    pub(crate) fn cancel_early(&self, fid: Fid, bits: u64) {
        // A file that loses a name loses its locks with all their bits.
        let whole = bits & MDS_INODELOCK_LOOKUP != 0;
        self.locks.cancel_early(&fid.res_id(), bits, whole);
    }
}
