//! Modifying operations of the metadata target: one record type each, all of 136 bytes.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::ptlrpc::LustreHandle;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct MdtRecSetattr("mdt_rec_setattr", 136) {
        sa_opcode: u32, sa_cap: u32, sa_fsuid: u32, sa_padding_1_h: u32, sa_fsgid: u32, sa_padding_2_h: u32,
        sa_suppgid: u32, sa_padding_3_h: u32, sa_padding_1: u32, sa_padding_2: u32, sa_fid: LuFid,
        sa_valid: u64, sa_uid: u32, sa_gid: u32, sa_size: u64, sa_blocks: u64, sa_mtime: i64, sa_atime: i64,
        sa_ctime: i64, sa_attr_flags: u32, sa_mode: u32, sa_bias: u32, sa_projid: u32, sa_padding_4: u32,
        sa_padding_5: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecCreate("mdt_rec_create", 136) {
        cr_opcode: u32, cr_cap: u32, cr_fsuid: u32, cr_layout_ver: u32, cr_fsgid: u32, cr_padding_2_h: u32,
        cr_suppgid1: u32, cr_padding_3_h: u32, cr_suppgid2: u32, cr_padding_4_h: u32, cr_fid1: LuFid,
        cr_fid2: LuFid, cr_open_handle_old: LustreHandle, cr_time: i64, cr_rdev: u64, cr_ioepoch: u64,
        cr_padding_1: u64, cr_mode: u32, cr_bias: u32, cr_flags_l: u32, cr_flags_h: u32, cr_umask: u32,
        cr_padding_4: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecLink("mdt_rec_link", 136) {
        lk_opcode: u32, lk_cap: u32, lk_fsuid: u32, lk_padding_1_h: u32, lk_fsgid: u32, lk_padding_2_h: u32,
        lk_suppgid1: u32, lk_padding_3_h: u32, lk_suppgid2: u32, lk_padding_4_h: u32, lk_fid1: LuFid,
        lk_fid2: LuFid, lk_time: i64, lk_padding_1: u64, lk_padding_2: u64, lk_padding_3: u64,
        lk_padding_4: u64, lk_bias: u32, lk_padding_5: u32, lk_padding_6: u32, lk_padding_7: u32,
        lk_padding_8: u32, lk_padding_9: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecUnlink("mdt_rec_unlink", 136) {
        ul_opcode: u32, ul_cap: u32, ul_fsuid: u32, ul_padding_1_h: u32, ul_fsgid: u32, ul_padding_2_h: u32,
        ul_suppgid1: u32, ul_padding_3_h: u32, ul_suppgid2: u32, ul_padding_4_h: u32, ul_fid1: LuFid,
        ul_fid2: LuFid, ul_time: i64, ul_padding_2: u64, ul_padding_3: u64, ul_padding_4: u64,
        ul_padding_5: u64, ul_bias: u32, ul_mode: u32, ul_padding_6: u32, ul_padding_7: u32,
        ul_padding_8: u32, ul_padding_9: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecRename("mdt_rec_rename", 136) {
        rn_opcode: u32, rn_cap: u32, rn_fsuid: u32, rn_padding_1_h: u32, rn_fsgid: u32, rn_padding_2_h: u32,
        rn_suppgid1: u32, rn_padding_3_h: u32, rn_suppgid2: u32, rn_padding_4_h: u32, rn_fid1: LuFid,
        rn_fid2: LuFid, rn_time: i64, rn_padding_1: u64, rn_padding_2: u64, rn_padding_3: u64,
        rn_padding_4: u64, rn_bias: u32, rn_mode: u32, rn_padding_5: u32, rn_padding_6: u32,
        rn_padding_7: u32, rn_padding_8: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecSetxattr("mdt_rec_setxattr", 136) {
        sx_opcode: u32, sx_cap: u32, sx_fsuid: u32, sx_padding_1_h: u32, sx_fsgid: u32, sx_padding_2_h: u32,
        sx_suppgid1: u32, sx_padding_3_h: u32, sx_suppgid2: u32, sx_padding_4_h: u32, sx_fid: LuFid,
        sx_padding_1: u64, sx_padding_2: u32, sx_padding_3: u32, sx_valid: u64, sx_time: i64,
        sx_padding_5: u64, sx_padding_6: u64, sx_padding_7: u64, sx_size: u32, sx_flags: u32,
        sx_padding_8: u32, sx_padding_9: u32, sx_padding_10: u32, sx_padding_11: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecResync("mdt_rec_resync", 136) {
        rs_opcode: u32, rs_cap: u32, rs_fsuid: u32, rs_padding_1_h: u32, rs_fsgid: u32, rs_padding_2_h: u32,
        rs_suppgid1: u32, rs_padding_3_h: u32, rs_suppgid2: u32, rs_padding_4_h: u32, rs_fid: LuFid,
        rs_padding0: [u8; 16], rs_lease_handle: LustreHandle, rs_padding1: i64, rs_padding2: i64,
        rs_padding3: u64, rs_padding4: u64, rs_bias: u32, rs_padding5: u32, rs_padding6: u32,
        rs_padding7: u32, rs_mirror_id_new: u32, rs_mirror_id_old: u16, rs_padding9: u16,
    }
    #[derive(Copy, Hash)]
    pub struct MdtRecReint("mdt_rec_reint", 136) {
        rr_opcode: u32, rr_cap: u32, rr_fsuid: u32, rr_padding_1_h: u32, rr_fsgid: u32, rr_padding_2_h: u32,
        rr_suppgid1: u32, rr_padding_3_h: u32, rr_suppgid2: u32, rr_padding_4_h: u32, rr_fid1: LuFid,
        rr_fid2: LuFid, rr_mtime: i64, rr_atime: i64, rr_ctime: i64, rr_size: u64, rr_blocks: u64,
        rr_bias: u32, rr_mode: u32, rr_flags: u32, rr_flags_h: u32, rr_umask: u32, rr_mirror_id_old: u16,
        rr_padding_4: u16,
    }
}
