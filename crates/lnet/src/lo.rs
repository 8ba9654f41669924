//! The driver `lo`: this node as its own peer. Messages are delivered immediately and payloads
//! passed by reference. The sender waits while the sink of a lazy portal is full, so the driver has
//! no queue. A sink that handles messages inline must not nest handlers: it must queue a message
//! that a handler sends to this node.

use crate::core::{Arrival, Core, Delivery};
use crate::message::Msg;
use cpt::CptId;

/// Delivers `msg` to this node. Returns the answer; `None` if there is no answer or the message was
/// dropped.
pub(crate) async fn deliver(core: &Core, msg: Msg, cpt: CptId) -> Option<Msg> {
    let (op, len) = (msg.op, msg.payload.len());
    let counters = core.nets.lo_counters.get(cpt.0);
    if let Some(counters) = counters {
        counters.count_sent(&op, len);
        counters.count_received(&op, len);
    }
    match core.receive(msg, Arrival { cpt, routed: false }, &|_| false) {
        Delivery::Taken(answer) => answer,
        Delivery::Full(blocked) => blocked.deliver().await,
        Delivery::Dropped(why) => {
            if let Some(counters) = counters {
                counters.count_dropped(&op, len);
            }
            tracing::debug!("dropping a message to this node: {why}");
            None
        }
    }
}
