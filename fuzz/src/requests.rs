//! Builds the request of a step.

use bytes::Bytes;
use wire::{
    Fid, GetinfoFid2path, LDLM_FL_HAS_INTENT, LdlmLockDesc, LdlmPolicyData, LdlmRequest, LdlmResId,
    LdlmResourceDesc, LuSeqRange, LustreHandle, MdtBody, MdtIoepoch, MdtRecCreate, MdtRecLink, MdtRecRename,
    MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink, NiobufRemote, ObdIoobj, Obdo, OstBody, OstId, WireStruct,
    nul_terminated, striping::PlainLayout,
};

use crate::steps::{Action, Mutation, Step};

/// The first number of a lock in the client's name space; the others follow.
const FIRST_LOCK_COOKIE: u64 = 0x7700;
/// Number of FIDs that a step can name.
pub const FIDS: usize = 16;

/// What a client knows of the servers.
#[derive(Debug, Default)]
pub struct Known {
    /// The FIDs that steps name.
    pub fids: [Fid; FIDS],
    /// The servers' handles of locks, in the order of the requests; 0 without a reply.
    pub locks: Vec<u64>,
    /// Open files.
    pub opens: Vec<LustreHandle>,
    /// Objects of files.
    pub objects: Vec<OstId>,
}

impl Known {
    fn fid(&self, slot: u8) -> Fid {
        self.fids[usize::from(slot) % FIDS]
    }

    /// The server's handle of a lock.
    pub fn lock(&self, slot: usize) -> u64 {
        pick(&self.locks, slot).unwrap_or(0)
    }

    fn object(&self, slot: u8) -> OstId {
        let missing = OstId { oi_id: u64::from(slot), oi_seq: 0x2_4000_0400 };
        pick(&self.objects, slot.into()).unwrap_or(missing)
    }
}

fn pick<T: Copy>(all: &[T], slot: usize) -> Option<T> {
    all.get(slot % all.len().max(1)).copied()
}

/// A request without the body that all requests have.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whether it goes to the OST.
    pub to_ost: bool,
    /// The portal.
    pub portal: u32,
    /// The operation.
    pub opc: u32,
    /// The buffers.
    pub bufs: Vec<Bytes>,
}

fn mdt(opc: u32, bufs: Vec<Bytes>) -> Request {
    let portal = wire::MDS_REQUEST_PORTAL;
    Request { to_ost: false, portal, opc, bufs }
}

fn ost(portal: u32, opc: u32, bufs: Vec<Bytes>) -> Request {
    Request { to_ost: true, portal, opc, bufs }
}

fn reint(record: Bytes, more: impl IntoIterator<Item = Bytes>) -> Request {
    let bufs = [record, Bytes::new()].into_iter().chain(more).collect();
    mdt(wire::MDS_REINT, bufs)
}

/// The name with this number.
pub fn name(slot: u8) -> Bytes {
    const NAMES: [&str; 8] = ["a", "b", "c", "", ".", "..", ".lustre", "a/b"];
    match slot % 9 {
        8 => nul_terminated(&[b'n'; 256]),
        slot => nul_terminated(NAMES[usize::from(slot)].as_bytes()),
    }
}

fn body(fid: Fid) -> MdtBody {
    MdtBody {
        mbo_fid1: fid,
        mbo_valid: 0x1140_0084_9103_6fdf,
        mbo_capability: u32::MAX,
        mbo_eadatasize: 4096,
        ..MdtBody::default()
    }
}

/// One of the lock modes.
fn mode(slot: u8) -> u32 {
    const MODES: [u32; 7] = [
        wire::LCK_PR, wire::LCK_PW, wire::LCK_EX, wire::LCK_CR, wire::LCK_CW, wire::LCK_NL, wire::LCK_GROUP,
    ];
    MODES[usize::from(slot) % MODES.len()]
}

/// A position in a file: small ones, and the extremes.
fn position(slot: u8) -> u64 {
    match slot {
        0xff => u64::MAX,
        0xfe => i64::MAX as u64,
        0xe0..=0xfd => 1 << (slot - 0xe0 + 31),
        _ => u64::from(slot) << 11,
    }
}

