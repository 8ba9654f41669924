//! Changelog records and their optional parts.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct ChangelogRec("changelog_rec", 64) {
        cr_namelen: u16, cr_flags: u16, cr_type: u32, cr_index: u64, cr_prev: u64, cr_time: u64,
        cr_tfid: LuFid, cr_pfid: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtRename("changelog_ext_rename", 32) {
        cr_sfid: LuFid, cr_spfid: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtJobid("changelog_ext_jobid", 32) {
        cr_jobid: Text<32>,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtExtraFlags("changelog_ext_extra_flags", 8) {
        cr_extra_flags: u64,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtUidgid("changelog_ext_uidgid", 16) {
        cr_uid: u64, cr_gid: u64,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtOpenmode("changelog_ext_openmode", 4) {
        cr_openflags: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogExtXattr("changelog_ext_xattr", 256) {
        cr_xattr: Text<256>,
    }
    #[derive(Copy, Hash)]
    pub struct ChangelogSetinfo("changelog_setinfo", 12) {
        cs_recno: u64, cs_id: u32,
    }
}
