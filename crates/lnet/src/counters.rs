//! Counts of messages and bytes: sent, received, dropped, forwarded. Each partition of an
//! interface, and each peer, has its own counters on its own cache lines, so that partitions do not
//! contend.

use std::sync::atomic::{AtomicU64, Ordering};
use wire::frame::LnetOp;

/// Numbers of messages by kind, in the order of the wire: ACK, PUT, GET, REPLY.
pub(crate) type KindCounts = [u64; 4];

/// The counters of one partition of an interface, or of one peer.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    sent: [AtomicU64; 4],
    received: [AtomicU64; 4],
    dropped: [AtomicU64; 4],
    routed: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    dropped_bytes: AtomicU64,
    routed_bytes: AtomicU64,
}

/// A snapshot of counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages sent: ACK, PUT, GET, REPLY.
    pub sent: KindCounts,
    /// Messages received, also those to forward and those dropped later.
    pub received: KindCounts,
    /// Messages received but neither delivered nor forwarded. Messages that were dropped because
    /// the backlogs of full services had reached their limit do not count.
    pub dropped: KindCounts,
    /// Messages forwarded.
    pub routed: u64,
    /// Bytes of payload: sent, received, dropped, forwarded.
    pub bytes: [u64; 4],
}

impl Counts {
    /// Sum of messages sent, received and dropped.
    pub(crate) fn messages(&self) -> u64 {
        [self.sent, self.received, self.dropped].iter().flatten().sum()
    }
}

impl Counters {
    pub(crate) fn count_sent(&self, op: &LnetOp, len: usize) {
        add(&self.sent, op);
        self.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_received(&self, op: &LnetOp, len: usize) {
        add(&self.received, op);
        self.received_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_dropped(&self, op: &LnetOp, len: usize) {
        add(&self.dropped, op);
        self.dropped_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_routed(&self, len: usize) {
        self.routed.fetch_add(1, Ordering::Relaxed);
        self.routed_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let load = |kinds: &[AtomicU64; 4]| [0, 1, 2, 3].map(|i: usize| kinds[i].load(Ordering::Relaxed));
        let bytes = [
            &self.sent_bytes,
            &self.received_bytes,
            &self.dropped_bytes,
            &self.routed_bytes,
        ];
        Counts {
            sent: load(&self.sent),
            received: load(&self.received),
            dropped: load(&self.dropped),
            routed: self.routed.load(Ordering::Relaxed),
            bytes: bytes.map(|b| b.load(Ordering::Relaxed)),
        }
    }
}

fn add(kinds: &[AtomicU64; 4], op: &LnetOp) {
    kinds[op.kind() as usize & 3].fetch_add(1, Ordering::Relaxed);
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        let plus = |a: [u64; 4], b: [u64; 4]| [0, 1, 2, 3].map(|i: usize| a[i] + b[i]);
        all.fold(Counts::default(), |a, b| Counts {
            sent: plus(a.sent, b.sent),
            received: plus(a.received, b.received),
            dropped: plus(a.dropped, b.dropped),
            routed: a.routed + b.routed,
            bytes: plus(a.bytes, b.bytes),
        })
    }
}
