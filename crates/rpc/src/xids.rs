//! Transaction ids: one sequence per process, and for each import which of them still wait for a reply (guide 3.5).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::PTLRPC_BULK_OPS_COUNT;

/// The process's sequence. Each id is the first of 128 match bits that belong to its request.
#[derive(Debug)]
pub(crate) struct Xids(AtomicU64);

impl Xids {
    /// A sequence that begins after all of an earlier life of the process.
    pub(crate) fn starting_at(unix_seconds: u64) -> Xids {
        let step = u64::from(PTLRPC_BULK_OPS_COUNT);
        Xids(AtomicU64::new((unix_seconds << 20) & !(step - 1)))
    }

    /// The next one.
    pub(crate) fn next(&self) -> u64 {
        let step = u64::from(PTLRPC_BULK_OPS_COUNT);
        self.0.fetch_add(step, Ordering::Relaxed) + step
    }
}

/// The requests of one import that have no reply yet.
#[derive(Debug, Default)]
pub(crate) struct Unreplied(BTreeSet<u64>);

impl Unreplied {
    /// A new request. The id is taken here, under the import's lock, so that `last` never passes a request that is
    /// still to be sent.
    pub(crate) fn begin(&mut self, xids: &Xids) -> u64 {
        let xid = xids.next();
        self.0.insert(xid);
        xid
    }

    /// A request has its reply, or its caller has given up.
    pub(crate) fn end(&mut self, xid: u64) {
        self.0.remove(&xid);
    }

    /// `pb_last_xid`: everything up to here has its reply.
    pub(crate) fn last(&self) -> u64 {
        self.0.first().map_or(0, |lowest| lowest - 1)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Unreplied, Xids};

    #[test]
    fn ids_rise_in_steps_of_128() {
        let xids = Xids::starting_at(1_795_174_413);
        let first = xids.next();
        assert_eq!(first % 128, 0);
        assert_eq!(xids.next(), first + 128);
    }

    #[test]
    fn last_xid_stays_below_the_oldest_request_without_reply() {
        let xids = Xids::starting_at(1);
        let mut waiting = Unreplied::default();
        let (a, b, c) = (waiting.begin(&xids), waiting.begin(&xids), waiting.begin(&xids));
        assert_eq!(waiting.last(), a - 1);
        waiting.end(b);
        assert_eq!(waiting.last(), a - 1);
        waiting.end(a);
        assert_eq!(waiting.last(), c - 1);
        assert_eq!(waiting.len(), 1);
    }
}
