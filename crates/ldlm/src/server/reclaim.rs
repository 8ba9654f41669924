//! Asking locks back for their number only.

use super::{LockServer, SHARDS, now};
use lnet::warn_seldom;
use std::sync::{Arc, Weak};
use std::time::Duration;
use wire::Errno;

/// Before it is looked again how many have come back.
const PAUSE: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(1);
/// How long a new lock waits at the limit.
const ROOM_MAX: Duration = Duration::from_secs(20);
/// Locks asked back and not given back yet, in all.
const ASKED_MAX: u64 = 4096;

/// Asks for locks whenever there are too many, as long as the server lives.
pub(super) fn watch(server: &Arc<LockServer>) {
    let (limits, server): (_, Weak<LockServer>) = (server.limits.clone(), Arc::downgrade(server));
    tokio::spawn(async move {
        loop {
            let exceeded = limits.exceeded.notified();
            tokio::pin!(exceeded);
            exceeded.as_mut().enable();
            loop {
                let Some(pause) = server.upgrade().map(|s| s.ask_for_surplus()) else {
                    return;
                };
                let Some(pause) = pause else { break };
                tokio::time::sleep(pause).await;
            }
            exceeded.await;
        }
    });
}

impl LockServer {
    /// Asks for this server's share of what is too much, besides what it asked for already. When to look
    /// again; `None`: there is not too much.
    fn ask_for_surplus(&self) -> Option<Duration> {
        let (mut own, mut asked) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            own += shard.ns.lock_count() as u64;
            asked += shard.ns.asked_count() as u64;
        }
        let (surplus, all) = (self.limits.surplus(), self.limits.locks().max(1));
        if surplus == 0 {
            return None;
        }
        // Its share may grow while there is too much, of which nobody would tell it.
        if own == 0 {
            return Some(IDLE);
        }
        let share = (u128::from(surplus) * u128::from(own) / u128::from(all)) as u64 + 1;
        let mut more = share.min(ASKED_MAX).saturating_sub(asked);
        let (wanted, mut exhausted) = (more > 0, true);
        for shard in 0..SHARDS {
            let part = more.div_ceil((SHARDS - shard) as u64);
            let found = self.with(shard, |ns, now, out| ns.reclaim(now, part as usize, out));
            more -= (found.asked as u64).min(more);
            exhausted &= found.exhausted;
        }
        // What is left may be such as cannot be asked for.
        Some(if wanted && exhausted { IDLE } else { PAUSE })
    }

    /// Waits, at the limit, until clients have given locks back.
    pub(super) async fn room(&self) -> Result<(), Errno> {
        let begun = now();
        while self.limits.is_full() {
            if now().duration_since(begun) > ROOM_MAX {
                warn_seldom!(
                    ns = self.name,
                    locks = self.limits.locks(),
                    "too many locks, and clients give none back: a \
                    request for one is refused; ldlm.lock_limit_mb allows more"
                );
                return Err(Errno::ENOMEM);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}