/// Builds the request of a step; `None` if the step sends no new request, or a whole message.
pub fn build(step: &Step, known: &Known) -> Option<Request> {
    let mut request = match step.action {
        Action::LockInode | Action::Flock | Action::LockExtent | Action::Cancel | Action::Convert => {
            lock_request(step, known)
        }
        Action::Transfer | Action::Object | Action::ObjectInfo => object_request(step, known),
        Action::Open | Action::Close | Action::Intent => open_request(step, known),
        _ => name_request(step, known).or_else(|| query(step, known))?,
    };
    for mutation in &step.mutations {
        mutate(&mut request.bufs, mutation);
    }
    Some(request)
}

fn mutate(bufs: &mut Vec<Bytes>, mutation: &Mutation) {
    let Mutation { buffer, at, how, value } = *mutation;
    let count = bufs.len().max(1);
    let Some(buf) = bufs.get_mut(usize::from(buffer) % count) else {
        return;
    };
    let mut bytes = buf.to_vec();
    let at = usize::from(at) % bytes.len().max(1);
    match how % 6 {
        0 => bytes.truncate(at),
        1 => bytes.extend([value; 64]),
        2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = value),
        3 => bytes.iter_mut().skip(at & !3).take(4).for_each(|byte| *byte = value),
        4 => bytes.iter_mut().skip(at & !7).take(8).for_each(|byte| *byte = value),
        _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (value % 8)),
    }
    *buf = bytes.into();
}

/// Changes of names and inodes.
fn name_request(step: &Step, known: &Known) -> Option<Request> {
    let Step { a, b, x, y, z, .. } = *step;
    let (fid, other) = (known.fid(a), known.fid(b));
    let empty = Bytes::new;
    Some(match step.action {
        Action::Create => {
            const MODES: [u32; 6] = [0o040777, 0o100666, 0o120777, 0o010666, 0o042755, 0o020666];
            let record = MdtRecCreate {
                cr_opcode: wire::REINT_CREATE,
                cr_cap: u32::MAX,
                cr_fid1: fid,
                cr_fid2: other,
                cr_time: 1000,
                cr_mode: MODES[usize::from(y) % MODES.len()],
                cr_fsuid: u32::from(z & 1) * 7,
                ..MdtRecCreate::default()
            };
            reint(record.to_bytes(), [name(x), name(z)])
        }
        Action::Link => {
            let record = MdtRecLink {
                lk_opcode: wire::REINT_LINK,
                lk_cap: u32::MAX,
                lk_fid1: fid,
                lk_fid2: other,
                ..MdtRecLink::default()
            };
            reint(record.to_bytes(), [empty(), name(x), empty()])
        }
        Action::Unlink => {
            let record = MdtRecUnlink {
                ul_opcode: if z & 2 == 0 { wire::REINT_UNLINK } else { wire::REINT_RMENTRY },
                ul_cap: u32::MAX,
                ul_fid1: fid,
                ul_fid2: other,
                ul_mode: if z & 1 == 0 { 0 } else { 0o040000 },
                ..MdtRecUnlink::default()
            };
            reint(record.to_bytes(), [name(x), cancels(known, y)])
        }
        Action::Rename => {
            let record = MdtRecRename {
                rn_opcode: wire::REINT_RENAME,
                rn_cap: u32::MAX,
                rn_fid1: fid,
                rn_fid2: other,
                rn_bias: z.into(),
                ..MdtRecRename::default()
            };
            reint(record.to_bytes(), [empty(), name(x), name(y), empty()])
        }
        Action::SetAttr => {
            let record = MdtRecSetattr {
                sa_opcode: wire::REINT_SETATTR,
                sa_cap: u32::MAX,
                sa_fid: fid,
                sa_valid: u64::from(x) | u64::from(z) << 9,
                sa_mode: 0o100000 | u32::from(y) << 1,
                sa_uid: b.into(),
                sa_gid: y.into(),
                sa_size: position(y),
                ..MdtRecSetattr::default()
            };
            reint(record.to_bytes(), [empty(), empty(), empty(), cancels(known, b)])
        }
        Action::SetXattr => {
            let (name, value) = xattr(x, y);
            let record = MdtRecSetxattr {
                sx_opcode: wire::REINT_SETXATTR,
                sx_cap: u32::MAX,
                sx_fid: fid,
                sx_valid: if z & 4 == 0 { wire::OBD_MD_FLXATTR } else { wire::OBD_MD_FLXATTRRM },
                sx_size: value.len() as u32,
                sx_flags: u32::from(z & 3),
                ..MdtRecSetxattr::default()
            };
            reint(record.to_bytes(), [name, value, empty()])
        }
        _ => return None,
    })
}

