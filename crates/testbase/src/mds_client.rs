//! A client that sends raw requests. On its own, it only cancels locks that the server revokes.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use rpc::{
    BoxFuture, Bulk, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Ptlrpc, Reply, ReplyMsg,
    Request, RpcError,
};
use wire::{
    BUT_GETATTR, Errno, Fid, IT_GETATTR, LCK_CR, LCK_EX, LCK_PR, LDLM_BL_CALLBACK, LDLM_CANCEL, LDLM_ENQUEUE,
    LDLM_FL_AST_SENT, LDLM_FL_HAS_INTENT, LDLM_IBITS, LdlmLockDesc, LdlmPolicyData, LdlmReply, LdlmRequest,
    LdlmResId, LdlmResourceDesc, LockTerms, LuSeqRange, LustreHandle, MDS_ATTR_ATIME, MDS_CLOSE,
    MDS_INODELOCK_UPDATE, MDS_READPAGE, MDS_REINT, MdtBody, MdtIoepoch, MdtRecCreate, MdtRecLink,
    MdtRecRename, MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink, Message, Nid, ObdConnectData, REINT_CREATE,
    REINT_LINK, REINT_OPEN, REINT_RENAME, REINT_SETATTR, REINT_SETXATTR, REINT_UNLINK, SEQ_ALLOC_META,
    SEQ_QUERY, WireStruct, dirpage::DirPage, nul_terminated,
};

/// The UUID of the target.
pub const MDT: &str = "testfs-MDT0000_UUID";
/// Flag of a lock that already conflicts when the server grants it. The server sends no blocking
/// callback for it; the client must cancel the lock at once.
const AST_SENT: u32 = LDLM_FL_AST_SENT as u32;
/// `ocd_connect_flags` of a Lustre client (capture b1).
const FLAGS: u64 = 0xae7e_7e7b_e374_d3b8;
/// `ocd_connect_flags2` of the same client.
const FLAGS2: u64 = 0xa4_6cde_ffbd;
/// `mbo_valid` of a Lustre client's lookup (capture d2).
const GETATTR_VALID: u64 = 0x1140_0084_9103_6fdf;

pub struct Client {
    pub uuid: String,
    pub import: Arc<Import>,
    /// The sequence of the client's FIDs.
    pub seq: u64,
    /// The object id of the next FID.
    oid: AtomicU32,
    /// The client's handle of the next lock.
    cookie: AtomicU64,
    /// Resources and bits of the locks revoked by callbacks.
    pub revoked: Mutex<Vec<(Fid, u64)>>,
    /// User id, group id and capabilities of the user.
    pub creds: Mutex<(u32, u32, u32)>,
    /// Whether the client keeps locks that the server revokes.
    pub ignores_callbacks: AtomicBool,
}

/// The reply to an intent.
#[derive(Debug)]
pub struct Intent {
    /// Executed steps, `DISP_*`.
    pub disposition: u64,
    /// The status of the operation.
    pub status: i32,
    /// `MDS_INODELOCK_*` of the granted lock.
    pub bits: u64,
    /// The mode of the granted lock; 0: no lock.
    pub mode: u32,
    pub lock_fid: Fid,
    pub lock_handle: u64,
    pub body: MdtBody,
    pub reply: ReplyMsg,
}

impl Intent {
    pub fn fid(&self) -> Fid {
        self.body.mbo_fid1
    }

    pub fn handle(&self) -> u64 {
        self.body.mbo_open_handle.cookie
    }

    /// Whether the server granted a lock.
    pub fn has_lock(&self) -> bool {
        self.mode != 0
    }
}

struct Owner(Mutex<Weak<Client>>);

