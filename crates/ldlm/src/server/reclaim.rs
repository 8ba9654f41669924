//! Revokes locks when there are too many of them.

use super::{LockServer, SHARDS, now};
use lnet::warn_rate_limited;
use std::sync::{Arc, Weak};
use std::time::Duration;
use wire::Errno;

/// Pause between checks while clients cancel.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause between checks while this server has no lock to revoke.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new lock waits at the limit before it is refused.
const LIMIT_WAIT_MAX: Duration = Duration::from_secs(20);
/// The server reclaims no locks while this many revoked ones are not cancelled yet.
const REVOKED_MAX: u64 = 4096;

/// Starts a task that reclaims locks whenever there are too many, while the server exists.
pub(super) fn watch(server: &Arc<LockServer>) {
    let (limits, server): (_, Weak<LockServer>) = (server.limits.clone(), Arc::downgrade(server));
    cpt::spawn(async move {
        loop {
            let over_threshold = limits.over_threshold.notified();
            tokio::pin!(over_threshold);
            over_threshold.as_mut().enable();
            loop {
                let Some(pause) = server.upgrade().map(|s| s.reclaim_surplus()) else {
                    return;
                };
                let Some(pause) = pause else { break };
                tokio::time::sleep(pause).await;
            }
            over_threshold.await;
        }
    });
}

impl LockServer {
    /// Revokes this server's share of the surplus, less the locks that it has already revoked.
    /// Returns the time until the next check; `None` without a surplus.
    fn reclaim_surplus(&self) -> Option<Duration> {
        let (mut own, mut revoked) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            own += shard.ns.lock_count() as u64;
            revoked += shard.ns.revoked_count() as u64;
        }
        let (surplus, all) = (self.limits.surplus(), self.limits.locks().max(1));
        if surplus == 0 {
            return None;
        }
        // This server may get locks during a surplus without another notification.
        if own == 0 {
            return Some(IDLE_INTERVAL);
        }
        let share = (u128::from(surplus) * u128::from(own) / u128::from(all)) as u64 + 1;
        let mut to_revoke = share.min(REVOKED_MAX).saturating_sub(revoked);
        let (has_share, mut exhausted) = (to_revoke > 0, true);
        for shard in 0..SHARDS {
            let part = to_revoke.div_ceil((SHARDS - shard) as u64);
            let result = self.with_shard(shard, |ns, now, out| ns.reclaim(now, part as usize, out));
            to_revoke -= (result.revoked as u64).min(to_revoke);
            exhausted &= result.exhausted;
        }
        // The remaining locks may be of kinds that are never reclaimed.
        Some(if has_share && exhausted {
            IDLE_INTERVAL
        } else {
            POLL_INTERVAL
        })
    }

    /// At the limit, waits until clients have cancelled locks. Fails with `ENOMEM` if the limit is
    /// still reached after [`LIMIT_WAIT_MAX`].
    pub(super) async fn wait_below_limit(&self) -> Result<(), Errno> {
        let started_at = now();
        while self.limits.is_full() {
            if now().duration_since(started_at) > LIMIT_WAIT_MAX {
                warn_rate_limited!(
                    ns = self.name,
                    locks = self.limits.locks(),
                    "lock refused: the limit is reached and clients do not cancel locks; \
                    ldlm.lock_limit_mb raises the limit"
                );
                return Err(Errno::ENOMEM);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
