//! The watch over clients that were asked for a lock: it looks a few times per allowed time, and only while some
//! client is being asked. Those that take longer than a second it reports to the RPC layer, which evicts them before their
//! time is over should they be unreachable.

use super::{LockServer, now};
use crate::action::Action;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a client takes at least to be reported, and how often it is.
const SLOW: Duration = Duration::from_secs(1);
const SLOW_TICKS: u32 = 10;

pub(super) fn watch(server: &Arc<LockServer>) {
    let (asking, server): (_, Weak<LockServer>) = (server.asking.clone(), Arc::downgrade(server));
    tokio::spawn(async move {
        loop {
            asking.notified().await;
            let mut ticks = 0u32;
            while server.upgrade().is_some_and(|s| s.expire()) {
                tokio::time::sleep(TICK).await;
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(SLOW_TICKS)
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
    /// Evicts the clients whose time is over. Whether any client is still being asked.
    fn expire(&self) -> bool {
        let mut actions: Vec<Action> = Vec::new();
        let mut asking = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.ns.expire(now(), &mut actions);
            asking |= shard.ns.is_asking();
        }
        self.perform(actions);
        asking
    }
}

impl LockServer {
    /// Reports the clients that have not given back a lock for a while.
    fn report_slow(&self) {
        let Some(then) = now().checked_sub(SLOW) else {
            return;
        };
        let mut holders = HashSet::new();
        for shard in &self.shards {
            holders.extend(shard.lock().ns.slow_holders(then));
        }
        let exports = holders.into_iter().filter_map(|holder| self.export(holder));
        exports.for_each(|export| export.report_blocking());
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        for shard in &self.shards {
            self.limits.changed(shard.lock().ns.lock_count(), 0);
        }
        self.asking.notify_one();
        self.limits.exceeded.notify_waiters();
    }
}
