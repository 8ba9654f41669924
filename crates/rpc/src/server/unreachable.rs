//! Evicts unreachable clients that block other clients.
//!
//! A client blocks others while it owes a reply to a callback or the cancel of a revoked lock. A
//! slow client has a long time to reply or cancel. But if the connection to a client is lost, and
//! neither the client nor this server can connect again for
//! [`crate::RpcConfig::unreachable_timeout`], the client is dead or partitioned: this server evicts
//! all exports of its node. A refused port alone proves nothing, because a client need not listen.
//! Exports from before a restart of a blocking node are evicted at once.
//!
//! This server pings a node that blocks others: the ping reconnects to the node, and detects a dead
//! host that no other message goes to.

use super::Export;
use crate::Ptlrpc;
use lnet::Link;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use wire::Nid;

/// Maximum of the interval between checks.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Time for which a node is checked after its last report; a blocking node is reported once a
/// second.
const LEASE: Duration = Duration::from_secs(3);
/// Time limit of a ping, after which another one can begin.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The nodes of clients that block others.
#[derive(Debug, Default)]
pub(crate) struct Blockers(Mutex<HashMap<Nid, BlockingNode>>);

/// A node of clients that block others.
#[derive(Debug)]
struct BlockingNode {
    /// The first report; a node without reports for [`LEASE`] is forgotten.
    first_report: Instant,
    /// The last report.
    last_report: Instant,
    /// When this process resumed after its last suspension; earlier silence does not count.
    resumed_at: Option<Instant>,
    /// Whether a ping is in progress.
    pinging: Arc<AtomicBool>,
}

impl BlockingNode {
    fn new(now: Instant) -> BlockingNode {
        BlockingNode {
            first_report: now,
            last_report: now,
            resumed_at: None,
            pinging: Arc::default(),
        }
    }

    /// Time for which the node has been unreachable. `None` if this is less than `limit`, or if
    /// this server has not tried to connect.
    fn unreachable_for(&self, link: &Link, now: Instant, limit: Duration) -> Option<Duration> {
        if link.up {
            return None;
        }
        let lost_at = link.lost_at.unwrap_or(self.first_report);
        let since = self
            .resumed_at
            .map_or(lost_at, |resumed_at| resumed_at.max(lost_at));
        let tried_to_connect = link
            .unreachable_at
            .is_some_and(|at| at >= since.max(self.first_report));
        let lost_for = now.saturating_duration_since(since);
        (tried_to_connect && lost_for >= limit).then_some(lost_for)
    }
}

