//! Quota limits, usage and acquisition.

use crate::fid::LuFid;
use crate::layout::wire_structs;
use crate::ptlrpc::LustreHandle;

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LquotaId("lquota_id", 16) {
        qid_fid: LuFid,
    }
    #[derive(Copy, Hash)]
    pub struct ObdDqinfo("obd_dqinfo", 24) {
        dqi_bgrace: u64, dqi_igrace: u64, dqi_flags: u32, dqi_valid: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ObdDqblk("obd_dqblk", 72) {
        dqb_bhardlimit: u64, dqb_bsoftlimit: u64, dqb_curspace: u64, dqb_ihardlimit: u64, dqb_isoftlimit: u64,
        dqb_curinodes: u64, dqb_btime: u64, dqb_itime: u64, dqb_valid: u32, dqb_padding: u32,
    }
    #[derive(Copy, Hash)]
    pub struct ObdQuotactl("obd_quotactl", 112) {
        qc_cmd: u32, qc_type: u32, qc_id: u32, qc_stat: u32, qc_dqinfo: ObdDqinfo, qc_dqblk: ObdDqblk,
    }
    #[derive(Copy, Hash)]
    pub struct QuotaBody("quota_body", 112) {
        qb_fid: LuFid, qb_id: LquotaId, qb_flags: u32, qb_padding: u32, qb_count: u64, qb_usage: u64,
        qb_slv_ver: u64, qb_lockh: LustreHandle, qb_glb_lockh: LustreHandle, qb_glb_ver: u64,
        qb_padding1: [u64; 3],
    }
    #[derive(Copy, Hash)]
    pub struct LquotaAcctRec("lquota_acct_rec", 16) {
        bspace: u64, ispace: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LquotaGlbRec("lquota_glb_rec", 32) {
        qbr_hardlimit: u64, qbr_softlimit: u64, qbr_time: u64, qbr_granted: u64,
    }
    #[derive(Copy, Hash)]
    pub struct LquotaSlvRec("lquota_slv_rec", 8) {
        qsr_granted: u64,
    }
}
