//! Names of operations, as in Lustre's statistics and TBF rules.

use std::borrow::Cow;
use wire::{
    FLD_QUERY, FLD_READ, LDLM_BL_CALLBACK, LDLM_CANCEL, LDLM_CONVERT, LDLM_CP_CALLBACK, LDLM_ENQUEUE,
    LDLM_GL_CALLBACK, LDLM_SET_INFO, LFSCK_NOTIFY, LFSCK_QUERY, LLOG_ORIGIN_HANDLE_CREATE,
    LLOG_ORIGIN_HANDLE_DESTROY, LLOG_ORIGIN_HANDLE_NEXT_BLOCK, LLOG_ORIGIN_HANDLE_PREV_BLOCK,
    LLOG_ORIGIN_HANDLE_READ_HEADER, MDS_BATCH, MDS_CLOSE, MDS_CONNECT, MDS_DISCONNECT, MDS_DONE_WRITING,
    MDS_GET_INFO, MDS_GET_ROOT, MDS_GETATTR, MDS_GETATTR_NAME, MDS_GETXATTR, MDS_HSM_ACTION,
    MDS_HSM_CT_REGISTER, MDS_HSM_CT_UNREGISTER, MDS_HSM_DATA_VERSION, MDS_HSM_PROGRESS, MDS_HSM_REQUEST,
    MDS_HSM_STATE_GET, MDS_HSM_STATE_SET, MDS_IS_SUBDIR, MDS_PIN, MDS_QUOTACHECK, MDS_QUOTACTL, MDS_READPAGE,
    MDS_REINT, MDS_RMFID, MDS_SET_INFO, MDS_SETXATTR, MDS_STATFS, MDS_SWAP_LAYOUTS, MDS_SYNC, MDS_UNPIN,
    MDS_WRITEPAGE, MGS_CONFIG_READ, MGS_CONNECT, MGS_DISCONNECT, MGS_EXCEPTION, MGS_SET_INFO, MGS_TARGET_DEL,
    MGS_TARGET_REG, OBD_IDX_READ, OBD_PING, OST_CLOSE, OST_CONNECT, OST_CREATE, OST_DESTROY, OST_DISCONNECT,
    OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_LADVISE, OST_OPEN, OST_PUNCH, OST_QUOTA_ADJUST_QUNIT,
    OST_QUOTACHECK, OST_QUOTACTL, OST_READ, OST_REPLY, OST_SEEK, OST_SET_INFO, OST_SETATTR, OST_STATFS,
    OST_SYNC, OST_WRITE, OUT_UPDATE, QUOTA_DQACQ, QUOTA_DQREL, SEC_CTX_FINI, SEC_CTX_INIT, SEC_CTX_INIT_CONT,
    SEQ_QUERY,
};

