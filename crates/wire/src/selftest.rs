//! Messages of LNet selftest: an `srpc_msg` of 160 bytes; `msg_type` selects the body.
//!
//! The body of a request starts with the match bits for its reply, the body of a reply with its
//! status: 0 or a positive error number.

use bytes::Bytes;

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::srpc::{
    SRPC_FRAMEWORK_SERVICE_MAX_ID, SRPC_MSG_BATCH_REPLY, SRPC_MSG_BATCH_REQST, SRPC_MSG_BRW_REPLY,
    SRPC_MSG_BRW_REQST, SRPC_MSG_DEBUG_REPLY, SRPC_MSG_DEBUG_REQST, SRPC_MSG_JOIN_REPLY, SRPC_MSG_JOIN_REQST,
    SRPC_MSG_MAGIC, SRPC_MSG_MKSN_REPLY, SRPC_MSG_MKSN_REQST, SRPC_MSG_PING_REPLY, SRPC_MSG_PING_REQST,
    SRPC_MSG_RMSN_REPLY, SRPC_MSG_RMSN_REQST, SRPC_MSG_STAT_REPLY, SRPC_MSG_STAT_REQST, SRPC_MSG_TEST_REPLY,
    SRPC_MSG_TEST_REQST, SRPC_MSG_VERSION, SRPC_SERVICE_BATCH, SRPC_SERVICE_BRW, SRPC_SERVICE_DEBUG,
    SRPC_SERVICE_JOIN, SRPC_SERVICE_MAKE_SESSION, SRPC_SERVICE_PING, SRPC_SERVICE_QUERY_STAT,
    SRPC_SERVICE_REMOVE_SESSION, SRPC_SERVICE_TEST,
};
use crate::layout::{WireField, WireStruct};
use crate::srpc::{
    LstSid, SrpcBatchReply, SrpcBatchReqst, SrpcBrwReply, SrpcBrwReqst, SrpcDebugReply, SrpcDebugReqst,
    SrpcJoinReply, SrpcJoinReqst, SrpcMksnReply, SrpcMksnReqst, SrpcMsg, SrpcPingReply, SrpcPingReqst,
    SrpcRmsnReply, SrpcRmsnReqst, SrpcStatReply, SrpcStatReqst, SrpcTestReply, SrpcTestReqst,
};

/// One message of LNet selftest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selftest {
    /// `msg_version`; a node replies `EPROTO` to versions other than [`SRPC_MSG_VERSION`].
    pub version: u32,
    /// `msg_ses_feats`: the features of the session.
    pub feats: u32,
    /// The body; its variant is the message's type.
    pub body: SrpcBody,
}

macro_rules! bodies {
    ($( $name:ident($ty:ty) = $number:ident ),* $(,)?) => {
        /// The body of a message.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum SrpcBody {
            $( #[doc = concat!("`", stringify!($number), "`")] $name($ty), )*
        }

        impl SrpcBody {
            /// `msg_type`.
            pub fn msg_type(&self) -> u32 {
                match self { $( SrpcBody::$name(_) => $number, )* }
            }

            fn read(msg_type: u32, r: &mut Reader<'_>) -> Result<SrpcBody> {
                match msg_type {
                    $( $number => Ok(SrpcBody::$name(<$ty as WireField>::read_field(r)?)), )*
                    _ => Err(WireError::Value { what: "srpc_msg.msg_type", expected: "a known type", found: msg_type.into() }),
                }
            }

            fn write(&self, w: &mut Writer) {
                match self { $( SrpcBody::$name(body) => body.write_field(w), )* }
            }
        }

        $( impl From<$ty> for SrpcBody {
            fn from(body: $ty) -> SrpcBody {
                SrpcBody::$name(body)
            }
        } )*
    };
}

bodies! {
    MksnReqst(SrpcMksnReqst) = SRPC_MSG_MKSN_REQST,
    MksnReply(SrpcMksnReply) = SRPC_MSG_MKSN_REPLY,
    RmsnReqst(SrpcRmsnReqst) = SRPC_MSG_RMSN_REQST,
    RmsnReply(SrpcRmsnReply) = SRPC_MSG_RMSN_REPLY,
    BatchReqst(SrpcBatchReqst) = SRPC_MSG_BATCH_REQST,
    BatchReply(SrpcBatchReply) = SRPC_MSG_BATCH_REPLY,
    StatReqst(SrpcStatReqst) = SRPC_MSG_STAT_REQST,
    StatReply(SrpcStatReply) = SRPC_MSG_STAT_REPLY,
    TestReqst(SrpcTestReqst) = SRPC_MSG_TEST_REQST,
    TestReply(SrpcTestReply) = SRPC_MSG_TEST_REPLY,
    DebugReqst(SrpcDebugReqst) = SRPC_MSG_DEBUG_REQST,
    DebugReply(SrpcDebugReply) = SRPC_MSG_DEBUG_REPLY,
    BrwReqst(SrpcBrwReqst) = SRPC_MSG_BRW_REQST,
    BrwReply(SrpcBrwReply) = SRPC_MSG_BRW_REPLY,
    PingReqst(SrpcPingReqst) = SRPC_MSG_PING_REQST,
    PingReply(SrpcPingReply) = SRPC_MSG_PING_REPLY,
    JoinReqst(SrpcJoinReqst) = SRPC_MSG_JOIN_REQST,
    JoinReply(SrpcJoinReply) = SRPC_MSG_JOIN_REPLY,
}

