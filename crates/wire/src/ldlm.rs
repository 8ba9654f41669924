//! The lock manager: resources, descriptions, requests, value blocks.

use crate::fid::LuExtent;
use crate::layout::wire_structs;
use crate::policy::LdlmPolicyData;
use crate::ptlrpc::LustreHandle;
use crate::quota::LquotaId;

wire_structs! {
    #[derive(Copy, PartialOrd, Ord)]
    pub struct LdlmResId("ldlm_res_id", 32, own_debug) {
        name: [u64; 4],
    }
    #[derive(Copy, Hash)]
    pub struct LdlmExtent("ldlm_extent", 24) {
        start: u64, end: u64, gid: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmInodebits("ldlm_inodebits", 32) {
        bits: u64, try_bits: u64, li_gid: u64, li_padding: u32, li_initiator_id: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmFlockWire("ldlm_flock_wire", 32) {
        lfw_start: u64, lfw_end: u64, lfw_owner: u64, lfw_padding: u32, lfw_pid: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmIntent("ldlm_intent", 8) {
        opc: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmResourceDesc("ldlm_resource_desc", 40) {
        lr_type: u32, lr_pad: u32, lr_name: LdlmResId,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmLockDesc("ldlm_lock_desc", 80) {
        l_resource: LdlmResourceDesc, l_req_mode: u32, l_granted_mode: u32, l_policy_data: LdlmPolicyData,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmRequest("ldlm_request", 104) {
        lock_flags: u32, lock_count: u32, lock_desc: LdlmLockDesc, lock_handle: [u64; 2],
    }
    #[derive(Copy, Hash)]
    pub struct LdlmReply("ldlm_reply", 112) {
        lock_flags: u32, lock_padding: u32, lock_desc: LdlmLockDesc, lock_handle: LustreHandle,
        lock_policy_res1: u64, lock_policy_res2: u64,
    }
    #[derive(Copy, Hash)]
    pub struct OstLvbV1("ost_lvb_v1", 40) {
        lvb_size: u64, lvb_mtime: i64, lvb_atime: i64, lvb_ctime: i64, lvb_blocks: u64,
    }
    #[derive(Copy, Hash)]
    pub struct OstLvb("ost_lvb", 56) {
        lvb_size: u64, lvb_mtime: i64, lvb_atime: i64, lvb_ctime: i64, lvb_blocks: u64, lvb_mtime_ns: u32,
        lvb_atime_ns: u32, lvb_ctime_ns: u32, lvb_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LquotaLvb("lquota_lvb", 40) {
        lvb_flags: u64, lvb_id_may_rel: u64, lvb_id_rel: u64, lvb_id_qunit: u64, lvb_pad1: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmGlLquotaDesc("ldlm_gl_lquota_desc", 64) {
        gl_id: LquotaId, gl_flags: u64, gl_ver: u64, gl_hardlimit: u64, gl_softlimit: u64, gl_time: u64,
        gl_pad2: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LdlmGlBarrierDesc("ldlm_gl_barrier_desc", 16) {
        lgbd_status: u32, lgbd_timeout: u32, lgbd_padding: u64,
    }
    #[derive(Copy, Hash)]
    pub struct BarrierLvb("barrier_lvb", 16) {
        lvb_status: u32, lvb_index: u32, lvb_padding: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LayoutIntent("layout_intent", 24) {
        lai_opc: u32, lai_flags: u32, lai_extent: LuExtent,
    }
}