/// A buffer that cancels a lock with another request; empty for 0.
fn cancels(known: &Known, slot: u8) -> Bytes {
    if slot == 0 {
        return Bytes::new();
    }
    let cancel = LdlmRequest { lock_count: 1, ..LdlmRequest::default() };
    let handles = [known.lock(usize::from(slot) - 1)];
    cancel.to_bytes_with(&handles)
}

fn acl() -> Bytes {
    let entries = [(1, 7, u32::MAX), (2, 5, 9), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let entries = entries.map(|(e_tag, e_perm, e_id)| wire::PosixAclXattrEntry { e_tag, e_perm, e_id });
    wire::acl::PosixAcl { entries: entries.to_vec() }.build()
}

/// Name and value of an extended attribute.
fn xattr(slot: u8, value: u8) -> (Bytes, Bytes) {
    const NAMES: [&str; 8] = [
        "user.a", "trusted.b", "system.posix_acl_access", "system.posix_acl_default", "trusted.lov",
        "trusted.link", "trusted.dmv", "security.c",
    ];
    let layout = |stripes: u8| {
        let mut layout = PlainLayout::raid0(Fid::ZERO, 1 << 20, Vec::new());
        layout.stripe_count = stripes.into();
        layout.build()
    };
    let value = match value {
        0 => Bytes::new(),
        1 => acl(),
        2..=9 => layout(value - 2),
        n => vec![n; usize::from(n) * 8].into(),
    };
    (nul_terminated(NAMES[usize::from(slot) % NAMES.len()].as_bytes()), value)
}

/// An enqueue. The client's cookie counts its locks.
fn enqueue(known: &Known, to_ost: bool, lock: LdlmRequest, more: Vec<Bytes>) -> Request {
    let cookie = FIRST_LOCK_COOKIE + known.locks.len() as u64;
    let bufs = std::iter::once(lock.to_bytes_with(&[cookie])).chain(more).collect();
    match to_ost {
        true => ost(wire::OST_REQUEST_PORTAL, wire::LDLM_ENQUEUE, bufs),
        false => mdt(wire::LDLM_ENQUEUE, bufs),
    }
}

/// A lock's description; `ty` is `LDLM_*`, `mode` is `LCK_*`.
fn lock(res: LdlmResId, ty: u32, mode: u32, policy: LdlmPolicyData, flags: u64) -> LdlmRequest {
    LdlmRequest {
        lock_flags: flags as u32,
        lock_count: 1,
        lock_desc: LdlmLockDesc {
            l_resource: LdlmResourceDesc { lr_type: ty, lr_name: res, ..LdlmResourceDesc::default() },
            l_req_mode: mode,
            l_granted_mode: 0,
            l_policy_data: policy,
        },
        ..LdlmRequest::default()
    }
}

fn lock_request(step: &Step, known: &Known) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    const FLAGS: [u64; 4] = [0, wire::LDLM_FL_BLOCK_NOWAIT, wire::LDLM_FL_TEST_LOCK, wire::LDLM_FL_REPLAY];
    let flags = FLAGS[usize::from(z) % FLAGS.len()];
    match step.action {
        Action::LockInode => {
            let policy = LdlmPolicyData::inodebits(y.into(), 0);
            let res = known.fid(a).res_id();
            enqueue(known, false, lock(res, wire::LDLM_IBITS, mode(x), policy, flags), Vec::new())
        }
        Action::Flock => {
            let (start, end) = (position(b), position(y));
            let policy = LdlmPolicyData::flock(start, end, u64::from(z >> 4), 7);
            let res = known.fid(a).res_id();
            enqueue(known, false, lock(res, wire::LDLM_FLOCK, mode(x), policy, flags), Vec::new())
        }
        Action::LockExtent => {
            let policy = LdlmPolicyData::extent(position(b), position(y), 0);
            let res = known.object(a).res_id();
            let (flags, intent) = match z & 4 {
                0 => (flags, Vec::new()),
                _ => (LDLM_FL_HAS_INTENT, vec![Bytes::copy_from_slice(&wire::IT_GLIMPSE.to_le_bytes())]),
            };
            let ty = if z & 8 == 0 { wire::LDLM_EXTENT } else { wire::LDLM_PLAIN };
            enqueue(known, true, lock(res, ty, mode(x), policy, flags), intent)
        }
        action => {
            let opc = match action {
                Action::Cancel => wire::LDLM_CANCEL,
                _ => wire::LDLM_CONVERT,
            };
            let policy = LdlmPolicyData::inodebits(y.into(), 0);
            let desc = lock(known.fid(a).res_id(), wire::LDLM_IBITS, mode(b), policy, 0);
            let handles = [known.lock(x.into()), known.lock(usize::from(x) + usize::from(z))];
            let count = if z == 0 { 1 } else { 2 };
            let request = LdlmRequest { lock_count: count, ..desc };
            let bufs = vec![request.to_bytes_with(&handles[..count as usize])];
            let portal = wire::LDLM_CANCEL_REQUEST_PORTAL;
            Request { to_ost: y & 0x80 != 0, portal, opc, bufs }
        }
    }
}

