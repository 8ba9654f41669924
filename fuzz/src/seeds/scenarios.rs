//! Scenarios of requests. They are recorded while they run against servers with the same seeds as
//! in the fuzz targets, so values from replies (handles, layouts) stay valid in later requests when
//! a fuzz target sends the input.

use bytes::Bytes;
use wire::{
    FLD_LOOKUP, Fid, GetinfoFid2path, LDLM_FL_HAS_INTENT, LdlmLockDesc, LdlmPolicyData, LdlmReply,
    LdlmRequest, LdlmResId, LdlmResourceDesc, LuSeqRange, MdtBody, MdtIoepoch, MdtRecCreate, MdtRecLink,
    MdtRecRename, MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink, Message, NiobufRemote, ObdIoobj, Obdo,
    OstBody, OstId, PtlrpcBody, SEQ_ALLOC_META, SEQ_ALLOC_SUPER, WireStruct, nul_terminated,
    striping::PlainLayout,
};

use crate::server::{FLAGS, FuzzRequest, MISBEHAVING_UUID, Peer, Servers, TO_OST, run};

/// A client that records its requests.
struct Recorder {
    peer: Peer,
    sent: Vec<FuzzRequest>,
    /// Sequence of new FIDs.
    seq: u64,
    /// Object id of the last new FID.
    oid: u32,
}

/// All scenarios by target.
pub(super) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut inputs = Vec::new();
    let mut play =
        |target, scenario: fn(&mut Recorder) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
            let sent = run(async {
                let servers = Servers::start().await;
                let mut recorder = Recorder {
                    peer: Peer::connect(&servers.rpc, MISBEHAVING_UUID, FLAGS).await,
                    sent: Vec::new(),
                    seq: 0,
                    oid: 0,
                };
                recorder.take_sequence().await;
                scenario(&mut recorder).await;
                recorder.sent
            });
            let mut scenario_input = Vec::new();
            sent.iter().for_each(|request| request.write(&mut scenario_input));
            inputs.push((target, scenario_input));
            // Each single request is also a seed.
            for request in sent {
                let mut input = Vec::new();
                request.write(&mut input);
                inputs.push((target, input));
            }
        };
    play("mdt", |p| Box::pin(p.directories()));
    play("mdt", |p| Box::pin(p.files()));
    play("mdt", |p| Box::pin(p.attributes()));
    play("mdt", |p| Box::pin(p.queries()));
    play("ldlm", |p| Box::pin(p.inode_locks()));
    play("ldlm", |p| Box::pin(p.flocks()));
    play("ldlm", |p| Box::pin(p.extents()));
    play("ost", |p| Box::pin(p.data()));
    play("ost", |p| Box::pin(p.objects()));
    play("ost", |p| Box::pin(p.transfers()));
    inputs
}

fn extent_policy(start: u64, end: u64) -> LdlmPolicyData {
    LdlmPolicyData::extent(start, end, 0)
}

impl Recorder {
    async fn send(&mut self, to_ost: bool, portal: u32, opc: u32, bufs: Vec<Bytes>) -> Message {
        let body = PtlrpcBody {
            pb_version: wire::format::service_version(opc) | 3,
            pb_opc: opc,
            ..PtlrpcBody::default()
        };
        let sent = FuzzRequest {
            options: if to_ost { TO_OST } else { 0 },
            portal: portal as u8,
            message: Message::new(&body, bufs).build(),
        };
        let reply = self.peer.send(&sent).await.unwrap_or_default();
        self.sent.push(sent);
        reply
    }

    async fn mdt(&mut self, opc: u32, bufs: Vec<Bytes>) -> Message {
        self.send(false, wire::MDS_REQUEST_PORTAL, opc, bufs).await
    }

    async fn ost(&mut self, portal: u32, opc: u32, bufs: Vec<Bytes>) -> Message {
        self.send(true, portal, opc, bufs).await
    }

