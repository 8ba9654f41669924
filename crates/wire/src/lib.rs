//! Messages, structures, opcodes and flags of Lustre's network protocol, as plain data.
//!
//! The crate has structures with sizes and offsets, constants, request formats, and functions that
//! parse and build messages. It does no I/O and reads no clock. Names are Lustre's, as in its
//! documentation, captures and debug logs: `mdt_body` is [`MdtBody`] with the field `mbo_fid1`.
//! Parsers check each length before use; malformed input is an error and never causes a panic.
//!
//! Structures and constants are also exported at the crate's root: `wire::MdtBody`,
//! `wire::MDS_REINT`.

pub mod acl;
pub mod batch;
pub mod brw;
pub mod capa;
pub mod changelog;
pub mod checksum;
pub mod codec;
pub mod config;
pub mod consts;
pub mod dir;
pub mod dir_hash;
mod dir_layout;
pub mod dirpage;
pub mod ea;
pub mod errno;
pub mod fid;
mod file_mode;
pub mod format;
pub mod frame;
pub mod hsm;
pub mod ids;
pub mod layout;
pub mod ldlm;
pub mod linkea;
pub mod llog;
pub mod llog_file;
pub mod lmv;
pub mod lnet;
pub mod lock_terms;
pub mod lov;
pub mod mdt;
pub mod mgs;
pub mod msg;
pub mod names;
pub mod nid;
pub mod nidlist;
pub mod numbers;
pub mod ost;
pub mod out;
pub mod policy;
pub mod ptlrpc;
pub mod quota;
pub mod reint;
pub mod rename_flags;
pub mod selftest;
pub mod srpc;
pub mod striping;
pub mod text;
pub mod times;

pub use capa::{
    CAPA_OPC_META_READ, CAPA_OPC_META_WRITE, CAPA_OPC_OSS_READ, CAPA_OPC_OSS_TRUNC, CAPA_OPC_OSS_WRITE,
    LustreCapa, OBD_MD_FLOSSCAPA, capability_needed,
};
pub use codec::{Reader, WireError, Writer, round_up8};
pub use errno::Errno;
pub use file_mode::file_mode;
pub use ids::{Fid, before_nul, nul_terminated};
pub use layout::{Field, StructLayout, WireField, WireStruct};
pub use lock_terms::{INODELOCK_UNWRITTEN, LOCK_TERMS_GRANTED, LOCK_TERMS_REQUESTED, LockTerms};
pub use msg::Message;
pub use nid::Nid;
pub use nidlist::NidList;
pub use numbers::{OstIndex, StripeIndex, Transno, Xid};
pub use policy::LdlmPolicyData;
pub use rename_flags::{RENAME_FLAGS_GRANTED, RENAME_FLAGS_REQUESTED, RenameFlags};
pub use selftest::{Selftest, SrpcBody, srpc_portal};
pub use text::Text;
pub use times::{HasTime, HasTimes, NANOSECONDS_GRANTED, NANOSECONDS_REQUESTED, Precision, Time, Times};

