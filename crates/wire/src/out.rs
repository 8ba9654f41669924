//! Updates between targets, batches of requests, and checks by LFSCK.

use crate::fid::LuFid;
use crate::layout::wire_structs;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct ObjectUpdateParam("object_update_param", 8) {
        oup_len: u16, oup_padding: u16, oup_padding2: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ObjectUpdate("object_update", 40) {
        ou_type: u16, ou_params_count: u16, ou_result_size: u32, ou_flags: u32, ou_padding1: u32,
        ou_batchid: u64, ou_fid: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct ObjectUpdateRequest("object_update_request", 8) {
        ourq_magic: u32, ourq_count: u16, ourq_padding: u16,
    }
    #[derive(Copy, Hash)]
    pub struct ObjectUpdateResult("object_update_result", 8) {
        our_rc: i32, our_datalen: u16, our_padding: u16,
    }
    #[derive(Copy, Hash)]
    pub struct ObjectUpdateReply("object_update_reply", 8) {
        ourp_magic: u32, ourp_count: u16, ourp_padding: u16,
    }
    #[derive(Copy, Hash)]
    pub struct OutUpdateHeader("out_update_header", 16) {
        ouh_magic: u32, ouh_count: u32, ouh_inline_length: u32, ouh_reply_size: u32,
    }
    #[derive(Copy, Hash)]
    pub struct OutUpdateBuffer("out_update_buffer", 8) {
        oub_size: u32, oub_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct OutReadReply("out_read_reply", 16) {
        orr_size: u32, orr_padding: u32, orr_offset: u64,
    }
    #[derive(Copy, Hash)]
    pub struct UpdateOp("update_op", 20) {
        uop_fid: LuFid, uop_type: u16, uop_param_count: u16,
    }
    #[derive(Copy, Hash)]
    pub struct ButUpdateHeader("but_update_header", 24) {
        buh_magic: u32, buh_count: u32, buh_inline_length: u32, buh_reply_size: u32, buh_update_count: u32,
        buh_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ButUpdateBuffer("but_update_buffer", 8) {
        bub_size: u32, bub_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct BatchUpdateRequest("batch_update_request", 8) {
        burq_magic: u32, burq_count: u16, burq_padding: u16,
    }
    #[derive(Copy, Hash)]
    pub struct BatchUpdateReply("batch_update_reply", 8) {
        burp_magic: u32, burp_count: u16, burp_padding: u16,
    }
    #[derive(Copy, Hash)]
    pub struct LfsckRequest("lfsck_request", 96) {
        lr_event: u32, lr_index: u32, lr_flags: u32, lr_valid: u32, lr_speed: u32, lr_version: u16,
        lr_active: u16, lr_param: u16, lr_async_windows: u16, lr_flags2: u32, lr_fid: LuFid, lr_fid2: LuFid,
        lr_comp_id: u32, lr_padding_0: u32, lr_padding_1: u64, lr_padding_2: u64, lr_padding_3: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LfsckReply("lfsck_reply", 16) {
        lr_status: u32, lr_padding_1: u32, lr_repaired: u64,
    }
}
