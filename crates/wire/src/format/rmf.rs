//! The buffers of messages: Lustre's name and content type of each.

use super::codec::{Codec, Ops};
use crate::fid::{FidArray, LuFid, LuSeqRange};
use crate::hsm::{HsmCurrentAction, HsmProgressKernel, HsmRequest, HsmStateSet, HsmUserItem, HsmUserState};
use crate::ldlm::{LayoutIntent, LdlmIntent, LdlmReply};
use crate::llog::{LlogLogHdr, LlogdBody};
use crate::mdt::{CloseData, MdcSwapLayouts217, MdtBody, MdtIoepoch};
use crate::mgs::{MgsConfigBody, MgsConfigRes, MgsSendParam, MgsTargetInfo, MgsTargetNidlist};
use crate::ost::{
    Fiemap, LadviseHdr, LlFiemapInfoKey, LuLadvise, NiobufRemote, ObdIoobj, ObdStatfs, OstBody,
};
use crate::out::{
    BatchUpdateReply, ButUpdateBuffer, ButUpdateHeader, LfsckReply, LfsckRequest, ObjectUpdateReply,
    OutUpdateBuffer, OutUpdateHeader,
};
use crate::ptlrpc::{IdxInfo, LustreHandle, ObdConnectData, PtlrpcBody};
use crate::quota::{ObdQuotactl, QuotaBody};

macro_rules! buffers {
    ($( $name:ident = $lustre:literal $codec:expr, )*) => {
        /// One buffer of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rmf {
            $( #[doc = concat!("`", $lustre, "`")] $name, )*
        }

        impl Rmf {
            /// Lustre's name, such as `RMF_MDT_BODY`.
            pub const fn name(self) -> &'static str {
                match self { $( Rmf::$name => $lustre, )* }
            }

            /// The type of the content.
            pub const fn codec(self) -> Codec {
                match self { $( Rmf::$name => $codec, )* }
            }
        }
    };
}