    /// Requests a sequence for new FIDs. The first client always gets the same sequence.
    async fn take_sequence(&mut self) {
        let bufs = vec![
            Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes()),
            LuSeqRange::default().to_bytes(),
        ];
        let reply = self
            .send(false, wire::SEQ_METADATA_PORTAL, wire::SEQ_QUERY, bufs)
            .await;
        self.seq = reply.get::<LuSeqRange>(1).map_or(0, |r| r.lsr_start);
    }

    fn new_fid(&mut self) -> Fid {
        self.oid += 1;
        Fid::new(self.seq, self.oid, 0)
    }

    fn body(&self, fid: Fid) -> MdtBody {
        MdtBody {
            mbo_fid1: fid,
            mbo_valid: 0x1140_0084_9103_6fdf,
            mbo_capability: u32::MAX,
            mbo_eadatasize: 4096,
            ..MdtBody::default()
        }
    }

    /// Creates a directory, symbolic link or special file. Returns its FID.
    async fn make(&mut self, parent: Fid, name: &str, mode: u32, target: &str) -> Fid {
        let fid = self.new_fid();
        let rec = MdtRecCreate {
            cr_opcode: wire::REINT_CREATE,
            cr_cap: u32::MAX,
            cr_fid1: parent,
            cr_fid2: fid,
            cr_time: 1000,
            cr_mode: mode,
            ..MdtRecCreate::default()
        };
        let bufs = vec![
            rec.to_bytes(),
            Bytes::new(),
            nul_terminated(name.as_bytes()),
            nul_terminated(target.as_bytes()),
        ];
        self.mdt(wire::MDS_REINT, bufs).await;
        fid
    }

    /// A lock request; `ty` is `LDLM_*`, `mode` is `LCK_*`.
    fn lock(fid: LdlmResId, ty: u32, mode: u32, policy: LdlmPolicyData, flags: u64) -> LdlmRequest {
        LdlmRequest {
            lock_flags: flags as u32,
            lock_count: 1,
            lock_desc: LdlmLockDesc {
                l_resource: LdlmResourceDesc {
                    lr_type: ty,
                    lr_name: fid,
                    ..LdlmResourceDesc::default()
                },
                l_req_mode: mode,
                l_granted_mode: 0,
                l_policy_data: policy,
            },
            ..LdlmRequest::default()
        }
    }

    async fn enqueue(&mut self, to_ost: bool, lock: LdlmRequest, more: Vec<Bytes>) -> Message {
        let mut bufs = vec![lock.to_bytes_with(&[0x77])];
        bufs.extend(more);
        let portal = if to_ost {
            wire::OST_REQUEST_PORTAL
        } else {
            wire::MDS_REQUEST_PORTAL
        };
        self.send(to_ost, portal, wire::LDLM_ENQUEUE, bufs).await
    }

    async fn intent(&mut self, fid: Fid, opc: u64, more: Vec<Bytes>) -> Message {
        let policy = LdlmPolicyData::inodebits(2, 0);
        let lock = Self::lock(
            fid.res_id(),
            wire::LDLM_IBITS,
            wire::LCK_CR,
            policy,
            LDLM_FL_HAS_INTENT,
        );
        let mut bufs = vec![Bytes::copy_from_slice(&opc.to_le_bytes())];
        bufs.extend(more);
        self.enqueue(false, lock, bufs).await
    }

    async fn open(&mut self, parent: Fid, name: &str, flags: u64, ea: Bytes) -> Message {
        let rec = MdtRecCreate {
            cr_opcode: wire::REINT_OPEN,
            cr_cap: u32::MAX,
            cr_fid1: parent,
            cr_fid2: self.new_fid(),
            cr_time: 1000,
            cr_mode: 0o100666,
            cr_flags_l: flags as u32,
            cr_flags_h: (flags >> 32) as u32,
            ..MdtRecCreate::default()
        };
        let bufs = vec![
            rec.to_bytes(),
            Bytes::new(),
            Bytes::new(),
            nul_terminated(name.as_bytes()),
            ea,
        ];
        self.intent(parent, wire::IT_OPEN | wire::IT_CREAT, bufs).await
    }

    async fn close(&mut self, opened: &MdtBody) {
        let epoch = MdtIoepoch {
            mio_open_handle: opened.mbo_open_handle,
            ..MdtIoepoch::default()
        };
        let rec = MdtRecSetattr {
            sa_opcode: wire::REINT_SETATTR,
            sa_fid: opened.mbo_fid1,
            sa_valid: wire::MDS_ATTR_MTIME
                | wire::MDS_ATTR_CTIME
                | wire::MDS_ATTR_LSIZE
                | wire::MDS_ATTR_LBLOCKS,
            sa_size: 7,
            ..MdtRecSetattr::default()
        };
        self.mdt(
            wire::MDS_CLOSE,
            vec![epoch.to_bytes(), rec.to_bytes(), Bytes::new()],
        )
        .await;
    }

    async fn directories(&mut self) {
        let dir = self.make(Fid::ROOT, "dir", 0o040777, "").await;
        self.make(dir, "link", 0o120777, "../somewhere").await;
        let fifo = self.make(dir, "fifo", 0o010666, "").await;
        let link = MdtRecLink {
            lk_opcode: wire::REINT_LINK,
            lk_cap: u32::MAX,
            lk_fid1: fifo,
            lk_fid2: Fid::ROOT,
            ..MdtRecLink::default()
        };
        let empty = Bytes::new;
        self.mdt(
            wire::MDS_REINT,
            vec![
                link.to_bytes(),
                empty(),
                empty(),
                nul_terminated(b"other"),
                empty(),
            ],
        )
        .await;
        let rename = MdtRecRename {
            rn_opcode: wire::REINT_RENAME,
            rn_cap: u32::MAX,
            rn_fid1: dir,
            rn_fid2: Fid::ROOT,
            ..MdtRecRename::default()
        };
        let names = [nul_terminated(b"fifo"), nul_terminated(b"moved")];
        let mut bufs = vec![rename.to_bytes(), empty(), empty()];
        bufs.extend(names);
        bufs.push(empty());
        self.mdt(wire::MDS_REINT, bufs).await;
        let pages = MdtBody {
            mbo_nlink: 4096,
            ..self.body(dir)
        };
        self.send(
            false,
            wire::MDS_READPAGE_PORTAL,
            wire::MDS_READPAGE,
            vec![pages.to_bytes(), empty()],
        )
        .await;
        let unlink = MdtRecUnlink {
            ul_opcode: wire::REINT_UNLINK,
            ul_cap: u32::MAX,
            ul_fid1: dir,
            ..MdtRecUnlink::default()
        };
        self.mdt(
            wire::MDS_REINT,
            vec![unlink.to_bytes(), empty(), nul_terminated(b"link"), empty()],
        )
        .await;
        let rmdir = MdtRecUnlink {
            ul_fid1: Fid::ROOT,
            ul_mode: 0o040000,
            ..unlink
        };
        self.mdt(
            wire::MDS_REINT,
            vec![rmdir.to_bytes(), empty(), nul_terminated(b"dir"), empty()],
        )
        .await;
    }

    async fn files(&mut self) {
        let flags = wire::MDS_FMODE_READ | wire::MDS_FMODE_WRITE | wire::MDS_OPEN_CREAT;
        let reply = self.open(Fid::ROOT, "file", flags, Bytes::new()).await;
        let opened: MdtBody = reply.get(2).unwrap_or_default();
        self.close(&opened).await;
        let layout = PlainLayout::parse(reply.buf(3))
            .map(|l| l.build())
            .unwrap_or_default();
        let striped = self
            .open(Fid::ROOT, "striped", flags | wire::MDS_OPEN_HAS_EA, layout)
            .await;
        self.close(&striped.get(2).unwrap_or_default()).await;
        let body = self.body(Fid::ROOT).to_bytes();
        self.intent(
            Fid::ROOT,
            wire::IT_GETATTR,
            vec![body.clone(), Bytes::new(), nul_terminated(b"file")],
        )
        .await;
        self.intent(
            Fid::ROOT,
            wire::IT_LOOKUP,
            vec![body.clone(), Bytes::new(), nul_terminated(b"none")],
        )
        .await;
        self.intent(
            opened.mbo_fid1,
            wire::IT_LAYOUT,
            vec![Bytes::from_static(&[0; 24]), Bytes::new()],
        )
        .await;
        let body = self.body(opened.mbo_fid1).to_bytes();
        self.intent(
            opened.mbo_fid1,
            wire::IT_GETXATTR,
            vec![body, Bytes::new(), Bytes::new()],
        )
        .await;
        self.intent(Fid::ROOT, wire::IT_READDIR, Vec::new()).await;
    }

    async fn attributes(&mut self) {
        let dir = self.make(Fid::ROOT, "dir", 0o040777, "").await;
        let set = MdtRecSetattr {
            sa_opcode: wire::REINT_SETATTR,
            sa_cap: u32::MAX,
            sa_fid: dir,
            sa_valid: wire::MDS_ATTR_MODE | wire::MDS_ATTR_UID | wire::MDS_ATTR_GID | wire::MDS_ATTR_CTIME,
            sa_mode: 0o042755,
            sa_uid: 7,
            sa_gid: 8,
            ..MdtRecSetattr::default()
        };
        let empty = Bytes::new;
        self.mdt(
            wire::MDS_REINT,
            vec![set.to_bytes(), empty(), empty(), empty(), empty(), empty()],
        )
        .await;
        let acl = wire::acl::PosixAcl {
            entries: [
                (1, 7, u32::MAX),
                (2, 5, 9),
                (4, 5, u32::MAX),
                (16, 5, u32::MAX),
                (32, 0, u32::MAX),
            ]
            .map(|(e_tag, e_perm, e_id)| wire::PosixAclXattrEntry { e_tag, e_perm, e_id })
            .to_vec(),
        };
        for (name, value) in [
            ("user.a", Bytes::from_static(b"value")),
            ("trusted.b", Bytes::from_static(b"")),
            ("system.posix_acl_access", acl.build()),
            ("system.posix_acl_default", acl.build()),
            (
                "trusted.lov",
                PlainLayout::raid0(Fid::ZERO, 1 << 20, Vec::new()).build(),
            ),
        ] {
            let rec = MdtRecSetxattr {
                sx_opcode: wire::REINT_SETXATTR,
                sx_cap: u32::MAX,
                sx_fid: dir,
                sx_valid: wire::OBD_MD_FLXATTR,
                sx_size: value.len() as u32,
                ..MdtRecSetxattr::default()
            };
            let bufs = vec![
                rec.to_bytes(),
                empty(),
                nul_terminated(name.as_bytes()),
                value,
                empty(),
            ];
            self.mdt(wire::MDS_REINT, bufs).await;
        }
        for valid in [wire::OBD_MD_FLXATTR, wire::OBD_MD_FLXATTRLS] {
            let body = MdtBody {
                mbo_valid: valid,
                ..self.body(dir)
            };
            let bufs = vec![
                body.to_bytes(),
                empty(),
                nul_terminated(b"system.posix_acl_access"),
            ];
            self.mdt(wire::MDS_GETXATTR, bufs).await;
        }
    }

    async fn queries(&mut self) {
        let root = self.body(Fid::ROOT).to_bytes();
        self.mdt(wire::MDS_GETATTR, vec![root.clone(), Bytes::new()])
            .await;
        self.mdt(
            wire::MDS_GETATTR_NAME,
            vec![root.clone(), Bytes::new(), nul_terminated(b"..")],
        )
        .await;
        self.mdt(wire::MDS_GET_ROOT, vec![root.clone(), nul_terminated(b"/a/b")])
            .await;
        self.mdt(wire::MDS_STATFS, vec![root.clone()]).await;
        self.mdt(wire::MDS_SYNC, vec![root, Bytes::new()]).await;
        let gf = GetinfoFid2path {
            gf_fid: Fid::ROOT,
            gf_recno: 0,
            gf_linkno: 0,
            gf_pathlen: 4096,
        };
        let key = [
            &b"fid2path\0\0\0\0\0\0\0\0"[..],
            &gf.to_bytes(),
            &Fid::ROOT.to_bytes(),
        ]
        .concat();
        self.mdt(wire::MDS_GET_INFO, vec![key.into(), Bytes::from_static(&[0; 4])])
            .await;
        let range = LuSeqRange {
            lsr_start: self.seq,
            lsr_flags: 3,
            ..LuSeqRange::default()
        };
        for (portal, opc, operation) in [
            (wire::FLD_REQUEST_PORTAL, wire::FLD_QUERY, FLD_LOOKUP),
            (wire::SEQ_METADATA_PORTAL, wire::SEQ_QUERY, SEQ_ALLOC_META),
            (wire::SEQ_CONTROLLER_PORTAL, wire::SEQ_QUERY, SEQ_ALLOC_SUPER),
        ] {
            let bufs = vec![Bytes::copy_from_slice(&operation.to_le_bytes()), range.to_bytes()];
            self.send(false, portal, opc, bufs).await;
        }
    }

    async fn inode_locks(&mut self) {
        for mode in [wire::LCK_PR, wire::LCK_CW, wire::LCK_EX] {
            let policy = LdlmPolicyData::inodebits(3, 0);
            let lock = Self::lock(Fid::ROOT.res_id(), wire::LDLM_IBITS, mode, policy, 0);
            let reply = self.enqueue(false, lock, Vec::new()).await;
            let handle = reply.get::<LdlmReply>(1).map_or(0, |r| r.lock_handle.cookie);
            let convert = LdlmRequest {
                lock_desc: LdlmLockDesc {
                    l_policy_data: LdlmPolicyData::inodebits(1, 0),
                    ..lock.lock_desc
                },
                ..lock
            };
            self.mdt(wire::LDLM_CONVERT, vec![convert.to_bytes_with(&[handle])])
                .await;
            let bufs = vec![lock.to_bytes_with(&[handle])];
            self.send(false, wire::LDLM_CANCEL_REQUEST_PORTAL, wire::LDLM_CANCEL, bufs)
                .await;
        }
    }

    async fn flocks(&mut self) {
        for (mode, start, end, owner, flags) in [
            (wire::LCK_PW, 0, 99, 1, 0),
            (wire::LCK_PR, 100, u64::MAX, 1, 0),
            (wire::LCK_PW, 50, 60, 2, wire::LDLM_FL_BLOCK_NOWAIT),
            (wire::LCK_PW, 50, 60, 2, wire::LDLM_FL_TEST_LOCK),
            (wire::LCK_NL, 10, 20, 1, 0),
        ] {
            let policy = LdlmPolicyData::flock(start, end, owner, 7);
            let lock = Self::lock(Fid::ROOT.res_id(), wire::LDLM_FLOCK, mode, policy, flags);
            self.enqueue(false, lock, Vec::new()).await;
        }
    }

    async fn extents(&mut self) {
        let object = self.object().await;
        for (mode, start, end, flags) in [
            (wire::LCK_PR, 0, 4095, 0),
            (wire::LCK_PW, 8192, u64::MAX, 0),
            (wire::LCK_PR, 0, u64::MAX, LDLM_FL_HAS_INTENT),
        ] {
            let policy = extent_policy(start, end);
            let lock = Self::lock(object.res_id(), wire::LDLM_EXTENT, mode, policy, flags);
            let intent = match flags {
                0 => Vec::new(),
                _ => vec![Bytes::copy_from_slice(&wire::IT_GLIMPSE.to_le_bytes())],
            };
            let reply = self.enqueue(true, lock, intent).await;
            let handle = reply.get::<LdlmReply>(1).map_or(0, |r| r.lock_handle.cookie);
            let bufs = vec![lock.to_bytes_with(&[handle])];
            self.send(true, wire::LDLM_CANCEL_REQUEST_PORTAL, wire::LDLM_CANCEL, bufs)
                .await;
        }
        let policy = LdlmPolicyData::default();
        let plain = Self::lock(object.res_id(), wire::LDLM_PLAIN, wire::LCK_PR, policy, 0);
        self.enqueue(true, plain, Vec::new()).await;
    }

    /// Creates a file, and returns its first object.
    async fn object(&mut self) -> OstId {
        let flags = wire::MDS_FMODE_WRITE | wire::MDS_OPEN_CREAT;
        let reply = self.open(Fid::ROOT, "file", flags, Bytes::new()).await;
        let layout = PlainLayout::parse(reply.buf(3)).expect("a file has a layout");
        layout.objects.first().expect("a file has an object").l_ost_oi
    }

    fn oa(object: OstId, valid: u64) -> Obdo {
        Obdo {
            o_oi: object,
            o_valid: valid | wire::OBD_MD_FLID | wire::OBD_MD_FLGROUP,
            ..Obdo::default()
        }
    }

    async fn transfer(&mut self, opc: u32, object: OstId, at: u64, len: u32, short: Option<Bytes>) {
        let mut oa = Self::oa(
            object,
            wire::OBD_MD_FLFLAGS | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLGRANT,
        );
        if short.is_some() {
            oa.o_flags = wire::OBD_FL_SHORT_IO;
        }
        let whole = ObdIoobj {
            ioo_oid: object,
            ioo_max_brw: 0,
            ioo_bufcnt: 1,
        };
        let range = NiobufRemote {
            rnb_offset: at,
            rnb_len: len,
            rnb_flags: wire::OBD_BRW_FROM_GRANT,
        };
        let data = short.unwrap_or_default();
        let bufs = vec![
            OstBody { oa }.to_bytes(),
            whole.to_bytes(),
            range.to_bytes(),
            Bytes::new(),
            data,
        ];
        self.ost(wire::OST_IO_PORTAL, opc, bufs).await;
    }

    async fn data(&mut self) {
        let object = self.object().await;
        self.transfer(wire::OST_WRITE, object, 0, 5, Some(Bytes::from_static(b"hello")))
            .await;
        self.transfer(wire::OST_READ, object, 0, 4096, Some(Bytes::new()))
            .await;
        self.transfer(wire::OST_READ, object, 1, 8192, None).await;
        for (opc, size, blocks, mode) in [
            (wire::OST_GETATTR, 0, 0, 0),
            (wire::OST_PUNCH, 3, u64::MAX, 0),
            (wire::OST_FALLOCATE, 0, 1 << 20, 0),
            (wire::OST_SEEK, 0, 0, 3),
            (wire::OST_SETATTR, 0, 0, 0),
            (wire::OST_SYNC, 0, u64::MAX, 0),
        ] {
            let oa = Obdo {
                o_size: size,
                o_blocks: blocks,
                o_mode: mode,
                ..Self::oa(
                    object,
                    wire::OBD_MD_FLSIZE | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLMTIME,
                )
            };
            self.ost(
                wire::OST_REQUEST_PORTAL,
                opc,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            )
            .await;
        }
    }

    async fn transfers(&mut self) {
        let object = self.object().await;
        self.transfer(wire::OST_WRITE, object, 0, 1 << 16, None).await;
        self.transfer(wire::OST_READ, object, 0, 1 << 16, None).await;
    }

    async fn objects(&mut self) {
        let object = self.object().await;
        self.ost(wire::OST_CREATE_PORTAL, wire::OST_STATFS, Vec::new())
            .await;
        for (key, value) in [
            (&b"last_id\0"[..], Bytes::new()),
            (b"last_fid\0", object.fid().to_bytes()),
            (b"fiemap\0", Bytes::from_static(&[0; 64])),
        ] {
            self.ost(
                wire::OST_REQUEST_PORTAL,
                wire::OST_GET_INFO,
                vec![Bytes::from_static(key), value],
            )
            .await;
        }
        let oa = Self::oa(object, wire::OBD_MD_FLGRANT);
        for (key, value) in [
            (&b"grant_shrink\0"[..], OstBody { oa }.to_bytes()),
            (b"checksum\0", Bytes::new()),
        ] {
            self.ost(
                wire::OST_REQUEST_PORTAL,
                wire::OST_SET_INFO,
                vec![Bytes::from_static(key), value],
            )
            .await;
        }
        let next = Fid::new(object.fid().f_seq, object.fid().f_oid + 100, 0);
        for (opc, oa) in [
            (wire::OST_CREATE, Self::oa(next.into(), 0)),
            (wire::OST_DESTROY, Self::oa(object, 0)),
        ] {
            self.ost(
                wire::OST_CREATE_PORTAL,
                opc,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            )
            .await;
        }
        let range = LuSeqRange::default().to_bytes();
        let bufs = vec![Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes()), range];
        self.ost(wire::SEQ_DATA_PORTAL, wire::SEQ_QUERY, bufs).await;
    }
}
