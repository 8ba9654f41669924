//! What is granted to whom at a connect: what is asked for and implemented (guide 3.9).

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

const FLAGS2: u64 = OBD_CONNECT2_INC_XID
    | OBD_CONNECT2_LOCKAHEAD
    | OBD_CONNECT2_LSEEK
    | OBD_CONNECT2_REP_MBITS
    | OBD_CONNECT2_UNALIGNED_DIO;

/// Space that an extent of a client's write costs besides its data, for its reckoning (GRANT_PARAM).
const EXTENT_TAX_KIB: u16 = 24;
/// The longest extent, blocks.
const EXTENT_BLOCKS_MAX: u32 = 0x4000;
/// log2 of the space of an object without data.
const OBJECT_BITS: u8 = 9;

/// What of the target goes into an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) index: OstIndex,
    pub(crate) instance: u32,
    pub(crate) brw_size: u32,
    pub(crate) block_bits: u8,
    pub(crate) maxbytes: u64,
}

impl Offer {
    /// How much a client is granted at once: two of its largest writes, with what they cost besides.
    pub(crate) fn chunk_bytes(&self, brw_size: u32) -> u64 {
        2 * (u64::from(brw_size) + (u64::from(EXTENT_TAX_KIB) << 10))
    }

    /// The answer, with `ocd_grant` still to be filled in.
    pub(crate) fn answer(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        let asked = &req.data;
        let mut data = ObdConnectData {
            ocd_connect_flags: asked.ocd_connect_flags & FLAGS,
            ocd_version: LUSTRE_VERSION_CODE,
            ocd_instance: self.instance,
            paddingF: Precision::grant(asked),
            ..ObdConnectData::default()
        };
        if req.wants(OBD_CONNECT_INDEX) {
            if asked.ocd_index != self.index.0 {
                let (expected, found) = (self.index.0, asked.ocd_index);
                lnet::warn_seldom!(client = %req.client_uuid, expected, found, "connect for another target's index");
                return Err(Errno::EBADF);
            }
            data.ocd_index = self.index.0;
        }
        if req.wants(OBD_CONNECT_MDS) {
            data.ocd_group = asked.ocd_group;
        }
        if req.wants(OBD_CONNECT_BRW_SIZE) {
            let size = asked.ocd_brw_size.min(self.brw_size);
            if size < 4096 {
                lnet::warn_seldom!(client = %req.client_uuid, ocd_brw_size = asked.ocd_brw_size, "less than a page");
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
            data.ocd_cksum_types = asked.ocd_cksum_types & ChecksumType::supported();
            if data.ocd_cksum_types == 0 {
                data.ocd_connect_flags &= !OBD_CONNECT_CKSUM;
            }
        }
        if req.wants(OBD_CONNECT_MAXBYTES) {
            data.ocd_maxbytes = self.maxbytes;
        }
        if req.wants(OBD_CONNECT_FLAGS2) {
            data.ocd_connect_flags2 = asked.ocd_connect_flags2 & FLAGS2;
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

    fn ask(data: ObdConnectData) -> Result<ObdConnectData, Errno> {
        OFFER.answer(&ConnectRequest {
            client_uuid: "c".into(),
            peer: Nid::LO,
            reconnects: false,
            data,
        })
    }

    /// What the kernel's client asked for in the capture of a mount.
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
    fn nothing_is_granted_that_was_not_asked_for() {
        let asked = captured();
        let got = ask(asked).unwrap();
        assert_eq!(got.ocd_connect_flags & !asked.ocd_connect_flags, 0);
        assert_eq!(got.ocd_connect_flags2 & !asked.ocd_connect_flags2, 0);
        assert_eq!(got.ocd_brw_size, 4 << 20);
        assert_eq!(got.ocd_cksum_types, 0xf7);
        assert_eq!(got.ocd_maxbytes, 0xfff_ffff_f000);
        assert_eq!(ask(ObdConnectData::default()).unwrap().ocd_connect_flags, 0);
    }

    #[test]
    fn another_targets_index_is_refused() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_INDEX,
            ocd_index: 2,
            ..ObdConnectData::default()
        };
        assert_eq!(ask(data), Err(Errno::EBADF));
        assert_eq!(ask(ObdConnectData { ocd_index: 1, ..data }).unwrap().ocd_index, 1);
    }

    #[test]
    fn sizes_below_a_page_are_refused_and_others_rounded() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_BRW_SIZE,
            ..ObdConnectData::default()
        };
        assert_eq!(ask(data), Err(Errno::EPROTO));
        assert_eq!(
            ask(ObdConnectData {
                ocd_brw_size: 3 << 20,
                ..data
            })
            .unwrap()
            .ocd_brw_size,
            2 << 20
        );
    }

    #[test]
    fn without_a_common_checksum_there_is_none() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_CKSUM,
            ocd_cksum_types: 0x8,
            ..ObdConnectData::default()
        };
        assert_eq!(ask(data).unwrap().ocd_connect_flags, 0);
    }
}
