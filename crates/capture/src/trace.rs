//! Classifies captured LNet messages: requests, their replies and bulk data, pings, selftest.
//!
//! A reply or bulk data belongs to the request between the same peers with the same match bits: the
//! request's xid or its `pb_mbits`. The comparison divides match bits by 128
//! (`PTLRPC_BULK_OPS_COUNT`), because the bulk data of a request may use 128 consecutive values. A
//! REPLY belongs to the GET with the same handle.

use crate::flow::{Event, StreamItem};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use wire::consts::lnet::LNET_PROTO_PING_MATCHBITS;
use wire::consts::portals::{
    LNET_RESERVED_PORTAL, MDS_BULK_PORTAL, MGS_BULK_PORTAL, OST_BULK_PORTAL, SRPC_FRAMEWORK_REQUEST_PORTAL,
    SRPC_RDMA_PORTAL,
};
use wire::consts::ptlrpc::{
    LUSTRE_MSG_MAGIC_V2, MSGHDR_AT_SUPPORT, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PTL_RPC_MSG_REQUEST,
    PTLRPC_BULK_OPS_COUNT,
};
use wire::consts::srpc::SRPC_MSG_MAGIC;
use wire::format::{self, Rqf};
use wire::frame::{FrameHead, LnetOp};
use wire::lnet::{LnetHandleWire, LnetHdrNid4};
use wire::msg::Message;
use wire::nid::Nid;
use wire::ptlrpc::PtlrpcBody;

/// A captured request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The capture time, in microseconds since 1970.
    pub time_us: u64,
    /// The sender.
    pub client: Nid,
    /// The receiver.
    pub server: Nid,
    /// The portal of the PUT.
    pub portal: u32,
    /// The xid, taken from the match bits of the PUT.
    pub xid: u64,
    /// The message's `ptlrpc_body`.
    pub body: PtlrpcBody,
    /// The whole message.
    pub msg: Message,
    /// The format, if the opcode is known.
    pub format: Option<&'static Rqf>,
}

/// The kind of an LNet message.
#[derive(Clone, Debug)]
pub enum MessageKind {
    /// A request.
    Request(Arc<Request>),
    /// A reply.
    Reply {
        /// The message's `ptlrpc_body`.
        body: Box<PtlrpcBody>,
        /// The whole message.
        msg: Message,
        /// The request, if it was captured.
        request: Option<Arc<Request>>,
        /// Whether this is an early reply, which only prolongs the request's deadline.
        early: bool,
    },
    /// Bulk data, or a GET for bulk data (with an empty payload), and its request, if it was
    /// captured.
    Bulk(Option<Arc<Request>>, Bytes),
    /// A ping: its GET (empty payload), its reply, or a push of a ping reply. Each GET outside the
    /// portals for bulk data of RPCs and of LNet selftest counts as a ping.
    Ping(Bytes),
    /// A message of LNet selftest, or its bulk data.
    Selftest(Bytes),
    /// The acknowledgement of a PUT.
    Ack,
    /// A PUT or REPLY of any other kind.
    Other(Bytes),
}

/// The purpose of a GET without a captured REPLY.
#[derive(Clone, Debug)]
enum PendingGet {
    Bulk(Option<Arc<Request>>),
    Ping,
    Selftest,
}

/// Follows the messages of a capture and classifies them.
#[derive(Debug, Default)]
pub struct Tracker {
    /// Requests without a final reply, by [`key`] of the xid and of `pb_mbits`.
    requests: HashMap<(Nid, Nid, u64), Arc<Request>>,
    /// GETs without a REPLY, by the handle that the REPLY will have.
    gets: HashMap<LnetHandleWire, PendingGet>,
}

impl Tracker {
    /// A tracker at the start of a capture.
    pub fn new() -> Tracker {
        Tracker::default()
    }

