//! Recovery of clients after a restart of the target (docs/protocol.md, "Recovery").
//!
//! Clients replay the requests that are perhaps not on disk, in the order of their transaction
//! numbers. The target executes each again under its number, no matter whether the objects already
//! contain the change or later ones: once all later changes follow, an object is as before the
//! restart. This holds because each change sets a range of data, a size or attributes to values of
//! its own. No reply is kept.
//!
//! A replay was accepted before. So the target does not refuse it for a reason that came up since:
//! an expired capability, a grant that the target no longer knows, a lost record of the object's
//! creation, or another file or owner to which an MDT has given the object. MDTs replay nothing.
//! They send their requests again if the effect is not on disk, even before the clients' replays.
//! Therefore a replay keeps the owner and the file of an object.

use std::time::Duration;

use osd::{Batch, ObjAttr, OsdError, SetAttr};
use rpc::{Export, Mark, ServerRequest};
use tokio::time::{Instant, sleep};
use wire::{
    Errno, Fid, LDLM_ENQUEUE, LDLM_FL_REPLAY, LdlmRequest, OST_FALLOCATE, OST_PUNCH, OST_SETATTR, OST_WRITE,
    OstId, Precision, Transno, format::bufs,
};

use crate::Ost;

/// How long a replay waits for the keys of capabilities, which the target reads from the MGS.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks for these keys.
const KEYS_POLL: Duration = Duration::from_millis(100);

impl Ost {
    /// Makes a record of a client. A server needs none: it replays nothing.
    ///
    /// # Errors
    ///
    /// The record cannot be written.
    pub(crate) async fn record_client(&self, export: &Export) -> Result<(), Errno> {
        if export.is_server() {
            return Ok(());
        }
        // Only Nacre's clients send nanoseconds.
        let is_lustre = export.precision() == Precision::Seconds;
        let recorded = self
            .client_records
            .remember(&export.client_uuid, export.peer(), is_lustre);
        recorded
            .await
            .map_err(|e| self.client_record_error(&export.client_uuid, &e))
    }

    /// Records that a client may hold something in a part of the target. Also records the client,
    /// if it connected during a recovery and has no record yet.
    ///
    /// # Errors
    ///
    /// The record cannot be written.
    pub(crate) async fn record_holding(
        &self,
        export: &Export,
        mark: Mark,
        replaced: Vec<Mark>,
    ) -> Result<(), Errno> {
        let uuid = &export.client_uuid;
        if self.client_records.number(uuid).is_none() {
            self.record_client(export).await?;
        }
        let added = self.client_records.add_holding(uuid, mark, &replaced).await;
        added.map_err(|e| self.client_record_error(uuid, &e))
    }

    /// Removes the record of a client, and the records of what it held in a task.
    pub(crate) fn remove_client_record(&self, client: &str) {
        let number = match self.client_records.forget(client) {
            Ok(None) => return,
            Ok(Some(number)) => number,
            Err(e) => {
                self.client_record_error(client, &e);
                return;
            }
        };
        let (records, ost) = (self.client_records.clone(), self.svname.clone());
        cpt::spawn(async move {
            if let Err(e) = records.remove_traces(number).await {
                tracing::error!(%ost, "cannot remove the records of what a client held; the next start removes them: {e}");
            }
        });
    }

    pub(crate) fn client_record_error(&self, client: &str, e: &OsdError) -> Errno {
        tracing::error!(ost = %self.svname, client, "cannot change the record of a client: {e}");
        e.errno()
    }

    /// All clients have recovered, or are evicted.
    pub(crate) async fn end_recovery(&self) {
        let nids = self.rpc.lnet().nids();
        if let Err(e) = self.client_records.record_server(&nids).await {
            tracing::error!(ost = %self.svname, "cannot record the NIDs of this server: {e}");
        }
        if let Err(e) = self.committer.end_recovery().await {
            tracing::error!(ost = %self.svname, "cannot commit the requests that clients replayed: {e}");
        }
        self.locks.replay_done();
    }

    /// The number of the transaction that a client replays; `None` if the request is new.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the transaction is on disk, or no earlier start can have executed it.
    pub(crate) fn replayed(&self, req: &ServerRequest) -> Result<Option<Transno>, Errno> {
        let may_be_replay =
            self.committer.is_recovering() && !req.export.is_server() && !req.export.is_newcomer();
        let Some(transno) = req.replayed_transno().filter(|_| may_be_replay) else {
            return Ok(None);
        };
        if self.committer.may_replay(transno) {
            return Ok(Some(transno));
        }
        let (client, committed) = (&req.export.client_uuid, self.committer.last_committed());
        lnet::warn_rate_limited!(ost = %self.svname, peer = %req.peer, %client, opc = req.opc, %transno, %committed, "replay refused: the transaction is committed, or an earlier start did not execute it");
        Err(Errno::EINVAL)
    }

