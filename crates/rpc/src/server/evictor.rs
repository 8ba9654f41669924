//! The ping evictor: evicts clients that have been silent for six ping intervals, except those
//! that negotiated not to ping (`OBD_CONNECT_PINGLESS`).

use crate::Ptlrpc;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use wire::OBD_CONNECT_PINGLESS;

/// Delay of the next check after the time at which the first client reaches the limit. One check
/// then covers all clients that reach the limit within the delay.
const CHECK_DELAY: Duration = Duration::from_secs(1);

/// Starts the evictor, which ends with the `Ptlrpc`.
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
        // After a suspend of this machine, silence does not prove that clients are dead.
        if slept_at.elapsed() > pause + interval {
            pause = interval;
            continue;
        }
        pause = interval.min(evict_silent(&rpc).await);
    }
}

/// Evicts all clients that have been silent for too long. Returns the time until the next check.
async fn evict_silent(rpc: &Arc<Ptlrpc>) -> Duration {
    let limit = rpc.config().eviction_silence();
    let mut next = limit;
    for exports in rpc.targets().all() {
        if exports.is_recovering() {
            continue;
        }
        for export in exports.all() {
            if export.has(OBD_CONNECT_PINGLESS) {
                continue;
            }
            let silent = export.silent_for();
            match limit.checked_sub(silent) {
                Some(left) => next = next.min(left + CHECK_DELAY),
                None => export.evict(&format!("silent for {} s", silent.as_secs())).await,
            }
        }
    }
    next
}
