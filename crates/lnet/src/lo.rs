//! The driver `lo`: this node itself. A message is taken where it is sent, its payload by reference; the only wait is
//! that of the sender while a lazy portal's sink is full, so nothing queues here. A sink that handles a message at once sees to it
//! that what it sends itself is not handled inside of that again.

use crate::core::{Arrived, Core, Verdict};
use crate::message::Msg;
use cpt::CptId;

/// Delivers `msg` to this node. Gives back the answer, if there is one; `None` as well when nobody wanted it.
pub(crate) async fn deliver(core: &Core, msg: Msg, cpt: CptId) -> Option<Msg> {
    let (op, len) = (msg.op, msg.payload.len());
    let counters = core.nets.lo.get(cpt.0);
    if let Some(counters) = counters {
        counters.sent(&op, len);
        counters.received(&op, len);
    }
    match core.receive(msg, Arrived { cpt, routed: false }, &|_| false) {
        Verdict::Taken(answer) => answer,
        Verdict::Full(delayed) => delayed.deliver().await,
        Verdict::Dropped(why) => {
            if let Some(counters) = counters {
                counters.dropped(&op, len);
            }
            tracing::debug!("a message to this node was dropped: {why}");
            None
        }
    }
}
