//! The table of formats: for each RPC the buffers in order, and the portals.

use super::Portal::{Fixed, Import};
use super::Rqf;
use super::rmf::Rmf::{
    Acl, ButBuf, ButHeader, ButReply, Capa1, Capa2, CloseData, Cluuid, Conn, ConnectData, DefaultMdtMd,
    DlmGlDesc, DlmLvb, DlmRep, DlmReq, Eadata, Eavals, EavalsLens, Fid, FidArray, FiemapKey, FiemapVal,
    FileEncctx, FileSecctx, FileSecctxName, FldMdfld, FldOpc, GenericData, GetinfoKey, GetinfoVal,
    GetinfoVallen, HsmStateSet, HsmUserState, IdxInfo, LayoutIntent, LdlmIntent, LfsckReply, LfsckRequest,
    LlogLogHdr, LlogdBody, Logcookies, MdsHsmArchive, MdsHsmCurrentAction, MdsHsmProgress, MdsHsmRequest,
    MdsHsmUserItem, MdtBody, MdtEpoch, MdtMd, MgsConfigBody, MgsConfigRes, MgsSendParam, MgsTargetInfo,
    MgsTargetNidlist, Name, NiobufInline, NiobufRemote, ObdId, ObdIoobj, ObdQuotaIter, ObdQuotactl,
    ObdStatfs, OstBody, OstLadvise, OstLadviseHdr, OutUpdateBuf, OutUpdateHeader, OutUpdateReply, PtlrpcBody,
    QuotaBody, Rcs, RecReint, SelinuxPol, SeqOpc, SeqRange, SetinfoKey, SetinfoVal, ShortIo, SwapLayouts,
    Symtgt, Tgtuuid, U32,
};
use crate::consts::opcodes::{
    FLD_QUERY, FLD_READ, LDLM_BL_CALLBACK, LDLM_CANCEL, LDLM_CONVERT, LDLM_CP_CALLBACK, LDLM_ENQUEUE,
    LDLM_GL_CALLBACK, LDLM_SET_INFO, LFSCK_NOTIFY, LFSCK_QUERY, LLOG_ORIGIN_HANDLE_CREATE,
    LLOG_ORIGIN_HANDLE_NEXT_BLOCK, LLOG_ORIGIN_HANDLE_PREV_BLOCK, LLOG_ORIGIN_HANDLE_READ_HEADER, MDS_BATCH,
    MDS_CLOSE, MDS_CONNECT, MDS_DISCONNECT, MDS_GET_INFO, MDS_GET_ROOT, MDS_GETATTR, MDS_GETATTR_NAME,
    MDS_GETXATTR, MDS_HSM_ACTION, MDS_HSM_CT_REGISTER, MDS_HSM_CT_UNREGISTER, MDS_HSM_DATA_VERSION,
    MDS_HSM_PROGRESS, MDS_HSM_REQUEST, MDS_HSM_STATE_GET, MDS_HSM_STATE_SET, MDS_QUOTACTL, MDS_READPAGE,
    MDS_REINT, MDS_RMFID, MDS_SET_INFO, MDS_STATFS, MDS_SWAP_LAYOUTS, MDS_SYNC, MGS_CONFIG_READ, MGS_CONNECT,
    MGS_DISCONNECT, MGS_SET_INFO, MGS_TARGET_REG, OBD_IDX_READ, OBD_PING, OST_CONNECT, OST_CREATE,
    OST_DESTROY, OST_DISCONNECT, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_LADVISE, OST_PUNCH,
    OST_QUOTACTL, OST_READ, OST_SEEK, OST_SET_INFO, OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE, OUT_UPDATE,
    QUOTA_DQACQ, SEC_CTX_FINI, SEC_CTX_INIT, SEC_CTX_INIT_CONT, SEQ_QUERY,
};
use crate::consts::portals::{
    FLD_REQUEST_PORTAL, LDLM_CANCEL_REPLY_PORTAL, LDLM_CANCEL_REQUEST_PORTAL, LDLM_CB_REPLY_PORTAL,
    LDLM_CB_REQUEST_PORTAL, MDC_REPLY_PORTAL, MDS_BULK_PORTAL, MDS_READPAGE_PORTAL, MDS_REQUEST_PORTAL,
    MGC_REPLY_PORTAL, MGS_BULK_PORTAL, MGS_REQUEST_PORTAL, OSC_REPLY_PORTAL, OST_BULK_PORTAL,
    OST_CREATE_PORTAL, OST_IO_PORTAL, OST_REQUEST_PORTAL, OUT_PORTAL, SEQ_DATA_PORTAL, SEQ_METADATA_PORTAL,
};

