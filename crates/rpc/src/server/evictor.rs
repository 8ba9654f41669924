//! The ping evictor: clients of which nothing has been heard for six ping intervals are evicted (guide 3.8).

use crate::Ptlrpc;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use wire::OBD_CONNECT_PINGLESS;

/// So much later than it may it looks, for all that are due about then.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Starts it; it ends with the `Ptlrpc`.
pub(crate) fn start(rpc: &Arc<Ptlrpc>) {
    let cpt = rpc.cpts().get(cpt::CptId(0));
    cpt.spawn(run(Arc::downgrade(rpc)));
}

async fn run(rpc: Weak<Ptlrpc>) {
    let Some(interval) = rpc.upgrade().map(|rpc| rpc.config().ping_interval) else {
        return;
    };
    let mut pause = interval;
    loop {
        let slept_at = Instant::now();
        sleep(pause).await;
        let Some(rpc) = rpc.upgrade() else { return };
        // A machine that stood still has not heard its clients: it cannot say that they were silent.
        if slept_at.elapsed() > pause + interval {
            pause = interval;
            continue;
        }
        pause = interval.min(look(&rpc).await);
    }
}

/// Evicts who has been silent for too long; how soon that may be said of another one.
async fn look(rpc: &Arc<Ptlrpc>) -> Duration {
    let limit = rpc.config().evict_after();
    let mut next = limit;
    for exports in rpc.targets().all() {
        for export in exports.all() {
            if export.has(OBD_CONNECT_PINGLESS) {
                continue;
            }
            let silent = export.silent_for();
            match limit.checked_sub(silent) {
                Some(left) => next = next.min(left + PAUSE_MIN),
                None => export.evict(&format!("silent for {} s", silent.as_secs())).await,
            }
        }
    }
    next
}
