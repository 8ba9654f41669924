//! Hierarchical storage: states, requests, progress.

use crate::fid::LuFid;
use crate::layout::wire_structs;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct HsmExtent("hsm_extent", 16) {
        offset: u64, length: u64,
    }
    #[derive(Copy, Hash)]
    pub struct HsmActionItem("hsm_action_item", 72) {
        hai_len: u32, hai_action: u32, hai_fid: LuFid, hai_dfid: LuFid, hai_extent: HsmExtent,
        hai_cookie: u64, hai_gid: u64,
    }
    #[derive(Copy, Hash)]
    pub struct HsmActionList("hsm_action_list", 32) {
        hal_version: u32, hal_count: u32, hal_compound_id: u64, hal_flags: u64, hal_archive_id: u32,
        padding1: u32,
    }
    #[derive(Copy, Hash)]
    pub struct HsmProgressKernel("hsm_progress_kernel", 64) {
        hpk_fid: LuFid, hpk_cookie: u64, hpk_extent: HsmExtent, hpk_flags: u16, hpk_errval: u16,
        hpk_padding1: u32, hpk_data_version: u64, hpk_padding2: u64,
    }
    #[derive(Copy, Hash)]
    pub struct HsmUserItem("hsm_user_item", 32) {
        hui_fid: LuFid, hui_extent: HsmExtent,
    }
    #[derive(Copy, Hash)]
    pub struct HsmUserState("hsm_user_state", 32) {
        hus_states: u32, hus_archive_id: u32, hus_in_progress_state: u32, hus_in_progress_action: u32,
        hus_in_progress_location: HsmExtent,
    }
    #[derive(Copy, Hash)]
    pub struct HsmStateSet("hsm_state_set", 24) {
        hss_valid: u32, hss_archive_id: u32, hss_setmask: u64, hss_clearmask: u64,
    }
    #[derive(Copy, Hash)]
    pub struct HsmCurrentAction("hsm_current_action", 24) {
        hca_state: u32, hca_action: u32, hca_location: HsmExtent,
    }
    #[derive(Copy, Hash)]
    pub struct HsmRequest("hsm_request", 24) {
        hr_action: u32, hr_archive_id: u32, hr_flags: u64, hr_itemcount: u32, hr_data_len: u32,
    }
}
