//! The watch over clients that were asked for a lock: it looks a few times per allowed time, and only while some
//! client is being asked.

use super::{LockServer, now};
use crate::action::Action;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn watch(server: &Arc<LockServer>) {
    let (asking, server): (_, Weak<LockServer>) = (server.asking.clone(), Arc::downgrade(server));
    tokio::spawn(async move {
        loop {
            asking.notified().await;
            while server.upgrade().is_some_and(|s| s.expire()) {
                tokio::time::sleep(TICK).await;
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

impl Drop for LockServer {
    fn drop(&mut self) {
        for shard in &self.shards {
            self.limits.changed(shard.lock().ns.lock_count(), 0);
        }
        self.asking.notify_one();
        self.limits.exceeded.notify_waiters();
    }
}
