//! Positions of the buffers that Nacre reads in requests and replies.
//!
//! The compiler looks up each position in [`FORMATS`](super::FORMATS), so a position cannot differ
//! from its format. A constant whose name contains no operation, such as `MDT_BODY`, applies to
//! several operations; the tests list them.

use super::by_name;
use super::rmf::Rmf;

/// The position of a buffer in the requests of a format.
const fn request(format: &str, buf: Rmf) -> usize {
    let format = by_name(format).expect("the table has the format");
    format.request_index(buf).expect("its requests have the buffer")
}

/// The position of a buffer in the replies of a format.
const fn reply(format: &str, buf: Rmf) -> usize {
    let format = by_name(format).expect("the table has the format");
    format.reply_index(buf).expect("its replies have the buffer")
}

/// `struct ptlrpc_body`, first in every RPC message.
pub const PTLRPC_BODY: usize = request("RQF_OBD_PING", Rmf::PtlrpcBody);

/// The UUID of the target, in a connect request.
pub const CONNECT_TARGET: usize = request("RQF_MDS_CONNECT", Rmf::Tgtuuid);
/// The UUID of the client, in a connect request.
pub const CONNECT_CLIENT: usize = request("RQF_MDS_CONNECT", Rmf::Cluuid);
/// The handle of the client's import, in a connect request.
pub const CONNECT_HANDLE: usize = request("RQF_MDS_CONNECT", Rmf::Conn);
/// The connect data that the client requests.
pub const CONNECT_DATA: usize = request("RQF_MDS_CONNECT", Rmf::ConnectData);
/// The connect data that the server grants.
pub const CONNECT_REPLY_DATA: usize = reply("RQF_MDS_CONNECT", Rmf::ConnectData);

/// The target that registers at the MGS, in request and reply.
pub const MGS_TARGET_INFO: usize = request("RQF_MGS_TARGET_REG", Rmf::MgsTargetInfo);
/// The part of the table of NIDs to read.
pub const MGS_CONFIG_BODY: usize = request("RQF_MGS_CONFIG_READ", Rmf::MgsConfigBody);
/// The versions of the table of NIDs, in the reply.
pub const MGS_CONFIG_RES: usize = reply("RQF_MGS_CONFIG_READ", Rmf::MgsConfigRes);
/// The log and the position in it, in requests and replies that read a log.
pub const LLOGD_BODY: usize = request("RQF_LLOG_ORIGIN_HANDLE_NEXT_BLOCK", Rmf::LlogdBody);
/// The name of the log to open.
pub const LLOG_NAME: usize = request("RQF_LLOG_ORIGIN_HANDLE_CREATE", Rmf::Name);
/// The header of the log, in a reply.
pub const LLOG_HEADER: usize = reply("RQF_LLOG_ORIGIN_HANDLE_READ_HEADER", Rmf::LlogLogHdr);
/// The records of a block of the log, in a reply.
pub const LLOG_RECORDS: usize = reply("RQF_LLOG_ORIGIN_HANDLE_NEXT_BLOCK", Rmf::Eadata);

