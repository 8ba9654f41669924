//! Requests on objects.

use bytes::Bytes;
use wire::{NiobufRemote, ObdIoobj, Obdo, OstBody, OstId, WireStruct};

use super::{Request, ServerHandles, ost, position};
use crate::steps::{Action, Step};

fn oa(object: OstId, valid: u64) -> Obdo {
    Obdo {
        o_oi: object,
        o_valid: valid | wire::OBD_MD_FLID | wire::OBD_MD_FLGROUP,
        ..Obdo::default()
    }
}

pub(super) fn object_request(step: &Step, known: &ServerHandles) -> Request {
    let Step { a, b, x, y, z, .. } = *step;
    let object = known.object(a);
    match step.action {
        Action::Transfer => {
            let mut oa = oa(
                object,
                wire::OBD_MD_FLFLAGS | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLGRANT,
            );
            let short = z & 2 == 0;
            oa.o_flags = if short { wire::OBD_FL_SHORT_IO } else { 0 };
            let count = 1 + u32::from(z >> 4) % 3;
            let whole = ObdIoobj {
                ioo_oid: object,
                ioo_max_brw: 0,
                ioo_bufcnt: count,
            };
            let range = |i: u32| NiobufRemote {
                rnb_offset: position(x).wrapping_add(u64::from(i).wrapping_mul(position(b))),
                rnb_len: u32::from(y) << (z >> 2 & 3),
                rnb_flags: wire::OBD_BRW_FROM_GRANT,
            };
            let ranges: Vec<u8> = (0..count).flat_map(|i| range(i).to_bytes()).collect();
            let write = z & 1 == 0;
            let data = if write && short {
                vec![y; usize::from(y)].into()
            } else {
                Bytes::new()
            };
            let bufs = vec![
                OstBody { oa }.to_bytes(),
                whole.to_bytes(),
                ranges.into(),
                Bytes::new(),
                data,
            ];
            let opc = if write { wire::OST_WRITE } else { wire::OST_READ };
            ost(wire::OST_IO_PORTAL, opc, bufs)
        }
        Action::Object => {
            const OPERATIONS: [u32; 9] = [
                wire::OST_GETATTR,
                wire::OST_PUNCH,
                wire::OST_FALLOCATE,
                wire::OST_SEEK,
                wire::OST_SETATTR,
                wire::OST_SYNC,
                wire::OST_CREATE,
                wire::OST_DESTROY,
                wire::OST_STATFS,
            ];
            let opc = OPERATIONS[usize::from(z) % OPERATIONS.len()];
            let mut id = object;
            if opc == wire::OST_CREATE {
                id.oi_id = id.oi_id.wrapping_add(u64::from(b));
            }
            let valid = wire::OBD_MD_FLSIZE | wire::OBD_MD_FLBLOCKS | wire::OBD_MD_FLMTIME;
            let oa = Obdo {
                o_size: position(x),
                o_blocks: position(y),
                o_mode: b.into(),
                ..oa(id, valid)
            };
            let portal = match opc {
                wire::OST_CREATE | wire::OST_DESTROY => wire::OST_CREATE_PORTAL,
                _ => wire::OST_REQUEST_PORTAL,
            };
            ost(portal, opc, vec![OstBody { oa }.to_bytes(), Bytes::new()])
        }
        _ => {
            let body = OstBody {
                oa: oa(object, wire::OBD_MD_FLGRANT),
            }
            .to_bytes();
            let (opc, key, value) = match x % 5 {
                0 => (wire::OST_GET_INFO, &b"last_id\0"[..], Bytes::new()),
                1 => (wire::OST_GET_INFO, &b"last_fid\0"[..], object.fid().to_bytes()),
                2 => (wire::OST_GET_INFO, &b"fiemap\0"[..], vec![y; 64].into()),
                3 => (wire::OST_SET_INFO, &b"grant_shrink\0"[..], body),
                _ => (wire::OST_SET_INFO, &b"checksum\0"[..], Bytes::new()),
            };
            ost(
                wire::OST_REQUEST_PORTAL,
                opc,
                vec![Bytes::from_static(key), value],
            )
        }
    }
}
