//! Claims: before a client gets something in a part of its target, the target records durably that
//! the client may hold something there; and while clients of an earlier start recover, a new client
//! waits until none of them can hold something that excludes it (docs/protocol.md, "Recovery").
//!
//! A record is on disk before the lock, the open file or the change that it announces. So after any
//! crash the records have all that the client may hold. Most claims find their part recorded, and
//! only read memory. If the store takes no changes, a client reads without a record. A record is
//! removed when the client rests: its ping shows that it waits for no request. Then the target
//! records anew what the client holds at present.

use super::holdings::{Access, Holdings, Mark, Part};
use super::{Export, Role};
use cpt::Bug;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use wire::{Errno, Transno};

/// The claims of one client.
#[derive(Default)]
pub(super) struct Claims {
    /// Whether the client connected during a recovery in which it takes no part.
    newcomer: AtomicBool,
    /// The recorded parts.
    recorded: RwLock<Holdings>,
    /// Held while a record is written.
    recording: tokio::sync::Mutex<()>,
    /// The last transaction of the client.
    last_transno: AtomicU64,
}

impl Claims {
    /// The client takes no part in the recovery that goes on.
    pub(super) fn set_newcomer(&self) {
        self.newcomer.store(true, Ordering::Release);
    }

    /// The target knows these records from an earlier start.
    pub(super) fn restore(&self, recorded: Holdings) {
        *self.recorded.write() = recorded;
    }

    /// A request of the client had this transaction.
    pub(super) fn note_transno(&self, transno: Transno) {
        self.last_transno.fetch_max(transno.0, Ordering::Relaxed);
    }
}

impl Export {
    /// Whether the client is new while clients of an earlier start recover.
    pub fn is_newcomer(&self) -> bool {
        self.claims.newcomer.load(Ordering::Acquire) && self.recovery().is_some()
    }

    /// Waits as [`Export::wait_until_free`], and then records durably that the client may hold
    /// something in a part of the target. The caller gives it nothing there before.
    ///
    /// # Errors
    ///
    /// As [`Export::wait_until_free`], or the record cannot be written.
    pub async fn claim(&self, part: Part, access: Access) -> Result<(), Errno> {
        self.wait_until_free(part, access).await?;
        self.record(|recorded| {
            let is_missing = !recorded.covers(&part, access);
            is_missing.then(|| recorded.mark_for(&part, access))
        })
        .await
    }

    /// Records durably that the client may change anything in a group, whose parts no other client
    /// has used so far.
    ///
    /// # Errors
    ///
    /// The record cannot be written.
    pub async fn claim_group(&self, group: u64) -> Result<(), Errno> {
        let any = Part {
            group,
            member: Mark::ALL_MEMBERS,
            is_new: true,
        };
        self.record(|recorded| {
            let is_missing = !recorded.covers(&any, Access::Write);
            is_missing.then(|| Mark::whole(Access::Write, group))
        })
        .await
    }

    /// Records durably the mark that `missing` selects by the recorded parts, if any.
    async fn record(&self, missing: impl Fn(&Holdings) -> Option<Mark>) -> Result<(), Errno> {
        if !self.has_records() || missing(&self.claims.recorded.read()).is_none() {
            return Ok(());
        }
        // One record at a time: a mark of a whole group replaces all marks of its parts.
        let _recording = self.claims.recording.lock().await;
        // The end of the client waits for the guard, and removes the record then.
        let _change = self.change()?;
        let me = self.me().ok_or(Errno::ENOTCONN)?;
        let (mark, replaced) = {
            let recorded = self.claims.recorded.read();
            let Some(mark) = missing(&recorded) else {
                return Ok(());
            };
            (mark, recorded.replaced_by(mark))
        };
        match (
            self.target().record_holdings(&me, mark, replaced).await,
            mark.access,
        ) {
            (Ok(()), _) => self.claims.recorded.write().add(mark),
            // A store that takes no changes still serves readers.
            (Err(_), Access::Read) => {}
            (Err(errno), Access::Write) => return Err(errno),
        }
        Ok(())
    }

    /// Waits while the client is new and a client of an earlier start, which has not recovered yet,
    /// may hold something that excludes this access to a part of the target.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected.
    pub async fn wait_until_free(&self, part: Part, access: Access) -> Result<(), Errno> {
        match self.recovery().filter(|_| self.is_newcomer()) {
            Some(recovery) if !Bug::NewClientNotChecked.is_planted() => {
                recovery.wait_until_free(part, access, self).await
            }
            _ => Ok(()),
        }
    }

    /// Whether [`Export::wait_until_free`] has nothing to wait for.
    pub fn is_free(&self, part: Part, access: Access) -> bool {
        let recovery = self.recovery().filter(|_| self.is_newcomer());
        recovery.is_none_or(|recovery| recovery.is_free(&part, access))
    }

    /// Waits for the end of the recovery if the client is new.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client has disconnected.
    pub async fn wait_until_recovered(&self) -> Result<(), Errno> {
        match self.recovery().filter(|_| self.is_newcomer()) {
            Some(recovery) => recovery.wait_until_complete(self).await,
            None => Ok(()),
        }
    }

    /// Whether the target keeps records of the client: servers need none, and clients of this
    /// process end with the target.
    fn has_records(&self) -> bool {
        let connection = self.connection();
        connection.role == Role::Client && !connection.peer.is_lo()
    }

    /// Records anew what the client holds, if it rests: none of its requests is in execution, and
    /// its changes are on disk.
    pub(super) fn tidy_claims(self: &Arc<Self>) {
        if self.recovery().is_some() || !self.has_records() {
            return;
        }
        // A request that begins now waits for this lock at its first claim.
        let mut recorded = self.claims.recorded.write();
        let last = Transno(self.claims.last_transno.load(Ordering::Relaxed));
        let rests = !self.is_busy() && self.target().last_committed() >= last;
        if recorded.is_empty() || !rests || self.is_gone() {
            return;
        }
        if let Some(now) = self.target().holdings_of(self)
            && now != *recorded
        {
            self.target().replace_holdings(self, &recorded, &now);
            *recorded = now;
        }
    }
}
