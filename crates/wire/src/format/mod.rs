//! Request formats as data: for each opcode the buffers of request and reply in order, and the
//! portals.
//!
//! Some opcodes have several formats (by intent, kind of modification, key or number of buffers);
//! [`of_request`] selects one by the content of the request.

pub mod bufs;
mod codec;
mod leaves;
mod rmf;
mod rqf;

pub use codec::{Codec, Ops, reint_ops};
pub use leaves::{Leaf, Value, leaves, leaves_of, leaves_of_batch};
pub use rmf::Rmf;
pub use rqf::FORMATS;

use crate::codec::Reader;
use crate::consts::ldlm::{
    IT_BRW, IT_CREAT, IT_GETATTR, IT_GETXATTR, IT_GLIMPSE, IT_LAYOUT, IT_LOOKUP, IT_OPEN, IT_QUOTA_CONN,
    IT_QUOTA_DQACQ, IT_READDIR,
};
use crate::consts::opcodes::{
    FLD_FIRST_OPC, FLD_LAST_OPC, LDLM_ENQUEUE, LDLM_FIRST_OPC, LDLM_GL_CALLBACK, LDLM_LAST_OPC,
    LLOG_FIRST_OPC, LLOG_LAST_OPC, MDS_CLOSE, MDS_GET_INFO, MDS_GETATTR, MDS_LAST_OPC, MDS_REINT,
    MDS_SET_INFO, MDS_STATFS, MGS_FIRST_OPC, MGS_LAST_OPC, MGS_TARGET_REG, OST_GET_INFO, OST_LAST_OPC,
    OST_SET_INFO, OUT_UPDATE, QUOTA_FIRST_OPC, QUOTA_LAST_OPC, REINT_CREATE, REINT_LINK, REINT_MIGRATE,
    REINT_OPEN, REINT_RENAME, REINT_RESYNC, REINT_RMENTRY, REINT_SETATTR, REINT_SETXATTR, REINT_UNLINK,
    SEQ_FIRST_OPC, SEQ_LAST_OPC,
};
use crate::consts::ptlrpc::{
    LUSTRE_DLM_VERSION, LUSTRE_LOG_VERSION, LUSTRE_MDS_VERSION, LUSTRE_MGS_VERSION, LUSTRE_OBD_VERSION,
    LUSTRE_OST_VERSION,
};
use crate::layout::WireStruct;
use crate::ldlm::LdlmIntent;
use crate::msg::Message;
use crate::names::{KEY_FID2PATH, KEY_FIEMAP, KEY_GRANT_SHRINK, KEY_LAST_FID, KEY_LAST_ID};
use crate::reint::MdtRecCreate;

/// The portal of a request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portal {
    /// A fixed portal.
    Fixed(u32),
    /// The portal of the target that the RPC goes to: MGS, MDS or OST.
    Import,
}

/// The format of one RPC.
#[derive(Clone, Copy, Debug)]
pub struct Rqf {
    /// Lustre's name, such as `RQF_MDS_GETATTR`.
    pub name: &'static str,
    /// The opcode.
    pub opcode: u32,
    /// The opcode's name.
    pub opcode_name: &'static str,
    /// A note for readers of the table: when an opcode with several formats uses this one; may be
    /// empty.
    pub variant: &'static str,
    /// The portal of the request.
    pub request_portal: Portal,
    /// The portal of the reply.
    pub reply_portal: Portal,
    /// The portal of bulk data, if the RPC has any.
    pub bulk_portal: Option<u32>,
    /// The request's buffers.
    pub request: &'static [Rmf],
    /// The reply's buffers.
    pub reply: &'static [Rmf],
}

impl Rqf {
    /// The index of a buffer in the request.
    pub const fn request_index(&self, buf: Rmf) -> Option<usize> {
        index_of(self.request, buf)
    }

    /// The index of a buffer in the reply.
    pub const fn reply_index(&self, buf: Rmf) -> Option<usize> {
        index_of(self.reply, buf)
    }
}

/// The index of a buffer. Uses a loop because [`bufs`] calls this function at compile time, and a
/// `const fn` cannot use iterators.
const fn index_of(bufs: &[Rmf], buf: Rmf) -> Option<usize> {
    let mut i = 0;
    while i < bufs.len() {
        if bufs[i] as usize == buf as usize {
            return Some(i);
        }
        i += 1;
    }
    None
}

