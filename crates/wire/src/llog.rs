//! Logs of records: headers, the records of each kind, and the RPCs that read them.

use crate::changelog::ChangelogRec;
use crate::fid::{LlFid, LuFid, OstId};
use crate::hsm::HsmActionItem;
use crate::layout::wire_structs;
use crate::ptlrpc::ObdUuid;
use crate::text::Text;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LlogLogid("llog_logid", 20) {
        lgl_oi: OstId, lgl_ogen: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogCatid("llog_catid", 32) {
        lci_logid: LlogLogid, lci_padding1: u32, lci_padding2: u32, lci_padding3: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogCookie("llog_cookie", 36) {
        lgc_lgl: LlogLogid, pad_20: [u8; 4], lgc_subsys: u32, lgc_index: u32, lgc_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogRecHdr("llog_rec_hdr", 16) {
        lrh_len: u32, lrh_index: u32, lrh_type: u32, lrh_id: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogRecTail("llog_rec_tail", 8) {
        lrt_len: u32, lrt_index: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogGen("llog_gen", 16) {
        mnt_cnt: u64, conn_cnt: u64,
    }
    pub struct LlogLogHdr("llog_log_hdr", 8192) {
        llh_hdr: LlogRecHdr, llh_timestamp: i64, llh_count: u32, llh_bitmap_offset: u32, llh_size: u32,
        llh_flags: u32, llh_cat_idx: u32, llh_tgtuuid: ObdUuid, llh_reserved: [u32; 1],
        llh_bitmap: [u32; 2024], llh_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogdBody("llogd_body", 48) {
        lgd_logid: LlogLogid, lgd_ctxt_idx: u32, lgd_llh_flags: u32, lgd_index: u32, lgd_saved_index: u32,
        lgd_len: u32, lgd_cur_offset: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LlogdConnBody("llogd_conn_body", 40) {
        lgdc_gen: LlogGen, lgdc_logid: LlogLogid, lgdc_ctxt_idx: u32,
    }
    #[derive(Copy, Hash)]
    pub struct LlogLogidRec("llog_logid_rec", 64) {
        lid_hdr: LlogRecHdr, lid_id: LlogLogid, lid_padding1: u32, lid_padding2: u64, lid_padding3: u64,
        lid_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogUnlinkRec("llog_unlink_rec", 40) {
        lur_hdr: LlogRecHdr, lur_oid: u64, lur_oseq: u32, lur_count: u32, lur_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogUnlink64Rec("llog_unlink64_rec", 64) {
        lur_hdr: LlogRecHdr, lur_fid: LuFid, lur_count: u32, lur_padding1: u32, lur_padding2: u64,
        lur_padding3: u64, lur_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogSetattr64Rec("llog_setattr64_rec", 64) {
        lsr_hdr: LlogRecHdr, lsr_oi: OstId, lsr_uid: u32, lsr_uid_h: u32, lsr_gid: u32, lsr_gid_h: u32,
        lsr_valid: u64, lsr_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogSetattr64RecV2("llog_setattr64_rec_v2", 88) {
        lsr_hdr: LlogRecHdr, lsr_oi: OstId, lsr_uid: u32, lsr_uid_h: u32, lsr_gid: u32, lsr_gid_h: u32,
        lsr_valid: u64, lsr_projid: u32, lsr_layout_version: u32, lsr_padding2: u64, lsr_padding3: u64,
        lsr_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogSizeChangeRec("llog_size_change_rec", 64) {
        lsc_hdr: LlogRecHdr, lsc_fid: LlFid, lsc_ioepoch: u32, lsc_padding1: u32, lsc_padding2: u64,
        lsc_padding3: u64, lsc_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogGenRec("llog_gen_rec", 64) {
        lgr_hdr: LlogRecHdr, lgr_gen: LlogGen, padding1: u64, padding2: u64, padding3: u64,
        lgr_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogChangelogRec("llog_changelog_rec", 88) {
        cr_hdr: LlogRecHdr, cr: ChangelogRec, cr_do_not_use: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogChangelogUserRec("llog_changelog_user_rec", 40) {
        cur_hdr: LlogRecHdr, cur_id: u32, cur_time: u32, cur_endrec: u64, cur_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogChangelogUserRec2("llog_changelog_user_rec2", 80) {
        cur_hdr: LlogRecHdr, cur_id: u32, cur_time: u32, cur_endrec: u64, cur_mask: u32, cur_padding1: u32,
        cur_name: Text<16>, cur_padding2: u64, cur_padding3: u64, cur_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogAgentReqRec("llog_agent_req_rec", 136) {
        arr_hdr: LlogRecHdr, arr_status: u32, arr_archive_id: u32, arr_flags: u64, arr_compound_id: u64,
        arr_req_create: u64, arr_req_change: u64, arr_hai: HsmActionItem, arr_tail: LlogRecTail,
    }
    #[derive(Copy, Hash)]
    pub struct LlogUpdateRecord("llog_update_record", 48) {
        lur_hdr: LlogRecHdr, lur_update_rec: UpdateRecords,
    }
    #[derive(Copy, Hash)]
    pub struct UpdateRecords("update_records", 32) {
        ur_master_transno: u64, ur_batchid: u64, ur_flags: u32, ur_index: u32, ur_update_count: u32,
        ur_param_count: u32,
    }
}
