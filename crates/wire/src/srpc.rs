//! LNet selftest: sessions, batches, tests, and their statistics.

use crate::layout::wire_structs;
use crate::lnet::LnetCountersCommon;
use crate::nid::Nid;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LstSid("lst_sid", 16) {
        ses_nid: Nid, ses_stamp: i64,
    }
    #[derive(Copy, Hash)]
    pub struct LstBid("lst_bid", 8) {
        bat_id: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LstTestBulkParam("lst_test_bulk_param", 24) {
        blk_opc: i32, blk_size: i32, blk_time: i32, blk_flags: i32, blk_cli_off: i32, blk_srv_off: i32,
    }
    #[derive(Copy, Hash)]
    pub struct LstTestPingParam("lst_test_ping_param", 16) {
        png_size: i32, png_time: i32, png_loop: i32, png_flags: i32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcGenericReqst("srpc_generic_reqst", 16) {
        rpyid: u64, bulkid: u64,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcGenericReply("srpc_generic_reply", 20) {
        status: u32, sid: LstSid,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcMksnReqst("srpc_mksn_reqst", 60) {
        mksn_rpyid: u64, mksn_sid: LstSid, mksn_force: u32, mksn_name: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcMksnReply("srpc_mksn_reply", 56) {
        mksn_status: u32, mksn_sid: LstSid, mksn_timeout: u32, mksn_name: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcRmsnReqst("srpc_rmsn_reqst", 24) {
        rmsn_rpyid: u64, rmsn_sid: LstSid,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcRmsnReply("srpc_rmsn_reply", 20) {
        rmsn_status: u32, rmsn_sid: LstSid,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcJoinReqst("srpc_join_reqst", 56) {
        join_rpyid: u64, join_sid: LstSid, join_group: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcJoinReply("srpc_join_reply", 56) {
        join_status: u32, join_sid: LstSid, join_timeout: u32, join_session: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcDebugReqst("srpc_debug_reqst", 28) {
        dbg_rpyid: u64, dbg_sid: LstSid, dbg_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcDebugReply("srpc_debug_reply", 60) {
        dbg_status: u32, dbg_sid: LstSid, dbg_timeout: u32, dbg_nbatch: u32, dbg_name: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcBatchReqst("srpc_batch_reqst", 44) {
        bar_rpyid: u64, bar_sid: LstSid, bar_bid: LstBid, bar_opc: u32, bar_testidx: u32, bar_arg: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcBatchReply("srpc_batch_reply", 28) {
        bar_status: u32, bar_sid: LstSid, bar_active: u32, bar_time: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcStatReqst("srpc_stat_reqst", 28) {
        str_rpyid: u64, str_sid: LstSid, str_type: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcStatReply("srpc_stat_reply", 136) {
        str_status: u32, str_sid: LstSid, str_fw: SfwCounters, str_rpc: SrpcCounters,
        str_lnet: LnetCountersCommon,
    }
    #[derive(Copy, Hash)]
    pub struct TestBulkReq("test_bulk_req", 12) {
        blk_opc: u32, blk_npg: u32, blk_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct TestBulkReqV1("test_bulk_req_v1", 12) {
        blk_opc: u16, blk_flags: u16, blk_len: u32, blk_offset: u32,
    }
    #[derive(Copy, Hash)]
    pub struct TestPingReq("test_ping_req", 8) {
        png_size: u32, png_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcTestReqst("srpc_test_reqst", 70) {
        tsr_rpyid: u64, tsr_bulkid: u64, tsr_sid: LstSid, tsr_bid: LstBid, tsr_service: u32, tsr_loop: u32,
        tsr_concur: u32, tsr_is_client: u8, tsr_stop_onerr: u8, tsr_ndest: u32, tsr_u: [u8; 12],
    }
    #[derive(Copy, Hash)]
    pub struct SrpcTestReply("srpc_test_reply", 20) {
        tsr_status: u32, tsr_sid: LstSid,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcPingReqst("srpc_ping_reqst", 32) {
        pnr_rpyid: u64, pnr_magic: u32, pnr_seq: u32, pnr_time_sec: u64, pnr_time_nsec: u64,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcPingReply("srpc_ping_reply", 12) {
        pnr_status: u32, pnr_magic: u32, pnr_seq: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcBrwReqst("srpc_brw_reqst", 28) {
        brw_rpyid: u64, brw_bulkid: u64, brw_rw: u32, brw_len: u32, brw_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcBrwReply("srpc_brw_reply", 4) {
        brw_status: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcCounters("srpc_counters", 36) {
        errors: u32, rpcs_sent: u32, rpcs_rcvd: u32, rpcs_dropped: u32, rpcs_expired: u32, bulk_get: u64,
        bulk_put: u64,
    }
    #[derive(Copy, Hash)]
    pub struct SfwCounters("sfw_counters", 20) {
        running_ms: u32, active_batches: u32, zombie_sessions: u32, brw_errors: u32, ping_errors: u32,
    }
    #[derive(Copy, Hash)]
    pub struct SrpcMsg("srpc_msg", 160) {
        msg_magic: u32, msg_version: u32, msg_type: u32, msg_reserved0: u32, msg_reserved1: u32,
        msg_ses_feats: u32, msg_body: [u8; 136],
    }
}
