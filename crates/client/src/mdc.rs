//! The connection to one metadata target: requests, intents and their locks, new FIDs.

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

/// Room for a reply with a layout of a moderate number of stripes, an ACL and the rest.
const REPLY_LEN: u32 = 8192;
/// Where the reply to an open that has made a name has the directory's attributes.
const PARENT_OF_OPEN: usize = 11;

/// Room for each reply of a batch: with a layout of a few stripes. One that is longer takes the room of others.
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

/// An operation that is asked for together with a lock.
pub(crate) struct IntentAsk {
    /// Of what a lock is asked for. The server answers with one of what the operation found.
    pub(crate) res: Fid,
    pub(crate) mode: LockMode,
    pub(crate) bits: u64,
    /// `IT_*`.
    pub(crate) opc: u64,
    /// Its buffers.
    pub(crate) bufs: Vec<Bytes>,
    /// Own locks that go first.
    pub(crate) elc: Elc,
    /// Room for the reply beyond the usual.
    pub(crate) reply_len: u32,
    /// It opens a file: the request is kept for replay until the file is closed.
    pub(crate) opens: bool,
}

impl IntentAsk {
    /// An operation on `res` that opens nothing.
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

/// What goes along with a request: handles of own locks that the operation would have revoked, and of files that are to be
/// closed. To be kept until the request is answered: then these are.
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

/// What came of an intent.
pub(crate) struct IntentReply {
    /// `DISP_*`.
    pub(crate) disposition: u64,
    /// Zero, or why the operation failed.
    pub(crate) status: Result<(), Errno>,
    pub(crate) body: MdtBody,
    /// How fine the times in it are.
    precision: Precision,
    /// Since when what it says is true.
    pub(crate) asked: Moment,
    /// The lock that came with it, if any.
    pub(crate) lock: Option<LockRef>,
    pub(crate) reply: ReplyMsg,
}

impl IntentReply {
    /// Whether the name was looked up and is not there.
    pub(crate) fn is_negative(&self) -> bool {
        self.disposition & DISP_LOOKUP_NEG != 0
    }

    /// Whether the name that was to be made was there.
    fn was_there(&self) -> bool {
        self.disposition & DISP_LOOKUP_POS != 0 && !self.made_file()
    }

    /// Whether it made the file that it opened.
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

/// The request, and what is to be kept until it is answered.
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

    /// How fine the times are that the target keeps and tells.
    pub(crate) fn precision(&self) -> Precision {
        Precision::agreed(&self.import.connect_data())
    }

    /// On what terms the target gives locks.
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

    /// A request that changes something: `REINT_*`, with its buffers. From its beginning to its end, also when its caller
    /// does not wait any more: its place among the changes is taken until the target has answered.
    pub(crate) async fn reint(&self, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            ..Request::modifying(MDS_REINT, bufs)
        };
        let import = self.import.clone();
        Ok(cpt::to_its_end(async move { import.call(req).await }).await?)
    }

    /// A request that changes nothing.
    pub(crate) async fn ask(&self, opc: u32, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// The same, with room for a reply of `len` bytes more.
    pub(crate) async fn ask_large(&self, opc: u32, bufs: Vec<Bytes>, len: u32) -> Result<ReplyMsg, Errno> {
        let req = Request {
            reply_len: REPLY_LEN + len,
            ..Request::new(opc, bufs)
        };
        Ok(self.import.call(req).await?)
    }

    /// Whether it takes many intents in one request.
    pub(crate) fn takes_batches(&self) -> bool {
        self.import.has2(OBD_CONNECT2_BATCH_RPC)
    }

    /// Many lookups in one request; none waits for a lock.
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

    /// A lock request that carries an operation.
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

    /// A granted lock on a file with at least these bits, if the client has one.
    pub(crate) fn find(&self, fid: Fid, mode: LockMode, bits: u64) -> Option<LockRef> {
        self.locks.find(&fid.res_id(), mode, Policy::ibits(bits))
    }

    /// Takes the client's own locks that an operation would have revoked: their handles go with the request. Those of the
    /// directories whose names change are revoked on Lustre's terms only. With them go handles of files that are to be closed,
    /// those of `files` first. A name that the operation does not touch stays known: the kernel would have to be told of it
    /// first, and cannot always be.
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

    /// Begins to change names in a directory for a caller; `made` will be there if that succeeds.
    pub(crate) fn begin(&self, cred: &Cred, dir: Fid, made: Option<&[u8]>) -> Changing {
        let under = self.find(dir, LockMode::Pr, ATTR_BITS);
        let cookie = under.map(|lock| lock.info().cookie);
        self.inodes.begin((dir, cred.pid), made, cookie)
    }

    /// The request that makes changes, `REINT_*`: from its beginning to its end, also when its caller does not wait any more.
    /// Buffer `at` of the reply may have the directory's attributes.
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

    /// The same of an open that makes the name if it is not there.
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

    /// A change has ended; a buffer of the reply may have the directory's attributes. They are kept if they were locked all
    /// the while. Which directory the kernel is to be told of, if it is.
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

    /// Another task than the one that has made a change may just be told, by the kernel, how the directory was before: the
    /// kernel would believe that from then on. It is told before the change is answered, and drops such an answer.
    async fn tell(&self, dir: Option<Fid>) {
        if let (Some(dir), Some(cache)) = (dir, self.kernel.get()) {
            cache.inval_inode(dir, -1, 0).await;
        }
    }
}
