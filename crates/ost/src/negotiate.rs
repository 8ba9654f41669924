//! Connect negotiation: a connection gets the features that the client requests and this target
//! implements (docs/protocol.md, "Connect flags").

use rpc::ConnectRequest;
use wire::{
    Errno, LUSTRE_VERSION_CODE, OBD_CONNECT_64BITHASH, OBD_CONNECT_AT, OBD_CONNECT_BRW_SIZE,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_CANCELSET, OBD_CONNECT_CKSUM, OBD_CONNECT_EINPROGRESS,
    OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_GRANT, OBD_CONNECT_GRANT_PARAM,
    OBD_CONNECT_GRANT_SHRINK, OBD_CONNECT_HPREQ_CHECK1, OBD_CONNECT_INDEX, OBD_CONNECT_JOBSTATS,
    OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAXBYTES, OBD_CONNECT_MDS, OBD_CONNECT_SHORTIO,
    OBD_CONNECT_SKIP_ORPHAN, OBD_CONNECT_SRVLOCK, OBD_CONNECT_VERSION, OBD_CONNECT2_INC_XID,
    OBD_CONNECT2_LOCKAHEAD, OBD_CONNECT2_LSEEK, OBD_CONNECT2_REP_MBITS, OBD_CONNECT2_UNALIGNED_DIO,
    ObdConnectData, OstIndex, Precision, checksum::ChecksumType,
};

/// The flags of `ocd_connect_flags` that this target implements.
const FLAGS: u64 = OBD_CONNECT_64BITHASH
    | OBD_CONNECT_AT
    | OBD_CONNECT_BRW_SIZE
    | OBD_CONNECT_BULK_MBITS
    | OBD_CONNECT_CANCELSET
    | OBD_CONNECT_CKSUM
    | OBD_CONNECT_EINPROGRESS
    | OBD_CONNECT_FID
    | OBD_CONNECT_FLAGS2
    | OBD_CONNECT_FULL20
    | OBD_CONNECT_GRANT
    | OBD_CONNECT_GRANT_PARAM
    | OBD_CONNECT_GRANT_SHRINK
    | OBD_CONNECT_HPREQ_CHECK1
    | OBD_CONNECT_INDEX
    | OBD_CONNECT_JOBSTATS
    | OBD_CONNECT_LAYOUTLOCK
    | OBD_CONNECT_LVB_TYPE
    | OBD_CONNECT_MAXBYTES
    | OBD_CONNECT_MDS
    | OBD_CONNECT_SHORTIO
    | OBD_CONNECT_SKIP_ORPHAN
    | OBD_CONNECT_SRVLOCK
    | OBD_CONNECT_VERSION;

/// The flags of `ocd_connect_flags2` that this target implements.
const FLAGS2: u64 = OBD_CONNECT2_INC_XID
    | OBD_CONNECT2_LOCKAHEAD
    | OBD_CONNECT2_LSEEK
    | OBD_CONNECT2_REP_MBITS
    | OBD_CONNECT2_UNALIGNED_DIO;

/// Space that a client accounts for each extent in addition to its data (`GRANT_PARAM`).
const EXTENT_TAX_KIB: u16 = 24;
/// The longest extent that costs one tax, blocks.
const EXTENT_BLOCKS_MAX: u32 = 0x4000;
/// Minimum `ocd_brw_size` of a client, bytes: a page.
const BRW_SIZE_MIN: u32 = 4096;
/// log2 of the space of an empty object, bytes.
const OBJECT_BITS: u8 = 9;

/// The limits that the target offers to clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) index: OstIndex,
    /// The number of this start.
    pub(crate) instance: u32,
    /// The largest read or write, bytes.
    pub(crate) brw_size: u32,
    /// log2 of the size of a block, bytes.
    pub(crate) block_bits: u8,
    /// The largest object, bytes.
    pub(crate) maxbytes: u64,
}

impl Offer {
    /// The largest number of bytes granted at once: two of the client's largest writes, each with
    /// the tax of one extent.
    pub(crate) fn chunk_bytes(&self, brw_size: u32) -> u64 {
        2 * (u64::from(brw_size) + (u64::from(EXTENT_TAX_KIB) << 10))
    }

