//! Fault injection, as with Lustre's `fail_loc`: tests choose requests and replies to lose,
//! requests to refuse, and features that a server withholds from its clients.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::ObdConnectData;

/// The faults to inject at a node.
#[derive(Debug, Default)]
pub struct Faults {
    requests: FaultCounts,
    replies: FaultCounts,
    refusals: FaultCounts,
    connect_limits: Mutex<Vec<ConnectLimit>>,
}

/// Limits the connect data in the replies to connects with one opcode.
#[derive(Debug)]
struct ConnectLimit {
    opc: u32,
    /// The reported `ocd_version`.
    version: u32,
    /// The bits of `ocd_connect_flags` and `ocd_connect_flags2` that may be granted.
    flags: (u64, u64),
}

impl Faults {
    /// Loses the next `times` requests with this opcode, before they are executed.
    pub fn lose_requests(&self, opc: u32, times: u32) {
        self.requests.add(opc, times);
    }

    /// Loses the next `times` replies to requests with this opcode, after the requests were
    /// executed.
    pub fn lose_replies(&self, opc: u32, times: u32) {
        self.replies.add(opc, times);
    }

    /// Refuses all requests with this opcode, like a server that does not implement it.
    pub fn refuse_requests(&self, opc: u32) {
        self.refusals.add(opc, u32::MAX);
    }

    /// Limits later connects with this opcode to these `ocd_connect_flags` and
    /// `ocd_connect_flags2`, and reports `version` to them.
    pub fn limit_connect_flags(&self, opc: u32, version: u32, flags: (u64, u64)) {
        let limit = ConnectLimit { opc, version, flags };
        self.connect_limits.lock().push(limit);
    }

    /// Removes all losses and refusals; the limits of connect flags stay.
    pub fn clear_losses_and_refusals(&self) {
        for counts in [&self.requests, &self.replies, &self.refusals] {
            counts.clear();
        }
    }

    /// `data` within the limit that is configured for `opc`.
    pub(crate) fn limit_connect_data(&self, opc: u32, data: ObdConnectData) -> ObdConnectData {
        match self.connect_limits.lock().iter().find(|limit| limit.opc == opc) {
            None => data,
            Some(limit) => ObdConnectData {
                ocd_connect_flags: data.ocd_connect_flags & limit.flags.0,
                ocd_connect_flags2: data.ocd_connect_flags2 & limit.flags.1,
                ocd_version: limit.version,
                // Nacre's extensions, nanosecond times and lock terms, use these fields.
                paddingE: 0,
                paddingF: 0,
                ..data
            },
        }
    }

    pub(crate) fn refuses(&self, opc: u32) -> bool {
        self.refusals.use_up(opc)
    }

    pub(crate) fn loses_request(&self, opc: u32) -> bool {
        self.requests.use_up(opc)
    }

    pub(crate) fn loses_reply(&self, opc: u32) -> bool {
        self.replies.use_up(opc)
    }
}

/// Faults of one kind, by opcode.
#[derive(Debug, Default)]
struct FaultCounts {
    /// Whether any fault is configured; if not, requests need not lock the mutex.
    armed: AtomicBool,
    /// Opcodes, each with the number of faults left.
    left: Mutex<Vec<(u32, u32)>>,
}

impl FaultCounts {
    fn add(&self, opc: u32, times: u32) {
        self.left.lock().push((opc, times));
        self.armed.store(true, Ordering::Release);
    }

    fn clear(&self) {
        self.left.lock().clear();
        self.armed.store(false, Ordering::Release);
    }

    /// Whether a fault is left for the opcode; uses it up.
    fn use_up(&self, opc: u32) -> bool {
        if !self.armed.load(Ordering::Acquire) {
            return false;
        }
        let mut left = self.left.lock();
        let found = left
            .iter_mut()
            .find(|(opcode, left)| *opcode == opc && *left > 0)
            .map(|(_, left)| *left -= 1);
        left.retain(|(_, left)| *left > 0);
        self.armed.store(!left.is_empty(), Ordering::Release);
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Faults;

    #[test]
    fn the_requested_number_of_replies_is_lost() {
        let faults = Faults::default();
        faults.lose_replies(36, 2);
        assert!(!faults.loses_request(36));
        let hits: Vec<bool> = [36, 400, 36, 36].map(|opc| faults.loses_reply(opc)).to_vec();
        assert_eq!(hits, [true, false, true, false]);
        faults.lose_replies(36, u32::MAX);
        assert!(faults.loses_reply(36));
        faults.clear_losses_and_refusals();
        assert!(!faults.loses_reply(36));
    }
}
