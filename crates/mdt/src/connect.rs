//! Negotiates a client's connect data: grants the requested features that this target implements.

use rpc::ConnectRequest;
use wire::{
    Errno, LUSTRE_VERSION_CODE, LockTerms, MDS_INODELOCK_FULL, OBD_CONNECT_64BITHASH, OBD_CONNECT_ACL,
    OBD_CONNECT_AT, OBD_CONNECT_ATTRFID, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_CANCELSET,
    OBD_CONNECT_CKSUM, OBD_CONNECT_DISP_STRIPE, OBD_CONNECT_EINPROGRESS, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2,
    OBD_CONNECT_FLOCK_DEAD, OBD_CONNECT_FULL20, OBD_CONNECT_HPREQ_CHECK1, OBD_CONNECT_IBITS,
    OBD_CONNECT_JOBSTATS, OBD_CONNECT_LARGE_ACL, OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LIGHTWEIGHT,
    OBD_CONNECT_LOV_V3, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAX_EASIZE, OBD_CONNECT_MDS_MDS,
    OBD_CONNECT_MULTIMODRPCS, OBD_CONNECT_NODEVOH, OBD_CONNECT_OPEN_BY_FID, OBD_CONNECT_RDONLY,
    OBD_CONNECT_SHORTIO, OBD_CONNECT_SRVLOCK, OBD_CONNECT_SUBTREE, OBD_CONNECT_UMASK, OBD_CONNECT_VBR,
    OBD_CONNECT_VERSION, OBD_CONNECT_XATTR, OBD_CONNECT2_ATOMIC_OPEN_LOCK, OBD_CONNECT2_BATCH_RPC,
    OBD_CONNECT2_CRUSH, OBD_CONNECT2_DOM_LVB, OBD_CONNECT2_INC_XID, OBD_CONNECT2_LOCK_CONVERT,
    OBD_CONNECT2_LSEEK, OBD_CONNECT2_LSOM, OBD_CONNECT2_OVERSTRIPING, OBD_CONNECT2_REP_MBITS,
    OBD_CONNECT2_SUM_STATFS, ObdConnectData, Precision, RenameFlags, checksum::ChecksumType,
};

use crate::namespace::xattr::VALUE_MAX;

/// Implemented bits of `ocd_connect_flags`.
const FLAGS: u64 = OBD_CONNECT_64BITHASH
    | OBD_CONNECT_ACL
    | OBD_CONNECT_AT
    | OBD_CONNECT_ATTRFID
    | OBD_CONNECT_BRW_SIZE
    | OBD_CONNECT_BULK_MBITS
    | OBD_CONNECT_CANCELSET
    | OBD_CONNECT_CKSUM
    | OBD_CONNECT_DISP_STRIPE
    | OBD_CONNECT_EINPROGRESS
    | OBD_CONNECT_FID
    | OBD_CONNECT_FLAGS2
    | OBD_CONNECT_FLOCK_DEAD
    | OBD_CONNECT_FULL20
    | OBD_CONNECT_HPREQ_CHECK1
    | OBD_CONNECT_IBITS
    | OBD_CONNECT_JOBSTATS
    | OBD_CONNECT_LARGE_ACL
    | OBD_CONNECT_LAYOUTLOCK
    | OBD_CONNECT_LIGHTWEIGHT
    | OBD_CONNECT_LOV_V3
    | OBD_CONNECT_LVB_TYPE
    | OBD_CONNECT_MAX_EASIZE
    | OBD_CONNECT_MDS_MDS
    | OBD_CONNECT_MULTIMODRPCS
    | OBD_CONNECT_NODEVOH
    | OBD_CONNECT_OPEN_BY_FID
    | OBD_CONNECT_RDONLY
    | OBD_CONNECT_SHORTIO
    | OBD_CONNECT_SRVLOCK
    | OBD_CONNECT_SUBTREE
    | OBD_CONNECT_UMASK
    | OBD_CONNECT_VBR
    | OBD_CONNECT_VERSION
    | OBD_CONNECT_XATTR;
/// Implemented bits of `ocd_connect_flags2`.
const FLAGS2: u64 = OBD_CONNECT2_ATOMIC_OPEN_LOCK
    | OBD_CONNECT2_BATCH_RPC
    | OBD_CONNECT2_CRUSH
    | OBD_CONNECT2_DOM_LVB
    | OBD_CONNECT2_INC_XID
    | OBD_CONNECT2_LOCK_CONVERT
    | OBD_CONNECT2_LSEEK
    | OBD_CONNECT2_LSOM
    | OBD_CONNECT2_OVERSTRIPING
    | OBD_CONNECT2_REP_MBITS
    | OBD_CONNECT2_SUM_STATFS;