    /// Classifies a frame with an LNet message; `None` for all other items.
    pub fn classify(&mut self, event: &Event) -> Option<MessageKind> {
        let StreamItem::Frame(FrameHead::Lnet { header, msg, .. }, payload) = &event.item else {
            return None;
        };
        Some(match msg {
            LnetOp::Ack(_) => MessageKind::Ack,
            LnetOp::Reply(reply) => match self.gets.remove(&reply.dst_wmd) {
                Some(PendingGet::Bulk(request)) => MessageKind::Bulk(request, payload.clone()),
                Some(PendingGet::Ping) => MessageKind::Ping(payload.clone()),
                Some(PendingGet::Selftest) => MessageKind::Selftest(payload.clone()),
                None => MessageKind::Other(payload.clone()),
            },
            LnetOp::Get(get) => {
                let (pending, kind) = match get.ptl_index {
                    OST_BULK_PORTAL | MDS_BULK_PORTAL | MGS_BULK_PORTAL => {
                        // The server fetches the data from the client.
                        let request = self.find_request(header.dest_nid, header.src_nid, get.match_bits);
                        (
                            PendingGet::Bulk(request.clone()),
                            MessageKind::Bulk(request, Bytes::new()),
                        )
                    }
                    SRPC_RDMA_PORTAL => (PendingGet::Selftest, MessageKind::Selftest(Bytes::new())),
                    _ => (PendingGet::Ping, MessageKind::Ping(Bytes::new())),
                };
                self.gets.insert(get.return_wmd, pending);
                kind
            }
            LnetOp::Put(put) => match put.ptl_index {
                LNET_RESERVED_PORTAL if put.match_bits == LNET_PROTO_PING_MATCHBITS => {
                    MessageKind::Ping(payload.clone())
                }
                OST_BULK_PORTAL | MDS_BULK_PORTAL | MGS_BULK_PORTAL => MessageKind::Bulk(
                    self.find_request(header.dest_nid, header.src_nid, put.match_bits),
                    payload.clone(),
                ),
                _ => self.classify_put(
                    event.time_us,
                    header,
                    (put.ptl_index, put.match_bits, put.offset),
                    payload,
                ),
            },
        })
    }

    fn find_request(&self, client: Nid, server: Nid, match_bits: u64) -> Option<Arc<Request>> {
        self.requests.get(&key(client, server, match_bits)).cloned()
    }

    /// Classifies a PUT that is neither a ping nor bulk data.
    fn classify_put(
        &mut self,
        time_us: u64,
        header: &LnetHdrNid4,
        (portal, match_bits, offset): (u32, u64, u32),
        payload: &Bytes,
    ) -> MessageKind {
        if payload.first_chunk().map(|w| u32::from_le_bytes(*w)) == Some(SRPC_MSG_MAGIC)
            || (wire::SRPC_REQUEST_PORTAL..=SRPC_FRAMEWORK_REQUEST_PORTAL.max(SRPC_RDMA_PORTAL))
                .contains(&portal)
        {
            return MessageKind::Selftest(payload.clone());
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
            return MessageKind::Other(payload.clone());
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
                MessageKind::Request(request)
            }
            PTL_RPC_MSG_REPLY | PTL_RPC_MSG_ERR => {
                let (client, server) = (header.dest_nid, header.src_nid);
                let request = self.find_request(client, server, match_bits);
                let early = offset == 0
                    && request
                        .as_ref()
                        .is_some_and(|r| r.msg.flags & MSGHDR_AT_SUPPORT != 0);
                if let Some(r) = request.as_ref().filter(|_| !early) {
                    self.requests.remove(&key(client, server, r.xid));
                    self.requests.remove(&key(client, server, r.body.pb_mbits));
                }
                MessageKind::Reply {
                    body: Box::new(body),
                    msg,
                    request,
                    early,
                }
            }
            _ => MessageKind::Other(payload.clone()),
        }
    }
}

/// A key of a request: client, server, and match bits divided by 128. A request has one key for its
/// xid and one for `pb_mbits`.
fn key(client: Nid, server: Nid, match_bits: u64) -> (Nid, Nid, u64) {
    (client, server, match_bits / u64::from(PTLRPC_BULK_OPS_COUNT))
}