/// The lock and the handles of cancelled locks, in requests of the lock manager.
pub const DLM_REQ: usize = request("RQF_LDLM_ENQUEUE", Rmf::DlmReq);
/// The lock that the server granted or queued, in the reply of an enqueue.
pub const DLM_REP: usize = reply("RQF_LDLM_ENQUEUE", Rmf::DlmRep);
/// The LVB or layout, in the reply of an enqueue.
pub const ENQUEUE_LVB: usize = reply("RQF_LDLM_ENQUEUE", Rmf::DlmLvb);
/// The LVB, in a completion callback.
pub const COMPLETION_LVB: usize = request("RQF_LDLM_CP_CALLBACK", Rmf::DlmLvb);
/// The LVB, in the lock holder's reply to a glimpse callback.
pub const GLIMPSE_LVB: usize = reply("RQF_LDLM_GL_CALLBACK", Rmf::DlmLvb);
/// The operation of an intent.
pub const INTENT: usize = request("RQF_LDLM_INTENT_OPEN", Rmf::LdlmIntent);
/// The range of a file for which a layout intent requests objects.
pub const LAYOUT_INTENT: usize = request("RQF_LDLM_INTENT_LAYOUT", Rmf::LayoutIntent);
/// The body of an intent that reads attributes.
pub const INTENT_BODY: usize = request("RQF_LDLM_INTENT_GETATTR", Rmf::MdtBody);
/// The name that an intent looks up.
pub const INTENT_NAME: usize = request("RQF_LDLM_INTENT_GETATTR", Rmf::Name);
/// The record of an open.
pub const OPEN_REC: usize = request("RQF_LDLM_INTENT_OPEN", Rmf::RecReint);
/// The name that an open looks up or creates.
pub const OPEN_NAME: usize = request("RQF_LDLM_INTENT_OPEN", Rmf::Name);
/// The layout that the client requests in an open.
pub const OPEN_EA: usize = request("RQF_LDLM_INTENT_OPEN", Rmf::Eadata);
/// The attributes, in the reply of an intent.
pub const INTENT_REPLY_BODY: usize = reply("RQF_LDLM_INTENT_GETATTR", Rmf::MdtBody);
/// The layout, in the reply of an intent.
pub const INTENT_REPLY_MD: usize = reply("RQF_LDLM_INTENT_GETATTR", Rmf::MdtMd);
/// The ACL, in the reply of an intent.
pub const INTENT_REPLY_ACL: usize = reply("RQF_LDLM_INTENT_GETATTR", Rmf::Acl);
/// A directory's default directory layout, in the reply of a lookup or getattr intent.
pub const INTENT_REPLY_DEFAULT_MD: usize = reply("RQF_LDLM_INTENT_GETATTR", Rmf::DefaultMdtMd);
/// A file's data on the MDT (`niobuf_remote` and the bytes), in the reply of an open.
pub const OPEN_REPLY_DATA: usize = reply("RQF_LDLM_INTENT_OPEN", Rmf::NiobufInline);
/// The names of all extended attributes, in the reply of an intent.
pub const INTENT_REPLY_XATTRS: usize = reply("RQF_LDLM_INTENT_GETXATTR", Rmf::Eadata);
/// The values of all extended attributes, in the reply of an intent.
pub const INTENT_REPLY_XATTR_VALUES: usize = reply("RQF_LDLM_INTENT_GETXATTR", Rmf::Eavals);
/// The lengths of the values of all extended attributes, in the reply of an intent.
pub const INTENT_REPLY_XATTR_LENS: usize = reply("RQF_LDLM_INTENT_GETXATTR", Rmf::EavalsLens);

/// `struct mdt_body`, in requests and replies of the MDS.
pub const MDT_BODY: usize = request("RQF_MDS_GETATTR", Rmf::MdtBody);
/// The layout, symbolic link or default layout that goes with `mdt_body` in a reply.
pub const MDT_MD: usize = reply("RQF_MDS_GETATTR", Rmf::MdtMd);
/// The object for which a client requests a capability, in `MDS_GETATTR`.
pub const CAPA_REQUEST: usize = request("RQF_MDS_GETATTR", Rmf::Capa1);
/// The object's capability, in the reply of `MDS_GETATTR`.
pub const CAPA_REPLY: usize = reply("RQF_MDS_GETATTR", Rmf::Capa2);
/// The name of a file in `MDS_GETATTR_NAME`, of an extended attribute in `MDS_GETXATTR`.
pub const GETATTR_NAME: usize = request("RQF_MDS_GETATTR_NAME", Rmf::Name);
/// The value of an extended attribute or the list of their names, in the reply of `MDS_GETXATTR`.
pub const GETXATTR_VALUE: usize = reply("RQF_MDS_GETXATTR", Rmf::Eadata);
/// The subdirectory that a client mounts, in `MDS_GET_ROOT`.
pub const ROOT_PATH: usize = request("RQF_MDS_GET_ROOT", Rmf::Name);
/// The key and its argument, in `MDS_GET_INFO` and `OST_GET_INFO`.
pub const GET_INFO_KEY: usize = request("RQF_MDS_FID2PATH", Rmf::GetinfoKey);
/// The value, in the reply of `MDS_GET_INFO` and `OST_GET_INFO`.
pub const GET_INFO_VALUE: usize = reply("RQF_MDS_FID2PATH", Rmf::GetinfoVal);
/// The key, in `MDS_SET_INFO` and `OST_SET_INFO`.
pub const SET_INFO_KEY: usize = request("RQF_OBD_SET_INFO", Rmf::SetinfoKey);
/// The value, in `MDS_SET_INFO`.
pub const SET_INFO_VALUE: usize = request("RQF_OBD_SET_INFO", Rmf::SetinfoVal);
/// The HSM flags to set and to clear.
pub const HSM_STATE_SET: usize = request("RQF_MDS_HSM_STATE_SET", Rmf::HsmStateSet);
/// The FIDs of the files to remove, in `MDS_RMFID`.
pub const RMFID_FIDS: usize = request("RQF_MDS_RMFID", Rmf::FidArray);
/// A status for each FID, in the reply of `MDS_RMFID`.
pub const RMFID_STATUSES: usize = reply("RQF_MDS_RMFID", Rmf::Rcs);
/// The header of a batch.
pub const BATCH_HEADER: usize = request("RQF_MDS_BATCH", Rmf::ButHeader);
/// The sizes of the parts of a batch that the server fetches as bulk data.
pub const BATCH_BUFS: usize = request("RQF_MDS_BATCH", Rmf::ButBuf);
/// The replies of a batch.
pub const BATCH_REPLY: usize = reply("RQF_MDS_BATCH", Rmf::ButReply);

