//! Changes of names and inodes.

use bytes::Bytes;
use wire::{
    Fid, LdlmRequest, MdtRecCreate, MdtRecLink, MdtRecRename, MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink,
    WireStruct, nul_terminated, striping::PlainLayout,
};

use super::{Request, ServerHandles, name, position, reint};
use crate::steps::{Action, Step};

/// Changes of names and inodes.
pub(super) fn name_request(step: &Step, known: &ServerHandles) -> Option<Request> {
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
                ul_opcode: if z & 2 == 0 {
                    wire::REINT_UNLINK
                } else {
                    wire::REINT_RMENTRY
                },
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
                sx_valid: if z & 4 == 0 {
                    wire::OBD_MD_FLXATTR
                } else {
                    wire::OBD_MD_FLXATTRRM
                },
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
pub(super) fn cancels(known: &ServerHandles, slot: u8) -> Bytes {
    if slot == 0 {
        return Bytes::new();
    }
    let cancel = LdlmRequest {
        lock_count: 1,
        ..LdlmRequest::default()
    };
    let handles = [known.lock(usize::from(slot) - 1)];
    cancel.to_bytes_with(&handles)
}

fn acl() -> Bytes {
    let entries = [
        (1, 7, u32::MAX),
        (2, 5, 9),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let entries = entries.map(|(e_tag, e_perm, e_id)| wire::PosixAclXattrEntry { e_tag, e_perm, e_id });
    wire::acl::PosixAcl {
        entries: entries.to_vec(),
    }
    .build()
}

/// Name and value of an extended attribute.
pub(super) fn xattr(slot: u8, value: u8) -> (Bytes, Bytes) {
    const NAMES: [&str; 8] = [
        "user.a",
        "trusted.b",
        "system.posix_acl_access",
        "system.posix_acl_default",
        "trusted.lov",
        "trusted.link",
        "trusted.dmv",
        "security.c",
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
    (
        nul_terminated(NAMES[usize::from(slot) % NAMES.len()].as_bytes()),
        value,
    )
}
