//! Recovery of the MDT after a restart: the records of clients, the requests that clients replay,
//! and the work that waits for the end of recovery.
//!
//! A client that was connected before the restart replays the requests that the crash may have
//! undone, and the opens of files that it still has open. Until all clients have done so, nothing
//! may conclude that a file or an object is unused:
//!
//! - a file without names may be open: it stays, as an orphan;
//! - an object without a file may belong to a create that a client will replay: the MDT neither
//!   scans for such objects nor tells the OSTs which ids it has allocated.
//!
//! [`rpc::Target::recovered`] ends this state.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use osd::clients::ClientRecords;
use parking_lot::Mutex;
use rpc::{EndReason, Export, Holdings, KeptReply, KnownClient, Mark, ServerRequest};
use wire::{Errno, LDLM_ENQUEUE, LockTerms, MDS_REINT, Nid, Transno};

use super::Mdt;
use crate::{
    namespace::{self, destroy_orphan},
    osp::orphans::{self, IdRanges},
    store::{Change, Origin, ReplySlot, RequestStore, Store},
};

/// The number of a client in the records of clients, stored with its export.
#[derive(Default)]
struct ClientNumber(OnceLock<u32>);

/// The state of recovery.
pub(super) struct Recovery {
    /// The records of the clients.
    clients: Arc<ClientRecords>,
    /// Whether clients may still replay requests.
    is_active: AtomicBool,
    /// Whether the target stops: the next start lets its clients recover.
    is_stopping: AtomicBool,
    /// The clients of earlier starts, until the RPC layer takes them.
    known: Mutex<Vec<KnownClient>>,
    /// The ids of objects that may belong to no file, while the scan for them is postponed.
    ids: Mutex<IdRanges>,
}

impl Recovery {
    /// Reads the records of clients. If there are any, recovery begins: the index records no
    /// transaction as committed until it ends.
    pub(super) async fn begin(store: &Store, server: &[Nid]) -> Result<Recovery, Errno> {
        let clients = ClientRecords::load(store.index().clone()).await?;
        let known = clients.known(server).await?;
        let is_active = !known.is_empty();
        match is_active {
            true => store.transactions().begin_recovery(),
            false => clients.record_server(server).await?,
        }
        Ok(Recovery {
            clients: Arc::new(clients),
            is_active: is_active.into(),
            is_stopping: false.into(),
            known: Mutex::new(known),
            ids: Mutex::default(),
        })
    }

    /// Whether clients may still replay requests.
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Postpones the scan for objects that belong to no file.
    pub(super) fn postpone_scan(&self, ids: IdRanges) {
        *self.ids.lock() = ids;
    }
}