/// Each opcode with its name.
pub(crate) const NAMES: &[(u32, &str)] = &[
    (OST_REPLY, "ost_reply"),
    (OST_GETATTR, "ost_getattr"),
    (OST_SETATTR, "ost_setattr"),
    (OST_READ, "ost_read"),
    (OST_WRITE, "ost_write"),
    (OST_CREATE, "ost_create"),
    (OST_DESTROY, "ost_destroy"),
    (OST_GET_INFO, "ost_get_info"),
    (OST_CONNECT, "ost_connect"),
    (OST_DISCONNECT, "ost_disconnect"),
    (OST_PUNCH, "ost_punch"),
    (OST_OPEN, "ost_open"),
    (OST_CLOSE, "ost_close"),
    (OST_STATFS, "ost_statfs"),
    (OST_SYNC, "ost_sync"),
    (OST_SET_INFO, "ost_set_info"),
    (OST_QUOTACHECK, "ost_quotacheck"),
    (OST_QUOTACTL, "ost_quotactl"),
    (OST_QUOTA_ADJUST_QUNIT, "ost_quota_adjust_qunit"),
    (OST_LADVISE, "ost_ladvise"),
    (OST_FALLOCATE, "ost_fallocate"),
    (OST_SEEK, "ost_seek"),
    (MDS_GETATTR, "mds_getattr"),
    (MDS_GETATTR_NAME, "mds_getattr_lock"),
    (MDS_CLOSE, "mds_close"),
    (MDS_REINT, "mds_reint"),
    (MDS_READPAGE, "mds_readpage"),
    (MDS_CONNECT, "mds_connect"),
    (MDS_DISCONNECT, "mds_disconnect"),
    (MDS_GET_ROOT, "mds_get_root"),
    (MDS_STATFS, "mds_statfs"),
    (MDS_PIN, "mds_pin"),
    (MDS_UNPIN, "mds_unpin"),
    (MDS_SYNC, "mds_sync"),
    (MDS_DONE_WRITING, "mds_done_writing"),
    (MDS_SET_INFO, "mds_set_info"),
    (MDS_QUOTACHECK, "mds_quotacheck"),
    (MDS_QUOTACTL, "mds_quotactl"),
    (MDS_GETXATTR, "mds_getxattr"),
    (MDS_SETXATTR, "mds_setxattr"),
    (MDS_WRITEPAGE, "mds_writepage"),
    (MDS_IS_SUBDIR, "mds_is_subdir"),
    (MDS_GET_INFO, "mds_get_info"),
    (MDS_HSM_STATE_GET, "mds_hsm_state_get"),
    (MDS_HSM_STATE_SET, "mds_hsm_state_set"),
    (MDS_HSM_ACTION, "mds_hsm_action"),
    (MDS_HSM_PROGRESS, "mds_hsm_progress"),
    (MDS_HSM_REQUEST, "mds_hsm_request"),
    (MDS_HSM_CT_REGISTER, "mds_hsm_ct_register"),
    (MDS_HSM_CT_UNREGISTER, "mds_hsm_ct_unregister"),
    (MDS_SWAP_LAYOUTS, "mds_swap_layouts"),
    (MDS_RMFID, "mds_rmfid"),
    (MDS_BATCH, "mds_batch"),
    (MDS_HSM_DATA_VERSION, "mds_hsm_data_version"),
    (LDLM_ENQUEUE, "ldlm_enqueue"),
    (LDLM_CONVERT, "ldlm_convert"),
    (LDLM_CANCEL, "ldlm_cancel"),
    (LDLM_BL_CALLBACK, "ldlm_bl_callback"),
    (LDLM_CP_CALLBACK, "ldlm_cp_callback"),
    (LDLM_GL_CALLBACK, "ldlm_gl_callback"),
    (LDLM_SET_INFO, "ldlm_set_info"),
    (MGS_CONNECT, "mgs_connect"),
    (MGS_DISCONNECT, "mgs_disconnect"),
    (MGS_EXCEPTION, "mgs_exception"),
    (MGS_TARGET_REG, "mgs_target_reg"),
    (MGS_TARGET_DEL, "mgs_target_del"),
    (MGS_SET_INFO, "mgs_set_info"),
    (MGS_CONFIG_READ, "mgs_config_read"),
    (OBD_PING, "obd_ping"),
    (OBD_IDX_READ, "dt_index_read"),
    (LLOG_ORIGIN_HANDLE_CREATE, "llog_origin_handle_open"),
    (LLOG_ORIGIN_HANDLE_NEXT_BLOCK, "llog_origin_handle_next_block"),
    (LLOG_ORIGIN_HANDLE_READ_HEADER, "llog_origin_handle_read_header"),
    (LLOG_ORIGIN_HANDLE_PREV_BLOCK, "llog_origin_handle_prev_block"),
    (LLOG_ORIGIN_HANDLE_DESTROY, "llog_origin_handle_destroy"),
    (QUOTA_DQACQ, "quota_acquire"),
    (QUOTA_DQREL, "quota_release"),
    (SEQ_QUERY, "seq_query"),
    (SEC_CTX_INIT, "sec_ctx_init"),
    (SEC_CTX_INIT_CONT, "sec_ctx_init_cont"),
    (SEC_CTX_FINI, "sec_ctx_fini"),
    (FLD_QUERY, "fld_query"),
    (FLD_READ, "fld_read"),
    (OUT_UPDATE, "out_update"),
    (LFSCK_NOTIFY, "lfsck_notify"),
    (LFSCK_QUERY, "lfsck_query"),
];

/// The name of an operation; the opcode's number if it is unknown.
pub(crate) fn name(opcode: u32) -> Cow<'static, str> {
    match NAMES.iter().find(|(opc, _)| *opc == opcode) {
        Some((_, name)) => Cow::Borrowed(name),
        None => Cow::Owned(opcode.to_string()),
    }
}

/// The opcode of the operation called `name`.
pub(crate) fn opcode(name: &str) -> Option<u32> {
    NAMES.iter().find(|(_, n)| *n == name).map(|(opc, _)| *opc)
}

#[cfg(test)]
mod tests {
    use super::{NAMES, name, opcode};

    #[test]
    fn names_and_opcodes_map_one_to_one() {
        for (opc, n) in NAMES {
            assert_eq!((opcode(n), name(*opc).as_ref()), (Some(*opc), *n));
        }
        assert_eq!((name(9999).as_ref(), opcode("dance")), ("9999", None));
    }
}
