//! What a client sends and what it gets back: a request with its buffers and bulk, and its reply.

use crate::import::Keep;
use crate::opcode;
use bytes::Bytes;
use lnet::Payload;
use std::time::Duration;
use wire::{Errno, Message, PtlrpcBody, WireStruct};

/// A request, as its maker sees it: transaction ids, handles, deadlines and match bits are the import's business.
#[derive(Debug, Clone)]
pub struct Request {
    /// The opcode.
    pub opc: u32,
    /// The buffers after the `ptlrpc_body`.
    pub bufs: Vec<Bytes>,
    /// Room for the reply's buffers, all together; a longer reply is asked for again with more room.
    pub reply_len: u32,
    /// `lm_repsize`: announced to the server by open intents that want data with the reply.
    pub repsize: u32,
    /// What the server fetches or delivers besides the messages.
    pub bulk: Option<Bulk>,
    /// Changes something on an MDT: takes one of the `max_mod_rpcs_in_flight` slots and sends its tag.
    pub modifies: bool,
    /// Is a close: may use the one extra slot, so that a close never waits for opens.
    pub close: bool,
    /// Counts against `max_rpcs_in_flight`.
    pub limited: bool,
    /// The request portal, where the opcode's own is not meant.
    pub portal: Option<u32>,
    /// A negative status is a reply like any other.
    pub any_status: bool,
    /// Gives up after this long, whatever the import does meanwhile.
    pub timeout: Option<Duration>,
    /// Fails at once when the import is not connected.
    pub no_delay: bool,
    /// Is never sent twice: the caller asks again himself.
    pub no_resend: bool,
    /// Rests on what was known after so many evictions ([`crate::Import::evictions`]): fails if there has been another,
    /// also one before it is sent.
    pub evictions: Option<u64>,
    /// Stays on the list of requests to replay until the reply's [`Keep`] is dropped, even when committed (opens).
    pub keep_until_closed: bool,
    /// `MSG_REQ_REPLAY_DONE` and the like.
    pub flags: u32,
    /// The user on whose behalf it is sent (job statistics, request scheduling).
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The project.
    pub projid: Option<u32>,
    /// The job.
    pub jobid: Option<String>,
}

impl Request {
    /// A request with the portals, the version and the limits that belong to `opc`.
    pub fn new(opc: u32, bufs: Vec<Bytes>) -> Request {
        Request {
            opc,
            bufs,
            reply_len: 4096,
            repsize: 0,
            bulk: None,
            modifies: false,
            close: false,
            limited: opcode::limited(opc),
            portal: None,
            any_status: false,
            timeout: None,
            no_delay: false,
            no_resend: false,
            evictions: None,
            keep_until_closed: false,
            flags: 0,
            uid: None,
            gid: None,
            projid: None,
            jobid: None,
        }
    }

    /// A request that changes something on an MDT.
    pub fn modifying(opc: u32, bufs: Vec<Bytes>) -> Request {
        Request {
            modifies: true,
            limited: false,
            close: opc == wire::MDS_CLOSE,
            ..Request::new(opc, bufs)
        }
    }

    /// The same request with bulk.
    pub fn with_bulk(self, bulk: Bulk) -> Request {
        Request {
            bulk: Some(bulk),
            ..self
        }
    }
}

/// Data that the server moves: one entry per MD of at most 1 MiB, cut by the rule of guide 3.6.
#[derive(Debug, Clone)]
pub enum Bulk {
    /// The server GETs these.
    Source(Vec<Payload>),
    /// The server PUTs into these: the most that each takes.
    Sink(Vec<u32>),
}

impl Bulk {
    /// How many MDs there are.
    pub fn mds(&self) -> usize {
        match self {
            Bulk::Source(mds) => mds.len(),
            Bulk::Sink(mds) => mds.len(),
        }
    }
}

/// A reply.
#[derive(Debug, Clone)]
pub struct ReplyMsg {
    /// `pb_status`: zero or more, or negative where the request takes any status.
    pub status: i32,
    /// The whole message.
    pub msg: Message,
    /// Its body, parsed.
    pub body: PtlrpcBody,
    /// What the server PUT, one payload per MD; empty without a bulk sink.
    pub bulk: Vec<Payload>,
    /// Keeps the request for replay, where the request asked for it and the reply has a transaction number.
    pub keep: Option<Keep>,
}

impl ReplyMsg {
    /// The structure at the front of buffer `i`.
    pub fn get<T: WireStruct>(&self, i: usize) -> Result<T, Errno> {
        self.msg.get(i).map_err(|_| Errno::EPROTO)
    }

    /// Buffer `i`; empty when it is not there.
    pub fn buf(&self, i: usize) -> &[u8] {
        self.msg.buf(i)
    }

    /// Buffer `i`, shared with the message.
    pub fn bytes(&self, i: usize) -> Bytes {
        self.msg.bytes(i)
    }
}