/// The record of a modifying operation.
pub const REC_REINT: usize = request("RQF_MDS_REINT_SETATTR", Rmf::RecReint);
/// The handle of an open file, in a change of its attributes.
pub const SETATTR_EPOCH: usize = request("RQF_MDS_REINT_SETATTR", Rmf::MdtEpoch);
/// The default layout that a change of attributes sets.
pub const SETATTR_EA: usize = request("RQF_MDS_REINT_SETATTR", Rmf::Eadata);
/// Handles of locks that the client cancels with a change of attributes.
pub const SETATTR_DLM_REQ: usize = request("RQF_MDS_REINT_SETATTR", Rmf::DlmReq);
/// The name of the extended attribute to set.
pub const SETXATTR_NAME: usize = request("RQF_MDS_REINT_SETXATTR", Rmf::Name);
/// The value of the extended attribute to set.
pub const SETXATTR_VALUE: usize = request("RQF_MDS_REINT_SETXATTR", Rmf::Eadata);
/// Handles of locks that the client cancels with a change of an extended attribute.
pub const SETXATTR_DLM_REQ: usize = request("RQF_MDS_REINT_SETXATTR", Rmf::DlmReq);
/// The name to create.
pub const CREATE_NAME: usize = request("RQF_MDS_REINT_CREATE_SYM", Rmf::Name);
/// The target of the symbolic link to create.
pub const CREATE_SYMLINK: usize = request("RQF_MDS_REINT_CREATE_SYM", Rmf::Symtgt);
/// The layout of the directory to create.
pub const CREATE_EA: usize = request("RQF_MDS_REINT_CREATE_ACL", Rmf::Eadata);
/// The layout of the created directory, in the reply of a create.
pub const CREATE_REPLY_MD: usize = reply("RQF_MDS_REINT_CREATE_ACL", Rmf::MdtMd);
/// Handles of locks that the client cancels with a create.
pub const CREATE_DLM_REQ: usize = request("RQF_MDS_REINT_CREATE_SYM", Rmf::DlmReq);
/// The new name of a link.
pub const LINK_NAME: usize = request("RQF_MDS_REINT_LINK", Rmf::Name);
/// Handles of locks that the client cancels with a link.
pub const LINK_DLM_REQ: usize = request("RQF_MDS_REINT_LINK", Rmf::DlmReq);
/// The name to remove.
pub const UNLINK_NAME: usize = request("RQF_MDS_REINT_UNLINK", Rmf::Name);
/// Handles of locks that the client cancels with an unlink.
pub const UNLINK_DLM_REQ: usize = request("RQF_MDS_REINT_UNLINK", Rmf::DlmReq);
/// The old name of a rename.
pub const RENAME_SOURCE: usize = request("RQF_MDS_REINT_RENAME", Rmf::Name);
/// The new name of a rename.
pub const RENAME_TARGET: usize = request("RQF_MDS_REINT_RENAME", Rmf::Symtgt);
/// Handles of locks that the client cancels with a rename.
pub const RENAME_DLM_REQ: usize = request("RQF_MDS_REINT_RENAME", Rmf::DlmReq);
/// The handle of the open file, in `MDS_CLOSE`.
pub const CLOSE_EPOCH: usize = request("RQF_MDS_CLOSE", Rmf::MdtEpoch);
/// The attributes that a close sets.
pub const CLOSE_REC: usize = request("RQF_MDS_CLOSE", Rmf::RecReint);
/// The data of a close with an intent, such as a swap of layouts or an HSM release.
pub const CLOSE_DATA: usize = request("RQF_MDS_CLOSE_INTENT", Rmf::CloseData);

/// Handles of locks that the client cancels with a swap of layouts.
pub const SWAP_DLM_REQ: usize = request("RQF_MDS_SWAP_LAYOUTS", Rmf::DlmReq);

