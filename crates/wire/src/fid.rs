//! FIDs, object ids and ranges of sequences.

use crate::layout::wire_structs;

wire_structs! {
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct LuFid("lu_fid", 16, own_debug) {
        f_seq: u64, f_oid: u32, f_ver: u32,
    }
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct OstId("ost_id", 16, own_debug) {
        oi_id: u64, oi_seq: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LlFid("ll_fid", 16) {
        id: u64, generation: u32, f_type: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LuSeqRange("lu_seq_range", 24) {
        lsr_start: u64, lsr_end: u64, lsr_index: u32, lsr_flags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LuSeqRangeArray("lu_seq_range_array", 8) {
        lsra_count: u32, lsra_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LuExtent("lu_extent", 16) {
        e_start: u64, e_end: u64,
    }
    #[derive(Copy, Hash)]
    pub struct FidArray("fid_array", 16) {
        fa_nr: u32, fa_padding0: u32, fa_padding1: u64,
    }
    #[derive(Copy, Hash)]
    pub struct GetinfoFid2path("getinfo_fid2path", 32) {
        gf_fid: LuFid, gf_recno: u64, gf_linkno: u32, gf_pathlen: u32,
    }
    #[derive(Copy, Hash)]
    pub struct Getparent("getparent", 24) {
        gp_fid: LuFid, gp_linkno: u32, gp_name_size: u32,
    }
}
