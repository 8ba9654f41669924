//! Claims of what clients lock ([`Export::claim`]): a client's lock, or the server's own lock for a
//! client's change, needs a record that the client may hold something there.

use super::{LockServer, holder};
use crate::action::LockRequest;
use crate::mode::LockMode;
use crate::policy::LockType;
use rpc::{Access, Export, Holdings};
use std::sync::Arc;
use wire::Errno;

/// The access that a lock of this mode gives.
fn access_of(mode: LockMode) -> Access {
    match mode {
        LockMode::Nl | LockMode::Cr | LockMode::Pr => Access::Read,
        _ => Access::Write,
    }
}

impl LockServer {
    /// Claims what a client is about to lock. While clients recover, a new client waits until none
    /// of them can have a conflicting lock; for a flock, of which there are no records, until the
    /// recovery ends.
    pub(super) async fn claim(&self, export: &Export, request: &LockRequest) -> Result<(), Errno> {
        if request.policy.ty() == LockType::Flock {
            return export.wait_until_recovered().await;
        }
        match self.lvb.part(&request.res) {
            Some(part) => export.claim(part, access_of(request.mode)).await,
            None => Ok(()),
        }
    }

    /// Claims what the server locks for a request of a client. The server's lock ends with the
    /// request, so only a change leaves something behind.
    pub(super) async fn claim_for(&self, export: &Export, request: &LockRequest) -> Result<(), Errno> {
        match (self.lvb.part(&request.res), access_of(request.mode)) {
            (Some(part), Access::Read) => export.wait_until_free(part, Access::Read).await,
            (Some(part), Access::Write) => export.claim(part, Access::Write).await,
            // A replayed operation may need a lock that belongs to no part, and must never wait for
            // a new client.
            (None, Access::Write) => export.wait_until_recovered().await,
            (None, Access::Read) => Ok(()),
        }
    }

    /// Whether a new client may have to wait for a lock because clients recover.
    pub(super) fn must_wait_to_claim(&self, export: &Export, request: &LockRequest) -> bool {
        let part = self.lvb.part(&request.res);
        part.is_some_and(|part| !export.is_free(part, access_of(request.mode)))
    }

    /// The parts of the target in which a client has or requests locks.
    pub fn holdings_of(&self, export: &Arc<Export>) -> Holdings {
        let mut holdings = Holdings::default();
        for shard in &self.shards {
            for lock in shard.lock().ns.locks_of(holder(export)) {
                if lock.policy.ty() != LockType::Flock
                    && let Some(part) = self.lvb.part(&lock.res)
                {
                    holdings.add_part(&part, access_of(lock.mode));
                }
            }
        }
        holdings
    }
}
