//! What the floors above attach to portals, and what they learn from it.
//!
//! A *lazy* portal hands every PUT to a [`PutSink`]: requests. Everything else is *matched*: a buffer is attached under a
//! portal and match bits, and a PUT or GET with the same finds it: replies and bulk. What matches nothing is dropped.

use crate::Payload;
use crate::core::Core;
use cpt::{BoxFuture, CptId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use wire::Nid;

/// A PUT that came to a lazy portal.
#[derive(Debug)]
pub struct Incoming {
    /// Who sent it: the NID in its header; `0@lo` for this node itself.
    pub from: Nid,
    /// The portal.
    pub portal: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The sender's own 64 bits.
    pub hdr_data: u64,
    /// The offset that the sender gave.
    pub offset: u32,
    /// The data.
    pub payload: Payload,
    /// The partition to queue it on: the one that received it, or the one that `portal_rotor` chose.
    pub cpt: CptId,
}

/// The sink's queue is full; the message comes back to be offered again.
#[derive(Debug)]
pub struct Full(pub Incoming);

/// Takes what is PUT to a lazy portal.
pub trait PutSink: Send + Sync {
    /// Takes a message, or gives it back. Never blocks: it queues, and may begin what this node sent to itself, as far as that
    /// goes without waiting. Called with no lock held, so that what is begun can use LNet.
    fn put(&self, m: Incoming) -> Result<(), Full>;
    /// Resolves when a message that was given back has a chance again. Only looks: who reserves the room and lets it go
    /// hands it to the next who waits, and two of them keep each other out for ever.
    fn room(&self) -> BoxFuture<'_, ()>;
    /// The partitions that it queues on, if not all: among them the requests are spread. Asked once.
    fn cpts(&self) -> Option<Vec<CptId>> {
        None
    }
}

/// Where a buffer is attached.
#[derive(Debug, Clone, Copy)]
pub struct Match {
    /// The portal.
    pub portal: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The only peer that may use it, if not everyone. All NIDs of this node are one peer.
    pub from: Option<Nid>,
}

/// What is attached.
#[derive(Debug, Clone)]
pub enum Md {
    /// Takes PUTs.
    Sink {
        /// Room from offset 0 on; what lies beyond is cut off.
        max_len: u32,
    },
    /// Answers GETs.
    Source(Payload),
}

/// What happened to an attached buffer.
#[derive(Debug)]
pub enum MdEvent {
    /// A PUT landed.
    Put {
        /// Who sent it.
        from: Nid,
        /// Where in the buffer.
        offset: u32,
        /// What arrived, cut to the room there was.
        payload: Payload,
    },
    /// A GET was answered.
    Got {
        /// Who asked.
        from: Nid,
        /// How many bytes it got.
        len: u32,
    },
}

/// Events that wait for their reader; more are dropped with their messages, as at a buffer that is used up.
pub(crate) const EVENTS_MAX: usize = 64;

/// A buffer at a portal, shared by the table and its owner.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) from: Option<Nid>,
    pub(crate) md: Md,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<MdEvent>,
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

    /// Tells the owner; `false` when too much waits for it already.
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

/// An attached buffer; dropping it unlinks it.
#[derive(Debug)]
pub struct Attached {
    pub(crate) core: Arc<Core>,
    pub(crate) key: (u32, u64),
    pub(crate) entry: Arc<Entry>,
}

impl Attached {
    /// The next event. Waits for as long as it takes: a buffer does not know whether anything will still come.
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

    /// The next event if it has happened already.
    pub fn try_next(&mut self) -> Option<MdEvent> {
        self.entry.queue.lock().events.pop_front()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.core.unlink(self.key, &self.entry);
    }
}

/// A served portal; dropping it ends that.
#[derive(Debug)]
pub struct PortalGuard {
    pub(crate) core: Arc<Core>,
    pub(crate) portal: u32,
}

impl Drop for PortalGuard {
    fn drop(&mut self) {
        self.core.unserve(self.portal);
    }
}