/// An enqueue of a lock on `fid` with an intent.
fn intent(known: &Known, fid: Fid, it: u64, bufs: Vec<Bytes>) -> Request {
    let policy = LdlmPolicyData::inodebits(3, 0);
    let desc = lock(fid.res_id(), wire::LDLM_IBITS, wire::LCK_CR, policy, LDLM_FL_HAS_INTENT);
    let it = Bytes::copy_from_slice(&it.to_le_bytes());
    enqueue(known, false, desc, std::iter::once(it).chain(bufs).collect())
}

fn open_request(step: &Step, known: &Known) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    let fid = known.fid(a);
    let empty = Bytes::new;
    match step.action {
        Action::Open => {
            const FLAGS: [u64; 8] = [
                wire::MDS_OPEN_CREAT, wire::MDS_OPEN_EXCL, wire::MDS_OPEN_TRUNC, wire::MDS_OPEN_LOCK,
                wire::MDS_OPEN_LEASE, wire::MDS_OPEN_VOLATILE, wire::MDS_OPEN_HAS_EA, wire::MDS_OPEN_BY_FID,
            ];
            let chosen = (0..8).filter(|i| y >> i & 1 != 0).map(|i| FLAGS[i]);
            let flags = u64::from(z & 7) | chosen.fold(0, |all, flag| all | flag);
            let record = MdtRecCreate {
                cr_opcode: wire::REINT_OPEN,
                cr_cap: u32::MAX,
                cr_fid1: fid,
                cr_fid2: known.fid(b),
                cr_time: 1000,
                cr_mode: 0o100666,
                cr_flags_l: flags as u32,
                cr_flags_h: (flags >> 32) as u32,
                cr_open_handle_old: pick(&known.opens, usize::from(z >> 3)).unwrap_or_default(),
                ..MdtRecCreate::default()
            };
            let ea = if y & 0x40 == 0 { empty() } else { xattr(4, 2 + (z >> 4)).1 };
            let bufs = vec![record.to_bytes(), empty(), empty(), name(x), ea];
            intent(known, fid, wire::IT_OPEN | wire::IT_CREAT, bufs)
        }
        Action::Intent => {
            let attributes = body(fid).to_bytes();
            match y % 6 {
                0 => intent(known, fid, wire::IT_GETATTR, vec![attributes, empty(), name(x)]),
                1 => intent(known, fid, wire::IT_LOOKUP, vec![attributes, empty(), name(x)]),
                2 => intent(known, fid, wire::IT_LAYOUT, vec![vec![z; 24].into(), empty()]),
                3 => intent(known, fid, wire::IT_GETXATTR, vec![attributes, empty(), empty()]),
                4 => intent(known, fid, wire::IT_READDIR, Vec::new()),
                _ => intent(known, fid, 1 << (z % 64), vec![attributes, empty(), name(x)]),
            }
        }
        _ => {
            let handle = pick(&known.opens, x.into()).unwrap_or_default();
            let epoch = MdtIoepoch { mio_open_handle: handle, ..MdtIoepoch::default() };
            let record = MdtRecSetattr {
                sa_opcode: wire::REINT_SETATTR,
                sa_fid: fid,
                sa_valid: wire::MDS_ATTR_MTIME
                    | wire::MDS_ATTR_CTIME
                    | wire::MDS_ATTR_LSIZE
                    | wire::MDS_ATTR_LBLOCKS,
                sa_size: position(y),
                sa_bias: z.into(),
                ..MdtRecSetattr::default()
            };
            let intent = wire::CloseData { cd_fid: known.fid(b), ..wire::CloseData::default() };
            mdt(wire::MDS_CLOSE, vec![epoch.to_bytes(), record.to_bytes(), empty(), intent.to_bytes()])
        }
    }
}

