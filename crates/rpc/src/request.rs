//! Requests and replies of a client, with their buffers and bulk.

use crate::import::{ImportState, UncommittedGuard};
use crate::job::{self, JobId};
use crate::opcode;
use bytes::Bytes;
use lnet::Payload;
use std::time::Duration;
use wire::{
    Errno, MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE, MSG_RESENT, Message, PtlrpcBody, Transno,
    WireStruct, Xid,
};

/// A request as the caller of [`crate::Import::call`] builds it. The import adds xid, handle,
/// deadline and match bits.
#[derive(Debug, Clone)]
pub struct Request {
    /// The opcode.
    pub opc: u32,
    /// The buffers after the `ptlrpc_body`.
    pub bufs: Vec<Bytes>,
    /// Space for all buffers of the reply, in bytes. If the reply is longer, the request is resent
    /// with more space.
    pub reply_len: u32,
    /// Data that the server moves by LNet GET or PUT.
    pub bulk: Option<Bulk>,
    /// Whether the request modifies an MDT: it takes one of the `max_mod_rpcs_in_flight` slots and
    /// sends the slot's tag.
    pub modifies: bool,
    /// Whether the request closes a file: it may use the extra slot, so that a close never waits
    /// for opens.
    pub close: bool,
    /// Whether the request counts against `max_rpcs_in_flight`. Ignored with `modifies` or `close`.
    pub limited: bool,
    /// The request portal; `None`: the opcode's portal.
    pub portal: Option<u32>,
    /// Whether a reply with a negative status is returned as a reply instead of as an error.
    pub return_error_replies: bool,
    /// Time limit of the whole call, including reconnections; `None`: no limit.
    pub timeout: Option<Duration>,
    /// Whether the call fails instead of waiting for an absent server: when the connection is lost,
    /// or the first round of attempts to connect has failed.
    pub no_delay: bool,
    /// Whether the call fails instead of resending the request after a lost connection, missing
    /// bulk or `EINPROGRESS`. If the reply is too long for its buffer, the request is still resent.
    pub no_resend: bool,
    /// The number of evictions ([`crate::Import::evictions`]) when the client got the state that
    /// the request depends on. The call fails if the server has evicted the client since then, even
    /// before the request is sent. `None`: the number when the call begins.
    pub evictions: Option<u64>,
    /// Whether the client keeps the request until the reply's [`UncommittedGuard`] is dropped, even
    /// after its commit (opens).
    pub keep_until_closed: bool,
    /// The guard of the open that this close ends: the client can replay the open until the close
    /// is committed.
    pub ends_open: Option<UncommittedGuard>,
    /// Whether the request is a part of the import's recovery at a restarted server. The call then
    /// fails if the connection is lost.
    pub replay: Option<Replay>,
    /// Turns the buffers of the request, by its reply, into those with which the import replays the
    /// request after a restart of the server. `None`: they are the same.
    pub edit_replay: Option<EditReplay>,
    /// `MSG_*` flags of `pb_flags`, in addition to those that the import sets.
    pub flags: u32,
    /// The id of the user that caused the request (job statistics, NRS).
    pub uid: Option<u32>,
    /// The id of the user's group.
    pub gid: Option<u32>,
    /// The id of the project that the request belongs to.
    pub projid: Option<u32>,
    /// The job that caused the request (job statistics, NRS): by default the job of the task that
    /// builds the request.
    pub jobid: JobId,
}

/// Turns the buffers of a request into those of its replay; the second argument is its reply.
pub type EditReplay = fn(&mut [Bytes], &ReplyMsg);

/// The part of a recovery that a request belongs to.
#[derive(Debug, Clone, Copy)]
pub enum Replay {
    /// The request was executed before the restart, with these results.
    Request(Executed),
    /// The request replays a lock ([`crate::ImportOwner::replay_locks`]).
    Lock,
    /// The request is the final ping.
    FinalPing,
}

/// A request that the server executed before its restart.
#[derive(Debug, Clone, Copy)]
pub struct Executed {
    pub(crate) xid: Xid,
    pub(crate) tag: u16,
    pub(crate) transno: Transno,
    pub(crate) pre_versions: [u64; 4],
    /// Whether the import sends the replay again.
    pub(crate) resent: bool,
}

impl Replay {
    /// Whether an import in this state sends the request.
    pub(crate) fn is_sent_in(&self, state: ImportState) -> bool {
        match self {
            Replay::Request(_) => state == ImportState::Replay,
            // A server that does not recover treats the claim like a new request.
            Replay::Lock => matches!(state, ImportState::ReplayLocks | ImportState::Full),
            Replay::FinalPing => state == ImportState::ReplayWait,
        }
    }

    /// `MSG_*` flags of the request.
    pub(crate) fn flags(&self) -> u32 {
        match self {
            Replay::Request(executed) if executed.resent => MSG_REPLAY | MSG_RESENT,
            Replay::Request(_) => MSG_REPLAY,
            Replay::Lock => MSG_REQ_REPLAY_DONE,
            Replay::FinalPing => MSG_REQ_REPLAY_DONE | MSG_LOCK_REPLAY_DONE,
        }
    }
}

impl Request {
    /// A request with the opcode's portal, version and limits.
    pub fn new(opc: u32, bufs: Vec<Bytes>) -> Request {
        Request {
            opc,
            bufs,
            reply_len: 4096,
            bulk: None,
            modifies: false,
            close: false,
            limited: opcode::is_limited(opc),
            portal: None,
            return_error_replies: false,
            timeout: None,
            no_delay: false,
            no_resend: false,
            evictions: None,
            keep_until_closed: false,
            ends_open: None,
            replay: None,
            edit_replay: None,
            flags: 0,
            uid: None,
            gid: None,
            projid: None,
            jobid: job::current(),
        }
    }

    /// A request that modifies an MDT; a close if the opcode is `MDS_CLOSE`.
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
    /// The server PUTs into these MDs; each entry is an MD's size in bytes.
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
    /// `pb_status`; negative only if the request has `return_error_replies`.
    pub status: i32,
    /// The message.
    pub msg: Message,
    /// Its parsed `ptlrpc_body`.
    pub body: PtlrpcBody,
    /// The payloads that the server PUT, one per MD; empty without a bulk sink or with a negative
    /// status.
    pub bulk: Vec<Payload>,
    /// Keeps the request in the import, if the request has `keep_until_closed` and the reply a
    /// transno.
    pub uncommitted_guard: Option<UncommittedGuard>,
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
