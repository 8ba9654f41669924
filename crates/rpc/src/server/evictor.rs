//! The ping evictor: clients of which nothing has been heard for six ping intervals are evicted (guide 3.8).

use crate::Ptlrpc;
use std::sync::{Arc, Weak};
use tokio::time::{Instant, sleep};
use wire::OBD_CONNECT_PINGLESS;

/// Starts it; it ends with the `Ptlrpc`.
pub(crate) fn start(rpc: &Arc<Ptlrpc>) {
    let cpt = rpc.cpts().get(cpt::CptId(0));
    cpt.spawn(run(Arc::downgrade(rpc)));
}

async fn run(rpc: Weak<Ptlrpc>) {
    let Some(interval) = rpc.upgrade().map(|rpc| rpc.config().ping_interval) else {
        return;
    };
    loop {
        let slept_at = Instant::now();
        sleep(interval).await;
        let Some(rpc) = rpc.upgrade() else { return };
        // A machine that stood still has not heard its clients: it cannot say that they were silent.
        if slept_at.elapsed() > interval * 2 {
            continue;
        }
        look(&rpc).await;
    }
}

async fn look(rpc: &Arc<Ptlrpc>) {
    let limit = rpc.config().evict_after();
    for exports in rpc.targets().all() {
        for export in exports.all() {
            let silent = export.silent_for();
            if silent > limit && !export.has(OBD_CONNECT_PINGLESS) {
                export.evict(&format!("silent for {} s", silent.as_secs())).await;
            }
        }
    }
}
