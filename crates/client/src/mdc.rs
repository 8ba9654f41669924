//! The connection to one metadata target: requests, intents with their locks, FID allocation.

use crate::attr::MdAttr;
use crate::closes::Closes;
use crate::cred::Cred;
use crate::fidgen::FidGen;
use crate::inode::{ATTR_BITS, Changing, Denying, Inodes, Moment};
use crate::kernel::Kernel;
use crate::ops::Flocks;
use bytes::Bytes;
use ldlm::{Enqueue, Enqueued, Intent, LockClient, LockMode, LockRef, Policy};
use rpc::{Import, ReplyMsg, Request};
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, Errno, Fid, LockTerms, LuSeqRange,
    MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE, MDS_REINT, MdtBody, OBD_CONNECT2_BATCH_RPC, Precision,
    SEQ_ALLOC_META, SEQ_QUERY, WireStruct,
};

/// Reply size in bytes: a layout with a moderate stripe count, an ACL and the fixed parts.
const REPLY_LEN: u32 = 8192;
/// Reply buffer with the directory's attributes, in the reply to an open that created a name.
const PARENT_OF_OPEN: usize = 11;

/// Reply size in bytes reserved for each intent of a batch, with a short layout. Longer replies use
/// the space of others.
const BATCHED_REPLY_LEN: u32 = 768;

/// One metadata target.
pub(crate) struct Mdc {
    pub(crate) index: u32,
    pub(crate) import: Arc<Import>,
    pub(crate) locks: Arc<LockClient>,
    inodes: Arc<Inodes>,
    kernel: Kernel,
    pub(crate) closes: Closes,
    pub(crate) flocks: Flocks,
    fids: tokio::sync::Mutex<FidGen>,
}

/// An intent: an operation sent with a lock request.
pub(crate) struct IntentAsk {
    /// The resource of the requested lock. The server may return a lock on the file that the
    /// operation found.
    pub(crate) res: Fid,
    pub(crate) mode: LockMode,
    pub(crate) bits: u64,
    /// `IT_*`.
    pub(crate) opc: u64,
    /// The buffers of the operation.
    pub(crate) bufs: Vec<Bytes>,
    /// The client's own locks to cancel with the request (early lock cancellation).
    pub(crate) elc: Elc,
    /// Reply size in bytes beyond the usual.
    pub(crate) reply_len: u32,
    /// The operation opens a file: the request is kept for replay until the file is closed.
    pub(crate) opens: bool,
}

impl IntentAsk {
    /// An intent on `res` that opens no file.
    pub(crate) fn new(res: Fid, mode: LockMode, bits: u64, opc: u64, bufs: Vec<Bytes>) -> IntentAsk {
        IntentAsk {
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

/// Early lock cancellation: handles of own locks that the operation would revoke, and of files to
/// close. Kept until the reply, which confirms them.
#[derive(Default)]
pub(crate) struct Elc {
    handles: Vec<u64>,
    _denying: Vec<Denying>,
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
    /// The stamp at which the request was sent.
    pub(crate) asked: Moment,
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
    fn was_there(&self) -> bool {
        self.disposition & DISP_LOOKUP_POS != 0 && !self.made_file()
    }

    /// Whether the open created the file.
    pub(crate) fn made_file(&self) -> bool {
        self.disposition & (DISP_OPEN_CREATE | DISP_LOOKUP_NEG) != 0
    }

    /// The attributes of a getattr or open intent's reply: body, layout, ACL.
    pub(crate) fn md(&self) -> MdAttr {
        MdAttr::from_reply(
            &self.body,
            &self.reply.bytes(bufs::INTENT_REPLY_MD),
            &self.reply.bytes(bufs::INTENT_REPLY_ACL),
            self.precision,
        )
    }
}

/// The lock request, and the state to keep until its reply.
fn enqueue(ask: IntentAsk) -> (Enqueue, Elc) {
    let mut enqueue = Enqueue::new(ask.res.res_id(), ask.mode, Policy::ibits(ask.bits));
    enqueue.intent = Some(Intent {
        opc: ask.opc,
        bufs: ask.bufs,
    });
    enqueue.elc = ask.elc.to_vec();
    enqueue.request.reply_len = REPLY_LEN + ask.reply_len;
    enqueue.request.modifies = ask.opens;
    enqueue.request.keep_until_closed = ask.opens;
    (enqueue, ask.elc)
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
            closes: Closes::default(),
            flocks: Flocks::default(),
            fids: tokio::sync::Mutex::default(),
        }
    }

    /// The precision of times agreed with the target.
    pub(crate) fn precision(&self) -> Precision {
        Precision::agreed(&self.import.connect_data())
    }

    /// The lock terms agreed with the target.
    pub(crate) fn lock_terms(&self) -> LockTerms {
        LockTerms::agreed(&self.import.connect_data())
    }

    /// A FID for a new file on this target.
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
        Ok(cpt::to_its_end(async move { import.call(req).await }).await?)
    }

