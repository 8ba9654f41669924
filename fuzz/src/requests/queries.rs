//! Requests of the MDT that change no names.

use bytes::Bytes;
use wire::{Fid, GetinfoFid2path, LdlmPolicyData, LuSeqRange, MdtBody, WireStruct, nul_terminated};

use super::names::{cancels, xattr};
use super::{Request, ServerHandles, body, locks::lock, mdt, mode, name, position};
use crate::steps::{Action, Step};

/// Requests of the MDT that change no names.
pub(super) fn query(step: &Step, known: &ServerHandles) -> Option<Request> {
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
                let valid = if y % 9 == 5 {
                    wire::OBD_MD_FLXATTR
                } else {
                    wire::OBD_MD_FLXATTRLS
                };
                let body = MdtBody {
                    mbo_valid: valid,
                    ..body(fid)
                };
                mdt(wire::MDS_GETXATTR, vec![body.to_bytes(), empty(), xattr(x, 0).0])
            }
            7 => {
                let gf = GetinfoFid2path {
                    gf_fid: fid,
                    gf_recno: 0,
                    gf_linkno: z.into(),
                    gf_pathlen: 4096,
                };
                let key = [
                    &b"fid2path\0\0\0\0\0\0\0\0"[..],
                    &gf.to_bytes(),
                    &other.to_bytes(),
                ]
                .concat();
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
            Request {
                portal: wire::MDS_READPAGE_PORTAL,
                ..request
            }
        }
        Action::Sequence => {
            let (portal, opc, to_ost) = match x % 4 {
                0 => (wire::SEQ_METADATA_PORTAL, wire::SEQ_QUERY, false),
                1 => (wire::SEQ_CONTROLLER_PORTAL, wire::SEQ_QUERY, false),
                2 => (wire::FLD_REQUEST_PORTAL, wire::FLD_QUERY, false),
                _ => (wire::SEQ_DATA_PORTAL, wire::SEQ_QUERY, true),
            };
            let range = LuSeqRange {
                lsr_start: fid.f_seq,
                lsr_flags: z.into(),
                ..LuSeqRange::default()
            };
            let operation = Bytes::copy_from_slice(&u32::from(y).to_le_bytes());
            Request {
                to_ost,
                portal,
                opc,
                bufs: vec![operation, range.to_bytes()],
            }
        }
        Action::SwapLayouts => {
            let body = MdtBody {
                mbo_fid2: other,
                ..body(fid)
            };
            let bufs = vec![
                body.to_bytes(),
                vec![z; 8].into(),
                empty(),
                empty(),
                cancels(known, x),
            ];
            mdt(wire::MDS_SWAP_LAYOUTS, bufs)
        }
        Action::RemoveFids => {
            let array = wire::FidArray {
                fa_nr: 2 + u32::from(z),
                ..wire::FidArray::default()
            };
            let fids = [&array.to_bytes()[..], &fid.to_bytes(), &other.to_bytes()].concat();
            mdt(
                wire::MDS_RMFID,
                vec![attributes, fids.into(), Bytes::from_static(&[0; 8])],
            )
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
                let desc = lock(
                    child.res_id(),
                    wire::LDLM_IBITS,
                    mode(x),
                    LdlmPolicyData::inodebits(3, 0),
                    0,
                );
                let it = Bytes::copy_from_slice(&wire::IT_GETATTR.to_le_bytes());
                let body = MdtBody {
                    mbo_fid2: child,
                    ..body(fid)
                };
                let bufs = vec![desc.to_bytes_with(&[1]), it, body.to_bytes(), empty(), name(y)];
                wire::Message {
                    opc: wire::BUT_GETATTR,
                    bufs,
                    ..wire::Message::default()
                }
            };
            let lookups = [lookup(other), lookup(fid), lookup(other)];
            let part = wire::batch::BatchBody::inline(&lookups[..1 + usize::from(z % 3)], 4096);
            let request = mdt(wire::MDS_BATCH, vec![part]);
            Request {
                portal: wire::OUT_PORTAL,
                ..request
            }
        }
        Action::SetInfo => {
            let value = u32::from(x & 1).to_le_bytes();
            let key = nul_terminated(wire::KEY_READ_ONLY.as_bytes());
            mdt(wire::MDS_SET_INFO, vec![key, Bytes::copy_from_slice(&value)])
        }
        _ => return None,
    })
}