buffers! {
    PtlrpcBody = "RMF_PTLRPC_BODY" Codec::Struct(Ops::of::<PtlrpcBody>()),
    Tgtuuid = "RMF_TGTUUID" Codec::Text,
    Cluuid = "RMF_CLUUID" Codec::Text,
    Conn = "RMF_CONN" Codec::Struct(Ops::of::<LustreHandle>()),
    ConnectData = "RMF_CONNECT_DATA" Codec::Struct(Ops::of::<ObdConnectData>()),
    SelinuxPol = "RMF_SELINUX_POL" Codec::Text,
    IdxInfo = "RMF_IDX_INFO" Codec::Struct(Ops::of::<IdxInfo>()),
    MgsTargetInfo = "RMF_MGS_TARGET_INFO" Codec::Struct(Ops::of::<MgsTargetInfo>()),
    MgsTargetNidlist = "RMF_MGS_TARGET_NIDLIST" Codec::Struct(Ops::of::<MgsTargetNidlist>()),
    MgsSendParam = "RMF_MGS_SEND_PARAM" Codec::Struct(Ops::of::<MgsSendParam>()),
    MgsConfigBody = "RMF_MGS_CONFIG_BODY" Codec::Struct(Ops::of::<MgsConfigBody>()),
    MgsConfigRes = "RMF_MGS_CONFIG_RES" Codec::Struct(Ops::of::<MgsConfigRes>()),
    LlogdBody = "RMF_LLOGD_BODY" Codec::Struct(Ops::of::<LlogdBody>()),
    Name = "RMF_NAME" Codec::Text,
    MdtBody = "RMF_MDT_BODY" Codec::Struct(Ops::of::<MdtBody>()),
    LlogLogHdr = "RMF_LLOG_LOG_HDR" Codec::Struct(Ops::of::<LlogLogHdr>()),
    Eadata = "RMF_EADATA" Codec::Bytes,
    DlmReq = "RMF_DLM_REQ" Codec::Lock,
    DlmRep = "RMF_DLM_REP" Codec::Struct(Ops::of::<LdlmReply>()),
    DlmLvb = "RMF_DLM_LVB" Codec::Bytes,
    LdlmIntent = "RMF_LDLM_INTENT" Codec::Struct(Ops::of::<LdlmIntent>()),
    RecReint = "RMF_REC_REINT" Codec::Reint,
    Capa1 = "RMF_CAPA1" Codec::Bytes,
    Capa2 = "RMF_CAPA2" Codec::Bytes,
    FileSecctxName = "RMF_FILE_SECCTX_NAME" Codec::Text,
    FileSecctx = "RMF_FILE_SECCTX" Codec::Bytes,
    FileEncctx = "RMF_FILE_ENCCTX" Codec::Bytes,
    MdtMd = "RMF_MDT_MD" Codec::Bytes,
    Acl = "RMF_ACL" Codec::Bytes,
    NiobufInline = "RMF_NIOBUF_INLINE" Codec::Struct(Ops::of::<NiobufRemote>()),
    DefaultMdtMd = "RMF_DEFAULT_MDT_MD" Codec::Bytes,
    Eavals = "RMF_EAVALS" Codec::Bytes,
    EavalsLens = "RMF_EAVALS_LENS" Codec::U32s,
    LayoutIntent = "RMF_LAYOUT_INTENT" Codec::Struct(Ops::of::<LayoutIntent>()),
    QuotaBody = "RMF_QUOTA_BODY" Codec::Struct(Ops::of::<QuotaBody>()),
    DlmGlDesc = "RMF_DLM_GL_DESC" Codec::Bytes,
    SetinfoKey = "RMF_SETINFO_KEY" Codec::Text,
    SetinfoVal = "RMF_SETINFO_VAL" Codec::Bytes,
    ObdStatfs = "RMF_OBD_STATFS" Codec::Struct(Ops::of::<ObdStatfs>()),
    MdtEpoch = "RMF_MDT_EPOCH" Codec::Struct(Ops::of::<MdtIoepoch>()),
    Logcookies = "RMF_LOGCOOKIES" Codec::Bytes,
    CloseData = "RMF_CLOSE_DATA" Codec::Struct(Ops::of::<CloseData>()),
    U32 = "RMF_U32" Codec::U32s,
    GetinfoKey = "RMF_GETINFO_KEY" Codec::Text,
    GetinfoVal = "RMF_GETINFO_VAL" Codec::Bytes,
    GetinfoVallen = "RMF_GETINFO_VALLEN" Codec::U32s,
    ObdQuotactl = "RMF_OBD_QUOTACTL" Codec::Struct(Ops::of::<ObdQuotactl>()),
    ObdQuotaIter = "RMF_OBD_QUOTA_ITER" Codec::Bytes,
    SwapLayouts = "RMF_SWAP_LAYOUTS" Codec::Struct(Ops::of::<MdcSwapLayouts217>()),
    HsmUserState = "RMF_HSM_USER_STATE" Codec::Struct(Ops::of::<HsmUserState>()),
    HsmStateSet = "RMF_HSM_STATE_SET" Codec::Struct(Ops::of::<HsmStateSet>()),
    MdsHsmCurrentAction = "RMF_MDS_HSM_CURRENT_ACTION" Codec::Struct(Ops::of::<HsmCurrentAction>()),
    MdsHsmProgress = "RMF_MDS_HSM_PROGRESS" Codec::Struct(Ops::of::<HsmProgressKernel>()),
    MdsHsmRequest = "RMF_MDS_HSM_REQUEST" Codec::Struct(Ops::of::<HsmRequest>()),
    MdsHsmUserItem = "RMF_MDS_HSM_USER_ITEM" Codec::Array(Ops::of::<HsmUserItem>()),
    GenericData = "RMF_GENERIC_DATA" Codec::Bytes,
    MdsHsmArchive = "RMF_MDS_HSM_ARCHIVE" Codec::U32s,
    FidArray = "RMF_FID_ARRAY" Codec::Struct(Ops::of::<FidArray>()),
    Rcs = "RMF_RCS" Codec::U32s,
    ButHeader = "RMF_BUT_HEADER" Codec::Struct(Ops::of::<ButUpdateHeader>()),
    ButBuf = "RMF_BUT_BUF" Codec::Array(Ops::of::<ButUpdateBuffer>()),
    ButReply = "RMF_BUT_REPLY" Codec::Struct(Ops::of::<BatchUpdateReply>()),
    Symtgt = "RMF_SYMTGT" Codec::Text,
    OstBody = "RMF_OST_BODY" Codec::Struct(Ops::of::<OstBody>()),
    ObdIoobj = "RMF_OBD_IOOBJ" Codec::Array(Ops::of::<ObdIoobj>()),
    NiobufRemote = "RMF_NIOBUF_REMOTE" Codec::Array(Ops::of::<NiobufRemote>()),
    ShortIo = "RMF_SHORT_IO" Codec::Bytes,
    ObdId = "RMF_OBD_ID" Codec::U64,
    Fid = "RMF_FID" Codec::Struct(Ops::of::<LuFid>()),
    FiemapKey = "RMF_FIEMAP_KEY" Codec::Struct(Ops::of::<LlFiemapInfoKey>()),
    FiemapVal = "RMF_FIEMAP_VAL" Codec::Struct(Ops::of::<Fiemap>()),
    OstLadviseHdr = "RMF_OST_LADVISE_HDR" Codec::Struct(Ops::of::<LadviseHdr>()),
    OstLadvise = "RMF_OST_LADVISE" Codec::Array(Ops::of::<LuLadvise>()),
    FldOpc = "RMF_FLD_OPC" Codec::U32s,
    FldMdfld = "RMF_FLD_MDFLD" Codec::Struct(Ops::of::<LuSeqRange>()),
    SeqOpc = "RMF_SEQ_OPC" Codec::U32s,
    SeqRange = "RMF_SEQ_RANGE" Codec::Struct(Ops::of::<LuSeqRange>()),
    OutUpdateHeader = "RMF_OUT_UPDATE_HEADER" Codec::Struct(Ops::of::<OutUpdateHeader>()),
    OutUpdateBuf = "RMF_OUT_UPDATE_BUF" Codec::Array(Ops::of::<OutUpdateBuffer>()),
    OutUpdateReply = "RMF_OUT_UPDATE_REPLY" Codec::Struct(Ops::of::<ObjectUpdateReply>()),
    LfsckRequest = "RMF_LFSCK_REQUEST" Codec::Struct(Ops::of::<LfsckRequest>()),
    LfsckReply = "RMF_LFSCK_REPLY" Codec::Struct(Ops::of::<LfsckReply>()),
}