    /// The connect reply, without `ocd_grant`.
    ///
    /// # Errors
    ///
    /// `EBADF` for another target's index, `EPROTO` for a transfer size below a page.
    pub(crate) fn reply_data(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        let request = &req.data;
        let mut data = ObdConnectData {
            ocd_connect_flags: request.ocd_connect_flags & FLAGS,
            ocd_version: LUSTRE_VERSION_CODE,
            ocd_instance: self.instance,
            paddingF: Precision::grant(request),
            ..ObdConnectData::default()
        };
        if req.wants(OBD_CONNECT_INDEX) {
            if request.ocd_index != self.index.0 {
                let (expected, found) = (self.index.0, request.ocd_index);
                lnet::warn_rate_limited!(client = %req.client_uuid, expected, found, "connect refused: request for another target's index");
                return Err(Errno::EBADF);
            }
            data.ocd_index = self.index.0;
        }
        if req.wants(OBD_CONNECT_MDS) {
            data.ocd_group = request.ocd_group;
        }
        if req.wants(OBD_CONNECT_BRW_SIZE) {
            let size = request.ocd_brw_size.min(self.brw_size);
            if size < BRW_SIZE_MIN {
                lnet::warn_rate_limited!(client = %req.client_uuid, ocd_brw_size = request.ocd_brw_size, "connect refused: ocd_brw_size is less than a page");
                return Err(Errno::EPROTO);
            }
            data.ocd_brw_size = 1 << size.ilog2();
        }
        if req.wants(OBD_CONNECT_GRANT_PARAM) {
            data.ocd_grant_blkbits = self.block_bits;
            data.ocd_grant_inobits = OBJECT_BITS;
            data.ocd_grant_tax_kb = EXTENT_TAX_KIB;
            data.ocd_grant_max_blks = EXTENT_BLOCKS_MAX;
        }
        if req.wants(OBD_CONNECT_CKSUM) {
            data.ocd_cksum_types = request.ocd_cksum_types & ChecksumType::supported();
            if data.ocd_cksum_types == 0 {
                data.ocd_connect_flags &= !OBD_CONNECT_CKSUM;
            }
        }
        if req.wants(OBD_CONNECT_MAXBYTES) {
            data.ocd_maxbytes = self.maxbytes;
        }
        if req.wants(OBD_CONNECT_FLAGS2) {
            data.ocd_connect_flags2 = request.ocd_connect_flags2 & FLAGS2;
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use wire::Nid;

    use super::*;

    const OFFER: Offer = Offer {
        index: OstIndex(1),
        instance: 3,
        brw_size: 4 << 20,
        block_bits: 12,
        maxbytes: 0xfff_ffff_f000,
    };

    fn connect(data: ObdConnectData) -> Result<ObdConnectData, Errno> {
        OFFER.reply_data(&ConnectRequest {
            client_uuid: "c".into(),
            peer: Nid::LO,
            reconnects: false,
            recovers: false,
            data,
        })
    }

    /// The connect data of Lustre's kernel client in the capture of a mount.
    fn captured() -> ObdConnectData {
        ObdConnectData {
            ocd_connect_flags: 0xa046_7af2_e364_0038,
            ocd_version: 0x0211_393e,
            ocd_grant: 0x800_0000,
            ocd_brw_size: 0x400_0000,
            ocd_cksum_types: 0xf7,
            ocd_connect_flags2: 0x4_0014_8202,
            ..ObdConnectData::default()
        }
    }

    #[test]
    fn only_requested_features_are_granted() {
        let request = captured();
        let reply = connect(request).unwrap();
        assert_eq!(reply.ocd_connect_flags & !request.ocd_connect_flags, 0);
        assert_eq!(reply.ocd_connect_flags2 & !request.ocd_connect_flags2, 0);
        assert_eq!(reply.ocd_brw_size, 4 << 20);
        assert_eq!(reply.ocd_cksum_types, 0xf7);
        assert_eq!(reply.ocd_maxbytes, 0xfff_ffff_f000);
        assert_eq!(connect(ObdConnectData::default()).unwrap().ocd_connect_flags, 0);
    }

    #[test]
    fn index_of_another_target_is_an_error() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_INDEX,
            ocd_index: 2,
            ..ObdConnectData::default()
        };
        assert_eq!(connect(data), Err(Errno::EBADF));
        assert_eq!(
            connect(ObdConnectData { ocd_index: 1, ..data })
                .unwrap()
                .ocd_index,
            1
        );
    }

    #[test]
    fn brw_size_is_rounded_down_and_less_than_a_page_is_an_error() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_BRW_SIZE,
            ..ObdConnectData::default()
        };
        assert_eq!(connect(data), Err(Errno::EPROTO));
        assert_eq!(
            connect(ObdConnectData {
                ocd_brw_size: 3 << 20,
                ..data
            })
            .unwrap()
            .ocd_brw_size,
            2 << 20
        );
    }

    #[test]
    fn checksums_are_off_without_a_common_type() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_CKSUM,
            ocd_cksum_types: 0x8,
            ..ObdConnectData::default()
        };
        assert_eq!(connect(data).unwrap().ocd_connect_flags, 0);
    }
}
