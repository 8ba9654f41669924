//! The driver `lo`: this node itself. A message is taken where it is sent, its payload by reference; the only wait is
//! that of the sender while a lazy portal's sink is full, so nothing queues here and nothing recurses.

use crate::core::{Core, Verdict};
use crate::counters::Counters;
use crate::message::Msg;
use cpt::CptId;

/// Delivers `msg` to this node. Gives back the answer, if there is one; `None` as well when nobody wanted it.
pub(crate) async fn deliver(core: &Core, counters: &Counters, msg: Msg, cpt: CptId) -> Option<Msg> {
    let bytes = msg.payload.len();
    counters.sent(cpt, 1, bytes);
    counters.received(cpt, bytes);
    match core.receive(msg, cpt, &|_| false) {
        Verdict::Taken(answer) => answer,
        Verdict::Full(delayed) => delayed.deliver().await,
        Verdict::Dropped(why) => {
            counters.dropped(cpt, bytes);
            tracing::debug!("a message to this node was dropped: {why}");
            None
        }
    }
}
