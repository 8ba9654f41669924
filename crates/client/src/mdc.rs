//! The connection to one metadata target: requests, intents with their locks, FID allocation.

mod replay;

use crate::attr::MdAttr;
use crate::cred::Cred;
use crate::deferred_closes::DeferredCloses;
use crate::fidgen::FidGen;
use crate::inode::{ATTR_BITS, ChangeStamp, DirChange, Inodes, OpenDenyGuard};
use crate::kernel::Kernel;
use crate::ops::Flocks;
use bytes::Bytes;
use ldlm::{Enqueue, EnqueueReply, Intent, LockClient, LockMode, LockRef, Policy};
use rpc::{Import, ReplyMsg, Request};
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, Errno, Fid, IT_LAYOUT, LockTerms, LuSeqRange,
    MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MDS_REINT, MdtBody, OBD_CONNECT2_BATCH_RPC, Precision,
    RenameFlags, SEQ_ALLOC_META, SEQ_QUERY, WireStruct,
};

/// Reply space in bytes: a layout with a moderate stripe count, an ACL and the fixed parts.
const REPLY_LEN: u32 = 8192;
/// Index of the buffer with the directory's attributes, in the reply to an open that created a
/// name.
const OPEN_REPLY_PARENT_ATTR: usize = 11;

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

    /// The attributes in the reply to a getattr or open intent: body, layout, ACL.
    pub(crate) fn md(&self) -> MdAttr {
        MdAttr::from_reply(
            &self.body,
            &self.reply.bytes(bufs::INTENT_REPLY_MD),
            &self.reply.bytes(bufs::INTENT_REPLY_ACL),
            self.precision,
        )
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

    /// Sends a modifying request (`REINT_*`). It runs to its end even if the caller stops waiting:
    /// its modify slot stays in use until the target answers.
    pub(crate) async fn reint(&self, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            ..Request::modifying(MDS_REINT, bufs)
        };
        let import = self.import.clone();
        Ok(cpt::detach_on_drop(async move { import.call(req).await }).await?)
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

    /// Begins a change of names in a directory. `new_name` is a name that the change creates.
    pub(crate) fn begin_change(&self, cred: &Cred, dir: Fid, new_name: Option<&[u8]>) -> DirChange {
        let attr_lock = self.find(dir, LockMode::Pr, ATTR_BITS);
        let cookie = attr_lock.map(|lock| lock.info().cookie);
        self.inodes.begin_change((dir, cred.pid), new_name, cookie)
    }

    /// Sends the request for these changes (`REINT_*`). The request runs to its end even if the
    /// caller stops waiting. `attr_index`: index of the reply's buffer with the directory's
    /// attributes, if any.
    pub(crate) async fn send_changes(
        self: &Arc<Mdc>,
        changes: impl IntoIterator<Item = DirChange, IntoIter: Send> + Send + 'static,
        bufs: Vec<Bytes>,
        attr_index: Option<usize>,
    ) -> Result<ReplyMsg, Errno> {
        let mdc = self.clone();
        let request = async move {
            let reply = mdc.reint(bufs).await;
            let attr_buf = reply.as_ref().ok().zip(attr_index);
            for change in changes {
                let stale_dir = mdc.apply_parent_attr(change, attr_buf);
                mdc.invalidate_dir_attr(stale_dir).await;
            }
            reply
        };
        cpt::detach_on_drop(request).await
    }

    /// Sends an open that creates the name if it is missing. The request runs to its end even if
    /// the caller stops waiting.
    pub(crate) async fn open_or_create(
        self: &Arc<Mdc>,
        change: DirChange,
        intent: IntentRequest,
    ) -> Result<IntentReply, Errno> {
        let mdc = self.clone();
        let request = async move {
            let reply = mdc.intent(intent).await;
            match &reply {
                Ok(reply) if reply.name_existed() => {
                    let lock = mdc.find(change.dir(), LockMode::Pr, ATTR_BITS);
                    let still_locked = lock
                        .as_ref()
                        .is_some_and(|lock| change.is_under_lock(lock.info().cookie));
                    change.finish_without_effect(still_locked);
                }
                _ => {
                    let attr_buf = reply.as_ref().ok().map(|r| (&r.reply, OPEN_REPLY_PARENT_ATTR));
                    let stale_dir = mdc.apply_parent_attr(change, attr_buf);
                    mdc.invalidate_dir_attr(stale_dir).await;
                }
            }
            reply
        };
        cpt::detach_on_drop(request).await
    }

    /// Finishes a change, with the directory's attributes from a buffer of the reply. Caches the
    /// attributes if a lock covered them without interruption. Returns the directory if its
    /// attributes in the kernel must be invalidated.
    fn apply_parent_attr(&self, change: DirChange, attr_buf: Option<(&ReplyMsg, usize)>) -> Option<Fid> {
        let dir = change.dir();
        let nacre_terms = self.lock_terms() == LockTerms::Nacre;
        let attr_buf =
            attr_buf.filter(|(reply, index)| nacre_terms && reply.buf(*index).len() >= MdtBody::SIZE);
        let body = attr_buf.and_then(|(reply, index)| reply.get::<MdtBody>(index).ok());
        let lock = self.find(dir, LockMode::Pr, ATTR_BITS);
        let stale = match (body, &lock) {
            (Some(body), Some(lock)) if body.mbo_fid1 == dir && change.is_under_lock(lock.info().cookie) => {
                let none = Bytes::new();
                change.finish_with_attr(MdAttr::from_reply(&body, &none, &none, self.precision()).attr)
            }
            _ => change.finish(),
        };
        stale.then_some(dir)
    }

    /// Invalidates a directory's attributes in the kernel. The kernel may be about to cache old
    /// attributes from an answer to another task. The invalidation reaches the kernel before the
    /// answer to the change does, so the kernel does not cache the old attributes.
    async fn invalidate_dir_attr(&self, dir: Option<Fid>) {
        if let (Some(dir), Some(cache)) = (dir, self.kernel.get()) {
            cache.inval_inode(dir, -1, 0).await;
        }
    }
}