macro_rules! formats {
    ($( $opcode:ident, $name:literal, $variant:literal, $request_portal:expr => $reply_portal:expr, $bulk:expr;
        [$( $request:ident ),*] => [$( $reply:ident ),*], )*) => {
        /// All formats; the first one of an opcode is the usual one.
        pub const FORMATS: &[Rqf] = &[ $(
            Rqf {
                name: $name,
                opcode: $opcode,
                opcode_name: stringify!($opcode),
                variant: $variant,
                request_portal: $request_portal,
                reply_portal: $reply_portal,
                bulk_portal: $bulk,
                request: &[$( $request ),*],
                reply: &[$( $reply ),*],
            },
        )* ];
    };
}

formats! {
    OST_CONNECT, "RQF_OST_CONNECT", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, Tgtuuid, Cluuid, Conn, ConnectData, SelinuxPol]
        => [PtlrpcBody, ConnectData],
    MDS_CONNECT, "RQF_MDS_CONNECT", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, Tgtuuid, Cluuid, Conn, ConnectData, SelinuxPol]
        => [PtlrpcBody, ConnectData],
    MGS_CONNECT, "RQF_CONNECT", "", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), None;
        [PtlrpcBody, Tgtuuid, Cluuid, Conn, ConnectData, SelinuxPol]
        => [PtlrpcBody, ConnectData],
    OST_DISCONNECT, "RQF_OST_DISCONNECT", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody]
        => [PtlrpcBody],
    MDS_DISCONNECT, "RQF_MDS_DISCONNECT", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody]
        => [PtlrpcBody],
    MGS_DISCONNECT, "RQF_MDS_DISCONNECT", "", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), None;
        [PtlrpcBody]
        => [PtlrpcBody],
    OBD_PING, "RQF_OBD_PING", "", Import => Import, None;
        [PtlrpcBody]
        => [PtlrpcBody],
    OBD_IDX_READ, "RQF_OBD_IDX_READ", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), Some(MDS_BULK_PORTAL);
        [PtlrpcBody, IdxInfo]
        => [PtlrpcBody, IdxInfo],
    SEC_CTX_INIT, "RQF_SEC_CTX", "", Import => Import, None;
        [PtlrpcBody]
        => [PtlrpcBody],
    SEC_CTX_INIT_CONT, "RQF_SEC_CTX", "", Import => Import, None;
        [PtlrpcBody]
        => [PtlrpcBody],
    SEC_CTX_FINI, "RQF_SEC_CTX", "", Import => Import, None;
        [PtlrpcBody]
        => [PtlrpcBody],
    MGS_TARGET_REG, "RQF_MGS_TARGET_REG", "", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), None;
        [PtlrpcBody, MgsTargetInfo]
        => [PtlrpcBody, MgsTargetInfo],
    MGS_TARGET_REG, "RQF_MGS_TARGET_REG_NIDLIST", "nidlist", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), None;
        [PtlrpcBody, MgsTargetInfo, MgsTargetNidlist]
        => [PtlrpcBody, MgsTargetInfo],
    MGS_SET_INFO, "RQF_MGS_SET_INFO", "", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), None;
        [PtlrpcBody, MgsSendParam]
        => [PtlrpcBody, MgsSendParam],
    MGS_CONFIG_READ, "RQF_MGS_CONFIG_READ", "", Fixed(MGS_REQUEST_PORTAL) => Fixed(MGC_REPLY_PORTAL), Some(MGS_BULK_PORTAL);
        [PtlrpcBody, MgsConfigBody]
        => [PtlrpcBody, MgsConfigRes],
    LLOG_ORIGIN_HANDLE_CREATE, "RQF_LLOG_ORIGIN_HANDLE_CREATE", "", Import => Import, None;
        [PtlrpcBody, LlogdBody, Name, MdtBody]
        => [PtlrpcBody, LlogdBody],
    LLOG_ORIGIN_HANDLE_READ_HEADER, "RQF_LLOG_ORIGIN_HANDLE_READ_HEADER", "", Import => Import, None;
        [PtlrpcBody, LlogdBody]
        => [PtlrpcBody, LlogLogHdr],
    LLOG_ORIGIN_HANDLE_NEXT_BLOCK, "RQF_LLOG_ORIGIN_HANDLE_NEXT_BLOCK", "", Import => Import, None;
        [PtlrpcBody, LlogdBody]
        => [PtlrpcBody, LlogdBody, Eadata],
    LLOG_ORIGIN_HANDLE_PREV_BLOCK, "RQF_LLOG_ORIGIN_HANDLE_PREV_BLOCK", "", Import => Import, None;
        [PtlrpcBody, LlogdBody]
        => [PtlrpcBody, LlogdBody, Eadata],
    LDLM_ENQUEUE, "RQF_LDLM_ENQUEUE", "", Import => Import, None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody, DlmRep, DlmLvb],
    LDLM_ENQUEUE, "RQF_LDLM_ENQUEUE_LVB", "LVB", Import => Import, None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody, DlmRep, DlmLvb],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_BASIC", "intent basic", Import => Import, None;
        [PtlrpcBody, DlmReq, LdlmIntent]
        => [PtlrpcBody, DlmRep, DlmLvb],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_OPEN", "intent IT_OPEN / IT_OPEN|IT_CREAT", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, RecReint, Capa1, Capa2, Name, Eadata, FileSecctxName, FileSecctx,
        SelinuxPol, FileEncctx]
        => [PtlrpcBody, DlmRep, MdtBody, MdtMd, Acl, Capa1, Capa2, NiobufInline, FileSecctx, FileEncctx,
        DefaultMdtMd],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_CREATE", "intent IT_CREAT", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, RecReint, Capa1, Name, Eadata, FileSecctxName, FileSecctx, SelinuxPol,
        FileEncctx]
        => [PtlrpcBody, DlmRep, MdtBody, MdtMd, Acl, Capa1, FileSecctx, DefaultMdtMd, FileEncctx],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_GETATTR", "intent IT_GETATTR / IT_LOOKUP", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, MdtBody, Capa1, Name, FileSecctxName]
        => [PtlrpcBody, DlmRep, MdtBody, MdtMd, Acl, Capa1, FileSecctx, DefaultMdtMd, FileEncctx],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_GETXATTR", "intent IT_GETXATTR", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, MdtBody, Capa1, SelinuxPol]
        => [PtlrpcBody, DlmRep, MdtBody, MdtMd, Acl, Eadata, Eavals, EavalsLens],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_LAYOUT", "intent IT_LAYOUT", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, LayoutIntent, Eadata]
        => [PtlrpcBody, DlmRep, DlmLvb],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT", "intent IT_GLIMPSE / IT_BRW / generic", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, RecReint]
        => [PtlrpcBody, DlmRep, MdtBody, MdtMd, Acl],
    LDLM_ENQUEUE, "RQF_LDLM_INTENT_QUOTA", "intent IT_QUOTA_DQACQ / IT_QUOTA_CONN", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, LdlmIntent, QuotaBody]
        => [PtlrpcBody, DlmRep, DlmLvb, QuotaBody],
    LDLM_CONVERT, "RQF_LDLM_CONVERT", "", Import => Import, None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody, DlmRep],
    LDLM_CANCEL, "RQF_LDLM_CANCEL", "", Fixed(LDLM_CANCEL_REQUEST_PORTAL) => Fixed(LDLM_CANCEL_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody],
    LDLM_BL_CALLBACK, "RQF_LDLM_BL_CALLBACK", "", Fixed(LDLM_CB_REQUEST_PORTAL) => Fixed(LDLM_CB_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody],
    LDLM_CP_CALLBACK, "RQF_LDLM_CP_CALLBACK", "", Fixed(LDLM_CB_REQUEST_PORTAL) => Fixed(LDLM_CB_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, DlmLvb]
        => [PtlrpcBody],
    LDLM_GL_CALLBACK, "RQF_LDLM_GL_CALLBACK", "", Fixed(LDLM_CB_REQUEST_PORTAL) => Fixed(LDLM_CB_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq]
        => [PtlrpcBody, DlmLvb],
    LDLM_GL_CALLBACK, "RQF_LDLM_GL_CALLBACK_DESC", "with descriptor", Fixed(LDLM_CB_REQUEST_PORTAL) => Fixed(LDLM_CB_REPLY_PORTAL), None;
        [PtlrpcBody, DlmReq, DlmGlDesc]
        => [PtlrpcBody, DlmLvb],
    LDLM_SET_INFO, "RQF_OBD_SET_INFO", "", Fixed(LDLM_CB_REQUEST_PORTAL) => Fixed(LDLM_CB_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, SetinfoVal]
        => [PtlrpcBody],
    MDS_GETATTR, "RQF_MDS_GETATTR", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1]
        => [PtlrpcBody, MdtBody, MdtMd, Acl, Capa1, Capa2, FileEncctx],
    MDS_GETATTR_NAME, "RQF_MDS_GETATTR_NAME", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1, Name]
        => [PtlrpcBody, MdtBody, MdtMd, Acl, Capa1, Capa2, FileEncctx],
    MDS_GET_ROOT, "RQF_MDS_GET_ROOT", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Name]
        => [PtlrpcBody, MdtBody, Capa1],
    MDS_STATFS, "RQF_MDS_STATFS", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody]
        => [PtlrpcBody, ObdStatfs],
    MDS_STATFS, "RQF_MDS_STATFS_NEW", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody]
        => [PtlrpcBody, ObdStatfs],
    MDS_CLOSE, "RQF_MDS_CLOSE", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtEpoch, RecReint, Capa1]
        => [PtlrpcBody, MdtBody, MdtMd, Logcookies, Capa1, Capa2],
    MDS_CLOSE, "RQF_MDS_CLOSE_INTENT", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtEpoch, RecReint, Capa1, CloseData, U32]
        => [PtlrpcBody, MdtBody, MdtMd, Logcookies, Capa1, Capa2],
    MDS_READPAGE, "RQF_MDS_READPAGE", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), Some(MDS_BULK_PORTAL);
        [PtlrpcBody, MdtBody, Capa1]
        => [PtlrpcBody, MdtBody],
    MDS_SYNC, "RQF_MDS_SYNC", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1]
        => [PtlrpcBody, MdtBody],
    MDS_GETXATTR, "RQF_MDS_GETXATTR", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1, Name, Eadata, SelinuxPol]
        => [PtlrpcBody, MdtBody, Eadata],
    MDS_SET_INFO, "RQF_MDT_SET_INFO", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, SetinfoVal, MdtBody]
        => [PtlrpcBody],
    MDS_SET_INFO, "RQF_OBD_SET_INFO", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, SetinfoVal]
        => [PtlrpcBody],
    MDS_GET_INFO, "RQF_MDS_GET_INFO", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, GetinfoKey, GetinfoVal]
        => [PtlrpcBody, GetinfoVal],
    MDS_GET_INFO, "RQF_MDS_FID2PATH", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, GetinfoKey, GetinfoVallen]
        => [PtlrpcBody, GetinfoVal],
    MDS_QUOTACTL, "RQF_MDS_QUOTACTL", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, ObdQuotactl]
        => [PtlrpcBody, ObdQuotactl, ObdQuotaIter],
    MDS_SWAP_LAYOUTS, "RQF_MDS_SWAP_LAYOUTS", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, SwapLayouts, Capa1, Capa2, DlmReq]
        => [PtlrpcBody],
    MDS_HSM_STATE_GET, "RQF_MDS_HSM_STATE_GET", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1]
        => [PtlrpcBody, MdtBody, HsmUserState],
    MDS_HSM_STATE_SET, "RQF_MDS_HSM_STATE_SET", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1, HsmStateSet]
        => [PtlrpcBody],
    MDS_HSM_ACTION, "RQF_MDS_HSM_ACTION", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, Capa1]
        => [PtlrpcBody, MdtBody, MdsHsmCurrentAction],
    MDS_HSM_PROGRESS, "RQF_MDS_HSM_PROGRESS", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, MdsHsmProgress]
        => [PtlrpcBody],
    MDS_HSM_REQUEST, "RQF_MDS_HSM_REQUEST", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, MdsHsmRequest, MdsHsmUserItem, GenericData]
        => [PtlrpcBody],
    MDS_HSM_CT_REGISTER, "RQF_MDS_HSM_CT_REGISTER", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, MdsHsmArchive]
        => [PtlrpcBody],
    MDS_HSM_CT_UNREGISTER, "RQF_MDS_HSM_CT_UNREGISTER", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody]
        => [PtlrpcBody],
    MDS_HSM_DATA_VERSION, "RQF_MDS_HSM_DATA_VERSION", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody]
        => [PtlrpcBody],
    MDS_RMFID, "RQF_MDS_RMFID", "", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, MdtBody, FidArray, Capa1, Capa2]
        => [PtlrpcBody, MdtBody, FidArray, Rcs],
    MDS_BATCH, "RQF_MDS_BATCH", "", Fixed(OUT_PORTAL) => Fixed(OSC_REPLY_PORTAL), Some(MDS_BULK_PORTAL);
        [PtlrpcBody, ButHeader, ButBuf]
        => [PtlrpcBody, ButReply],
    MDS_REINT, "RQF_MDS_REINT_SETATTR", "REINT_SETATTR", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, MdtEpoch, Eadata, Logcookies, DlmReq]
        => [PtlrpcBody, MdtBody, MdtMd, Acl, Capa1, Capa2],
    MDS_REINT, "RQF_MDS_REINT_CREATE_ACL", "REINT_CREATE", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name, Eadata, DlmReq, FileSecctxName, FileSecctx, SelinuxPol, FileEncctx]
        => [PtlrpcBody, MdtBody, Capa1, MdtMd],
    MDS_REINT, "RQF_MDS_REINT_CREATE_SYM", "REINT_CREATE (symlink)", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name, Symtgt, DlmReq, FileSecctxName, FileSecctx, SelinuxPol, FileEncctx]
        => [PtlrpcBody, MdtBody, Capa1],
    MDS_REINT, "RQF_MDS_REINT_CREATE_SLAVE", "REINT_CREATE (slave/remote)", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name, Eadata, DlmReq]
        => [PtlrpcBody, MdtBody, Capa1],
    MDS_REINT, "RQF_MDS_REINT_CREATE", "REINT_CREATE (basic)", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name]
        => [PtlrpcBody, MdtBody, Capa1],
    MDS_REINT, "RQF_MDS_REINT_LINK", "REINT_LINK", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Capa2, Name, DlmReq, SelinuxPol]
        => [PtlrpcBody, MdtBody],
    MDS_REINT, "RQF_MDS_REINT_UNLINK", "REINT_UNLINK / REINT_RMENTRY", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name, DlmReq, SelinuxPol]
        => [PtlrpcBody, MdtBody, MdtMd, Logcookies, Capa1, Capa2],
    MDS_REINT, "RQF_MDS_REINT_RENAME", "REINT_RENAME", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Capa2, Name, Symtgt, DlmReq, SelinuxPol]
        => [PtlrpcBody, MdtBody, MdtMd, Logcookies, Capa1, Capa2],
    MDS_REINT, "RQF_MDS_REINT_MIGRATE", "REINT_MIGRATE", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Capa2, Name, Symtgt, DlmReq, SelinuxPol, MdtEpoch, CloseData, Eadata]
        => [PtlrpcBody, MdtBody, MdtMd, Logcookies, Capa1, Capa2],
    MDS_REINT, "RQF_MDS_REINT_OPEN", "REINT_OPEN", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Capa2, Name, Eadata, FileSecctxName, FileSecctx, SelinuxPol, FileEncctx]
        => [PtlrpcBody, MdtBody, MdtMd, Acl, Capa1, Capa2],
    MDS_REINT, "RQF_MDS_REINT_SETXATTR", "REINT_SETXATTR", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, Capa1, Name, Eadata, DlmReq, SelinuxPol]
        => [PtlrpcBody, MdtBody],
    MDS_REINT, "RQF_MDS_REINT_RESYNC", "REINT_RESYNC", Fixed(MDS_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, RecReint, DlmReq]
        => [PtlrpcBody, MdtBody],
    OST_GETATTR, "RQF_OST_GETATTR", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, Capa1]
        => [PtlrpcBody, OstBody],
    OST_SETATTR, "RQF_OST_SETATTR", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, Capa1]
        => [PtlrpcBody, OstBody],
    OST_CREATE, "RQF_OST_CREATE", "", Fixed(OST_CREATE_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody]
        => [PtlrpcBody, OstBody],
    OST_DESTROY, "RQF_OST_DESTROY", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, DlmReq, Capa1]
        => [PtlrpcBody, OstBody],
    OST_PUNCH, "RQF_OST_PUNCH", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, Capa1]
        => [PtlrpcBody, OstBody],
    OST_FALLOCATE, "RQF_OST_FALLOCATE", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, Capa1]
        => [PtlrpcBody, OstBody],
    OST_SEEK, "RQF_OST_SEEK", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody]
        => [PtlrpcBody, OstBody],
    OST_SYNC, "RQF_OST_SYNC", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, Capa1]
        => [PtlrpcBody, OstBody],
    OST_READ, "RQF_OST_BRW_READ", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), Some(OST_BULK_PORTAL);
        [PtlrpcBody, OstBody, ObdIoobj, NiobufRemote, Capa1, ShortIo]
        => [PtlrpcBody, OstBody, ShortIo],
    OST_WRITE, "RQF_OST_BRW_WRITE", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), Some(OST_BULK_PORTAL);
        [PtlrpcBody, OstBody, ObdIoobj, NiobufRemote, Capa1, ShortIo]
        => [PtlrpcBody, OstBody, Rcs],
    OST_STATFS, "RQF_OST_STATFS", "", Fixed(OST_CREATE_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody]
        => [PtlrpcBody, ObdStatfs],
    OST_SET_INFO, "RQF_OST_SET_GRANT_INFO", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, OstBody]
        => [PtlrpcBody, OstBody],
    OST_SET_INFO, "RQF_OBD_SET_INFO", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, SetinfoVal]
        => [PtlrpcBody],
    OST_SET_INFO, "RQF_OST_SET_INFO_LAST_FID", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, SetinfoKey, SetinfoVal]
        => [PtlrpcBody],
    OST_GET_INFO, "RQF_OST_GET_INFO", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, GetinfoKey]
        => [PtlrpcBody, GenericData],
    OST_GET_INFO, "RQF_OST_GET_INFO_LAST_ID", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, GetinfoKey]
        => [PtlrpcBody, ObdId],
    OST_GET_INFO, "RQF_OST_GET_INFO_LAST_FID", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, GetinfoKey, Fid]
        => [PtlrpcBody, Fid],
    OST_GET_INFO, "RQF_OST_GET_INFO_FIEMAP", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, FiemapKey, FiemapVal]
        => [PtlrpcBody, FiemapVal],
    OST_LADVISE, "RQF_OST_LADVISE", "", Fixed(OST_IO_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, OstBody, OstLadviseHdr, OstLadvise]
        => [PtlrpcBody, OstBody],
    OST_QUOTACTL, "RQF_OST_QUOTACTL", "", Fixed(OST_REQUEST_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, ObdQuotactl]
        => [PtlrpcBody, ObdQuotactl, ObdQuotaIter],
    FLD_QUERY, "RQF_FLD_QUERY", "", Fixed(FLD_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, FldOpc, FldMdfld]
        => [PtlrpcBody, FldMdfld],
    FLD_READ, "RQF_FLD_READ", "", Fixed(FLD_REQUEST_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, FldMdfld]
        => [PtlrpcBody, GenericData],
    SEQ_QUERY, "RQF_SEQ_QUERY", "", Fixed(SEQ_METADATA_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, SeqOpc, SeqRange]
        => [PtlrpcBody, SeqRange],
    SEQ_QUERY, "RQF_SEQ_QUERY", "data", Fixed(SEQ_DATA_PORTAL) => Fixed(OSC_REPLY_PORTAL), None;
        [PtlrpcBody, SeqOpc, SeqRange]
        => [PtlrpcBody, SeqRange],
    OUT_UPDATE, "RQF_OUT_UPDATE", "", Fixed(OUT_PORTAL) => Fixed(OSC_REPLY_PORTAL), Some(MDS_BULK_PORTAL);
        [PtlrpcBody, OutUpdateHeader, OutUpdateBuf]
        => [PtlrpcBody, OutUpdateReply],
    QUOTA_DQACQ, "RQF_QUOTA_DQACQ", "", Fixed(MDS_READPAGE_PORTAL) => Fixed(MDC_REPLY_PORTAL), None;
        [PtlrpcBody, QuotaBody]
        => [PtlrpcBody, QuotaBody],
    LFSCK_NOTIFY, "RQF_LFSCK_NOTIFY", "", Import => Import, None;
        [PtlrpcBody, LfsckRequest]
        => [PtlrpcBody],
    LFSCK_QUERY, "RQF_LFSCK_QUERY", "", Import => Import, None;
        [PtlrpcBody, LfsckRequest]
        => [PtlrpcBody, LfsckReply],
}
