//! The clients that a target knew before its start, and the replies that it kept for them.

use super::Holdings;
use wire::{Nid, Transno, Xid};

/// A client that was connected before the target started.
#[derive(Debug, Clone)]
pub struct KnownClient {
    /// The client's UUID.
    pub uuid: String,
    /// The NID of its first connect.
    pub nid: Nid,
    /// Whether it may take half a minute to notice the restart: it is a client of Lustre, or the
    /// target has moved to another node.
    pub notices_late: bool,
    /// The kept replies, at most one for each slot.
    pub replies: Vec<KeptReply>,
    /// The parts of the target in which it may hold something.
    pub holdings: Holdings,
}

/// The durable part of a reply, for each slot of a client: the last request of the slot that
/// changed the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptReply {
    /// The slot (`pb_tag`), from 1.
    pub tag: u16,
    /// The request's xid.
    pub xid: Xid,
    /// The transaction.
    pub transno: Transno,
    /// `pb_status` of the reply.
    pub status: i32,
    /// Further results of the operation, such as the disposition bits of an open.
    pub data: u64,
    /// `pb_pre_versions` of the reply.
    pub pre_versions: [u64; 4],
}
