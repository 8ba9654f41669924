//! The stream of a socklnd connection: a connection request, a hello in each direction, then
//! frames.
//!
//! A frame is a header of 24 bytes and, unless it is a NOOP, an LNet header and its payload. This
//! module supports only the formats for IPv4 (protocol versions 2 and 3). Nacre speaks version 3
//! and refuses version 4; the peer then uses version 3.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::lnet::{
    KSOCK_MSG_LNET, KSOCK_MSG_NOOP, KSOCK_PROTO_V2, KSOCK_PROTO_V3, LNET_MAX_PAYLOAD, LNET_MSG_ACK,
    LNET_MSG_GET, LNET_MSG_PUT, LNET_MSG_REPLY, LNET_NI_STATUS_UP, LNET_PING_FEAT_BASE,
    LNET_PING_FEAT_MULTI_RAIL, LNET_PING_FEAT_NI_STATUS, LNET_PING_FEAT_RTE_DISABLED,
    LNET_PROTO_ACCEPTOR_MAGIC, LNET_PROTO_ACCEPTOR_VERSION, LNET_PROTO_MAGIC, LNET_PROTO_PING_MAGIC,
    LNET_WIRE_HANDLE_COOKIE_NONE,
};
use crate::layout::WireStruct;
use crate::lnet::{
    KsockHelloMsgNid4, KsockMsgHdr, LnetAcceptorConnreq, LnetAck, LnetGet, LnetHandleWire, LnetHdrNid4,
    LnetNiStatus, LnetPingInfo, LnetPut, LnetReply,
};
use crate::nid::Nid;
use bytes::Bytes;

/// Length of both headers of a frame with an LNet message, in bytes.
pub const FRAME_HEAD: usize = KsockMsgHdr::SIZE + LnetHdrNid4::SIZE;

/// Size of the operation in an LNet header, in bytes: a union of the four operations.
const OPERATION_BYTES: usize = 40;

/// Maximum number of IP addresses in a hello.
const HELLO_IPS_MAX: u32 = 16;

/// Maximum number of NIs in a ping reply.
const PING_NIS_MAX: u32 = 4096;

fn check_magic(what: &'static str, expected: u32, found: u32) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(WireError::Magic {
        what,
        expected: expected.into(),
        found: found.into(),
    })
}

impl LnetAcceptorConnreq {
    /// The request for a connection to `nid`.
    pub fn to(nid: Nid) -> Self {
        Self {
            acr_magic: LNET_PROTO_ACCEPTOR_MAGIC,
            acr_version: LNET_PROTO_ACCEPTOR_VERSION,
            acr_nid: nid,
        }
    }

    /// Checks the magic and the version.
    ///
    /// # Errors
    ///
    /// A wrong magic or version.
    pub fn check(&self) -> Result<()> {
        check_magic("lnet_acceptor_connreq", LNET_PROTO_ACCEPTOR_MAGIC, self.acr_magic)?;
        if self.acr_version == LNET_PROTO_ACCEPTOR_VERSION {
            return Ok(());
        }
        Err(WireError::Value {
            what: "acr_version",
            expected: "1",
            found: self.acr_version.into(),
        })
    }
}

impl KsockHelloMsgNid4 {
    /// Checks the magic, the version and the number of addresses.
    ///
    /// `kshm_nips` addresses of 4 bytes follow the hello; the caller must read them too.
    ///
    /// # Errors
    ///
    /// A wrong magic or version, or more than 16 addresses.
    pub fn check(&self) -> Result<()> {
        check_magic("ksock_hello_msg", LNET_PROTO_MAGIC, self.kshm_magic)?;
        if !(KSOCK_PROTO_V2..=KSOCK_PROTO_V3).contains(&self.kshm_version) {
            return Err(WireError::Value {
                what: "kshm_version",
                expected: "2 or 3",
                found: self.kshm_version.into(),
            });
        }
        if self.kshm_nips > HELLO_IPS_MAX {
            let (limit, found) = (HELLO_IPS_MAX as usize, self.kshm_nips as usize);
            return Err(WireError::TooLong {
                what: "kshm_nips",
                limit,
                found,
            });
        }
        Ok(())
    }
}