/// Maximum size of a bulk transfer, bytes: of directory pages, and of data on the MDT.
pub(crate) const BRW_SIZE_MAX: u32 = 1 << 20;
/// Minimum size of a bulk transfer, bytes: one page.
const BRW_SIZE_MIN: u32 = 4096;
/// Maximum number of modifying requests in flight per client.
const MOD_RPCS_MAX: u16 = 8;

/// The connect data granted to a client; `instance` identifies this start of the target. `EPROTO`
/// if the client's maximum bulk size is smaller than a page.
pub(crate) fn negotiate(req: &ConnectRequest, instance: u32) -> Result<ObdConnectData, Errno> {
    let request = &req.data;
    let flags = request.ocd_connect_flags & FLAGS;
    let has = |flag: u64| flags & flag != 0;
    let mut data = ObdConnectData {
        ocd_connect_flags: flags,
        ocd_version: LUSTRE_VERSION_CODE,
        ocd_instance: instance,
        paddingD: RenameFlags::grant(request),
        paddingE: LockTerms::grant(request),
        paddingF: Precision::grant(request),
        ..ObdConnectData::default()
    };
    if has(OBD_CONNECT_FLAGS2) {
        data.ocd_connect_flags2 = request.ocd_connect_flags2 & FLAGS2;
    }
    if has(OBD_CONNECT_BRW_SIZE) {
        if request.ocd_brw_size < BRW_SIZE_MIN {
            return Err(Errno::EPROTO);
        }
        data.ocd_brw_size = request.ocd_brw_size.min(BRW_SIZE_MAX);
    }
    if has(OBD_CONNECT_IBITS) {
        data.ocd_ibits_known = request.ocd_ibits_known & MDS_INODELOCK_FULL;
    }
    if has(OBD_CONNECT_CKSUM) {
        data.ocd_cksum_types = request.ocd_cksum_types & ChecksumType::supported();
        if data.ocd_cksum_types == 0 {
            data.ocd_connect_flags &= !OBD_CONNECT_CKSUM;
        }
    }
    if has(OBD_CONNECT_MAX_EASIZE) {
        data.ocd_max_easize = VALUE_MAX as u32;
    }
    if has(OBD_CONNECT_MULTIMODRPCS) {
        data.ocd_maxmodrpcs = MOD_RPCS_MAX;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{FLAGS, negotiate};
    use rpc::ConnectRequest;
    use wire::{Errno, Nid, OBD_CONNECT_ATTRFID, OBD_CONNECT_FID, OBD_CONNECT_FULL20, ObdConnectData};

    /// The request of capture b1_client_mount.
    fn captured_request() -> ConnectRequest {
        let data = ObdConnectData {
            ocd_connect_flags: 0xae7e_7e7b_e374_d3b8,
            ocd_brw_size: 0x10_0000,
            ocd_ibits_known: 0x7f,
            ocd_connect_flags2: 0xa4_6cde_ffbd,
            ..ObdConnectData::default()
        };
        ConnectRequest {
            client_uuid: "c".into(),
            peer: Nid::LO,
            reconnects: false,
            recovers: false,
            data,
        }
    }

    #[test]
    fn lustre_client_gets_the_flags_it_requires_and_none_it_did_not_request() {
        let req = captured_request();
        let granted = negotiate(&req, 7).unwrap();
        for required in [OBD_CONNECT_FID, OBD_CONNECT_ATTRFID, OBD_CONNECT_FULL20] {
            assert_ne!(granted.ocd_connect_flags & required, 0);
        }
        assert_eq!(
            granted.ocd_connect_flags & !(req.data.ocd_connect_flags & FLAGS),
            0
        );
        assert_eq!(granted.ocd_connect_flags2 & !req.data.ocd_connect_flags2, 0);
        assert_eq!((granted.ocd_brw_size, granted.ocd_ibits_known), (0x10_0000, 0x7f));
        assert_eq!((granted.ocd_maxmodrpcs, granted.ocd_instance), (8, 7));
    }

    #[test]
    fn bulk_size_below_a_page_is_eproto() {
        let mut req = captured_request();
        req.data.ocd_brw_size = 1;
        assert_eq!(negotiate(&req, 7).unwrap_err(), Errno::EPROTO);
    }
}
