//! What a captured frame is about: a request, the reply to one, its bulk, a ping, a selftest message.
//!
//! A reply is found by the peers and its match bits: they are the request's xid or its `pb_mbits`, and consecutive
//! values within 128 belong to one request. A REPLY to a GET is found by the handle that the GET gave.

use crate::consts::lnet::LNET_PROTO_PING_MATCHBITS;
use crate::consts::portals::{
    LNET_RESERVED_PORTAL, MDS_BULK_PORTAL, MGS_BULK_PORTAL, OST_BULK_PORTAL, SRPC_FRAMEWORK_REQUEST_PORTAL,
    SRPC_RDMA_PORTAL,
};
use crate::consts::ptlrpc::{
    LUSTRE_MSG_MAGIC_V2, MSGHDR_AT_SUPPORT, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PTL_RPC_MSG_REQUEST,
    PTLRPC_BULK_OPS_COUNT,
};
use crate::consts::srpc::SRPC_MSG_MAGIC;
use crate::flow::{Event, Said};
use crate::format::{self, Rqf};
use crate::frame::{FrameHead, LnetMsg};
use crate::lnet::{LnetHandleWire, LnetHdrNid4};
use crate::msg::Message;
use crate::nid::Nid;
use crate::ptlrpc::PtlrpcBody;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// A request that was seen.
#[derive(Clone, Debug)]
pub struct Request {
    /// When.
    pub time_us: u64,
    /// Who asks.
    pub client: Nid,
    /// Who is asked.
    pub server: Nid,
    /// The portal that it was put to.
    pub portal: u32,
    /// Its number.
    pub xid: u64,
    /// Its body.
    pub body: PtlrpcBody,
    /// The whole message.
    pub msg: Message,
    /// Its format, where the opcode is known.
    pub format: Option<&'static Rqf>,
}

/// What a frame is about.
#[derive(Clone, Debug)]
pub enum Meaning {
    /// A request.
    Request(Arc<Request>),
    /// A reply, and the request that it answers, where that was captured.
    Reply {
        /// The reply's body.
        body: Box<PtlrpcBody>,
        /// The whole message.
        msg: Message,
        /// The question.
        request: Option<Arc<Request>>,
        /// Whether it only says that the answer takes longer.
        early: bool,
    },
    /// Data of a request, or the wish for it (then there is no payload).
    Bulk(Option<Arc<Request>>, Bytes),
    /// A ping: the question has no payload, the answer and a push have.
    Ping(Bytes),
    /// A message of LNet's selftest, or its bulk.
    Selftest(Bytes),
    /// The acknowledgement of a PUT.
    Ack,
    /// A PUT of something else.
    Other(Bytes),
}

#[derive(Clone, Debug)]
enum Wish {
    Bulk(Option<Arc<Request>>),
    Ping,
    Selftest,
}

/// Follows the frames of a capture and says what each is about.
#[derive(Debug, Default)]
pub struct Tracker {
    requests: HashMap<(Nid, Nid, u64), Arc<Request>>,
    wishes: HashMap<LnetHandleWire, Wish>,
}

impl Tracker {
    /// Nothing seen yet.
    pub fn new() -> Tracker {
        Tracker::default()
    }