    /// Whether a client that recovers claims again what it did or held before the restart: a
    /// transaction or a lock.
    pub(crate) fn is_claim(&self, req: &ServerRequest) -> bool {
        let replays_lock = || {
            let request = req.get::<LdlmRequest>(bufs::DLM_REQ);
            request.is_ok_and(|r| u64::from(r.lock_flags) & LDLM_FL_REPLAY != 0)
        };
        let is_claim = match req.opc {
            OST_WRITE | OST_PUNCH | OST_SETATTR | OST_FALLOCATE => req.is_replay(),
            LDLM_ENQUEUE => replays_lock(),
            _ => false,
        };
        is_claim && self.committer.is_recovering() && !req.export.is_newcomer()
    }

    /// Checks that the sender may send the request, like [`Ost::check_permissions`]. A client that
    /// recovers waits until the target has the keys of capabilities.
    ///
    /// # Errors
    ///
    /// As [`Ost::check_permissions`].
    pub(crate) async fn permit(&self, req: &ServerRequest) -> Result<(), Errno> {
        let give_up_at = Instant::now() + KEYS_TIMEOUT;
        loop {
            let permitted = self.check_permissions(req);
            let waits = permitted == Err(Errno::EINPROGRESS) && self.is_claim(req);
            if !waits || Instant::now() >= give_up_at {
                return permitted;
            }
            sleep(KEYS_POLL).await;
        }
    }

    /// The object of a request that changes it. If the request is a replay and the record of the
    /// object's creation is lost, creates the object again.
    ///
    /// # Errors
    ///
    /// As [`Ost::object_to_change`].
    pub(crate) async fn object_of_change(&self, id: &OstId, replayed: Option<Transno>) -> Result<Fid, Errno> {
        if replayed.is_some() {
            self.create_again(self.sequences.fid(id)).await?;
        }
        self.object_to_change(id)
    }

    /// Creates an object, if an earlier start may have created it and a crash lost the record.
    /// Later precreations then do not use its id. When the MDT reports its last object, the target
    /// destroys those above.
    async fn create_again(&self, fid: Fid) -> Result<(), Errno> {
        let Some(sequence) = self.sequences.find(fid.f_seq) else {
            return Ok(());
        };
        let _create = sequence.create_lock.lock().await;
        if self.sequences.is_created(&fid) || !self.sequences.may_exist(&fid) {
            return Ok(());
        }
        if u64::from(fid.f_oid) > sequence.lost_last_max() {
            let last = sequence.last();
            lnet::warn_rate_limited!(ost = %self.svname, %fid, last, "replay refused: its object is far above the last known object of the sequence");
            return Err(Errno::ENOENT);
        }
        let mut batch = Batch::new();
        self.sequences.set_last(&sequence, fid.f_oid.into(), &mut batch);
        self.index
            .apply(batch)
            .map_err(|e| self.store_error("create again", fid, &e))
    }
}

/// The attributes that a change sets. A replay keeps the owner and the file of an object that has
/// them.
pub(crate) fn set_by(replayed: Option<Transno>, before: Option<&ObjAttr>, set: SetAttr) -> SetAttr {
    let (Some(_), Some(before)) = (replayed, before) else {
        return set;
    };
    let has_owner = (before.uid, before.gid, before.projid) != (0, 0, 0);
    let has_parent = before.parent != Fid::ZERO;
    SetAttr {
        uid: set.uid.filter(|_| !has_owner),
        gid: set.gid.filter(|_| !has_owner),
        projid: set.projid.filter(|_| !has_owner),
        parent: set.parent.filter(|_| !has_parent),
        ..set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_keeps_the_owner_and_the_file_of_an_object() {
        let set = SetAttr {
            uid: Some(1),
            gid: Some(2),
            parent: Some(Fid::new(5, 6, 0)),
            data_version: Some(7),
            ..SetAttr::default()
        };
        let replayed = Some(Transno(7));
        assert_eq!(set_by(replayed, None, set), set);
        let owned = ObjAttr {
            uid: 9,
            ..ObjAttr::default()
        };
        assert_eq!(set_by(None, Some(&owned), set), set);
        let kept = set_by(replayed, Some(&owned), set);
        assert_eq!((kept.uid, kept.gid), (None, None));
        assert_eq!((kept.parent, kept.data_version), (set.parent, set.data_version));
        let given = ObjAttr {
            parent: Fid::new(8, 8, 0),
            ..ObjAttr::default()
        };
        let kept = set_by(replayed, Some(&given), set);
        assert_eq!((kept.parent, kept.uid), (None, set.uid));
    }
}
