//! The RPC layer: the message header, the body of every message, connect data, index pages.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LustreHandle("lustre_handle", 8, own_debug) {
        cookie: u64,
    }
    #[derive(Copy, Hash)]
    pub struct ObdUuid("obd_uuid", 40, own_debug) {
        uuid: Text<40>,
    }
    #[derive(Copy, Hash)]
    pub struct LustreMsgV2("lustre_msg_v2", 32) {
        lm_bufcount: u32, lm_secflvr: u32, lm_magic: u32, lm_repsize: u32, lm_cksum: u32, lm_flags: u32,
        lm_opc: u32, lm_padding_3: u32,
    }
    #[derive(Copy, Hash)]
    pub struct PtlrpcBody("ptlrpc_body_v3", 184) {
        pb_handle: LustreHandle, pb_type: u32, pb_version: u32, pb_opc: u32, pb_status: i32, pb_last_xid: u64,
        pb_tag: u16, pb_padding0: u16, pb_projid: u32, pb_last_committed: u64, pb_transno: u64, pb_flags: u32,
        pb_op_flags: u32, pb_conn_cnt: u32, pb_timeout: u32, pb_service_time: u32, pb_limit: u32, pb_slv: u64,
        pb_pre_versions: [u64; 4], pb_mbits: u64, pb_padding64_0: u64, pb_padding64_1: u64, pb_uid: u32,
        pb_gid: u32, pb_jobid: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct PtlrpcBodyV2("ptlrpc_body_v2", 152) {
        pb_handle: LustreHandle, pb_type: u32, pb_version: u32, pb_opc: u32, pb_status: i32, pb_last_xid: u64,
        pb_tag: u16, pb_padding0: u16, pb_projid: u32, pb_last_committed: u64, pb_transno: u64, pb_flags: u32,
        pb_op_flags: u32, pb_conn_cnt: u32, pb_timeout: u32, pb_service_time: u32, pb_limit: u32, pb_slv: u64,
        pb_pre_versions: [u64; 4], pb_mbits: u64, pb_padding64_0: u64, pb_padding64_1: u64, pb_uid: u32,
        pb_gid: u32,
    }
    #[derive(Copy, Hash)]
    #[allow(non_snake_case)]
    pub struct ObdConnectData("obd_connect_data", 192) {
        ocd_connect_flags: u64, ocd_version: u32, ocd_grant: u32, ocd_index: u32, ocd_brw_size: u32,
        ocd_ibits_known: u64, ocd_grant_blkbits: u8, ocd_grant_inobits: u8, ocd_grant_tax_kb: u16,
        ocd_grant_max_blks: u32, ocd_transno: u64, ocd_group: u32, ocd_cksum_types: u32, ocd_max_easize: u32,
        ocd_instance: u32, ocd_maxbytes: u64, ocd_maxmodrpcs: u16, ocd_conn_policy: u8, padding0: u8,
        padding1: u32, ocd_connect_flags2: u64, ocd_compr_type: u64, padding4: u64, padding5: u64,
        padding6: u64, padding7: u64, padding8: u64, padding9: u64, paddingA: u64, paddingB: u64,
        paddingC: u64, paddingD: u64, paddingE: u64, paddingF: u64,
    }
    #[derive(Copy, Hash)]
    pub struct IdxInfo("idx_info", 80) {
        ii_magic: u32, ii_flags: u32, ii_count: u16, ii_pad0: u16, ii_attrs: u32, ii_fid: LuFid,
        ii_version: u64, ii_hash_start: u64, ii_hash_end: u64, ii_keysize: u16, ii_recsize: u16, ii_pad1: u32,
        ii_pad2: u64, ii_pad3: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LuIdxpage("lu_idxpage", 16) {
        lip_magic: u32, lip_flags: u16, lip_nr: u16, lip_pad0: u64,
    }
}
