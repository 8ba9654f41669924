//! Locks, also those with an intent, such as an open.

use bytes::Bytes;
use wire::{
    Fid, LDLM_FL_HAS_INTENT, LdlmLockDesc, LdlmPolicyData, LdlmRequest, LdlmResId, LdlmResourceDesc,
    MdtIoepoch, MdtRecCreate, MdtRecSetattr, WireStruct,
};

use super::{
    FIRST_LOCK_COOKIE, Request, ServerHandles, body, mdt, mode, name, names::xattr, ost, pick, position,
};
use crate::steps::{Action, Step};

/// An enqueue. The client's lock handles count from [`FIRST_LOCK_COOKIE`].
fn enqueue(known: &ServerHandles, to_ost: bool, lock: LdlmRequest, more: Vec<Bytes>) -> Request {
    let cookie = FIRST_LOCK_COOKIE + known.locks.len() as u64;
    let bufs = std::iter::once(lock.to_bytes_with(&[cookie]))
        .chain(more)
        .collect();
    match to_ost {
        true => ost(wire::OST_REQUEST_PORTAL, wire::LDLM_ENQUEUE, bufs),
        false => mdt(wire::LDLM_ENQUEUE, bufs),
    }
}

/// A lock's description; `ty` is `LDLM_*`, `mode` is `LCK_*`.
pub(super) fn lock(res: LdlmResId, ty: u32, mode: u32, policy: LdlmPolicyData, flags: u64) -> LdlmRequest {
    LdlmRequest {
        lock_flags: flags as u32,
        lock_count: 1,
        lock_desc: LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type: ty,
                lr_name: res,
                ..LdlmResourceDesc::default()
            },
            l_req_mode: mode,
            l_granted_mode: 0,
            l_policy_data: policy,
        },
        ..LdlmRequest::default()
    }
}

pub(super) fn lock_request(step: &Step, known: &ServerHandles) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    const FLAGS: [u64; 4] = [
        0,
        wire::LDLM_FL_BLOCK_NOWAIT,
        wire::LDLM_FL_TEST_LOCK,
        wire::LDLM_FL_REPLAY,
    ];
    let flags = FLAGS[usize::from(z) % FLAGS.len()];
    match step.action {
        Action::LockInode => {
            let policy = LdlmPolicyData::inodebits(y.into(), 0);
            let res = known.fid(a).res_id();
            enqueue(
                known,
                false,
                lock(res, wire::LDLM_IBITS, mode(x), policy, flags),
                Vec::new(),
            )
        }
        Action::Flock => {
            let (start, end) = (position(b), position(y));
            let policy = LdlmPolicyData::flock(start, end, u64::from(z >> 4), 7);
            let res = known.fid(a).res_id();
            enqueue(
                known,
                false,
                lock(res, wire::LDLM_FLOCK, mode(x), policy, flags),
                Vec::new(),
            )
        }
        Action::LockExtent => {
            let policy = LdlmPolicyData::extent(position(b), position(y), 0);
            let res = known.object(a).res_id();
            let (flags, intent) = match z & 4 {
                0 => (flags, Vec::new()),
                _ => (
                    LDLM_FL_HAS_INTENT,
                    vec![Bytes::copy_from_slice(&wire::IT_GLIMPSE.to_le_bytes())],
                ),
            };
            let ty = if z & 8 == 0 {
                wire::LDLM_EXTENT
            } else {
                wire::LDLM_PLAIN
            };
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
            let request = LdlmRequest {
                lock_count: count,
                ..desc
            };
            let bufs = vec![request.to_bytes_with(&handles[..count as usize])];
            let portal = wire::LDLM_CANCEL_REQUEST_PORTAL;
            Request {
                to_ost: y & 0x80 != 0,
                portal,
                opc,
                bufs,
            }
        }
    }
}

/// An enqueue of a lock on `fid` with an intent.
fn intent(known: &ServerHandles, fid: Fid, it: u64, bufs: Vec<Bytes>) -> Request {
    let policy = LdlmPolicyData::inodebits(3, 0);
    let desc = lock(
        fid.res_id(),
        wire::LDLM_IBITS,
        wire::LCK_CR,
        policy,
        LDLM_FL_HAS_INTENT,
    );
    let it = Bytes::copy_from_slice(&it.to_le_bytes());
    enqueue(known, false, desc, std::iter::once(it).chain(bufs).collect())
}

pub(super) fn open_request(step: &Step, known: &ServerHandles) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    let fid = known.fid(a);
    let empty = Bytes::new;
    match step.action {
        Action::Open => {
            const FLAGS: [u64; 8] = [
                wire::MDS_OPEN_CREAT,
                wire::MDS_OPEN_EXCL,
                wire::MDS_OPEN_TRUNC,
                wire::MDS_OPEN_LOCK,
                wire::MDS_OPEN_LEASE,
                wire::MDS_OPEN_VOLATILE,
                wire::MDS_OPEN_HAS_EA,
                wire::MDS_OPEN_BY_FID,
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
            let ea = if y & 0x40 == 0 {
                empty()
            } else {
                xattr(4, 2 + (z >> 4)).1
            };
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
            let epoch = MdtIoepoch {
                mio_open_handle: handle,
                ..MdtIoepoch::default()
            };
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
            let intent = wire::CloseData {
                cd_fid: known.fid(b),
                ..wire::CloseData::default()
            };
            mdt(
                wire::MDS_CLOSE,
                vec![epoch.to_bytes(), record.to_bytes(), empty(), intent.to_bytes()],
            )
        }
    }
}