impl SrpcBody {
    /// The service of a request; `None` for replies.
    pub fn service(&self) -> Option<u32> {
        Some(match self {
            SrpcBody::DebugReqst(_) => SRPC_SERVICE_DEBUG,
            SrpcBody::MksnReqst(_) => SRPC_SERVICE_MAKE_SESSION,
            SrpcBody::RmsnReqst(_) => SRPC_SERVICE_REMOVE_SESSION,
            SrpcBody::BatchReqst(_) => SRPC_SERVICE_BATCH,
            SrpcBody::TestReqst(_) => SRPC_SERVICE_TEST,
            SrpcBody::StatReqst(_) => SRPC_SERVICE_QUERY_STAT,
            SrpcBody::JoinReqst(_) => SRPC_SERVICE_JOIN,
            SrpcBody::BrwReqst(_) => SRPC_SERVICE_BRW,
            SrpcBody::PingReqst(_) => SRPC_SERVICE_PING,
            _ => return None,
        })
    }

    /// The status of a reply: 0 or a positive error number; `None` for requests.
    pub fn status(&self) -> Option<u32> {
        Some(match self {
            SrpcBody::MksnReply(r) => r.mksn_status,
            SrpcBody::RmsnReply(r) => r.rmsn_status,
            SrpcBody::BatchReply(r) => r.bar_status,
            SrpcBody::StatReply(r) => r.str_status,
            SrpcBody::TestReply(r) => r.tsr_status,
            SrpcBody::DebugReply(r) => r.dbg_status,
            SrpcBody::JoinReply(r) => r.join_status,
            SrpcBody::BrwReply(r) => r.brw_status,
            SrpcBody::PingReply(r) => r.pnr_status,
            _ => return None,
        })
    }

    /// The session in a reply of a framework service (not a ping or BRW); `None` for other
    /// messages.
    pub fn reply_sid(&self) -> Option<LstSid> {
        Some(match self {
            SrpcBody::MksnReply(r) => r.mksn_sid,
            SrpcBody::RmsnReply(r) => r.rmsn_sid,
            SrpcBody::BatchReply(r) => r.bar_sid,
            SrpcBody::StatReply(r) => r.str_sid,
            SrpcBody::TestReply(r) => r.tsr_sid,
            SrpcBody::DebugReply(r) => r.dbg_sid,
            SrpcBody::JoinReply(r) => r.join_sid,
            _ => return None,
        })
    }

    /// The match bits for the reply to a request; `None` for replies.
    pub fn rpyid(&self) -> Option<u64> {
        Some(match self {
            SrpcBody::MksnReqst(r) => r.mksn_rpyid,
            SrpcBody::RmsnReqst(r) => r.rmsn_rpyid,
            SrpcBody::BatchReqst(r) => r.bar_rpyid,
            SrpcBody::StatReqst(r) => r.str_rpyid,
            SrpcBody::TestReqst(r) => r.tsr_rpyid,
            SrpcBody::DebugReqst(r) => r.dbg_rpyid,
            SrpcBody::JoinReqst(r) => r.join_rpyid,
            SrpcBody::BrwReqst(r) => r.brw_rpyid,
            SrpcBody::PingReqst(r) => r.pnr_rpyid,
            _ => return None,
        })
    }

    /// Sets the match bits for the reply to a request and for its bulk data, if it has any. Leaves
    /// a reply unchanged.
    pub fn set_ids(&mut self, rpyid: u64, bulkid: u64) {
        match self {
            SrpcBody::MksnReqst(r) => r.mksn_rpyid = rpyid,
            SrpcBody::RmsnReqst(r) => r.rmsn_rpyid = rpyid,
            SrpcBody::BatchReqst(r) => r.bar_rpyid = rpyid,
            SrpcBody::StatReqst(r) => r.str_rpyid = rpyid,
            SrpcBody::TestReqst(r) => (r.tsr_rpyid, r.tsr_bulkid) = (rpyid, bulkid),
            SrpcBody::DebugReqst(r) => r.dbg_rpyid = rpyid,
            SrpcBody::JoinReqst(r) => r.join_rpyid = rpyid,
            SrpcBody::BrwReqst(r) => (r.brw_rpyid, r.brw_bulkid) = (rpyid, bulkid),
            SrpcBody::PingReqst(r) => r.pnr_rpyid = rpyid,
            _ => {}
        }
    }
}

