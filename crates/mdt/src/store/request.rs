//! The request that makes a change: the number of its transaction, and the reply that the store
//! keeps for the client.
//!
//! The store keeps the reply to the last change of each slot (`pb_tag`) of a client, in the batch
//! of the change itself. After a restart the target answers a resent or replayed request from that
//! record, instead of executing the request twice. A request that makes several changes keeps the
//! reply with the change that gives the reply its number. Two requests differ: an open that sets
//! the layout of an existing file, and a close that swaps layouts. Their first change keeps a
//! reply, too, because a repetition would fail or undo it.

use std::{ops::Deref, sync::Arc};

use osd::{Batch, clients};
use rpc::KeptReply;
use wire::{Transno, Xid};

use super::Store;

/// The slot of a client that sent a request, and the parts of its reply that the store cannot
/// derive from the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySlot {
    /// The client's number ([`osd::clients::ClientRecords::number`]).
    pub client: u32,
    /// `pb_tag` of the request, from 1.
    pub tag: u16,
    /// The request's xid.
    pub xid: Xid,
    /// `pb_status` of the reply.
    pub status: i32,
    /// Further results, specific to the operation ([`KeptReply::data`]).
    pub data: u64,
}

impl ReplySlot {
    /// Adds the record of the reply to the batch of its change.
    pub(super) fn keep(&self, transno: Transno, pre_versions: [u64; 4], batch: &mut Batch) {
        let ReplySlot {
            client,
            tag,
            xid,
            status,
            data,
        } = *self;
        let reply = KeptReply {
            tag,
            xid,
            transno,
            status,
            data,
            pre_versions,
        };
        clients::keep_reply(batch, client, &reply);
    }
}

/// The request that makes a change. The default is a change of the target itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The number under which an earlier start executed the request, if the client replays it.
    pub replayed: Option<Transno>,
    /// The slot for the reply; `None` to keep no reply.
    pub slot: Option<ReplySlot>,
}

/// A store, as one request changes it. Reads are those of [`Store`].
#[derive(Clone, Copy)]
pub struct RequestStore<'a> {
    store: &'a Store,
    origin: Origin,
}

impl<'a> RequestStore<'a> {
    /// The store for changes of this origin.
    pub fn new(store: &'a Store, origin: Origin) -> RequestStore<'a> {
        RequestStore { store, origin }
    }

    /// The origin of the changes.
    pub fn origin(self) -> Origin {
        self.origin
    }

    /// Whether the client replays the request.
    pub fn is_replay(self) -> bool {
        self.origin.replayed.is_some()
    }

    /// The same store, for a change that is only a part of the request: it keeps no reply.
    pub fn without_reply(mut self) -> RequestStore<'a> {
        self.origin.slot = None;
        self
    }

    /// The same store, for a reply with these results ([`KeptReply::data`]).
    pub fn with_data(mut self, data: u64) -> RequestStore<'a> {
        if let Some(slot) = &mut self.origin.slot {
            slot.data = data;
        }
        self
    }

    /// The same store, for a reply with this status.
    pub fn with_status(mut self, status: i32) -> RequestStore<'a> {
        if let Some(slot) = &mut self.origin.slot {
            slot.status = status;
        }
        self
    }
}

impl Deref for RequestStore<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store
    }
}

impl<'a> From<&'a Store> for RequestStore<'a> {
    fn from(store: &'a Store) -> RequestStore<'a> {
        RequestStore::new(store, Origin::default())
    }
}

impl<'a> From<&'a Arc<Store>> for RequestStore<'a> {
    fn from(store: &'a Arc<Store>) -> RequestStore<'a> {
        RequestStore::from(&**store)
    }
}