    /// Sends a request that modifies nothing.
    pub(crate) async fn ask(&self, opc: u32, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// Sends such a request, with `len` bytes more for the reply.
    pub(crate) async fn ask_large(&self, opc: u32, bufs: Vec<Bytes>, len: u32) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN + len,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// Whether the target supports batches of intents in one request.
    pub(crate) fn takes_batches(&self) -> bool {
        self.import.has2(OBD_CONNECT2_BATCH_RPC)
    }

    /// Sends many lookups in one request. None waits for a lock.
    pub(crate) async fn intents(
        &self,
        all: Vec<IntentAsk>,
    ) -> Result<Vec<Result<IntentReply, Errno>>, Errno> {
        let mut asks = Vec::with_capacity(all.len());
        for ask in all {
            let (mut enqueue, _) = enqueue(ask);
            enqueue.request.reply_len = BATCHED_REPLY_LEN;
            asks.push(enqueue);
        }
        let asked = self.inodes.now();
        let done = self.locks.enqueue_batch(asks).await?;
        let replies = done.into_iter().map(|done| self.answer(done?, asked));
        Ok(replies.collect())
    }

    /// Sends an intent and waits for its reply.
    pub(crate) async fn intent(&self, ask: IntentAsk) -> Result<IntentReply, Errno> {
        let (enqueue, _until_answered) = enqueue(ask);
        let asked = self.inodes.now();
        let done = self.locks.enqueue(enqueue).await?;
        self.answer(done, asked)
    }

    fn answer(&self, done: Enqueued, asked: Moment) -> Result<IntentReply, Errno> {
        let body = if done.msg.buf(bufs::INTENT_REPLY_BODY).len() >= MdtBody::SIZE {
            done.msg.get(bufs::INTENT_REPLY_BODY)?
        } else {
            MdtBody::default()
        };
        let status = Errno::from_status(done.rep.lock_policy_res2 as i32).map_or(Ok(()), Err);
        Ok(IntentReply {
            disposition: done.rep.lock_policy_res1,
            status,
            body,
            precision: self.precision(),
            asked,
            lock: done.lock,
            reply: done.msg,
        })
    }

    /// A granted lock on a file with at least these bits, if the client holds one.
    pub(crate) fn find(&self, fid: Fid, mode: LockMode, bits: u64) -> Option<LockRef> {
        self.locks.find(&fid.res_id(), mode, Policy::ibits(bits))
    }

    /// Collects the client's own locks that an operation would revoke; the request carries their
    /// handles. Locks on the changed directories are included on Lustre's terms only. Deferred
    /// closes are added, those of `files` first. Names that the operation does not touch stay
    /// cached: their removal would need an invalidation in the kernel first, which is not always
    /// possible.
    pub(crate) fn elc(&self, dirs: &[Fid], files: &[(Fid, u64)]) -> Elc {
        let of = |(fid, bits): (Fid, u64)| {
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
            .flat_map(of);
        elc.handles.extend(locks);
        let closing = self
            .closes
            .taken_along(|fid| files.iter().any(|(of, _)| *of == fid));
        for one in closing {
            elc.handles.push(one.handle);
            elc._denying.extend(one.denying);
        }
        elc
    }

    /// Begins a change of names in a directory. The name `made` will exist if it succeeds.
    pub(crate) fn begin(&self, cred: &Cred, dir: Fid, made: Option<&[u8]>) -> Changing {
        let under = self.find(dir, LockMode::Pr, ATTR_BITS);
        let cookie = under.map(|lock| lock.info().cookie);
        self.inodes.begin((dir, cred.pid), made, cookie)
    }

    /// Sends the request for these changes (`REINT_*`). It runs to its end even if the caller stops
    /// waiting. Buffer `at` of the reply may have the directory's attributes.
    pub(crate) async fn change(
        self: &Arc<Mdc>,
        changes: impl IntoIterator<Item = Changing, IntoIter: Send> + Send + 'static,
        bufs: Vec<Bytes>,
        at: Option<usize>,
    ) -> Result<ReplyMsg, Errno> {
        let mdc = self.clone();
        let whole = async move {
            let done = mdc.reint(bufs).await;
            let told = done.as_ref().ok().zip(at);
            for change in changes {
                let tell = mdc.taken_in(change, told);
                mdc.tell(tell).await;
            }
            done
        };
        cpt::to_its_end(whole).await
    }

    /// Sends an open that creates the name if it is missing. Runs to its end as [`Mdc::change`]
    /// does.
    pub(crate) async fn open_or_make(
        self: &Arc<Mdc>,
        change: Changing,
        ask: IntentAsk,
    ) -> Result<IntentReply, Errno> {
        let mdc = self.clone();
        let whole = async move {
            let reply = mdc.intent(ask).await;
            match &reply {
                Ok(reply) if reply.was_there() => {
                    let lock = mdc.find(change.dir(), LockMode::Pr, ATTR_BITS);
                    let locked = lock.as_ref().is_some_and(|l| change.is_under(l.info().cookie));
                    change.came_to_nothing(locked);
                }
                _ => {
                    let told = reply.as_ref().ok().map(|r| (&r.reply, PARENT_OF_OPEN));
                    let tell = mdc.taken_in(change, told);
                    mdc.tell(tell).await;
                }
            }
            reply
        };
        cpt::to_its_end(whole).await
    }

    /// Finishes a change, with the directory's attributes from a buffer of the reply. They are
    /// cached if a lock covered them without interruption. Returns the directory if the kernel must
    /// invalidate it.
    fn taken_in(&self, change: Changing, told: Option<(&ReplyMsg, usize)>) -> Option<Fid> {
        let dir = change.dir();
        let agreed = self.lock_terms() == LockTerms::Nacre;
        let told = told.filter(|(r, at)| agreed && r.buf(*at).len() >= MdtBody::SIZE);
        let body = told.and_then(|(r, at)| r.get::<MdtBody>(at).ok());
        let lock = self.find(dir, LockMode::Pr, ATTR_BITS);
        let tell = match (body, &lock) {
            (Some(body), Some(lock)) if body.mbo_fid1 == dir && change.is_under(lock.info().cookie) => {
                let none = Bytes::new();
                change.ended_with(MdAttr::from_reply(&body, &none, &none, self.precision()).attr)
            }
            _ => change.ended(),
        };
        tell.then_some(dir)
    }

    /// Invalidates a directory's attributes in the kernel. The kernel may be about to return the
    /// old attributes to another task, and would cache them. It is notified before the change is
    /// answered, and then drops such an answer.
    async fn tell(&self, dir: Option<Fid>) {
        if let (Some(dir), Some(cache)) = (dir, self.kernel.get()) {
            cache.inval_inode(dir, -1, 0).await;
        }
    }
}