impl LnetHandleWire {
    /// No handle: the sender requests no acknowledgement.
    pub const NONE: Self = LnetHandleWire {
        wh_interface_cookie: LNET_WIRE_HANDLE_COOKIE_NONE,
        wh_object_cookie: LNET_WIRE_HANDLE_COOKIE_NONE,
    };

    /// Whether this is [`Self::NONE`].
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// An LNet operation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LnetOp {
    /// Acknowledges the data of a PUT.
    Ack(LnetAck),
    /// Data for a portal.
    Put(LnetPut),
    /// Requests data of a portal.
    Get(LnetGet),
    /// The data that a GET requested.
    Reply(LnetReply),
}

impl LnetOp {
    /// The type in the header, one of `LNET_MSG_*`.
    pub const fn kind(&self) -> u32 {
        match self {
            LnetOp::Ack(_) => LNET_MSG_ACK,
            LnetOp::Put(_) => LNET_MSG_PUT,
            LnetOp::Get(_) => LNET_MSG_GET,
            LnetOp::Reply(_) => LNET_MSG_REPLY,
        }
    }

    fn write(&self, w: &mut Writer) {
        let end = w.len() + OPERATION_BYTES;
        match self {
            LnetOp::Ack(m) => m.write(w),
            LnetOp::Put(m) => m.write(w),
            LnetOp::Get(m) => m.write(w),
            LnetOp::Reply(m) => m.write(w),
        }
        w.pad_to(end);
    }
}

impl LnetHdrNid4 {
    /// Parses the operation in the header's union.
    ///
    /// # Errors
    ///
    /// An unknown type, or a payload above the limit of the type: 1 MiB for PUT and REPLY, none for
    /// ACK and GET.
    pub fn message(&self) -> Result<LnetOp> {
        let limit = match self.r#type {
            LNET_MSG_PUT | LNET_MSG_REPLY => LNET_MAX_PAYLOAD,
            _ => 0,
        };
        let msg = match self.r#type {
            LNET_MSG_ACK => LnetOp::Ack(LnetAck::from_bytes(&self.msg)?),
            LNET_MSG_PUT => LnetOp::Put(LnetPut::from_bytes(&self.msg)?),
            LNET_MSG_GET => LnetOp::Get(LnetGet::from_bytes(&self.msg)?),
            LNET_MSG_REPLY => LnetOp::Reply(LnetReply::from_bytes(&self.msg)?),
            other => {
                return Err(WireError::Value {
                    what: "lnet_hdr.type",
                    expected: "ACK, PUT, GET or REPLY",
                    found: other.into(),
                });
            }
        };
        if self.payload_length > limit {
            let found = self.payload_length as usize;
            return Err(WireError::TooLong {
                what: "lnet_hdr.payload_length",
                limit: limit as usize,
                found,
            });
        }
        Ok(msg)
    }

    /// The header of a message from `src` to `dest`, each a NID and a process id.
    pub fn new(src: (Nid, u32), dest: (Nid, u32), msg: &LnetOp, payload_length: u32) -> Self {
        let mut w = Writer::with_capacity(OPERATION_BYTES);
        msg.write(&mut w);
        let mut union = [0; OPERATION_BYTES];
        union.copy_from_slice(&w.finish());
        LnetHdrNid4 {
            dest_nid: dest.0,
            src_nid: src.0,
            dest_pid: dest.1,
            src_pid: src.1,
            r#type: msg.kind(),
            payload_length,
            msg: union,
        }
    }
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameHead {
    /// No message: only zero-copy cookies, or a keepalive.
    Noop {
        /// `ksh_zc_cookies`: the cookies that the sender returns. `[0, a]` is one cookie; cookie 1
        /// is a keepalive. Otherwise, `[a, b]` is two cookies if `a > b`, and the range from `a` to
        /// `b` (inclusive) if `a < b`.
        cookies: [u64; 2],
    },
    /// An LNet message, followed by `header.payload_length` bytes.
    Lnet {
        /// `ksh_zc_cookies`: first the cookie that the sender wants back, then a cookie that it
        /// returns; 0 for none.
        cookies: [u64; 2],
        /// Addresses, type and length.
        header: LnetHdrNid4,
        /// The operation.
        msg: LnetOp,
    },
}

