//! Layouts of directories: the metadata targets that a directory is striped over.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::ptlrpc::ObdUuid;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LmvMdsMdV1("lmv_mds_md_v1", 56) {
        lmv_magic: u32, lmv_stripe_count: u32, lmv_master_mdt_index: u32, lmv_hash_type: u32,
        lmv_layout_version: u32, lmv_migrate_offset: u32, lmv_migrate_hash: u32, lmv_padding2: u32,
        lmv_padding3: u64, lmv_pool_name: Text<16>,
    }
    #[derive(Copy, Hash)]
    pub struct LmvUserMdsData("lmv_user_mds_data", 24) {
        lum_fid: LuFid, lum_padding: u32, lum_mds: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LmvUserMdV1("lmv_user_md_v1", 48) {
        lum_magic: u32, lum_stripe_count: i32, lum_stripe_offset: u32, lum_hash_type: u32, lum_type: u32,
        lum_max_inherit: u8, lum_max_inherit_rr: u8, lum_padding1: u16, lum_padding2: u32, lum_padding3: u32,
        lum_pool_name: Text<16>,
    }
    #[derive(Copy, Hash)]
    pub struct LmvForeignMd("lmv_foreign_md", 16) {
        lfm_magic: u32, lfm_length: u32, lfm_type: u32, lfm_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LmvDesc("lmv_desc", 88) {
        ld_tgt_count: u32, ld_active_tgt_count: u32, ld_default_stripe_count: u32, ld_pattern: u32,
        ld_default_hash_size: u64, ld_padding_1: u64, ld_padding_2: u32, ld_qos_maxage: u32,
        ld_padding_3: u32, ld_padding_4: u32, ld_uuid: ObdUuid,
    }
}
