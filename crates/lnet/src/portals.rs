//! The interface of portals to the layers above: sinks, attached buffers and their events.
//!
//! A *lazy* portal passes every PUT to a [`PutSink`]; requests use it. All other portals are
//! *matched*: a PUT or GET must match the portal and match bits of an attached buffer; replies and
//! bulk data use them. A message that matches nothing is dropped.

use crate::Payload;
use crate::core::Core;
use cpt::{BoxFuture, CptId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use wire::Nid;

/// A PUT to a lazy portal.
#[derive(Debug)]
pub struct IncomingPut {
    /// The sender: the NID in the header; `0@lo` for this node itself.
    pub from: Nid,
    /// The portal.
    pub portal: u32,
    /// The match bits.
    pub match_bits: u64,
    /// 64 bits of the sender's choice.
    pub hdr_data: u64,
    /// The offset given by the sender, in bytes.
    pub offset: u32,
    /// The data.
    pub payload: Payload,
    /// The partition to queue the message on, chosen by `portal_rotor`.
    pub cpt: CptId,
}

/// The sink is full; returns the message, to be offered again.
#[derive(Debug)]
pub struct SinkFull(pub IncomingPut);

/// Receives the PUTs to a lazy portal.
pub trait PutSink: Send + Sync {
    /// Takes a message, or returns it if the sink is full. Must not block: the sink queues the
    /// message. For a message from this node to itself, the sink may start the handler within this
    /// call and poll it once. LNet holds no lock during the call, so the handler can use LNet.
    ///
    /// # Errors
    ///
    /// The sink is full.
    fn put(&self, message: IncomingPut) -> Result<(), SinkFull>;
    /// Resolves when a returned message can be offered again. Must not reserve space for the
    /// waiter: [`put`](Self::put) takes the space itself, so the waiter would have to release its
    /// reservation before it calls `put`. The release would give the space to the next waiter,
    /// `put` would fail, and two waiters could repeat this forever.
    fn wait_for_space(&self) -> BoxFuture<'_, ()>;
    /// The partitions that the sink queues on; `None` for all. Called once.
    fn cpts(&self) -> Option<Vec<CptId>> {
        None
    }
}

/// The address of an attached buffer (Lustre's match entry).
#[derive(Debug, Clone, Copy)]
pub struct MatchEntry {
    /// The portal.
    pub portal: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The only peer that may use the buffer; `None` for all peers. All NIDs of this node count as
    /// one peer.
    pub from: Option<Nid>,
}

/// The memory of an attached buffer (Lustre's memory descriptor).
#[derive(Debug, Clone)]
pub enum Md {
    /// Accepts PUTs.
    Sink {
        /// Length of the buffer in bytes; longer data is truncated.
        max_len: u32,
    },
    /// Answers GETs.
    Source(Payload),
}

/// An event of an attached buffer.
#[derive(Debug)]
pub enum MdEvent {
    /// A PUT was received.
    Put {
        /// The sender.
        from: Nid,
        /// Offset in the buffer, in bytes.
        offset: u32,
        /// The data, truncated to the buffer.
        payload: Payload,
    },
    /// A GET was answered.
    Get {
        /// The sender of the GET.
        from: Nid,
        /// Length of the reply, in bytes.
        len: u32,
    },
}

/// Maximum number of unread events of one buffer. At the limit, PUTs are dropped, and GETs are
/// answered without an event.
pub(crate) const EVENTS_MAX: usize = 64;

/// An attached buffer, shared by the portal's table and its owner.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) from: Option<Nid>,
    pub(crate) md: Md,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<MdEvent>,
    /// The task that waits in [`MdHandle::next`].
    reader: Option<Waker>,
}

impl Entry {
    pub(crate) fn new(from: Option<Nid>, md: Md) -> Arc<Entry> {
        Arc::new(Entry {
            from,
            md,
            queue: Mutex::default(),
        })
    }

    /// Queues an event for the owner; `false` if the queue is full.
    pub(crate) fn push(&self, event: MdEvent) -> bool {
        let mut queue = self.queue.lock();
        if queue.events.len() >= EVENTS_MAX {
            return false;
        }
        queue.events.push_back(event);
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }
}

/// Handle of an attached buffer; dropping it detaches the buffer.
#[derive(Debug)]
pub struct MdHandle {
    pub(crate) core: Arc<Core>,
    /// Portal and match bits.
    pub(crate) key: (u32, u64),
    pub(crate) entry: Arc<Entry>,
}

impl MdHandle {
    /// Waits for the next event, without a time limit; never returns `None`.
    pub async fn next(&mut self) -> Option<MdEvent> {
        poll_fn(|cx| {
            let mut queue = self.entry.queue.lock();
            match queue.events.pop_front() {
                Some(event) => Poll::Ready(Some(event)),
                None => {
                    queue.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next event, if one is queued.
    pub fn try_next(&mut self) -> Option<MdEvent> {
        self.entry.queue.lock().events.pop_front()
    }
}

impl Drop for MdHandle {
    fn drop(&mut self) {
        self.core.unlink(self.key, &self.entry);
    }
}

/// Keeps a lazy portal served; dropping it ends the service.
#[derive(Debug)]
pub struct PortalGuard {
    pub(crate) core: Arc<Core>,
    pub(crate) portal: u32,
}

impl Drop for PortalGuard {
    fn drop(&mut self) {
        self.core.remove_sink(self.portal);
    }
}