impl FrameHead {
    /// Parses the headers at the start of `bytes`. Returns them and their length in bytes; `None`
    /// if more bytes are needed.
    ///
    /// # Errors
    ///
    /// An unknown type of a frame or a message, or a payload that is too long.
    pub fn parse(bytes: &[u8]) -> Result<Option<(FrameHead, usize)>> {
        if bytes.len() < KsockMsgHdr::SIZE {
            return Ok(None);
        }
        let ksh = KsockMsgHdr::from_bytes(bytes)?;
        let cookies = ksh.ksh_zc_cookies;
        match ksh.ksh_type {
            KSOCK_MSG_NOOP => Ok(Some((FrameHead::Noop { cookies }, KsockMsgHdr::SIZE))),
            KSOCK_MSG_LNET if bytes.len() < FRAME_HEAD => Ok(None),
            KSOCK_MSG_LNET => {
                let header = LnetHdrNid4::from_bytes(&bytes[KsockMsgHdr::SIZE..])?;
                let msg = header.message()?;
                Ok(Some((FrameHead::Lnet { cookies, header, msg }, FRAME_HEAD)))
            }
            other => Err(WireError::Value {
                what: "ksh_type",
                expected: "NOOP 0xc0 or LNET 0xc1",
                found: other.into(),
            }),
        }
    }

    /// Length of the payload, in bytes.
    pub fn payload_len(&self) -> usize {
        match self {
            FrameHead::Noop { .. } => 0,
            FrameHead::Lnet { header, .. } => header.payload_length as usize,
        }
    }

    /// The headers in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(FRAME_HEAD);
        let (ksh_type, cookies) = match self {
            FrameHead::Noop { cookies } => (KSOCK_MSG_NOOP, cookies),
            FrameHead::Lnet { cookies, .. } => (KSOCK_MSG_LNET, cookies),
        };
        KsockMsgHdr {
            ksh_type,
            ksh_csum: 0,
            ksh_zc_cookies: *cookies,
        }
        .write(&mut w);
        if let FrameHead::Lnet { header, .. } = self {
            header.write(&mut w);
        }
        w.finish()
    }
}

/// The reply to a ping: the features and the interfaces of a node, `0@lo` first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// Bits `LNET_PING_FEAT_*`.
    pub features: u32,
    /// LNet's process id, normally `LNET_PID_LUSTRE`.
    pub pid: u32,
    /// NID and status of each interface; the first is `0@lo` with a sequence number as its status.
    pub nis: Vec<LnetNiStatus>,
}

impl PingReply {
    /// The reply of a node with all `nids` up; `sequence` is the status of `0@lo`.
    ///
    /// The reply does not announce discovery, so peers push nothing to the node and keep using the
    /// NID that they know. It announces multi-rail, because Lustre logs an error for each
    /// configured server without this feature. Unless `router` is set, it announces that routing is
    /// disabled.
    pub fn up(pid: u32, sequence: u32, nids: &[Nid], router: bool) -> PingReply {
        let lo = LnetNiStatus {
            ns_nid: Nid::LO,
            ns_status: sequence,
            ns_msg_size: 0,
        };
        let others = nids.iter().filter(|n| !n.is_lo());
        let up = others.map(|&ns_nid| LnetNiStatus {
            ns_nid,
            ns_status: LNET_NI_STATUS_UP,
            ns_msg_size: 0,
        });
        let mut features = LNET_PING_FEAT_BASE | LNET_PING_FEAT_NI_STATUS | LNET_PING_FEAT_MULTI_RAIL;
        if !router {
            features |= LNET_PING_FEAT_RTE_DISABLED;
        }
        PingReply {
            features,
            pid,
            nis: std::iter::once(lo).chain(up).collect(),
        }
    }