/// The usual format of an opcode: the first one in the table.
pub fn of_opcode(opcode: u32) -> Option<&'static Rqf> {
    FORMATS.iter().find(|f| f.opcode == opcode)
}

/// The format of a reply by its opcode alone, for callers without the request; `None` if the opcode
/// is unknown or its formats have different replies.
pub fn of_reply(opcode: u32) -> Option<&'static Rqf> {
    let format = of_opcode(opcode)?;
    let same = FORMATS
        .iter()
        .filter(|f| f.opcode == opcode)
        .all(|f| f.reply == format.reply);
    same.then_some(format)
}

/// The first format with this name: several rows of the table may share one.
pub const fn by_name(name: &str) -> Option<&'static Rqf> {
    let mut i = 0;
    while i < FORMATS.len() {
        if is_same(FORMATS[i].name.as_bytes(), name.as_bytes()) {
            return Some(&FORMATS[i]);
        }
        i += 1;
    }
    None
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([], []) => true,
        ([a, rest_a @ ..], [b, rest_b @ ..]) => *a == *b && is_same(rest_a, rest_b),
        _ => false,
    }
}

/// The name of an opcode, such as `MDS_REINT`.
pub fn opcode_name(opcode: u32) -> Option<&'static str> {
    of_opcode(opcode).map(|f| f.opcode_name)
}

/// The version of an opcode's service: the high half of `pb_version`.
///
/// Connects, disconnects, pings and unknown opcodes have [`LUSTRE_OBD_VERSION`].
pub fn service_version(opcode: u32) -> u32 {
    match opcode {
        crate::MDS_CONNECT | crate::MDS_DISCONNECT | crate::OST_CONNECT | crate::OST_DISCONNECT => {
            LUSTRE_OBD_VERSION
        }
        crate::MGS_CONNECT | crate::MGS_DISCONNECT => LUSTRE_OBD_VERSION,
        0..OST_LAST_OPC => LUSTRE_OST_VERSION,
        MDS_GETATTR..MDS_LAST_OPC => LUSTRE_MDS_VERSION,
        LDLM_FIRST_OPC..LDLM_LAST_OPC => LUSTRE_DLM_VERSION,
        MGS_FIRST_OPC..MGS_LAST_OPC => LUSTRE_MGS_VERSION,
        LLOG_FIRST_OPC..LLOG_LAST_OPC => LUSTRE_LOG_VERSION,
        QUOTA_FIRST_OPC..QUOTA_LAST_OPC | OUT_UPDATE => LUSTRE_MDS_VERSION,
        FLD_FIRST_OPC..FLD_LAST_OPC | SEQ_FIRST_OPC..SEQ_LAST_OPC => LUSTRE_MDS_VERSION,
        _ => LUSTRE_OBD_VERSION,
    }
}

/// The format of a request, selected by its opcode and content; `None` for an unknown opcode.
pub fn of_request(opcode: u32, msg: &Message) -> Option<&'static Rqf> {
    let count = msg.bufs.len();
    let key = |i| msg.str(i).unwrap_or("");
    let name = match opcode {
        LDLM_ENQUEUE if count > 2 => intent_format(msg),
        MDS_REINT => reint_format(msg),
        LDLM_GL_CALLBACK if count > 2 => "RQF_LDLM_GL_CALLBACK_DESC",
        MDS_CLOSE if count > 4 => "RQF_MDS_CLOSE_INTENT",
        MDS_STATFS if count > 1 => "RQF_MDS_STATFS_NEW",
        MGS_TARGET_REG if count > 2 => "RQF_MGS_TARGET_REG_NIDLIST",
        MDS_GET_INFO if key(bufs::GET_INFO_KEY).starts_with(KEY_FID2PATH) => "RQF_MDS_FID2PATH",
        MDS_SET_INFO if count > 3 => "RQF_MDT_SET_INFO",
        MDS_SET_INFO => "RQF_OBD_SET_INFO",
        OST_SET_INFO if key(bufs::SET_INFO_KEY) == KEY_GRANT_SHRINK => "RQF_OST_SET_GRANT_INFO",
        OST_SET_INFO => "RQF_OBD_SET_INFO",
        OST_GET_INFO if key(bufs::GET_INFO_KEY) == KEY_LAST_ID => "RQF_OST_GET_INFO_LAST_ID",
        OST_GET_INFO if key(bufs::GET_INFO_KEY) == KEY_LAST_FID => "RQF_OST_GET_INFO_LAST_FID",
        OST_GET_INFO if key(bufs::GET_INFO_KEY).starts_with(KEY_FIEMAP) => "RQF_OST_GET_INFO_FIEMAP",
        _ => return of_opcode(opcode),
    };
    FORMATS.iter().find(|f| f.opcode == opcode && f.name == name)
}