impl Ptlrpc {
    /// Records that a client on `nid` blocks others now.
    fn note_blocker(self: &Arc<Self>, nid: Nid) {
        if self.lnet().is_local(nid) {
            return;
        }
        let now = Instant::now();
        let mut nodes = self.blockers().0.lock();
        let idle = nodes.is_empty();
        nodes
            .entry(nid)
            .or_insert_with(|| BlockingNode::new(now))
            .last_report = now;
        if idle {
            self.cpt_of(nid).spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Checks the nodes, after a sleep of `tick` that took `slept`. Returns whether any are left.
    fn check_blockers(self: &Arc<Self>, slept: Duration, tick: Duration) -> bool {
        let (now, limit) = (Instant::now(), self.config().unreachable_timeout);
        let mut checked = Vec::new();
        {
            let mut nodes = self.blockers().0.lock();
            nodes.retain(|_, node| now - node.last_report < LEASE);
            for (nid, node) in nodes.iter_mut() {
                // While this process was suspended it heard from no node: silence proves nothing.
                if slept > tick + limit / 2 {
                    node.resumed_at = Some(now);
                }
                if let Some(link) = self.lnet().link(*nid) {
                    checked.push((*nid, link, node.unreachable_for(&link, now, limit)));
                    self.ping_blocker(*nid, node);
                }
            }
            if nodes.is_empty() {
                return false;
            }
        }
        for (nid, link, unreachable) in checked {
            let exports = || self.targets().all().into_iter().flat_map(|target| target.all());
            let exports_of_node = exports().filter(|export| export.peer() == nid);
            if let Some(lost_for) = unreachable {
                let secs = lost_for.as_secs();
                let why = format!(
                    "it blocks other clients, and its connection was lost {secs} s ago: neither it nor this server could reconnect"
                );
                exports_of_node.for_each(|export| export.evict_soon(&why));
            } else {
                let earlier_exports = exports_of_node.filter(|export| export.is_of_earlier_boot(&link));
                earlier_exports.for_each(|export| {
                    export.evict_soon("it blocks other clients, and its node has restarted")
                });
            }
        }
        true
    }

    fn ping_blocker(&self, nid: Nid, node: &BlockingNode) {
        if node.pinging.swap(true, Ordering::Relaxed) {
            return;
        }
        let (lnet, pinging) = (self.lnet().clone(), node.pinging.clone());
        self.cpt_of(nid).spawn(async move {
            // The result shows in the peer's link.
            let _ = lnet.ping(nid, PING_TIMEOUT).await;
            pinging.store(false, Ordering::Relaxed);
        });
    }
}

async fn watch(rpc: Weak<Ptlrpc>) {
    loop {
        let Some(limit) = rpc.upgrade().map(|rpc| rpc.config().unreachable_timeout) else {
            return;
        };
        let tick = CHECK_INTERVAL_MAX.min(limit / 4);
        let slept_since = Instant::now();
        sleep(tick).await;
        let nodes_left = rpc
            .upgrade()
            .is_some_and(|rpc| rpc.check_blockers(slept_since.elapsed(), tick));
        if !nodes_left {
            return;
        }
    }
}

impl Export {
    /// Records that the client blocks others now. An unreachable client that blocks others is
    /// evicted after [`crate::RpcConfig::unreachable_timeout`], even if the timeout of its callback
    /// or cancel is longer. Callers repeat this once a second.
    pub fn report_blocking(&self) {
        if let Some(rpc) = self.rpc() {
            rpc.note_blocker(self.peer());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BlockingNode;
    use lnet::Link;
    use std::time::Duration;
    use tokio::time::Instant;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The second from which on a node counts as unreachable; `None` if it does not before second
    /// 300. The node has blocked others since second 100.
    fn unreachable_from(link: impl Fn(u64, Instant) -> Link) -> Option<u64> {
        let start = Instant::now();
        let time = |s: u64| start + Duration::from_secs(s);
        let node = BlockingNode::new(time(100));
        (100..300).find(|s| node.unreachable_for(&link(*s, start), time(*s), LIMIT).is_some())
    }

    fn lost_link(start: Instant, lost_at: Option<u64>, unreachable_at: Option<u64>) -> Link {
        let time = |s: u64| start + Duration::from_secs(s);
        Link {
            lost_at: lost_at.map(time),
            unreachable_at: unreachable_at.map(time),
            ..Link::default()
        }
    }

    #[test]
    fn the_limit_of_an_unreachable_node_starts_with_the_loss_of_its_connection() {
        assert_eq!(
            unreachable_from(|s, start| lost_link(start, Some(103), Some(s))),
            Some(113)
        );
        assert_eq!(
            unreachable_from(|s, start| lost_link(start, None, Some(s))),
            Some(110)
        );
    }

    #[test]
    fn a_node_lost_long_ago_is_tried_first() {
        assert_eq!(
            unreachable_from(|_, start| lost_link(start, Some(10), Some(50))),
            None
        );
        let tried_at_101 = |s: u64, start| lost_link(start, Some(10), Some(if s < 102 { 50 } else { 101 }));
        assert_eq!(unreachable_from(tried_at_101), Some(102));
    }

    #[test]
    fn a_connected_node_or_an_answering_host_is_not_unreachable() {
        let up = |s, start| Link {
            up: true,
            ..lost_link(start, Some(10), Some(s))
        };
        assert_eq!(unreachable_from(up), None);
        assert_eq!(
            unreachable_from(|_, start| lost_link(start, Some(103), None)),
            None
        );
    }

    #[test]
    fn a_node_that_came_back_gets_a_new_limit() {
        let lost_twice = |s: u64, start| match s {
            0..103 | 112..115 => Link {
                up: true,
                ..Link::default()
            },
            103..112 => lost_link(start, Some(103), Some(s)),
            _ => lost_link(start, Some(115), Some(s)),
        };
        assert_eq!(unreachable_from(lost_twice), Some(125));
    }

    #[test]
    fn time_in_which_this_process_was_suspended_does_not_count() {
        let start = Instant::now();
        let time = |s: u64| start + Duration::from_secs(s);
        let mut node = BlockingNode::new(time(100));
        node.resumed_at = Some(time(150));
        let link = lost_link(start, Some(101), Some(155));
        assert_eq!(node.unreachable_for(&link, time(159), LIMIT), None);
        assert_eq!(node.unreachable_for(&link, time(160), LIMIT), Some(LIMIT));
    }
}
