//! Metadata targets: the body of most requests and replies, closes, swaps of layouts.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::ptlrpc::LustreHandle;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct MdtBody("mdt_body", 216) {
        mbo_fid1: LuFid, mbo_fid2: LuFid, mbo_open_handle: LustreHandle, mbo_valid: u64, mbo_size: u64,
        mbo_mtime: i64, mbo_atime: i64, mbo_ctime: i64, mbo_blocks: u64, mbo_version: u64, mbo_t_state: u64,
        mbo_fsuid: u32, mbo_fsgid: u32, mbo_capability: u32, mbo_mode: u32, mbo_uid: u32, mbo_gid: u32,
        mbo_flags: u32, mbo_rdev: u32, mbo_nlink: u32, mbo_layout_gen: u32, mbo_suppgid: u32,
        mbo_eadatasize: u32, mbo_aclsize: u32, mbo_max_mdsize: u32, mbo_unused3: u32, mbo_uid_h: u32,
        mbo_gid_h: u32, mbo_projid: u32, mbo_dom_size: u64, mbo_dom_blocks: u64, mbo_btime: u64,
        mbo_xattr_absent: u64, mbo_padding_10: u64,
    }
    #[derive(Copy, Hash)]
    pub struct MdtIoepoch("mdt_ioepoch", 24) {
        mio_open_handle: LustreHandle, mio_unused1: u64, mio_unused2: u32, mio_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct CloseData("close_data", 96) {
        cd_handle: LustreHandle, cd_fid: LuFid, cd_data_version: u64, cd_reserved: [u64; 8],
    }
    #[derive(Copy, Hash)]
    pub struct CloseDataResyncDone("close_data_resync_done", 64) {
        resync_count: u32, resync_ids_inline: [u32; 15],
    }
    #[derive(Copy, Hash)]
    pub struct MdcSwapLayouts("mdc_swap_layouts", 24) {
        msl_flags: u64, msl_dv1: u64, msl_dv2: u64,
    }
    #[derive(Copy, Hash)]
    pub struct MdcSwapLayouts217("mdc_swap_layouts_217", 8) {
        msl_flags: u64,
    }
}