    /// What a frame with an LNet message is about; `None` for everything else.
    pub fn meaning(&mut self, event: &Event) -> Option<Meaning> {
        let Said::Frame(FrameHead::Lnet { header, msg, .. }, payload) = &event.said else {
            return None;
        };
        Some(match msg {
            LnetMsg::Ack(_) => Meaning::Ack,
            LnetMsg::Reply(reply) => match self.wishes.remove(&reply.dst_wmd) {
                Some(Wish::Bulk(request)) => Meaning::Bulk(request, payload.clone()),
                Some(Wish::Ping) => Meaning::Ping(payload.clone()),
                Some(Wish::Selftest) => Meaning::Selftest(payload.clone()),
                None => Meaning::Other(payload.clone()),
            },
            LnetMsg::Get(get) => {
                let (wish, meaning) = match get.ptl_index {
                    OST_BULK_PORTAL | MDS_BULK_PORTAL | MGS_BULK_PORTAL => {
                        // The server gets from the client.
                        let request = self.request(header.dest_nid, header.src_nid, get.match_bits);
                        (Wish::Bulk(request.clone()), Meaning::Bulk(request, Bytes::new()))
                    }
                    SRPC_RDMA_PORTAL => (Wish::Selftest, Meaning::Selftest(Bytes::new())),
                    _ => (Wish::Ping, Meaning::Ping(Bytes::new())),
                };
                self.wishes.insert(get.return_wmd, wish);
                meaning
            }
            LnetMsg::Put(put) => match put.ptl_index {
                LNET_RESERVED_PORTAL if put.match_bits == LNET_PROTO_PING_MATCHBITS => {
                    Meaning::Ping(payload.clone())
                }
                OST_BULK_PORTAL | MDS_BULK_PORTAL | MGS_BULK_PORTAL => Meaning::Bulk(
                    self.request(header.dest_nid, header.src_nid, put.match_bits),
                    payload.clone(),
                ),
                _ => self.put(
                    event.time_us,
                    header,
                    (put.ptl_index, put.match_bits, put.offset),
                    payload,
                ),
            },
        })
    }

    fn request(&self, client: Nid, server: Nid, match_bits: u64) -> Option<Arc<Request>> {
        self.requests.get(&key(client, server, match_bits)).cloned()
    }

    fn put(&mut self, time_us: u64, header: &LnetHdrNid4, at: (u32, u64, u32), payload: &Bytes) -> Meaning {
        let (portal, match_bits, offset) = at;
        if payload.first_chunk().map(|w| u32::from_le_bytes(*w)) == Some(SRPC_MSG_MAGIC)
            || (crate::SRPC_REQUEST_PORTAL..=SRPC_FRAMEWORK_REQUEST_PORTAL.max(SRPC_RDMA_PORTAL))
                .contains(&portal)
        {
            return Meaning::Selftest(payload.clone());
        }
        let magic = payload
            .get(8..)
            .and_then(|b| b.first_chunk())
            .map(|w| u32::from_le_bytes(*w));
        let parsed = match magic {
            Some(LUSTRE_MSG_MAGIC_V2) => Message::parse(payload).and_then(|m| Ok((m.body()?, m))).ok(),
            _ => None,
        };
        let Some((body, msg)) = parsed else {
            return Meaning::Other(payload.clone());
        };
        match body.pb_type {
            PTL_RPC_MSG_REQUEST => {
                let format = format::of_request(body.pb_opc, &msg);
                let (client, server) = (header.src_nid, header.dest_nid);
                let request = Arc::new(Request {
                    time_us,
                    client,
                    server,
                    portal,
                    xid: match_bits,
                    body,
                    msg,
                    format,
                });
                self.requests
                    .insert(key(client, server, match_bits), request.clone());
                if request.body.pb_mbits != 0 {
                    self.requests
                        .insert(key(client, server, request.body.pb_mbits), request.clone());
                }
                Meaning::Request(request)
            }
            PTL_RPC_MSG_REPLY | PTL_RPC_MSG_ERR => {
                let (client, server) = (header.dest_nid, header.src_nid);
                let request = self.request(client, server, match_bits);
                let early = offset == 0
                    && request
                        .as_ref()
                        .is_some_and(|r| r.msg.flags & MSGHDR_AT_SUPPORT != 0);
                if let Some(r) = request.as_ref().filter(|_| !early) {
                    self.requests.remove(&key(client, server, r.xid));
                    self.requests.remove(&key(client, server, r.body.pb_mbits));
                }
                Meaning::Reply {
                    body: Box::new(body),
                    msg,
                    request,
                    early,
                }
            }
            _ => Meaning::Other(payload.clone()),
        }
    }
}

fn key(client: Nid, server: Nid, match_bits: u64) -> (Nid, Nid, u64) {
    (client, server, match_bits / u64::from(PTLRPC_BULK_OPS_COUNT))
}
