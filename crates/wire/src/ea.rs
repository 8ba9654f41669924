//! Extended attributes that a target stores with a file or an object.

use crate::fid::LuFid;
use crate::layout::wire_structs;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LustreMdtAttrs("lustre_mdt_attrs", 24) {
        lma_compat: u32, lma_incompat: u32, lma_self_fid: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct LustreOstAttrs("lustre_ost_attrs", 64) {
        loa_lma: LustreMdtAttrs, loa_parent_fid: LuFid, loa_stripe_size: u32, loa_comp_id: u32,
        loa_comp_start: u64, loa_comp_end: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LustreSomAttrs("lustre_som_attrs", 24) {
        lsa_valid: u16, lsa_reserved: [u16; 3], lsa_size: u64, lsa_blocks: u64,
    }
    #[derive(Copy, Hash)]
    pub struct HsmAttrs("hsm_attrs", 24) {
        hsm_compat: u32, hsm_flags: u32, hsm_arch_id: u64, hsm_arch_ver: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LinkEaHeader("link_ea_header", 24) {
        leh_magic: u32, leh_reccount: u32, leh_len: u64, leh_overflow_time: u32, leh_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LinkEaEntry("link_ea_entry", 18) {
        lee_reclen: [u8; 2], lee_parent_fid: [u8; 16],
    }
    #[derive(Copy, Hash)]
    pub struct OstLayout("ost_layout", 28) {
        ol_stripe_size: u32, ol_stripe_count: u32, ol_comp_start: u64, ol_comp_end: u64, ol_comp_id: u32,
    }
    #[derive(Copy, Hash)]
    pub struct FilterFid("filter_fid", 52) {
        ff_parent: LuFid, ff_layout: OstLayout, ff_layout_version: u32, ff_range: u32,
    }
    #[derive(Copy, Hash)]
    pub struct FilterFid210("filter_fid_210", 44) {
        ff_parent: LuFid, ff_layout: OstLayout,
    }
    #[derive(Copy, Hash)]
    pub struct FilterFid1823("filter_fid_18_23", 32) {
        ff_parent: LuFid, ff_objid: u64, ff_seq: u64,
    }
    #[derive(Copy, Hash)]
    pub struct FilterFid2429("filter_fid_24_29", 16) {
        ff_parent: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct PosixAclXattrHeader("posix_acl_xattr_header", 4) {
        a_version: u32,
    }
    #[derive(Copy, Hash)]
    pub struct PosixAclXattrEntry("posix_acl_xattr_entry", 8) {
        e_tag: u16, e_perm: u16, e_id: u32,
    }
}
