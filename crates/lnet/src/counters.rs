//! What this node has sent, received and dropped, as `lnet_counters_common` tells it: counted on each partition by itself,
//! added up when somebody asks.

use cpt::CptId;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::LnetCountersCommon;

/// One partition's counts. On lines of their own, so that partitions do not take them from each other's caches.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    sent: Count,
    received: Count,
    dropped: Count,
}

#[derive(Debug, Default)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, messages: usize, bytes: usize) {
        self.messages.fetch_add(messages as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// The counts of a node.
#[derive(Debug)]
pub(crate) struct Counters(Vec<Part>);

impl Counters {
    pub(crate) fn new(partitions: usize) -> Counters {
        Counters((0..partitions.max(1)).map(|_| Part::default()).collect())
    }

    fn part(&self, CptId(cpt): CptId) -> &Part {
        &self.0[cpt % self.0.len()]
    }

    /// So many messages with so many bytes of payload have left.
    pub(crate) fn sent(&self, cpt: CptId, messages: usize, bytes: usize) {
        self.part(cpt).sent.add(messages, bytes);
    }

    /// A message has come.
    pub(crate) fn received(&self, cpt: CptId, bytes: usize) {
        self.part(cpt).received.add(1, bytes);
    }

    /// A message that has come was for nobody.
    pub(crate) fn dropped(&self, cpt: CptId, bytes: usize) {
        self.part(cpt).dropped.add(1, bytes);
    }

    /// All together. The fields wrap around as Lustre's do.
    pub(crate) fn common(&self) -> LnetCountersCommon {
        let sum = |of: fn(&Part) -> &AtomicU64| {
            self.0
                .iter()
                .map(|part| of(part).load(Relaxed))
                .fold(0, u64::wrapping_add)
        };
        LnetCountersCommon {
            lcc_send_count: sum(|p| &p.sent.messages) as u32,
            lcc_recv_count: sum(|p| &p.received.messages) as u32,
            lcc_drop_count: sum(|p| &p.dropped.messages) as u32,
            lcc_send_length: sum(|p| &p.sent.bytes),
            lcc_recv_length: sum(|p| &p.received.bytes),
            lcc_drop_length: sum(|p| &p.dropped.bytes),
            ..LnetCountersCommon::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counters;
    use cpt::CptId;

    #[test]
    fn partitions_are_added_up() {
        let counters = Counters::new(2);
        counters.sent(CptId(0), 3, 100);
        counters.sent(CptId(1), 1, 10);
        counters.received(CptId(1), 7);
        counters.dropped(CptId(0), 5);
        let all = counters.common();
        assert_eq!((all.lcc_send_count, all.lcc_send_length), (4, 110));
        assert_eq!((all.lcc_recv_count, all.lcc_recv_length), (1, 7));
        assert_eq!((all.lcc_drop_count, all.lcc_drop_length), (1, 5));
    }
}
