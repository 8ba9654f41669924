//! Statistics of a service's partition, as `stats` and `cpt_stats` show them: wait time, queue
//! depth, requests in execution, and service time of each operation.
//!
//! Each partition has its own counters; readers add them up. A test compares the format with
//! Lustre's.

use super::request::Arrival;
use crate::opname::NAMES;
use params::{Histogram, Row, Stats, Sums, Tally, as_usecs};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use wire::{
    LDLM_ENQUEUE, LDLM_IBITS, LDLM_PLAIN, MDS_REINT, Message, REINT_RESYNC, REINT_SETATTR, REINT_SETXATTR,
};

/// Kinds of `LDLM_ENQUEUE` and `MDS_REINT`. A request of a known kind counts as its kind and not as
/// its opcode.
const KINDS: [&str; 13] = [
    "ldlm_glimpse_enqueue",
    "ldlm_plain_enqueue",
    "ldlm_extent_enqueue",
    "ldlm_flock_enqueue",
    "ldlm_ibits_enqueue",
    "mds_reint_setattr",
    "mds_reint_create",
    "mds_reint_link",
    "mds_reint_unlink",
    "mds_reint_rename",
    "mds_reint_open",
    "mds_reint_setxattr",
    "mds_reint_resync",
];
/// Offset of the lock type (`lock_desc.l_resource.lr_type`) in `ldlm_request`.
const LOCK_TYPE_OFFSET: usize = 8;
/// Offset of the operation in the records of `MDS_REINT`.
const REINT_OPCODE_OFFSET: usize = 0;
/// Number of lock types.
const LDLM_TYPES: u32 = LDLM_IBITS - LDLM_PLAIN + 1;

/// Index in `NAMES` of each opcode; `u8::MAX` for opcodes without a name.
static NAME_INDEX: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let highest = NAMES.iter().map(|(opc, _)| *opc as usize).max().unwrap_or(0);
    let mut index = vec![u8::MAX; highest + 1];
    for (i, (opc, _)) in NAMES.iter().enumerate() {
        index[*opc as usize] = u8::try_from(i).unwrap_or(u8::MAX);
    }
    index
});

/// The counters of one partition.
#[derive(Debug)]
pub(super) struct PartitionStats {
    /// Time in the queue, in microseconds.
    wait: Tally,
    waits_by_size: Histogram,
    /// Length of the queue when a request leaves it.
    depth: Tally,
    /// Requests in execution.
    active: Tally,
    /// Service time estimate, in seconds.
    timeout: Tally,
    /// Free places of the queue when a request arrives.
    free_places: Tally,
    /// Time in execution, in microseconds.
    service: Tally,
    /// Numbers of requests, indexed like `KINDS`.
    kinds: [Tally; KINDS.len()],
    /// Times in execution in microseconds, indexed like `NAMES`.
    operations: Vec<Tally>,
}

impl PartitionStats {
    pub(super) fn new() -> PartitionStats {
        PartitionStats {
            wait: Tally::default(),
            waits_by_size: Histogram::default(),
            depth: Tally::default(),
            active: Tally::default(),
            timeout: Tally::default(),
            free_places: Tally::default(),
            service: Tally::default(),
            kinds: Default::default(),
            operations: NAMES.iter().map(|_| Tally::default()).collect(),
        }
    }

    /// Records that a request was queued; `free_places` are left.
    pub(super) fn record_arrival(&self, free_places: usize) {
        self.free_places.add(free_places as u64);
    }

    /// Records that a slot took a request, with `depth` requests left in the queue and `active` in
    /// execution.
    pub(super) fn record_start(&self, waited: Duration, depth: usize, active: usize, estimate_secs: u32) {
        self.wait.add_time(waited);
        self.waits_by_size.add(as_usecs(waited));
        self.depth.add(depth as u64);
        self.active.add(active as u64);
        self.timeout.add(estimate_secs.into());
    }

    /// Records that a request was handled within `duration`.
    pub(super) fn record_end(&self, counter: CounterIndex, duration: Duration) {
        self.service.add_time(duration);
        match counter {
            CounterIndex::Kind(n) => self.kinds[n].add(1),
            CounterIndex::Operation(n) => self.operations[n].add_time(duration),
            CounterIndex::Other => {}
        }
    }

    /// Resets the counters.
    pub(super) fn clear(&self) {
        let own = [
            &self.wait,
            &self.depth,
            &self.active,
            &self.timeout,
            &self.free_places,
            &self.service,
        ];
        own.into_iter()
            .chain(&self.kinds)
            .chain(&self.operations)
            .for_each(Tally::clear);
        self.waits_by_size.clear();
    }

