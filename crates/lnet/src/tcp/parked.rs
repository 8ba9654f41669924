//! Messages of one connection that wait for room in a sink.
//!
//! They wait per portal, so that a full service holds up neither another service nor the answers and bulk that its own
//! handlers need to become free. When too much waits, the connection is not read any further; when too much waits of all
//! connections together, what comes is dropped: the layer above sends it again.

use super::peer::Peer;
use crate::core::Delayed;
use crate::warn_seldom;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Bytes that wait for one portal of one connection.
const PARKED_BYTES_MAX: usize = 16 << 20;
/// What a message counts at least, so that small ones are bounded in number too.
const MESSAGE_COST_MIN: usize = 4 << 10;

/// All that waits of one connection; dropping it lets go of everything.
pub(super) struct Parked {
    peer: Arc<Peer>,
    lots: HashMap<u32, Lot>,
    tasks: JoinSet<()>,
}

/// What a message that waits takes: of its lot, and of all.
type Room = (OwnedSemaphorePermit, OwnedSemaphorePermit);

struct Lot {
    room: Arc<Semaphore>,
    queue: mpsc::UnboundedSender<(Delayed, Room)>,
}

impl Parked {
    pub(super) fn new(peer: Arc<Peer>) -> Parked {
        Parked {
            peer,
            lots: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Whether messages for `portal` wait, so that later ones have to queue behind them.
    pub(super) fn waits(&self, portal: u32) -> bool {
        self.lots
            .get(&portal)
            .is_some_and(|lot| lot.room.available_permits() < PARKED_BYTES_MAX)
    }

    /// Keeps a message until its sink takes it; then its answer is sent. Waits while too much waits already.
    pub(super) async fn park(&mut self, delayed: Delayed) {
        let portal = delayed.message.portal;
        let lot = self.lots.entry(portal).or_insert_with(|| {
            let (queue, mut parked) = mpsc::unbounded_channel::<(Delayed, Room)>();
            let peer = self.peer.clone();
            self.tasks.spawn(async move {
                while let Some((delayed, room)) = parked.recv().await {
                    if let Some(answer) = delayed.deliver().await {
                        peer.respond(answer).await;
                    }
                    drop(room);
                }
            });
            Lot {
                room: Arc::new(Semaphore::new(PARKED_BYTES_MAX)),
                queue,
            }
        });
        let cost = delayed.message.payload.len().max(MESSAGE_COST_MIN) as u32;
        // Neither is ever closed while the lot is there.
        if let Ok(room) = lot.room.clone().acquire_many_owned(cost).await {
            let Ok(of_all) = self.peer.shared.parked.clone().try_acquire_many_owned(cost) else {
                warn_seldom!(peer = %self.peer.nid, portal, "a message is dropped: too many wait for their services");
                return;
            };
            let _ = lot.queue.send((delayed, (room, of_all)));
        }
    }
}