impl ImportOwner for Owner {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            let dlm: LdlmRequest = msg.get(1)?;
            let client = self.0.lock().upgrade();
            // A completion callback may report a conflict, too.
            let must_cancel = opc == LDLM_BL_CALLBACK || dlm.lock_flags & AST_SENT != 0;
            if let Some(client) = client.filter(|_| must_cancel) {
                let fid = Fid::from_res_id(&dlm.lock_desc.l_resource.lr_name);
                client
                    .revoked
                    .lock()
                    .push((fid, dlm.lock_desc.l_policy_data.cancel_bits()));
                if !client.ignores_callbacks.load(Ordering::SeqCst) {
                    tokio::spawn(async move { client.cancel(dlm.lock_handle[1]).await });
                }
            }
            Ok(Reply::new(Vec::new()))
        })
    }

    fn event(&self, _e: ImportEvent) {}
}

static CLIENTS: AtomicU32 = AtomicU32::new(1);

impl Client {
    pub async fn connect(rpc: &Arc<Ptlrpc>) -> Arc<Client> {
        Client::connect_to(rpc, Nid::LO, MDT).await
    }

    pub async fn connect_to(rpc: &Arc<Ptlrpc>, nid: Nid, target: &str) -> Arc<Client> {
        Client::connect_with_terms(rpc, nid, target, LockTerms::Lustre).await
    }

