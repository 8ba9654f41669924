//! Watches the deadlines of revoked locks, only while there are any. If a client takes longer than
//! a second, reports it to the RPC layer, which evicts an unreachable client before the deadline.

use super::{LockServer, now};
use crate::action::Action;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A holder is reported if it has not cancelled a lock within this time after the revocation.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Number of checks between reports.
const REPORT_TICKS: u32 = 10;

pub(super) fn watch(server: &Arc<LockServer>) {
    let (revoking, server): (_, Weak<LockServer>) = (server.revoking.clone(), Arc::downgrade(server));
    cpt::spawn(async move {
        loop {
            revoking.notified().await;
            let mut ticks = 0u32;
            while server.upgrade().is_some_and(|s| s.expire()) {
                tokio::time::sleep(CHECK_INTERVAL).await;
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(REPORT_TICKS)
                    && let Some(server) = server.upgrade()
                {
                    server.report_slow();
                }
            }
            if server.strong_count() == 0 {
                return;
            }
        }
    });
}

impl LockServer {
    /// Evicts the clients with expired timers. Returns whether other timers still run.
    fn expire(&self) -> bool {
        let mut actions: Vec<Action> = Vec::new();
        let mut running = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.ns.expire(now(), &mut actions);
            running |= shard.ns.has_revoked();
        }
        self.perform(actions);
        running
    }
}

impl LockServer {
    /// Reports the clients that have not cancelled a lock for [`REPORT_AFTER`].
    fn report_slow(&self) {
        let Some(cutoff) = now().checked_sub(REPORT_AFTER) else {
            return;
        };
        let mut holders = HashSet::new();
        for shard in &self.shards {
            holders.extend(shard.lock().ns.slow_holders(cutoff));
        }
        let exports = holders.into_iter().filter_map(|holder| self.export(holder));
        exports.for_each(|export| export.report_blocking());
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        for shard in &self.shards {
            self.limits.update_count(shard.lock().ns.lock_count(), 0);
        }
        self.revoking.notify_one();
        self.limits.over_threshold.notify_waiters();
    }
}
