//! Directory pages, as MDS_READPAGE sends them.

use crate::fid::LuFid;
use crate::layout::wire_structs;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LuDirent("lu_dirent", 32) {
        lde_fid: LuFid, lde_hash: u64, lde_reclen: u16, lde_namelen: u16, lde_attrs: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LudaType("luda_type", 2) {
        lt_type: u16,
    }
    #[derive(Copy, Hash)]
    pub struct LuDirpage("lu_dirpage", 24) {
        ldp_hash_start: u64, ldp_hash_end: u64, ldp_flags: u32, ldp_pad0: u32,
    }
}