/// Requests of the MDT that change no names.
fn query(step: &Step, known: &Known) -> Option<Request> {
    let Step { a, b, x, y, z, .. } = *step;
    let (fid, other) = (known.fid(a), known.fid(b));
    let attributes = body(fid).to_bytes();
    let empty = Bytes::new;
    Some(match step.action {
        Action::Query => match y % 9 {
            0 => mdt(wire::MDS_GETATTR, vec![attributes, empty()]),
            1 => mdt(wire::MDS_GETATTR_NAME, vec![attributes, empty(), name(x)]),
            2 => mdt(wire::MDS_GET_ROOT, vec![attributes, nul_terminated(b"/a/b")]),
            3 => mdt(wire::MDS_STATFS, vec![attributes]),
            4 => mdt(wire::MDS_SYNC, vec![attributes, empty()]),
            5 | 6 => {
                let valid = if y % 9 == 5 { wire::OBD_MD_FLXATTR } else { wire::OBD_MD_FLXATTRLS };
                let body = MdtBody { mbo_valid: valid, ..body(fid) };
                mdt(wire::MDS_GETXATTR, vec![body.to_bytes(), empty(), xattr(x, 0).0])
            }
            7 => {
                let gf = GetinfoFid2path { gf_fid: fid, gf_recno: 0, gf_linkno: z.into(), gf_pathlen: 4096 };
                let key = [&b"fid2path\0\0\0\0\0\0\0\0"[..], &gf.to_bytes(), &other.to_bytes()].concat();
                mdt(wire::MDS_GET_INFO, vec![key.into(), Bytes::from_static(&[0; 4])])
            }
            _ => mdt(wire::OBD_PING, Vec::new()),
        },
        Action::ReadPage => {
            let pages = MdtBody {
                mbo_nlink: 1 << (x % 24),
                mbo_size: position(y),
                ..body(fid)
            };
            let request = mdt(wire::MDS_READPAGE, vec![pages.to_bytes(), empty()]);
            Request { portal: wire::MDS_READPAGE_PORTAL, ..request }
        }
        Action::Sequence => {
            let (portal, opc, to_ost) = match x % 4 {
                0 => (wire::SEQ_METADATA_PORTAL, wire::SEQ_QUERY, false),
                1 => (wire::SEQ_CONTROLLER_PORTAL, wire::SEQ_QUERY, false),
                2 => (wire::FLD_REQUEST_PORTAL, wire::FLD_QUERY, false),
                _ => (wire::SEQ_DATA_PORTAL, wire::SEQ_QUERY, true),
            };
            let range = LuSeqRange { lsr_start: fid.f_seq, lsr_flags: z.into(), ..LuSeqRange::default() };
            let operation = Bytes::copy_from_slice(&u32::from(y).to_le_bytes());
            Request { to_ost, portal, opc, bufs: vec![operation, range.to_bytes()] }
        }
        Action::SwapLayouts => {
            let body = MdtBody { mbo_fid2: other, ..body(fid) };
            let bufs = vec![body.to_bytes(), vec![z; 8].into(), empty(), empty(), cancels(known, x)];
            mdt(wire::MDS_SWAP_LAYOUTS, bufs)
        }
        Action::RemoveFids => {
            let array = wire::FidArray { fa_nr: 2 + u32::from(z), ..wire::FidArray::default() };
            let fids = [&array.to_bytes()[..], &fid.to_bytes(), &other.to_bytes()].concat();
            mdt(wire::MDS_RMFID, vec![attributes, fids.into(), Bytes::from_static(&[0; 8])])
        }
        Action::Hsm if x & 1 == 0 => mdt(wire::MDS_HSM_STATE_GET, vec![attributes, empty()]),
        Action::Hsm => {
            let set = wire::HsmStateSet {
                hss_valid: z.into(),
                hss_archive_id: x.into(),
                hss_setmask: y.into(),
                hss_clearmask: b.into(),
            };
            mdt(wire::MDS_HSM_STATE_SET, vec![attributes, empty(), set.to_bytes()])
        }
        Action::Batch => {
            let lookup = |child: Fid| {
                let desc = lock(child.res_id(), wire::LDLM_IBITS, mode(x), LdlmPolicyData::inodebits(3, 0), 0);
                let it = Bytes::copy_from_slice(&wire::IT_GETATTR.to_le_bytes());
                let body = MdtBody { mbo_fid2: child, ..body(fid) };
                let bufs = vec![desc.to_bytes_with(&[1]), it, body.to_bytes(), empty(), name(y)];
                wire::Message { opc: wire::BUT_GETATTR, bufs, ..wire::Message::default() }
            };
            let lookups = [lookup(other), lookup(fid), lookup(other)];
            let part = wire::batch::BatchBody::inline(&lookups[..1 + usize::from(z % 3)], 4096);
            let request = mdt(wire::MDS_BATCH, vec![part]);
            Request { portal: wire::OUT_PORTAL, ..request }
        }
        Action::SetInfo => {
            let value = u32::from(x & 1).to_le_bytes();
            let key = nul_terminated(wire::KEY_READ_ONLY.as_bytes());
            mdt(wire::MDS_SET_INFO, vec![key, Bytes::copy_from_slice(&value)])
        }
        _ => return None,
    })
}