    /// Wait time, queue depth, requests in execution, service time: name, unit and value.
    pub(super) fn summary(&self) -> [(&'static str, &'static str, Sums); 4] {
        [
            ("req_waittime", "usecs", self.wait.sums()),
            ("req_qdepth", "reqs", self.depth.sums()),
            ("req_active", "reqs", self.active.sums()),
            ("service_time", "usecs", self.service.sums()),
        ]
    }
}

/// The counter of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterIndex {
    /// Index in `KINDS`.
    Kind(usize),
    /// Index in `NAMES`.
    Operation(usize),
    /// An unknown opcode, which has no counter.
    Other,
}

impl CounterIndex {
    pub(super) fn for_arrival(arrival: &Arrival) -> CounterIndex {
        let opc = arrival.body.pb_opc;
        let kind = match opc {
            LDLM_ENQUEUE => word(&arrival.msg, LOCK_TYPE_OFFSET)
                .and_then(|t| t.checked_sub(LDLM_PLAIN))
                .filter(|t| *t < LDLM_TYPES)
                .map(|t| t + 1),
            MDS_REINT => match word(&arrival.msg, REINT_OPCODE_OFFSET) {
                Some(n @ REINT_SETATTR..=REINT_SETXATTR) => Some(n + LDLM_TYPES),
                Some(REINT_RESYNC) => Some(KINDS.len() as u32 - 1),
                _ => None,
            },
            _ => None,
        };
        let name_index = NAME_INDEX.get(opc as usize).filter(|p| **p != u8::MAX);
        match (kind, name_index) {
            (Some(kind), _) => CounterIndex::Kind(kind as usize),
            (None, Some(index)) => CounterIndex::Operation(usize::from(*index)),
            (None, None) => CounterIndex::Other,
        }
    }
}

/// The 32-bit number at this offset of the first buffer after the body.
fn word(msg: &Message, offset: usize) -> Option<u32> {
    let bytes = msg.buf(1).get(offset..offset + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The `stats` of a service, added up over its partitions.
pub(super) fn sum_up(parts: &[&PartitionStats], since: SystemTime) -> Stats {
    let row = |name, unit, tally: &dyn Fn(&PartitionStats) -> &Tally| Row {
        name,
        unit,
        sums: parts
            .iter()
            .fold(Sums::default(), |sums, p| sums.and(tally(p).sums())),
        buckets: None,
    };
    let mut wait = row("req_waittime", "usecs", &|p| &p.wait);
    let mut buckets = Histogram::default().counts();
    for part in parts {
        let counts = part.waits_by_size.counts();
        buckets.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    wait.buckets = Some(buckets);
    let mut rows = vec![
        wait,
        row("req_qdepth", "reqs", &|p| &p.depth),
        row("req_active", "reqs", &|p| &p.active),
        row("req_timeout", "secs", &|p| &p.timeout),
        row("reqbuf_avail", "bufs", &|p| &p.free_places),
    ];
    let kinds = KINDS.iter().enumerate();
    rows.extend(kinds.map(|(n, name)| row(name, "reqs", &move |p| &p.kinds[n])));
    let operations = NAMES.iter().enumerate();
    rows.extend(operations.map(|(n, (_, name))| row(name, "usecs", &move |p| &p.operations[n])));
    Stats { since, rows }
}

#[cfg(test)]
mod tests {
    use super::{CounterIndex, KINDS, NAMES, PartitionStats, sum_up};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn partitions_are_added_up_in_lustres_format() {
        let (one, two) = (PartitionStats::new(), PartitionStats::new());
        let statfs = NAMES.iter().position(|(_, n)| *n == "mds_statfs").unwrap_or(0);
        one.record_arrival(64);
        one.record_start(Duration::from_micros(97), 0, 1, 5);
        one.record_end(CounterIndex::Operation(statfs), Duration::from_micros(106));
        two.record_arrival(63);
        two.record_start(Duration::from_micros(3), 2, 2, 10);
        two.record_end(CounterIndex::Kind(4), Duration::from_micros(9));
        let shown = sum_up(&[&one, &two], UNIX_EPOCH).to_string();
        let lines: Vec<&str> = shown.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "req_waittime                        2 samples [usecs] 3 97 100 9418",
                "req_qdepth                          2 samples [reqs] 0 2 2 4",
                "req_active                          2 samples [reqs] 1 2 3 5",
                "req_timeout                         2 samples [secs] 5 10 15 125",
                "reqbuf_avail                        2 samples [bufs] 63 64 127 8065",
                "ldlm_ibits_enqueue                  1 samples [reqs] 1 1 1 1",
                "mds_statfs                          1 samples [usecs] 106 106 106 11236",
            ]
        );
        one.clear();
        assert_eq!(sum_up(&[&one], UNIX_EPOCH).to_string().lines().count(), 3);
        assert_eq!(KINDS[5 + 5], "mds_reint_open");
    }
}
