//! The management server: configuration records, registration, the table of NIDs.

use crate::layout::wire_structs;
use crate::nid::Nid;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LustreCfg("lustre_cfg", 32) {
        lcfg_version: u32, lcfg_command: u32, lcfg_num: u32, lcfg_flags: u32, lcfg_nid: Nid, lcfg_nal: u32,
        lcfg_bufcount: u32,
    }
    #[derive(Copy, Hash)]
    pub struct CfgMarker("cfg_marker", 160) {
        cm_step: u32, cm_flags: u32, cm_vers: u32, cm_padding: u32, cm_createtime: i64, cm_canceltime: i64,
        cm_tgtname: Text<64>, cm_comment: Text<64>,
    }
    pub struct MgsTargetInfo("mgs_target_info", 4544) {
        mti_lustre_ver: u32, mti_stripe_index: u32, mti_config_ver: u32, mti_flags: u32, mti_nid_count: u32,
        mti_instance: u32, mti_fsname: Text<64>, mti_svname: Text<64>, mti_uuid: Text<40>,
        mti_nids: [Nid; 32], mti_params: Text<4096>,
    }
    #[derive(Copy, Hash)]
    pub struct MgsTargetNidlist("mgs_target_nidlist", 8) {
        mtn_flags: u32, mtn_nids: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MgsNidtblEntry("mgs_nidtbl_entry", 24) {
        mne_version: u64, mne_instance: u32, mne_index: u32, mne_length: u32, mne_type: u8, mne_nid_type: u8,
        mne_nid_size: u8, mne_nid_count: u8,
    }
    #[derive(Copy, Hash)]
    pub struct MgsConfigBody("mgs_config_body", 80) {
        mcb_name: Text<64>, mcb_offset: u64, mcb_type: u16, mcb_rec_nid_size: u8, mcb_bits: u8,
        mcb_units: u32,
    }
    #[derive(Copy, Hash)]
    pub struct MgsConfigRes("mgs_config_res", 16) {
        mcr_offset: u64, mcr_size: u64,
    }
    pub struct MgsSendParam("mgs_send_param", 1024) {
        mgs_param: Text<1024>,
    }
}