fn oa(object: OstId, valid: u64) -> Obdo {
    Obdo {
        o_oi: object,
        o_valid: valid | wire::OBD_MD_FLID | wire::OBD_MD_FLGROUP,
        ..Obdo::default()
    }
}

fn object_request(step: &Step, known: &Known) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    let object = known.object(a);
    match step.action {
        Action::Transfer => {
            let mut oa = oa(object, wire::OBD_MD_FLFLAGS | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLGRANT);
            let short = z & 2 == 0;
            oa.o_flags = if short { wire::OBD_FL_SHORT_IO } else { 0 };
            let count = 1 + u32::from(z >> 4) % 3;
            let whole = ObdIoobj { ioo_oid: object, ioo_max_brw: 0, ioo_bufcnt: count };
            let range = |i: u32| NiobufRemote {
                rnb_offset: position(x).wrapping_add(u64::from(i).wrapping_mul(position(b))),
                rnb_len: u32::from(y) << (z >> 2 & 3),
                rnb_flags: wire::OBD_BRW_FROM_GRANT,
            };
            let ranges: Vec<u8> = (0..count).flat_map(|i| range(i).to_bytes()).collect();
            let write = z & 1 == 0;
            let data = if write && short { vec![y; usize::from(y)].into() } else { Bytes::new() };
            let bufs = vec![OstBody { oa }.to_bytes(), whole.to_bytes(), ranges.into(), Bytes::new(), data];
            let opc = if write { wire::OST_WRITE } else { wire::OST_READ };
            ost(wire::OST_IO_PORTAL, opc, bufs)
        }
        Action::Object => {
            const OPERATIONS: [u32; 9] = [
                wire::OST_GETATTR, wire::OST_PUNCH, wire::OST_FALLOCATE, wire::OST_SEEK, wire::OST_SETATTR,
                wire::OST_SYNC, wire::OST_CREATE, wire::OST_DESTROY, wire::OST_STATFS,
            ];
            let opc = OPERATIONS[usize::from(z) % OPERATIONS.len()];
            let mut id = object;
            if opc == wire::OST_CREATE {
                id.oi_id = id.oi_id.wrapping_add(u64::from(b));
            }
            let valid = wire::OBD_MD_FLSIZE | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLMTIME;
            let oa = Obdo { o_size: position(x), o_blocks: position(y), o_mode: b.into(), ..oa(id, valid) };
            let portal = match opc {
                wire::OST_CREATE | wire::OST_DESTROY => wire::OST_CREATE_PORTAL,
                _ => wire::OST_REQUEST_PORTAL,
            };
            ost(portal, opc, vec![OstBody { oa }.to_bytes(), Bytes::new()])
        }
        _ => {
            let body = OstBody { oa: oa(object, wire::OBD_MD_FLGRANT) }.to_bytes();
            let (opc, key, value) = match x % 5 {
                0 => (wire::OST_GET_INFO, &b"last_id\0"[..], Bytes::new()),
                1 => (wire::OST_GET_INFO, &b"last_fid\0"[..], object.fid().to_bytes()),
                2 => (wire::OST_GET_INFO, &b"fiemap\0"[..], vec![y; 64].into()),
                3 => (wire::OST_SET_INFO, &b"grant_shrink\0"[..], body),
                _ => (wire::OST_SET_INFO, &b"checksum\0"[..], Bytes::new()),
            };
            ost(wire::OST_REQUEST_PORTAL, opc, vec![Bytes::from_static(key), value])
        }
    }
}