    /// Connects a client that requests these lock terms.
    pub async fn connect_with_terms(
        rpc: &Arc<Ptlrpc>,
        nid: Nid,
        target: &str,
        terms: LockTerms,
    ) -> Arc<Client> {
        let n = CLIENTS.fetch_add(1, Ordering::SeqCst);
        let uuid = format!("00000000-0000-4000-8000-{n:012x}");
        let owner = Arc::new(Owner(Mutex::new(Weak::new())));
        let import = Import::new(
            rpc,
            ImportConfig {
                name: format!("client{n}"),
                target_uuid: target.into(),
                client_uuid: uuid.clone(),
                nids: vec![nid],
                kind: ImportKind::Mdc,
                connect: ObdConnectData {
                    ocd_connect_flags: FLAGS,
                    ocd_connect_flags2: FLAGS2,
                    ocd_brw_size: 1 << 20,
                    ocd_ibits_known: 0x7f,
                    paddingE: terms.request(),
                    ..ObdConnectData::default()
                },
                max_rpcs_in_flight: 8,
                owner: owner.clone(),
            },
        );
        import.connect().await.unwrap();
        let range = LuSeqRange::default().to_bytes();
        let opc = Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes());
        let reply = import
            .call(Request::new(SEQ_QUERY, vec![opc, range]))
            .await
            .unwrap();
        let client = Arc::new(Client {
            uuid,
            import,
            seq: reply.get::<LuSeqRange>(1).unwrap().lsr_start,
            oid: AtomicU32::new(1),
            cookie: AtomicU64::new(u64::from(n) << 32 | 1),
            revoked: Mutex::default(),
            creds: Mutex::new((0, 0, u32::MAX)),
            ignores_callbacks: AtomicBool::new(false),
        });
        *owner.0.lock() = Arc::downgrade(&client);
        client
    }

    pub async fn disconnect(&self) {
        self.import.disconnect().await;
    }

    pub fn new_fid(&self) -> Fid {
        Fid::new(self.seq, self.oid.fetch_add(1, Ordering::SeqCst), 0)
    }

    pub async fn call(&self, opc: u32, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        self.import
            .call(Request::new(opc, bufs))
            .await
            .map_err(|e: RpcError| e.errno())
    }

    pub async fn modify(&self, opc: u32, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        self.import
            .call(Request::modifying(opc, bufs))
            .await
            .map_err(|e: RpcError| e.errno())
    }

    pub async fn cancel(&self, handle: u64) {
        // The server may have cancelled the lock already.
        let _ = self.try_cancel(handle).await;
    }

    pub async fn try_cancel(&self, handle: u64) -> Result<ReplyMsg, Errno> {
        let dlm = LdlmRequest {
            lock_count: 1,
            ..LdlmRequest::default()
        };
        self.call(LDLM_CANCEL, vec![dlm.to_bytes_with(&[handle])]).await
    }

    fn dlm(&self, fid: Fid, mode: u32, bits: u64, flags: u32) -> Bytes {
        let bits = LdlmPolicyData::inodebits(bits, 0);
        self.dlm_of(LDLM_IBITS, fid.res_id(), mode, bits, flags)
    }

    fn dlm_of(
        &self,
        lr_type: u32,
        lr_name: LdlmResId,
        mode: u32,
        l_policy_data: LdlmPolicyData,
        flags: u32,
    ) -> Bytes {
        let desc = LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type,
                lr_name,
                ..Default::default()
            },
            l_req_mode: mode,
            l_granted_mode: 0,
            l_policy_data,
        };
        let dlm = LdlmRequest {
            lock_flags: flags,
            lock_count: 1,
            lock_desc: desc,
            ..LdlmRequest::default()
        };
        dlm.to_bytes_with(&[self.cookie.fetch_add(1, Ordering::SeqCst)])
    }

    /// Requests an EX lock of the type `lr_type`.
    pub async fn lock_exclusively(&self, lr_type: u32, lr_name: LdlmResId) -> Result<(), Errno> {
        let bufs = vec![self.dlm_of(lr_type, lr_name, LCK_EX, LdlmPolicyData::default(), 0)];
        self.call(LDLM_ENQUEUE, bufs).await.map(drop)
    }

    async fn enqueue(&self, fid: Fid, opc: u64, bufs: Vec<Bytes>, modifies: bool) -> Result<ReplyMsg, Errno> {
        let mut all = vec![
            self.dlm(fid, LCK_CR, MDS_INODELOCK_UPDATE, LDLM_FL_HAS_INTENT as u32),
            Bytes::copy_from_slice(&opc.to_le_bytes()),
        ];
        all.extend(bufs);
        let reply = if modifies {
            self.modify(LDLM_ENQUEUE, all).await?
        } else {
            self.call(LDLM_ENQUEUE, all).await?
        };
        self.cancel_if_ast_sent(&reply).await;
        Ok(reply)
    }

    async fn cancel_if_ast_sent(&self, reply: &ReplyMsg) {
        let rep: LdlmReply = reply.get(1).unwrap();
        if rep.lock_desc.l_granted_mode != 0 && rep.lock_flags & AST_SENT != 0 {
            self.cancel(rep.lock_handle.cookie).await;
        }
    }

    fn intent(reply: ReplyMsg) -> Intent {
        let rep: LdlmReply = reply.get(1).unwrap();
        Intent {
            disposition: rep.lock_policy_res1,
            status: rep.intent_status(),
            bits: rep.lock_desc.l_policy_data.bits(),
            mode: rep.lock_desc.l_granted_mode,
            lock_fid: Fid::from_res_id(&rep.lock_desc.l_resource.lr_name),
            lock_handle: rep.lock_handle.cookie,
            body: reply.get(2).unwrap_or_default(),
            reply,
        }
    }

    pub async fn getattr(&self, parent: Fid, name: &str) -> Intent {
        self.getattr_as(IT_GETATTR, parent, Fid::ZERO, name).await
    }

    pub async fn getattr_as(&self, opc: u64, parent: Fid, child: Fid, name: &str) -> Intent {
        let bufs = self.lookup_bufs(parent, child, name);
        Client::intent(self.enqueue(parent, opc, bufs, false).await.unwrap())
    }

    fn lookup_bufs(&self, parent: Fid, child: Fid, name: &str) -> Vec<Bytes> {
        let creds = *self.creds.lock();
        let body = MdtBody {
            mbo_fid1: parent,
            mbo_fid2: child,
            mbo_valid: GETATTR_VALID,
            mbo_fsuid: creds.0,
            mbo_fsgid: creds.1,
            mbo_capability: creds.2,
            mbo_eadatasize: 128,
            ..MdtBody::default()
        };
        vec![body.to_bytes(), Bytes::new(), nul_terminated(name.as_bytes())]
    }

    /// A sub-request of a batch that looks up a name (`BUT_GETATTR`).
    pub fn sub_request(&self, parent: Fid, name: &str) -> Message {
        let mut bufs = vec![
            self.dlm(parent, LCK_CR, MDS_INODELOCK_UPDATE, LDLM_FL_HAS_INTENT as u32),
            Bytes::copy_from_slice(&IT_GETATTR.to_le_bytes()),
        ];
        bufs.extend(self.lookup_bufs(parent, Fid::ZERO, name));
        Message {
            opc: BUT_GETATTR,
            bufs,
            ..Message::default()
        }
    }

    pub async fn open(&self, parent: Fid, name: &str, flags: u64) -> Intent {
        self.open_with(parent, name, flags, &[]).await
    }

    pub async fn open_with(&self, parent: Fid, name: &str, flags: u64, ea: &[u8]) -> Intent {
        self.open_from(0, (parent, name), flags, ea).await
    }

    /// Opens a file by parent and name, or by FID and an empty name. `own` is the cookie of an open
    /// handle that the client already has for the file; 0: none.
    pub async fn open_from(&self, own: u64, file: (Fid, &str), flags: u64, ea: &[u8]) -> Intent {
        let (parent, name) = file;
        let by_fid = flags & wire::MDS_OPEN_BY_FID != 0;
        let creds = *self.creds.lock();
        let rec = MdtRecCreate {
            cr_opcode: REINT_OPEN,
            cr_fsuid: creds.0,
            cr_fsgid: creds.1,
            cr_cap: creds.2,
            cr_fid1: if by_fid { Fid::ROOT } else { parent },
            cr_fid2: if by_fid { parent } else { self.new_fid() },
            cr_time: 1000,
            cr_mode: 0o100666,
            cr_umask: 0o022,
            cr_flags_l: flags as u32,
            cr_flags_h: (flags >> 32) as u32,
            cr_open_handle_old: LustreHandle { cookie: own },
            ..MdtRecCreate::default()
        };
        let empty = Bytes::new();
        let name = nul_terminated(name.as_bytes());
        let ea = Bytes::copy_from_slice(ea);
        let bufs = vec![rec.to_bytes(), empty.clone(), empty, name, ea];
        let opc = match flags & wire::MDS_OPEN_CREAT {
            0 => wire::IT_OPEN,
            _ => wire::IT_OPEN | wire::IT_CREAT,
        };
        Client::intent(self.enqueue(parent, opc, bufs, true).await.unwrap())
    }

    pub async fn close(&self, fid: Fid, handle: u64) -> Result<ReplyMsg, Errno> {
        let rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_fid: fid,
            ..MdtRecSetattr::default()
        };
        self.close_with(handle, rec).await
    }

    pub async fn close_with(&self, handle: u64, rec: MdtRecSetattr) -> Result<ReplyMsg, Errno> {
        self.close_intent(handle, rec, vec![]).await
    }

    /// A close with an additional operation; its arguments are in the last buffers.
    pub async fn close_intent(
        &self,
        handle: u64,
        rec: MdtRecSetattr,
        intent: Vec<Bytes>,
    ) -> Result<ReplyMsg, Errno> {
        let epoch = MdtIoepoch {
            mio_open_handle: LustreHandle { cookie: handle },
            ..MdtIoepoch::default()
        };
        let bufs = vec![epoch.to_bytes(), rec.to_bytes(), Bytes::new()];
        self.modify(MDS_CLOSE, [bufs, intent].concat()).await
    }

    async fn reint(&self, rec: Bytes, bufs: Vec<Bytes>) -> Result<ReplyMsg, Errno> {
        self.modify(MDS_REINT, [vec![rec], bufs].concat()).await
    }

    /// Creates an inode of the type in `mode`; `target` is a symlink's target, otherwise empty.
    pub async fn make(&self, parent: Fid, name: &str, mode: u32, target: &str) -> Result<Fid, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecCreate {
            cr_opcode: REINT_CREATE,
            cr_fsuid: creds.0,
            cr_fsgid: creds.1,
            cr_cap: creds.2,
            cr_fid1: parent,
            cr_fid2: self.new_fid(),
            cr_time: 1000,
            cr_mode: mode,
            cr_umask: 0o022,
            ..MdtRecCreate::default()
        };
        let target = if target.is_empty() {
            Bytes::new()
        } else {
            nul_terminated(target.as_bytes())
        };
        let bufs = vec![
            Bytes::new(),
            nul_terminated(name.as_bytes()),
            target,
            Bytes::new(),
        ];
        let reply = self.reint(rec.to_bytes(), bufs).await?;
        Ok(reply.get::<MdtBody>(1)?.mbo_fid1)
    }

    pub async fn mkdir(&self, parent: Fid, name: &str) -> Fid {
        self.make(parent, name, 0o040777, "").await.unwrap()
    }

    pub async fn unlink(&self, parent: Fid, name: &str, dir: bool) -> Result<MdtBody, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecUnlink {
            ul_opcode: REINT_UNLINK,
            ul_cap: creds.2,
            ul_fsuid: creds.0,
            ul_fsgid: creds.1,
            ul_fid1: parent,
            ul_time: 1001,
            ul_mode: if dir { 0o040000 } else { 0 },
            ..MdtRecUnlink::default()
        };
        let bufs = vec![Bytes::new(), nul_terminated(name.as_bytes()), Bytes::new()];
        self.reint(rec.to_bytes(), bufs).await?.get(1)
    }

    pub async fn link(&self, file: Fid, parent: Fid, name: &str) -> Result<ReplyMsg, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecLink {
            lk_opcode: REINT_LINK,
            lk_fsuid: creds.0,
            lk_fsgid: creds.1,
            lk_cap: creds.2,
            lk_fid1: file,
            lk_fid2: parent,
            lk_time: 1002,
            ..MdtRecLink::default()
        };
        let bufs = vec![
            Bytes::new(),
            Bytes::new(),
            nul_terminated(name.as_bytes()),
            Bytes::new(),
        ];
        self.reint(rec.to_bytes(), bufs).await
    }

    pub async fn rename(&self, src: (Fid, &str), dst: (Fid, &str)) -> Result<ReplyMsg, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecRename {
            rn_opcode: REINT_RENAME,
            rn_fsuid: creds.0,
            rn_fsgid: creds.1,
            rn_cap: creds.2,
            rn_fid1: src.0,
            rn_fid2: dst.0,
            rn_time: 1003,
            ..MdtRecRename::default()
        };
        let (old, new) = (nul_terminated(src.1.as_bytes()), nul_terminated(dst.1.as_bytes()));
        let bufs = vec![Bytes::new(), Bytes::new(), old, new, Bytes::new()];
        self.reint(rec.to_bytes(), bufs).await
    }

    pub async fn setattr(&self, rec: MdtRecSetattr, ea: &[u8]) -> Result<MdtBody, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_fsuid: creds.0,
            sa_fsgid: creds.1,
            sa_cap: creds.2,
            ..rec
        };
        let ea = Bytes::copy_from_slice(ea);
        let bufs = vec![Bytes::new(), Bytes::new(), ea, Bytes::new(), Bytes::new()];
        self.reint(rec.to_bytes(), bufs).await?.get(1)
    }

    pub async fn touch(&self, fid: Fid) -> Result<MdtBody, Errno> {
        let rec = MdtRecSetattr {
            sa_fid: fid,
            sa_valid: MDS_ATTR_ATIME,
            sa_atime: 5,
            ..Default::default()
        };
        self.setattr(rec, &[]).await
    }

    pub async fn setxattr(&self, fid: Fid, name: &str, value: &[u8]) -> Result<ReplyMsg, Errno> {
        let creds = *self.creds.lock();
        let rec = MdtRecSetxattr {
            sx_opcode: REINT_SETXATTR,
            sx_fsuid: creds.0,
            sx_fsgid: creds.1,
            sx_cap: creds.2,
            sx_fid: fid,
            sx_valid: wire::OBD_MD_FLXATTR,
            sx_time: 1004,
            ..MdtRecSetxattr::default()
        };
        let name = nul_terminated(name.as_bytes());
        let value = Bytes::copy_from_slice(value);
        self.reint(rec.to_bytes(), vec![Bytes::new(), name, value, Bytes::new()])
            .await
    }

    /// Reads one extended attribute without a lock.
    pub async fn getxattr(&self, fid: Fid, name: &str) -> Result<Bytes, Errno> {
        let creds = *self.creds.lock();
        let body = MdtBody {
            mbo_fid1: fid,
            mbo_valid: wire::OBD_MD_FLXATTR,
            mbo_fsuid: creds.0,
            mbo_fsgid: creds.1,
            mbo_capability: creds.2,
            mbo_eadatasize: 4096,
            ..MdtBody::default()
        };
        let bufs = vec![body.to_bytes(), Bytes::new(), nul_terminated(name.as_bytes())];
        let reply = self.call(wire::MDS_GETXATTR, bufs).await?;
        Ok(Bytes::copy_from_slice(reply.buf(2)))
    }

    /// Reads all extended attributes with a lock.
    pub async fn xattrs(&self, fid: Fid) -> Intent {
        let body = MdtBody {
            mbo_fid1: fid,
            mbo_eadatasize: 4096,
            ..MdtBody::default()
        };
        let bufs = vec![body.to_bytes(), Bytes::new(), Bytes::new()];
        Client::intent(self.enqueue(fid, wire::IT_GETXATTR, bufs, false).await.unwrap())
    }

    /// Reads the layout with a lock.
    pub async fn layout(&self, fid: Fid) -> ReplyMsg {
        let bufs = vec![Bytes::from_static(&[0; 24]), Bytes::new()];
        self.enqueue(fid, wire::IT_LAYOUT, bufs, false).await.unwrap()
    }

    /// Requests a lock on a directory's pages; the server may grant it later.
    pub async fn lock_pages(&self, dir: Fid) {
        let bufs = vec![self.dlm(dir, LCK_PR, MDS_INODELOCK_UPDATE, LDLM_FL_HAS_INTENT as u32)];
        let reply = self.call(LDLM_ENQUEUE, bufs).await.unwrap();
        self.cancel_if_ast_sent(&reply).await;
        let rep: LdlmReply = reply.get(1).unwrap();
        assert!([0, LCK_PR].contains(&rep.lock_desc.l_granted_mode) && rep.lock_handle.cookie != 0);
    }

    pub async fn readdir(&self, dir: Fid) -> Vec<String> {
        let mut names = Vec::new();
        let mut hash = 0;
        while hash != wire::MDS_DIR_END_OFF {
            let body = MdtBody {
                mbo_fid1: dir,
                mbo_size: hash,
                mbo_nlink: 8192,
                mbo_mode: 3,
                mbo_capability: u32::MAX,
                ..MdtBody::default()
            };
            let req = Request::new(MDS_READPAGE, vec![body.to_bytes(), Bytes::new()]);
            let reply = self
                .import
                .call(req.with_bulk(Bulk::Sink(vec![8192])))
                .await
                .unwrap();
            let mut bulk = BytesMut::new();
            reply
                .bulk
                .iter()
                .flat_map(|p| p.iter())
                .for_each(|piece| bulk.put_slice(piece));
            for page in DirPage::parse_all(&bulk.freeze()).unwrap() {
                names.extend(
                    page.entries
                        .iter()
                        .map(|e| String::from_utf8(e.name.to_vec()).unwrap()),
                );
                hash = page.hash_end;
            }
        }
        names
    }
}
