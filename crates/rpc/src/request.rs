//! Requests and replies of a client, with their buffers and bulk.

use crate::import::ReplayGuard;
use crate::opcode;
use bytes::Bytes;
use lnet::Payload;
use std::time::Duration;
use wire::{Errno, Message, PtlrpcBody, WireStruct};

/// A request as the caller of [`crate::Import::call`] builds it. The import adds xid, handle,
/// deadline and match bits.
#[derive(Debug, Clone)]
pub struct Request {
    /// The opcode.
    pub opc: u32,
    /// The buffers after the `ptlrpc_body`.
    pub bufs: Vec<Bytes>,
    /// Space for all buffers of the reply. If the reply is longer, the request is resent with more
    /// space.
    pub reply_len: u32,
    /// `lm_repsize`: tells the server how much data an open intent can take with the reply.
    pub repsize: u32,
    /// Data that the server moves by LNet GET or PUT.
    pub bulk: Option<Bulk>,
    /// Modifies an MDT: takes one of the `max_mod_rpcs_in_flight` slots and sends its tag.
    pub modifies: bool,
    /// Closes a file: may use the extra slot, so that a close never waits for opens.
    pub close: bool,
    /// Counts against `max_rpcs_in_flight`.
    pub limited: bool,
    /// The request portal, if it is not the opcode's.
    pub portal: Option<u32>,
    /// A reply with a negative status is returned as a reply, not as an error.
    pub any_status: bool,
    /// Limit of the whole call, including reconnections.
    pub timeout: Option<Duration>,
    /// Fails at once if the import is not connected.
    pub no_delay: bool,
    /// Is sent once only: the caller repeats it if necessary.
    pub no_resend: bool,
    /// Depends on state from after this number of evictions ([`crate::Import::evictions`]): fails
    /// if the server has evicted the client since then, also before the request is sent.
    pub evictions: Option<u64>,
    /// Stays on the replay list until the reply's [`ReplayGuard`] is dropped, even when committed
    /// (opens).
    pub keep_until_closed: bool,
    /// More `MSG_*` flags of `pb_flags`.
    pub flags: u32,
    /// The user that caused the request (job statistics, NRS).
    pub uid: Option<u32>,
    /// The group, likewise.
    pub gid: Option<u32>,
    /// The project, likewise.
    pub projid: Option<u32>,
    /// The job, likewise.
    pub jobid: Option<String>,
}

impl Request {
    /// A request with the opcode's portal, version and limits.
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

    /// A request that modifies an MDT.
    pub fn modifying(opc: u32, bufs: Vec<Bytes>) -> Request {
        Request {
            modifies: true,
            limited: false,
            close: opc == wire::MDS_CLOSE,
            ..Request::new(opc, bufs)
        }
    }

    /// The same request, with bulk.
    pub fn with_bulk(self, bulk: Bulk) -> Request {
        Request {
            bulk: Some(bulk),
            ..self
        }
    }
}

/// Data that the server moves: one entry per MD of at most 1 MiB (docs/protocol.md, "Bulk
/// transfers").
#[derive(Debug, Clone)]
pub enum Bulk {
    /// The server GETs these payloads.
    Source(Vec<Payload>),
    /// The server PUTs into these MDs; each entry is an MD's size.
    Sink(Vec<u32>),
}

impl Bulk {
    /// Number of MDs.
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
    /// `pb_status`; negative only if the request has `any_status`.
    pub status: i32,
    /// The message.
    pub msg: Message,
    /// Its parsed `ptlrpc_body`.
    pub body: PtlrpcBody,
    /// The payloads that the server PUT, one per MD; empty without a bulk sink.
    pub bulk: Vec<Payload>,
    /// Keeps the request on the replay list, if the request has `keep_until_closed` and the reply a
    /// transno.
    pub replay_guard: Option<ReplayGuard>,
}

impl ReplyMsg {
    /// The structure at the start of buffer `i`.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the buffer is too short.
    pub fn get<T: WireStruct>(&self, i: usize) -> Result<T, Errno> {
        self.msg.get(i).map_err(|_| Errno::EPROTO)
    }

    /// Buffer `i`; empty if it is missing.
    pub fn buf(&self, i: usize) -> &[u8] {
        self.msg.buf(i)
    }

    /// Buffer `i`, sharing the message's memory.
    pub fn bytes(&self, i: usize) -> Bytes {
        self.msg.bytes(i)
    }
}
