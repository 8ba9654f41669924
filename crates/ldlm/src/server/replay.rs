//! The time after a start of the target in which clients replay the locks that they had before.

use super::LockServer;
use crate::action::{LockRequest, Placement, Refusal};
use rpc::Export;
use std::sync::atomic::Ordering;
use wire::LdlmRequest;

impl LockServer {
    /// Begins to accept replays of locks. To be called before the target serves the first request
    /// of a recovery; ended by [`LockServer::replay_done`]. Until then no replayed lock is revoked
    /// or leaves the queue, and intents of clients that replay get no locks: a client ignores the
    /// reply to an intent that it replays, and replays the lock afterwards. New clients get locks
    /// where no lock is missing ([`Export::claim`]). The target's own tasks must not request locks
    /// meanwhile, except for requests of clients.
    pub fn begin_replay(&self) {
        self.replaying.store(true, Ordering::Release);
        for shard in &self.shards {
            shard.lock().ns.begin_replay();
        }
    }

    /// All clients have replayed their locks or are evicted: grants the waiting locks that no lock
    /// blocks, and revokes the locks that block the others.
    pub fn replay_done(&self) {
        for shard in 0..self.shards.len() {
            self.with_shard(shard, |ns, now, out| ns.replay_done(now, out));
        }
        self.replaying.store(false, Ordering::Release);
    }

    /// Whether clients replay their locks.
    pub fn is_replaying(&self) -> bool {
        self.replaying.load(Ordering::Acquire)
    }

    /// Whether a request replays a lock. The flag counts only during the time for replays, because
    /// a replay is granted without a check for conflicts, and only for clients that recover.
    pub(super) fn is_replay(&self, export: &Export, dlm: &LdlmRequest) -> bool {
        let has_flag = u64::from(dlm.lock_flags) & wire::LDLM_FL_REPLAY != 0;
        has_flag && self.is_replaying() && !export.is_newcomer()
    }

    /// Whether a client cannot get new locks: it is one of those that replay theirs.
    pub(super) fn is_replaying_for(&self, export: &Export) -> bool {
        self.is_replaying() && !export.is_newcomer()
    }

    /// Replays a lock. `blocked_flags` are the request's flags of `LDLM_FL_BLOCKED_MASK`: unless
    /// they say that the lock was granted, it is queued.
    pub(super) fn replay(&self, request: &LockRequest, blocked_flags: u64) -> Result<Placement, Refusal> {
        let granted = blocked_flags == wire::LDLM_FL_BLOCK_GRANTED;
        self.with_shard(
            self.shard_of(&request.res, request.policy.ty()),
            |ns, now, out| ns.replay(now, request, granted, out),
        )
    }
}
