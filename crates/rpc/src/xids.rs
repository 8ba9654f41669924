//! Xids: one sequence per RPC layer, and the unreplied xids of each import (docs/protocol.md,
//! "PtlRPC").

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::PTLRPC_BULK_OPS_COUNT;
use wire::Xid;

/// The xid sequence of one [`crate::Ptlrpc`]. Each xid is the first of 128 match bits that belong
/// to its request.
#[derive(Debug)]
pub(crate) struct Xids(AtomicU64);

impl Xids {
    /// A sequence that begins at 2^20 match bits for each second of the Unix time. It is above the
    /// xids of an earlier run of this program if the clock is right and that run assigned fewer
    /// than 8192 xids a second.
    pub(crate) fn starting_at(unix_seconds: u64) -> Xids {
        let step = u64::from(PTLRPC_BULK_OPS_COUNT);
        Xids(AtomicU64::new((unix_seconds << 20) & !(step - 1)))
    }

    /// The next xid.
    pub(crate) fn next(&self) -> Xid {
        let step = u64::from(PTLRPC_BULK_OPS_COUNT);
        Xid(self.0.fetch_add(step, Ordering::Relaxed) + step)
    }
}

/// The unreplied requests of one import.
#[derive(Debug, Default)]
pub(crate) struct UnrepliedXids(BTreeSet<Xid>);

impl UnrepliedXids {
    /// Assigns an xid to a new request. The caller holds the import's mutex, so that
    /// [`UnrepliedXids::last_xid`] never passes a request that is not yet sent.
    pub(crate) fn begin(&mut self, xids: &Xids) -> Xid {
        let xid = xids.next();
        self.0.insert(xid);
        xid
    }

    /// Removes a request that has a reply, or that its caller gave up.
    pub(crate) fn end(&mut self, xid: Xid) {
        self.0.remove(&xid);
    }

    /// `pb_last_xid`: no request up to this xid waits for a reply. 0 if no request waits.
    pub(crate) fn last_xid(&self) -> Xid {
        Xid(self.0.first().map_or(0, |lowest| lowest.0 - 1))
    }

    /// Number of unreplied requests.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{UnrepliedXids, Xids};
    use wire::Xid;

    #[test]
    fn xids_rise_in_steps_of_128() {
        let xids = Xids::starting_at(1_795_174_413);
        let first = xids.next();
        assert_eq!(first.0 % 128, 0);
        assert_eq!(xids.next(), Xid(first.0 + 128));
    }

    #[test]
    fn last_xid_stays_below_the_oldest_unreplied_request() {
        let xids = Xids::starting_at(1);
        let mut waiting = UnrepliedXids::default();
        let (a, b, c) = (waiting.begin(&xids), waiting.begin(&xids), waiting.begin(&xids));
        assert_eq!(waiting.last_xid(), Xid(a.0 - 1));
        waiting.end(b);
        assert_eq!(waiting.last_xid(), Xid(a.0 - 1));
        waiting.end(a);
        assert_eq!(waiting.last_xid(), Xid(c.0 - 1));
        assert_eq!(waiting.len(), 1);
    }
}
