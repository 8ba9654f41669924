//! Sends requests to many nodes in parallel with one deadline, and updates the nodes' states from
//! the replies.

use crate::{Inner, NodeState};
use lst::Bulk;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wire::{Errno, LstSid, Nid, Selftest, SrpcBody};

/// The time limit for all nodes together.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum time limit; a shorter requested limit is raised to it.
const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(3);
/// Maximum number of requests of one command in flight.
const CALLS_MAX: usize = 256;

/// The result of a request to one node.
#[derive(Debug)]
pub(super) struct NodeReply {
    pub(super) nid: Nid,
    /// The node's state after the reply.
    pub(super) state: NodeState,
    pub(super) reply: Result<Selftest, Errno>,
}

impl NodeReply {
    /// The status in the reply: 0 or an error number; an error if there is no reply.
    pub(super) fn status(&self) -> Result<u32, Errno> {
        match &self.reply {
            Ok(reply) => Ok(reply.body.status().unwrap_or(Errno::EBADMSG.0 as u32)),
            Err(e) => Err(*e),
        }
    }

    /// The node's session, from its reply.
    pub(super) fn sid(&self) -> Option<LstSid> {
        self.reply.as_ref().ok()?.body.reply_sid()
    }
}

impl Inner {
    /// Sends a request to each node, and waits at most `limit` (at least [`CALL_TIMEOUT_MIN`]) for
    /// all. The replies have the order of the requests.
    pub(super) async fn call_nodes(
        &self,
        requests: impl IntoIterator<Item = (Nid, SrpcBody)>,
        limit: Duration,
    ) -> Vec<NodeReply> {
        let requests = requests.into_iter().map(|(nid, body)| (nid, body, Bulk::None));
        self.call_nodes_with_bulk(requests.collect(), limit).await
    }

    /// Like [`Inner::call_nodes`], with bulk data for each node.
    pub(super) async fn call_nodes_with_bulk(
        &self,
        requests: Vec<(Nid, SrpcBody, Bulk)>,
        limit: Duration,
    ) -> Vec<NodeReply> {
        let feats = self.state.lock().feats;
        let deadline = Instant::now() + limit.max(CALL_TIMEOUT_MIN);
        let slots = Arc::new(Semaphore::new(CALLS_MAX));
        let mut calls = JoinSet::new();
        let mut replies = Vec::new();
        for (i, (nid, body, bulk)) in requests.into_iter().enumerate() {
            replies.push((nid, Err(Errno::ETIMEDOUT)));
            let (requester, slots) = (self.node.requester().clone(), slots.clone());
            calls.spawn(async move {
                let call = async {
                    let _slot = slots.acquire().await;
                    requester
                        .call(nid, Selftest::new(feats, body), bulk, Duration::ZERO)
                        .await
                };
                let reply = tokio::time::timeout_at(deadline, call).await;
                (i, reply.unwrap_or(Err(Errno::ETIMEDOUT)))
            });
        }
        while let Some(done) = calls.join_next().await {
            // An error means that the task panicked, or that the runtime dropped the task.
            let Ok((i, reply)) = done else { continue };
            if let Some(entry) = replies.get_mut(i) {
                entry.1 = reply.map(|reply| reply.message);
            }
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let update_node = |(nid, reply): (Nid, Result<Selftest, Errno>)| {
            let sid = reply.as_ref().ok().and_then(|r| r.body.reply_sid());
            NodeReply {
                nid,
                state: state.update_node(now, nid, sid),
                reply,
            }
        };
        replies.into_iter().map(update_node).collect()
    }
}
