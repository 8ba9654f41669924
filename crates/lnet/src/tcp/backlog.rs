//! Backlog of one connection: messages that wait for space in a sink.
//!
//! Each portal has its own queue, so a full service blocks neither other services nor the answers
//! and bulk data that its handlers wait for. When a message arrives for a full queue, this node
//! stops reading the connection until the queue has space. When the backlogs of all connections
//! reach their common limit, this node drops further messages; the peer's RPC layer resends them.

use super::peer::Peer;
use crate::core::BlockedPut;
use crate::warn_rate_limited;
use cpt::JoinSet;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Limit of the queue of one portal and connection, in bytes.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Minimum cost of a message in bytes, which also bounds the number of small messages.
const MESSAGE_COST_MIN: usize = 4 << 10;

/// The backlog of one connection; dropping it drops all its messages.
pub(super) struct Backlog {
    peer: Arc<Peer>,
    queues: HashMap<u32, PortalQueue>,
    tasks: JoinSet<()>,
}

/// Permits of a waiting message, one for each byte: of its portal's queue and of all backlogs.
type BacklogPermits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

struct PortalQueue {
    /// One permit for each free byte.
    free_bytes: Arc<Semaphore>,
    puts: mpsc::UnboundedSender<(BlockedPut, BacklogPermits)>,
}

impl Backlog {
    pub(super) fn new(peer: Arc<Peer>) -> Backlog {
        Backlog {
            peer,
            queues: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Whether messages for `portal` wait, so that later ones have to queue behind them.
    pub(super) fn has_queued(&self, portal: u32) -> bool {
        self.queues
            .get(&portal)
            .is_some_and(|queue| queue.free_bytes.available_permits() < QUEUE_BYTES_MAX)
    }

    /// Queues a message until its sink takes it, then sends its answer. Waits while the portal's
    /// queue is full. Drops the message if all backlogs together are full.
    pub(super) async fn push(&mut self, blocked: BlockedPut) {
        let portal = blocked.message.portal;
        let queue = self.queues.entry(portal).or_insert_with(|| {
            let (puts, mut waiting) = mpsc::unbounded_channel::<(BlockedPut, BacklogPermits)>();
            let peer = self.peer.clone();
            self.tasks.spawn(async move {
                while let Some((put, permits)) = waiting.recv().await {
                    if let Some(answer) = put.deliver().await {
                        peer.respond(answer).await;
                    }
                    drop(permits);
                }
            });
            PortalQueue {
                free_bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
                puts,
            }
        });
        let cost = blocked.message.payload.len().max(MESSAGE_COST_MIN) as u32;
        // An error is impossible: no code closes this semaphore.
        if let Ok(queue_permit) = queue.free_bytes.clone().acquire_many_owned(cost).await {
            let Ok(common_permit) = self
                .peer
                .shared
                .backlog_bytes
                .clone()
                .try_acquire_many_owned(cost)
            else {
                warn_rate_limited!(peer = %self.peer.nid, portal, "dropping a message: the backlogs of full services have reached their limit");
                return;
            };
            let _ = queue.puts.send((blocked, (queue_permit, common_permit)));
        }
    }
}