/// The name of the format of an enqueue with an intent.
fn intent_format(msg: &Message) -> &'static str {
    match msg.get::<LdlmIntent>(bufs::INTENT).map(|i| i.opc).unwrap_or(0) {
        IT_CREAT => "RQF_LDLM_INTENT_CREATE",
        opc if opc & IT_OPEN != 0 => "RQF_LDLM_INTENT_OPEN",
        IT_LAYOUT => "RQF_LDLM_INTENT_LAYOUT",
        IT_GETXATTR => "RQF_LDLM_INTENT_GETXATTR",
        IT_QUOTA_DQACQ | IT_QUOTA_CONN => "RQF_LDLM_INTENT_QUOTA",
        IT_GLIMPSE | IT_BRW => "RQF_LDLM_INTENT",
        opc if opc & (IT_GETATTR | IT_LOOKUP | IT_READDIR) != 0 => "RQF_LDLM_INTENT_GETATTR",
        _ => "RQF_LDLM_INTENT_BASIC",
    }
}

/// The name of the format of a modifying operation.
fn reint_format(msg: &Message) -> &'static str {
    const S_IFMT: u32 = 0o170_000;
    const S_IFLNK: u32 = 0o120_000;
    match Reader::new("rr_opcode", msg.buf(bufs::REC_REINT))
        .u32()
        .unwrap_or(0)
    {
        REINT_SETATTR => "RQF_MDS_REINT_SETATTR",
        REINT_CREATE => match MdtRecCreate::from_bytes(msg.buf(bufs::REC_REINT)) {
            Ok(rec) if rec.cr_mode & S_IFMT == S_IFLNK => "RQF_MDS_REINT_CREATE_SYM",
            _ => match msg.bufs.len() {
                0..=4 => "RQF_MDS_REINT_CREATE",
                5..=6 => "RQF_MDS_REINT_CREATE_SLAVE",
                _ => "RQF_MDS_REINT_CREATE_ACL",
            },
        },
        REINT_LINK => "RQF_MDS_REINT_LINK",
        REINT_UNLINK | REINT_RMENTRY => "RQF_MDS_REINT_UNLINK",
        REINT_RENAME => "RQF_MDS_REINT_RENAME",
        REINT_MIGRATE => "RQF_MDS_REINT_MIGRATE",
        REINT_OPEN => "RQF_MDS_REINT_OPEN",
        REINT_SETXATTR => "RQF_MDS_REINT_SETXATTR",
        REINT_RESYNC => "RQF_MDS_REINT_RESYNC",
        _ => "RQF_MDS_REINT",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop, proptest};

    use super::{FORMATS, Rmf, by_name, of_opcode, opcode_name, service_version};

    #[test]
    fn every_format_starts_with_the_body() {
        for f in FORMATS {
            assert_eq!(f.request[0], Rmf::PtlrpcBody, "{}", f.name);
            assert_eq!(f.reply[0], Rmf::PtlrpcBody, "{}", f.name);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            for format in FORMATS {
                for rmf in format.request.iter().chain(format.reply) {
                    let _ = rmf.codec().rebuild(&bytes);
                    let _ = rmf.codec().show(&bytes);
                    let _ = super::leaves(*rmf, format.opcode, &bytes);
                }
            }
        }
    }

    #[test]
    fn formats_are_found_by_opcode_and_by_name() {
        assert_eq!(opcode_name(crate::MDS_CLOSE), Some("MDS_CLOSE"));
        assert_eq!(
            of_opcode(crate::OST_WRITE).map(|f| f.bulk_portal),
            Some(Some(crate::OST_BULK_PORTAL))
        );
        let open = by_name("RQF_LDLM_INTENT_OPEN");
        assert_eq!(open.and_then(|f| f.request_index(Rmf::Name)), Some(6));
        assert_eq!(service_version(crate::LDLM_ENQUEUE), crate::LUSTRE_DLM_VERSION);
    }
}