impl Mdt {
    /// Whether clients may still replay requests.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery.is_active()
    }

    /// Whether the client replays this request, and the target lets it. Outside of recovery the
    /// flag has no effect: a replay skips checks of permission.
    pub(crate) fn is_replay(&self, req: &ServerRequest) -> bool {
        self.replayed_transno(req).is_some()
    }

    /// The number under which an earlier start executed the request, if [`Mdt::is_replay`]. Only an
    /// open is replayed after its commit.
    pub(crate) fn replayed_transno(&self, req: &ServerRequest) -> Option<Transno> {
        let transno = req.replayed_transno().filter(|_| self.recovery.is_active())?;
        let transactions = self.store.transactions();
        let first = match req.opc {
            LDLM_ENQUEUE => Transno(1),
            _ => Transno(transactions.committed().0 + 1),
        };
        (first..=Transno(transactions.epoch() << 32))
            .contains(&transno)
            .then_some(transno)
    }

    /// The store, for the changes of a request.
    pub(crate) fn request_store(&self, req: &ServerRequest) -> RequestStore<'_> {
        let slot = match req.body.pb_tag {
            0 => None,
            tag => self.client_number(&req.export).map(|client| ReplySlot {
                client,
                tag,
                xid: req.xid,
                status: 0,
                data: 0,
            }),
        };
        let replayed = self.replayed_transno(req);
        RequestStore::new(&self.store, Origin { replayed, slot })
    }

    /// The kept reply to a request that an earlier start executed with another MDT.
    pub(super) fn reply_of_update(&self, req: &ServerRequest) -> Option<KeptReply> {
        if req.opc != MDS_REINT || self.updates.has_no_replies() {
            return None;
        }
        let client = self.client_number(&req.export)?;
        self.updates.reply_of(client, req.xid)
    }

    /// The number of a client in the records of clients. `None` for a client without a record,
    /// which cannot recover.
    fn client_number(&self, export: &Arc<Export>) -> Option<u32> {
        let known = export.ext::<ClientNumber>();
        known.0.get().copied().or_else(|| {
            let number = self.recovery.clients.number(&export.client_uuid)?;
            Some(*known.0.get_or_init(|| number))
        })
    }

    /// The clients of earlier starts; none after the first call.
    pub(super) fn take_known_clients(&self) -> Vec<KnownClient> {
        std::mem::take(&mut *self.recovery.known.lock())
    }

    /// Records a client durably.
    pub(super) async fn record_client(&self, export: &Arc<Export>) -> Result<(), Errno> {
        let is_lustre = export.lock_terms() != LockTerms::Nacre && !export.is_server();
        let (uuid, nid) = (&export.client_uuid, export.peer());
        Ok(self.recovery.clients.remember(uuid, nid, is_lustre).await?)
    }

    /// Records that a client may hold something in a part of the target. Also records the client,
    /// if it connected during a recovery and has no record yet.
    pub(super) async fn record_holding(
        &self,
        export: &Arc<Export>,
        mark: Mark,
        replaced: Vec<Mark>,
    ) -> Result<(), Errno> {
        if self.client_number(export).is_none() {
            self.record_client(export).await?;
        }
        let uuid = &export.client_uuid;
        let added = self.recovery.clients.add_holding(uuid, mark, &replaced).await;
        Ok(added.inspect_err(|e| {
            tracing::warn!("{}: cannot record what client {uuid} holds: {e}", self.uuid);
        })?)
    }

    /// Replaces the record of what a client may hold.
    pub(super) fn replace_records_of_holdings(
        &self,
        export: &Arc<Export>,
        before: &Holdings,
        now: &Holdings,
    ) {
        let uuid = &export.client_uuid;
        if let Err(e) = self.recovery.clients.replace_holdings(uuid, before, now) {
            let mdt = &self.uuid;
            tracing::warn!("{mdt}: cannot remove records of what client {uuid} held; they stay: {e}");
        }
    }

    /// Removes the record of a client, and its kept replies in a task.
    pub(super) fn remove_client_record(&self, client: &str) {
        let uuid = self.uuid.clone();
        let number = match self.recovery.clients.forget(client) {
            Ok(None) => return,
            Ok(Some(number)) => number,
            Err(e) => {
                tracing::error!(
                    "{uuid}: cannot remove the record of client {client}; the next start waits for it: {e}"
                );
                return;
            }
        };
        let records = self.recovery.clients.clone();
        cpt::spawn(async move {
            if let Err(e) = records.remove_traces(number).await {
                tracing::error!("{uuid}: cannot remove kept replies; the next start removes them: {e}");
            }
        });
    }

    /// Drops the locks, open files and sequences of a client. If the target stops, the client keeps
    /// its record and the files that it has open without names.
    pub(super) async fn end_export(&self, export: &Arc<Export>, why: EndReason) {
        match why {
            EndReason::TargetStops => self.recovery.is_stopping.store(true, Ordering::Release),
            EndReason::Disconnected | EndReason::Evicted => self.remove_client_record(&export.client_uuid),
        }
        self.drop_client_state(export).await;
    }

    /// Drops the locks, open files, sequences and sessions of a client.
    pub(super) async fn drop_client_state(&self, export: &Arc<Export>) {
        self.updates.end_sessions(export);
        self.locks.server().drop_export(export).await;
        self.close_all(export).await;
        self.sequence_owners.release_all(export);
    }

    /// Closes all open files of a client. A file without names is destroyed by its last close, but
    /// not while other clients may have it open without the target's knowledge: after a restart
    /// until they have recovered, and while the target stops.
    async fn close_all(&self, export: &Arc<Export>) {
        let keeps_orphans = self.recovery.is_active() || self.recovery.is_stopping.load(Ordering::Acquire);
        for file in self.handles(export).drain() {
            let (fid, mode) = (file.fid, file.mode);
            let closed = match keeps_orphans {
                true => namespace::drop_handle((&self.store).into(), fid, mode),
                false => namespace::close(&self.store, fid, mode, None).await.map(drop),
            };
            if let Err(e) = closed {
                let (uuid, client) = (&self.uuid, &export.client_uuid);
                tracing::error!("{uuid}: cannot close {fid} of client {client}: {e}");
            }
        }
    }

    /// Ends recovery: all clients have replayed their requests, or are evicted. The first commit
    /// afterwards covers the replays, so that clients learn that they are durable.
    pub(super) async fn finish_recovery(&self) {
        self.updates.wait_until_ready().await;
        if !self.recovery.is_active.swap(false, Ordering::AcqRel) {
            return;
        }
        self.store.transactions().end_recovery();
        if let Err(e) = remove_orphans(&self.store).await {
            tracing::error!(
                "{}: cannot destroy files that were removed while open; the next start destroys them: {e}",
                self.uuid
            );
        }
        let nids = self.rpc.lnet().nids();
        if let Err(e) = self.recovery.clients.record_server(&nids).await {
            tracing::error!("{}: cannot record the NIDs of this server: {e}", self.uuid);
        }
        if let Err(e) = self.commit_replays().await {
            tracing::error!("{}: cannot commit the replayed requests: {e}", self.uuid);
        }
        let mut ids = std::mem::take(&mut *self.recovery.ids.lock());
        match orphans::extend_to_bounds(&self.store, &mut ids).await {
            Ok(()) => self.scan_for_orphan_objects(ids),
            Err(e) => tracing::error!("{}: cannot read the records of OST objects: {e}", self.uuid),
        }
        self.osts.allow_creates();
        self.locks.server().replay_done();
    }

    async fn commit_replays(&self) -> Result<(), Errno> {
        let applied = self.store.apply(Change::new()).await?;
        self.store.index().sync().await?;
        // Replays and lost commits have queued work under older numbers.
        self.store.announce_work(applied.transno);
        Ok(())
    }
}

/// Destroys the files that were removed while open, and that no client has open.
pub(super) async fn remove_orphans(store: &Store) -> Result<(), Errno> {
    let mut from = None;
    loop {
        let orphans = store.orphans(from).await?;
        let Some(last) = orphans.last() else {
            return Ok(());
        };
        from = Some(*last);
        for fid in orphans {
            store.index().throttle().await;
            destroy_orphan(store, fid).await?;
        }
    }
}