    /// Parses a reply. Ignores bytes after the listed interfaces.
    ///
    /// # Errors
    ///
    /// A truncated header, a wrong magic, or too many interfaces.
    pub fn parse(bytes: &[u8]) -> Result<PingReply> {
        let mut r = Reader::new("lnet_ping_info", bytes);
        let info = LnetPingInfo::read(&mut r)?;
        check_magic("lnet_ping_info", LNET_PROTO_PING_MAGIC, info.pi_magic)?;
        if info.pi_nnis > PING_NIS_MAX {
            let (limit, found) = (PING_NIS_MAX as usize, info.pi_nnis as usize);
            return Err(WireError::TooLong {
                what: "pi_nnis",
                limit,
                found,
            });
        }
        // A ping may request fewer bytes than the whole reply: the buffer then has only the first
        // interfaces.
        let fit = (info.pi_nnis as usize).min(r.rest().len() / LnetNiStatus::SIZE);
        let nis = (0..fit)
            .map(|_| LnetNiStatus::read(&mut r))
            .collect::<Result<_>>()?;
        Ok(PingReply {
            features: info.pi_features,
            pid: info.pi_pid,
            nis,
        })
    }

    /// The reply in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::new();
        LnetPingInfo {
            pi_magic: LNET_PROTO_PING_MAGIC,
            pi_features: self.features,
            pi_pid: self.pid,
            pi_nnis: self.nis.len() as u32,
        }
        .write(&mut w);
        for ni in &self.nis {
            ni.write(&mut w);
        }
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{FRAME_HEAD, FrameHead, LnetOp, PingReply};
    use crate::{LnetHandleWire, LnetHdrNid4, LnetPut, Nid};

    fn put(payload: u32) -> FrameHead {
        let nid: Nid = "10.0.0.1@tcp".parse().unwrap();
        let msg = LnetOp::Put(LnetPut {
            ack_wmd: LnetHandleWire::NONE,
            match_bits: 7,
            ptl_index: 12,
            ..Default::default()
        });
        FrameHead::Lnet {
            cookies: [0, 0],
            header: LnetHdrNid4::new((nid, 12345), (nid, 12345), &msg, payload),
            msg,
        }
    }

    #[test]
    fn incomplete_frame_headers_are_no_error() {
        let bytes = put(9).build();
        assert_eq!(bytes.len(), FRAME_HEAD);
        for end in 0..FRAME_HEAD {
            assert_eq!(FrameHead::parse(&bytes[..end]).unwrap(), None, "{end}");
        }
        let (head, len) = FrameHead::parse(&bytes).unwrap().unwrap();
        assert_eq!((head, len, head.payload_len()), (put(9), FRAME_HEAD, 9));
    }

    #[test]
    fn payloads_beyond_a_mebibyte_are_refused() {
        assert!(FrameHead::parse(&put(1 << 20).build()).is_ok());
        assert!(FrameHead::parse(&put((1 << 20) + 1).build()).is_err());
    }

    #[test]
    fn a_ping_reply_lists_lo_once_and_may_be_truncated() {
        let reply = PingReply::up(12345, 1, &[Nid::LO, "10.0.0.1@tcp".parse().unwrap()], false);
        let bytes = reply.build();
        assert_eq!(bytes.len(), 16 + 2 * 16);
        assert_eq!(PingReply::parse(&bytes).unwrap(), reply);
        assert_eq!(PingReply::parse(&bytes[..40]).unwrap().nis.len(), 1);
    }
}
