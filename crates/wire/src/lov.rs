//! Layouts of files: the objects that a file is striped over.

use crate::fid::{LuExtent, OstId};
use crate::layout::wire_structs;
use crate::ptlrpc::ObdUuid;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LovOstDataV1("lov_ost_data_v1", 24) {
        l_ost_oi: OstId, l_ost_gen: u32, l_ost_idx: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LovMdsMdV1("lov_mds_md_v1", 32) {
        lmm_magic: u32, lmm_pattern: u32, lmm_oi: OstId, lmm_stripe_size: u32, lmm_stripe_count: u16,
        lmm_layout_gen: u16,
    }
    #[derive(Copy, Hash)]
    pub struct LovMdsMdV3("lov_mds_md_v3", 48) {
        lmm_magic: u32, lmm_pattern: u32, lmm_oi: OstId, lmm_stripe_size: u32, lmm_stripe_count: u16,
        lmm_layout_gen: u16, lmm_pool_name: Text<16>,
    }
    #[derive(Copy, Hash)]
    pub struct LovForeignMd("lov_foreign_md", 16) {
        lfm_magic: u32, lfm_length: u32, lfm_type: u32, lfm_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LovHsmBase("lov_hsm_base", 56) {
        lhb_archive_id: u64, lhb_archive_ver: u64, lhb_uuid: Text<40>,
    }
    #[derive(Copy, Hash)]
    pub struct LovCompMdEntryV1("lov_comp_md_entry_v1", 48) {
        lcme_id: u32, lcme_flags: u32, lcme_extent: LuExtent, lcme_offset: u32, lcme_size: u32,
        lcme_layout_gen: u32, lcme_time_and_id: u64, lcme_dstripe_count: u8, lcme_cstripe_count: u8,
        lcme_compr_type: u8, lcme_compr_lvl: u8,
    }
    #[derive(Copy, Hash)]
    pub struct LovCompMdV1("lov_comp_md_v1", 32) {
        lcm_magic: u32, lcm_size: u32, lcm_layout_gen: u32, lcm_flags: u16, lcm_entry_count: u16,
        lcm_mirror_count: u16, lcm_ec_count: u8, lcm_padding3: [u8; 1], lcm_padding1: [u16; 2],
        lcm_padding2: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LovUserOstDataV1("lov_user_ost_data_v1", 24) {
        l_ost_oi: OstId, l_ost_gen: u32, l_ost_idx: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LovUserMdV1("lov_user_md_v1", 32) {
        lmm_magic: u32, lmm_pattern: u32, lmm_oi: OstId, lmm_stripe_size: u32, lmm_stripe_count: u16,
        lmm_stripe_offset: u16,
    }
    #[derive(Copy, Hash)]
    pub struct LovUserMdV3("lov_user_md_v3", 48) {
        lmm_magic: u32, lmm_pattern: u32, lmm_oi: OstId, lmm_stripe_size: u32, lmm_stripe_count: u16,
        lmm_stripe_offset: u16, lmm_pool_name: Text<16>,
    }
    #[derive(Copy, Hash)]
    pub struct LovDesc("lov_desc", 88) {
        ld_tgt_count: u32, ld_active_tgt_count: u32, ld_default_stripe_count: i32, ld_pattern: u32,
        ld_default_stripe_size: u64, ld_default_stripe_offset: i64, ld_padding_0: u32, ld_qos_maxage: u32,
        ld_padding_1: u32, ld_padding_2: u32, ld_uuid: ObdUuid,
    }
}