pub use changelog::{
    ChangelogExtExtraFlags, ChangelogExtJobid, ChangelogExtOpenmode, ChangelogExtRename, ChangelogExtUidgid,
    ChangelogExtXattr, ChangelogRec, ChangelogSetinfo,
};
pub use dir::{LuDirent, LuDirpage, LudaType};
pub use ea::{
    FilterFid, FilterFid210, FilterFid1823, FilterFid2429, HsmAttrs, LinkEaEntry, LinkEaHeader,
    LustreMdtAttrs, LustreOstAttrs, LustreSomAttrs, OstLayout, PosixAclXattrEntry, PosixAclXattrHeader,
};
pub use fid::{
    FidArray, GetinfoFid2path, Getparent, LlFid, LuExtent, LuFid, LuSeqRange, LuSeqRangeArray, OstId,
};
pub use hsm::{
    HsmActionItem, HsmActionList, HsmCurrentAction, HsmExtent, HsmProgressKernel, HsmRequest, HsmStateSet,
    HsmUserItem, HsmUserState,
};
pub use ldlm::{
    BarrierLvb, LayoutIntent, LdlmExtent, LdlmFlockWire, LdlmGlBarrierDesc, LdlmGlLquotaDesc, LdlmInodebits,
    LdlmIntent, LdlmLockDesc, LdlmReply, LdlmRequest, LdlmResId, LdlmResourceDesc, LquotaLvb, OstLvb,
    OstLvbV1,
};
pub use llog::{
    LlogAgentReqRec, LlogCatid, LlogChangelogRec, LlogChangelogUserRec, LlogChangelogUserRec2, LlogCookie,
    LlogGen, LlogGenRec, LlogLogHdr, LlogLogid, LlogLogidRec, LlogRecHdr, LlogRecTail, LlogSetattr64Rec,
    LlogSetattr64RecV2, LlogSizeChangeRec, LlogUnlink64Rec, LlogUnlinkRec, LlogUpdateRecord, LlogdBody,
    LlogdConnBody, UpdateRecords,
};
pub use lmv::{LmvDesc, LmvForeignMd, LmvMdsMdV1, LmvUserMdV1, LmvUserMdsData};
pub use lnet::{
    KsockHelloMsg, KsockHelloMsgNid4, KsockMsgHdr, LnetAcceptorConnreq, LnetAcceptorConnreqV2, LnetAck,
    LnetCounters, LnetCountersCommon, LnetCountersHealth, LnetGet, LnetHandleWire, LnetHdr, LnetHdrNid4,
    LnetHello, LnetMagicversion, LnetNiLargeStatus, LnetNiStatus, LnetNid, LnetNidMdEntry, LnetNidMetadata,
    LnetPingInfo, LnetProcessIdPacked, LnetPut, LnetReply,
};
pub use lov::{
    LovCompMdEntryV1, LovCompMdV1, LovDesc, LovForeignMd, LovHsmBase, LovMdsMdV1, LovMdsMdV3, LovOstDataV1,
    LovUserMdV1, LovUserMdV3, LovUserOstDataV1,
};
pub use mdt::{CloseData, CloseDataResyncDone, MdcSwapLayouts, MdcSwapLayouts217, MdtBody, MdtIoepoch};
pub use mgs::{
    CfgMarker, LustreCfg, MgsConfigBody, MgsConfigRes, MgsNidtblEntry, MgsSendParam, MgsTargetInfo,
    MgsTargetNidlist,
};
pub use ost::{
    Fiemap, FiemapExtent, LadviseHdr, LlFiemapInfoKey, LuLadvise, NiobufRemote, ObdIoobj, ObdStatfs, Obdo,
    OstBody,
};
pub use out::{
    BatchUpdateReply, BatchUpdateRequest, ButUpdateBuffer, ButUpdateHeader, LfsckReply, LfsckRequest,
    ObjectUpdate, ObjectUpdateParam, ObjectUpdateReply, ObjectUpdateRequest, ObjectUpdateResult,
    OutReadReply, OutUpdateBuffer, OutUpdateHeader, UpdateOp,
};
pub use ptlrpc::{
    IdxInfo, LuIdxpage, LustreHandle, LustreMsgV2, ObdConnectData, ObdUuid, PtlrpcBody, PtlrpcBodyV2,
};
pub use quota::{
    LquotaAcctRec, LquotaGlbRec, LquotaId, LquotaSlvRec, ObdDqblk, ObdDqinfo, ObdQuotactl, QuotaBody,
};
pub use reint::{
    MdtRecCreate, MdtRecLink, MdtRecReint, MdtRecRename, MdtRecResync, MdtRecSetattr, MdtRecSetxattr,
    MdtRecUnlink,
};
pub use srpc::{
    LstBid, LstSid, LstTestBulkParam, LstTestPingParam, SfwCounters, SrpcBatchReply, SrpcBatchReqst,
    SrpcBrwReply, SrpcBrwReqst, SrpcCounters, SrpcDebugReply, SrpcDebugReqst, SrpcGenericReply,
    SrpcGenericReqst, SrpcJoinReply, SrpcJoinReqst, SrpcMksnReply, SrpcMksnReqst, SrpcMsg, SrpcPingReply,
    SrpcPingReqst, SrpcRmsnReply, SrpcRmsnReqst, SrpcStatReply, SrpcStatReqst, SrpcTestReply, SrpcTestReqst,
    TestBulkReq, TestBulkReqV1, TestPingReq,
};

// The constants are exported by glob: their names are Lustre's, and each is declared once.
pub use consts::changelog::*;
pub use consts::connect::*;
pub use consts::fid::*;
pub use consts::hsm::*;
pub use consts::inode::*;
pub use consts::lcfg::*;
pub use consts::ldlm::*;
pub use consts::llog::*;
pub use consts::lmv::*;
pub use consts::lnet::*;
pub use consts::lov::*;
pub use consts::mdt::*;
pub use consts::mgs::*;
pub use consts::obd::*;
pub use consts::opcodes::*;
pub use consts::out::*;
pub use consts::portals::*;
pub use consts::ptlrpc::*;
pub use consts::quota::*;
pub use consts::srpc::*;
pub use names::*;

/// The layouts of all structures that this crate implements, except `lustre_capa`, which current
/// Lustre does not have.
pub fn structs() -> impl Iterator<Item = &'static StructLayout> {
    [
        changelog::STRUCTS,
        dir::STRUCTS,
        ea::STRUCTS,
        fid::STRUCTS,
        hsm::STRUCTS,
        ldlm::STRUCTS,
        llog::STRUCTS,
        lmv::STRUCTS,
        lnet::STRUCTS,
        lov::STRUCTS,
        mdt::STRUCTS,
        mgs::STRUCTS,
        ost::STRUCTS,
        out::STRUCTS,
        ptlrpc::STRUCTS,
        quota::STRUCTS,
        reint::STRUCTS,
        srpc::STRUCTS,
    ]
    .into_iter()
    .flatten()
}

/// The version of Lustre that Nacre announces in `ocd_version`, when a target registers, and in
/// configuration records: 2.17.57.0, as (major << 24) | (minor << 16) | (patch << 8) | fix. Peers
/// derive from this version the features that they may use.
pub const LUSTRE_VERSION_CODE: u32 = 0x0211_3900;