impl Selftest {
    /// A message of the current version.
    pub fn new(feats: u32, body: impl Into<SrpcBody>) -> Selftest {
        Selftest {
            version: SRPC_MSG_VERSION,
            feats,
            body: body.into(),
        }
    }

    /// Parses a message, which must fill `bytes` and be little-endian.
    ///
    /// # Errors
    ///
    /// A wrong length, magic or type.
    pub fn parse(bytes: &[u8]) -> Result<Selftest> {
        if bytes.len() != SrpcMsg::SIZE {
            return Err(WireError::Short {
                what: SrpcMsg::NAME,
                expected: SrpcMsg::SIZE,
                found: bytes.len(),
            });
        }
        let mut r = Reader::new(SrpcMsg::NAME, bytes);
        let magic = r.u32()?;
        if magic != SRPC_MSG_MAGIC {
            return Err(WireError::Magic {
                what: SrpcMsg::NAME,
                expected: SRPC_MSG_MAGIC.into(),
                found: magic.into(),
            });
        }
        let (version, msg_type) = (r.u32()?, r.u32()?);
        let (_reserved0, _reserved1) = (r.u32()?, r.u32()?);
        let feats = r.u32()?;
        Ok(Selftest {
            version,
            feats,
            body: SrpcBody::read(msg_type, &mut r)?,
        })
    }

    /// The message in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(SrpcMsg::SIZE);
        for field in [
            SRPC_MSG_MAGIC,
            self.version,
            self.body.msg_type(),
            0,
            0,
            self.feats,
        ] {
            w.u32(field);
        }
        self.body.write(&mut w);
        w.pad_to(SrpcMsg::SIZE);
        w.finish()
    }
}

/// The portal for requests to a service.
pub fn srpc_portal(service: u32) -> u32 {
    if service < SRPC_FRAMEWORK_SERVICE_MAX_ID {
        crate::SRPC_FRAMEWORK_REQUEST_PORTAL
    } else {
        crate::SRPC_REQUEST_PORTAL
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Selftest, SrpcBody, srpc_portal};
    use crate::layout::WireStruct;
    use crate::{LstSid, Nid, SrpcBrwReqst, SrpcMksnReqst, SrpcMsg, SrpcTestReqst, Text, WireError};

    #[test]
    fn a_message_has_the_layout_of_srpc_msg() {
        let sid = LstSid {
            ses_nid: Nid(0x0002_0000_0a00_0001),
            ses_stamp: 7,
        };
        let mksn = SrpcMksnReqst {
            mksn_rpyid: 5,
            mksn_sid: sid,
            mksn_force: 1,
            mksn_name: Text::truncated("session"),
        };
        let sent = Selftest::new(1, mksn);
        let bytes = sent.build();
        assert_eq!(bytes.len(), 160);
        let raw = SrpcMsg::from_bytes(&bytes).unwrap();
        assert_eq!(
            (raw.msg_magic, raw.msg_version, raw.msg_type, raw.msg_ses_feats),
            (0xeeb0_f00d, 1, 0, 1)
        );
        assert_eq!(&raw.msg_body[..60], &mksn.to_bytes()[..]);
        assert!(raw.msg_body[60..].iter().all(|&b| b == 0));
        assert_eq!(Selftest::parse(&bytes).unwrap(), sent);
    }

    #[test]
    fn wrong_lengths_magics_and_types_are_refused() {
        let good = Selftest::new(0, SrpcBrwReqst::default()).build().to_vec();
        for bad in [&good[..159], &[&good[..], &[0]].concat()] {
            assert!(matches!(Selftest::parse(bad), Err(WireError::Short { .. })));
        }
        let swapped: Vec<u8> = good[..4].iter().rev().chain(&good[4..]).copied().collect();
        assert!(matches!(Selftest::parse(&swapped), Err(WireError::Magic { .. })));
        let mut unknown = good;
        unknown[8] = 18;
        assert!(matches!(Selftest::parse(&unknown), Err(WireError::Value { .. })));
    }

    #[test]
    fn requests_have_the_match_bits_for_reply_and_bulk() {
        let mut body = SrpcBody::from(SrpcTestReqst::default());
        body.set_ids(8, 9);
        let SrpcBody::TestReqst(test) = &body else {
            panic!()
        };
        assert_eq!((test.tsr_rpyid, test.tsr_bulkid, body.rpyid()), (8, 9, Some(8)));
        assert_eq!(body.service().map(srpc_portal), Some(51));
        assert_eq!(
            SrpcBody::from(SrpcBrwReqst::default()).service().map(srpc_portal),
            Some(50)
        );
        assert_eq!(body.status(), None);
    }
}
