//! Asking many nodes at once: each its request, all within one time, and what is learned of each from its answer.

use super::{Inner, NodeState};
use crate::srpc::Bulk;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wire::{Errno, LstSid, Nid, Selftest, SrpcBody};

/// How long all nodes together may take to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// The least that a user's wish may make of it.
const LIMIT_MIN: Duration = Duration::from_secs(3);
/// Nodes that are asked at the same time.
const AT_ONCE: usize = 256;

/// What came of asking one node.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) nid: Nid,
    /// What it is now, as far as is known.
    pub(super) state: NodeState,
    pub(super) reply: Result<Selftest, Errno>,
}

impl Asked {
    /// The answer's status; an error if there is none.
    pub(super) fn status(&self) -> Result<u32, Errno> {
        match &self.reply {
            Ok(reply) => Ok(reply.body.status().unwrap_or(Errno::EBADMSG.0 as u32)),
            Err(e) => Err(*e),
        }
    }

    /// The session that it says it is in.
    pub(super) fn sid(&self) -> Option<LstSid> {
        self.reply.as_ref().ok()?.body.reply_sid()
    }
}

impl Inner {
    /// Asks each node what belongs to it; the answers come in the same order.
    pub(super) async fn ask(
        &self,
        requests: impl IntoIterator<Item = (Nid, SrpcBody)>,
        limit: Duration,
    ) -> Vec<Asked> {
        let requests = requests.into_iter().map(|(nid, body)| (nid, body, Bulk::None));
        self.ask_with(requests.collect(), limit).await
    }

    /// The same with something to fetch for each.
    pub(super) async fn ask_with(&self, requests: Vec<(Nid, SrpcBody, Bulk)>, limit: Duration) -> Vec<Asked> {
        let feats = self.state.lock().feats;
        let deadline = Instant::now() + limit.max(LIMIT_MIN);
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut asking = JoinSet::new();
        let mut replies = Vec::new();
        for (i, (nid, body, bulk)) in requests.into_iter().enumerate() {
            replies.push((nid, Err(Errno::ETIMEDOUT)));
            let (srpc, places) = (self.node.srpc().clone(), places.clone());
            asking.spawn(async move {
                let call = async {
                    let _place = places.acquire().await;
                    srpc.call(nid, Selftest::new(feats, body), bulk, Duration::ZERO)
                        .await
                };
                let reply = tokio::time::timeout_at(deadline, call).await;
                (i, reply.unwrap_or(Err(Errno::ETIMEDOUT)))
            });
        }
        while let Some(done) = asking.join_next().await {
            // An error is a task that was dropped with its runtime.
            let Ok((i, reply)) = done else { continue };
            if let Some(place) = replies.get_mut(i) {
                place.1 = reply.map(|answer| answer.message);
            }
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let learn = |(nid, reply): (Nid, Result<Selftest, Errno>)| {
            let sid = reply.as_ref().ok().and_then(|r| r.body.reply_sid());
            Asked {
                nid,
                state: state.heard(now, nid, sid),
                reply,
            }
        };
        replies.into_iter().map(learn).collect()
    }
}