/// `struct ost_body`, in requests and replies of the OST.
pub const OST_BODY: usize = request("RQF_OST_SETATTR", Rmf::OstBody);
/// Handles of locks that the client cancels with a destroy.
pub const DESTROY_DLM_REQ: usize = request("RQF_OST_DESTROY", Rmf::DlmReq);
/// The object of a read or write.
pub const BRW_IOOBJ: usize = request("RQF_OST_BRW_WRITE", Rmf::ObdIoobj);
/// The extents of a read or write.
pub const BRW_NIOBUFS: usize = request("RQF_OST_BRW_WRITE", Rmf::NiobufRemote);
/// Data in the request of a short write, instead of bulk data.
pub const BRW_SHORT_IO: usize = request("RQF_OST_BRW_WRITE", Rmf::ShortIo);
/// Data in the reply of a short read, instead of bulk data.
pub const BRW_READ_SHORT_IO: usize = reply("RQF_OST_BRW_READ", Rmf::ShortIo);
/// A status for each niobuf, in the reply of a write.
pub const BRW_STATUSES: usize = reply("RQF_OST_BRW_WRITE", Rmf::Rcs);
/// A FID of the sequence, in an `OST_GET_INFO` for the last object of a sequence.
pub const LAST_FID: usize = request("RQF_OST_GET_INFO_LAST_FID", Rmf::Fid);
/// The key and the extent, in `OST_GET_INFO` of `fiemap`.
pub const FIEMAP_KEY: usize = request("RQF_OST_GET_INFO_FIEMAP", Rmf::FiemapKey);
/// The grant that a client returns, in `OST_SET_INFO`.
pub const GRANT_BODY: usize = request("RQF_OST_SET_GRANT_INFO", Rmf::OstBody);
/// `struct obd_statfs`, in the replies of `MDS_STATFS` and `OST_STATFS`.
pub const OBD_STATFS: usize = reply("RQF_OST_STATFS", Rmf::ObdStatfs);

/// The operation of an FLD or SEQ query.
pub const QUERY_OPC: usize = request("RQF_SEQ_QUERY", Rmf::SeqOpc);
/// The range of an FLD or SEQ query.
pub const QUERY_RANGE: usize = request("RQF_SEQ_QUERY", Rmf::SeqRange);
/// The range, in the reply of an FLD or SEQ query.
pub const QUERY_REPLY_RANGE: usize = reply("RQF_SEQ_QUERY", Rmf::SeqRange);

#[cfg(test)]
mod tests {
    use super::super::{FORMATS, Rmf, Rqf};
    use super::{
        DLM_REQ, GETATTR_NAME, INTENT, INTENT_BODY, INTENT_REPLY_BODY, MDT_BODY, OBD_STATFS, OST_BODY,
        QUERY_RANGE, QUERY_REPLY_RANGE, REC_REINT,
    };

    /// Checks that `buf` has this position in each format that has `buf` and a name that starts
    /// with `prefix`.
    fn assert_position(prefix: &str, bufs: impl Fn(&Rqf) -> &[Rmf], buf: Rmf, position: usize) {
        for format in FORMATS.iter().filter(|f| f.name.starts_with(prefix)) {
            if let Some(found) = bufs(format).iter().position(|b| *b == buf) {
                assert_eq!(found, position, "{} {}", format.name, buf.name());
            }
        }
    }

    #[test]
    fn positions_without_an_operation_are_valid_for_several_operations() {
        assert_position("RQF_LDLM", |f| f.request, Rmf::DlmReq, DLM_REQ);
        assert_position("RQF_LDLM", |f| f.request, Rmf::LdlmIntent, INTENT);
        assert_position("RQF_LDLM_INTENT_GET", |f| f.request, Rmf::MdtBody, INTENT_BODY);
        assert_position("RQF_LDLM_INTENT", |f| f.reply, Rmf::MdtBody, INTENT_REPLY_BODY);
        for part in ["GET", "STATFS", "SYNC", "READPAGE", "HSM_STATE", "RMFID"] {
            let prefix = format!("RQF_MDS_{part}");
            assert_position(&prefix, |f| f.request, Rmf::MdtBody, MDT_BODY);
        }
        assert_position("RQF_MDS", |f| f.reply, Rmf::MdtBody, MDT_BODY);
        assert_position("RQF_MDS_GETATTR", |f| f.request, Rmf::Name, GETATTR_NAME);
        assert_position("RQF_MDS_GETXATTR", |f| f.request, Rmf::Name, GETATTR_NAME);
        assert_position("RQF_MDS_REINT", |f| f.request, Rmf::RecReint, REC_REINT);
        for part in ["CREATE", "DESTROY", "PUNCH", "FALLOCATE", "SEEK", "SYNC", "BRW"] {
            let prefix = format!("RQF_OST_{part}");
            assert_position(&prefix, |f| f.request, Rmf::OstBody, OST_BODY);
        }
        assert_position("RQF_OST", |f| f.reply, Rmf::OstBody, OST_BODY);
        assert_position("RQF_MDS", |f| f.reply, Rmf::ObdStatfs, OBD_STATFS);
        assert_position("RQF_FLD_QUERY", |f| f.request, Rmf::FldMdfld, QUERY_RANGE);
        assert_position("RQF_FLD_QUERY", |f| f.reply, Rmf::FldMdfld, QUERY_REPLY_RANGE);
    }
}
