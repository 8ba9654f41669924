//! The object target: attributes, object and buffer lists, statfs, advice, extents.

use crate::ea::OstLayout;
use crate::fid::OstId;
use crate::layout::wire_structs;
use crate::ptlrpc::LustreHandle;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct Obdo("obdo", 208) {
        o_valid: u64, o_oi: OstId, o_parent_seq: u64, o_size: u64, o_mtime: i64, o_atime: i64, o_ctime: i64,
        o_blocks: u64, o_grant: u64, o_blksize: u32, o_mode: u32, o_uid: u32, o_gid: u32, o_flags: u32,
        o_nlink: u32, o_parent_oid: u32, o_misc: u32, o_ioepoch: u64, o_stripe_idx: u32, o_parent_ver: u32,
        o_handle: LustreHandle, o_layout: OstLayout, o_layout_version: u32, o_uid_h: u32, o_gid_h: u32,
        o_data_version: u64, o_projid: u32, o_padding_4: u32, o_padding_5: u64, o_padding_6: u64,
    }
    #[derive(Copy, Hash)]
    pub struct OstBody("ost_body", 208) {
        oa: Obdo,
    }
    #[derive(Copy, Hash)]
    pub struct ObdIoobj("obd_ioobj", 24) {
        ioo_oid: OstId, ioo_max_brw: u32, ioo_bufcnt: u32,
    }
    #[derive(Copy, Hash)]
    pub struct NiobufRemote("niobuf_remote", 16) {
        rnb_offset: u64, rnb_len: u32, rnb_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ObdStatfs("obd_statfs", 144) {
        os_type: u64, os_blocks: u64, os_bfree: u64, os_bavail: u64, os_files: u64, os_ffree: u64,
        os_fsid: Text<40>, os_bsize: u32, os_namelen: u32, os_maxbytes: u64, os_state: u32,
        os_fprecreated: u32, os_granted: u32, os_spare3: u32, os_spare4: u32, os_spare5: u32, os_spare6: u32,
        os_spare7: u32, os_spare8: u32, os_spare9: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LuLadvise("lu_ladvise", 32) {
        lla_advice: u16, lla_value1: u16, lla_value2: u32, lla_start: u64, lla_end: u64, lla_value3: u32,
        lla_value4: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LadviseHdr("ladvise_hdr", 32) {
        lah_magic: u32, lah_count: u32, lah_flags: u64, lah_value1: u32, lah_value2: u32, lah_value3: u64,
    }
    #[derive(Copy, Hash)]
    pub struct Fiemap("fiemap", 32) {
        fm_start: u64, fm_length: u64, fm_flags: u32, fm_mapped_extents: u32, fm_extent_count: u32,
        fm_reserved: u32,
    }
    #[derive(Copy, Hash)]
    pub struct FiemapExtent("fiemap_extent", 56) {
        fe_logical: u64, fe_physical: u64, fe_length: u64, pad_24: [u8; 16], fe_flags: u32,
        fe_reserved: [u32; 3],
    }
    #[derive(Copy, Hash)]
    pub struct LlFiemapInfoKey("ll_fiemap_info_key", 248) {
        lfik_name: Text<8>, lfik_oa: Obdo, lfik_fiemap: Fiemap,
    }
}
