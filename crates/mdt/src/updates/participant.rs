//! The part of the MDT that has the name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cpt::HashMap;
use parking_lot::Mutex;
use rpc::{Export, Reply, ServerRequest};
use tokio::time::timeout;
use wire::{Errno, Fid, Transno};

use super::{
    Updates, kept,
    ledger::Batchid,
    message::{Message, NameChange, View, encode_records},
    record::UpdateRecord,
};
use crate::{
    locks::{RequestLocks, SharedUntilCommit},
    store::{Applied, Change, Mutation, S_IFDIR},
};

/// Index of the message's buffer.
const MESSAGE: usize = 1;
/// Maximum size of the records in one reply, bytes.
const PULL_BYTES_MAX: usize = 256 << 10;
/// Number of noted directories above which the committed ones are forgotten.
const COMMUTING_MAX: usize = 1024;
/// The longest time for which a name stays locked for its commit. A store that stops to commit must
/// not stop the directory, too.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum number of sessions of another MDT.
const SESSIONS_MAX: usize = 4096;

/// The sessions of a coordinator, stored with its export: they end with it.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<u64, Session>>);

/// A name that is locked for a coordinator.
struct Session {
    locks: SharedUntilCommit,
    /// The directory of the name.
    dir: Fid,
    /// The reply to [`Message::Prepare`].
    view: Bytes,
    _count: SessionCount,
}

/// Counts a session.
struct SessionCount(Arc<AtomicUsize>);

impl Drop for SessionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Updates {
    /// Handles a message of another MDT, `sender`. `recovers`: clients replay requests, so only
    /// operations that a client replays may change names.
    pub(crate) async fn handle(
        &self,
        req: &ServerRequest,
        sender: u32,
        recovers: bool,
    ) -> Result<Reply, Errno> {
        let export = &req.export;
        let answer = match Message::decode(&req.bytes(MESSAGE))? {
            Message::Prepare {
                session,
                change,
                dir,
                name,
                is_replay,
            } => {
                if !self.is_ready() || (recovers && !is_replay) {
                    return Err(Errno::EAGAIN);
                }
                self.prepare(export, sender, session, change, (dir, &name))
                    .await?
            }
            Message::Apply { session, record } => {
                self.apply_share(export, sender, session, record).await?;
                Bytes::new()
            }
            Message::Release { session } => {
                sessions(export).0.lock().remove(&session);
                Bytes::new()
            }
            Message::Pull { after } => self.records_for(sender, after).await?,
            Message::Forget { number } => {
                if self.unasked.lock().contains(&sender) {
                    // The sender may keep the only copy of a record that this MDT lacks.
                    return Err(Errno::EAGAIN);
                }
                self.forget(sender, sender, number)?;
                self.store.index().sync().await?;
                Bytes::new()
            }
        };
        Ok(Reply::new(vec![answer]))
    }

    /// Ends the sessions of an export.
    pub(crate) fn end_sessions(&self, export: &Arc<Export>) {
        let ended = std::mem::take(&mut *sessions(export).0.lock());
        drop(ended);
    }

    /// Locks a name, and reads its directory and its entry.
    async fn prepare(
        &self,
        export: &Arc<Export>,
        sender: u32,
        session: u64,
        change: NameChange,
        (dir, name): (Fid, &[u8]),
    ) -> Result<Bytes, Errno> {
        if let Some(known) = sessions(export).0.lock().get(&session) {
            return Ok(known.view.clone());
        }
        if sessions(export).0.lock().len() >= SESSIONS_MAX {
            return Err(Errno::EAGAIN);
        }
        self.note_partner(sender).await?;
        self.store.index().throttle().await;
        let mut locks = self.locks.request_locks(Some(export), false);
        let view = self
            .lock_and_read(&mut locks, change, (dir, name))
            .await?
            .encode();
        let new = Session {
            locks: locks.share_until_commit(),
            dir,
            view: view.clone(),
            _count: self.count_session(),
        };
        // The end of the export removes the sessions after it has marked the export: either it
        // finds this one, or this finds the mark.
        sessions(export).0.lock().insert(session, new);
        if export.is_gone() {
            self.end_sessions(export);
            return Err(Errno::ENOTCONN);
        }
        Ok(view)
    }

    fn count_session(&self) -> SessionCount {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        SessionCount(self.sessions.clone())
    }

    async fn lock_and_read(
        &self,
        locks: &mut RequestLocks<'_>,
        change: NameChange,
        (dir, name): (Fid, &[u8]),
    ) -> Result<View, Errno> {
        locks.lock_name_for_sharing(dir, name).await?;
        let entry = self.store.entry(dir, name).await?;
        if change == NameChange::Remove
            && let Some(entry) = entry.filter(|entry| entry.kind == S_IFDIR)
        {
            // The clients' locks that cover the name.
            locks.lock_for_removal(entry.fid).await?;
        }
        let inode = self.store.inode(dir).await?;
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if inode.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        // Commit on sharing: the new operation may become durable on the other MDT before the
        // changes that it builds on.
        if inode.version > self.store.transactions().committed().0 && !self.commutes(dir, inode.version) {
            self.store.index().sync().await?;
        }
        Ok(View { dir: inode, entry })
    }

    /// Applies this MDT's share of a record, and ends the session.
    async fn apply_share(
        &self,
        export: &Arc<Export>,
        sender: u32,
        session: u64,
        encoded: Bytes,
    ) -> Result<(), Errno> {
        let record = UpdateRecord::decode(&encoded)?;
        if (record.batchid.coordinator, record.participant) != (sender, self.index) {
            return Err(Errno::EPROTO);
        }
        let gate = self.gate(sender);
        let _open = gate.read().await;
        if self.ledger.lock().has(record.batchid, sender) {
            sessions(export).0.lock().remove(&session);
            return Ok(());
        }
        let session = sessions(export).0.lock().remove(&session);
        let session = session.filter(|_| !export.is_gone()).ok_or(Errno::ESTALE)?;
        let share = &record.participant_share;
        if !share
            .iter()
            .all(|mutation| mutation.names_of() == Some(session.dir))
        {
            return Err(Errno::EPROTO);
        }
        let adds = share.iter().any(|m| matches!(m, Mutation::EntryAdded { .. }));
        let mut change = if adds { Change::growing() } else { Change::new() };
        change.mutations.extend_from_slice(share);
        change.mutations.push(kept(&record, encoded.clone()));
        let applied = self.store.apply(change).await?;
        self.ledger.lock().keep(record.batchid, sender);
        self.note_commuting(session.dir, applied);
        self.share_until_commit(session, applied.transno);
        Ok(())
    }

    /// Whether this is the version of a directory that only operations with other MDTs have changed
    /// since the last commit. Operations on different names commute. The lock of a name excludes
    /// another operation on the same name until the commit.
    fn commutes(&self, dir: Fid, version: u64) -> bool {
        self.commuting.lock().get(&dir) == Some(&version)
    }

    /// Notes that an operation with another MDT has changed a directory.
    fn note_commuting(&self, dir: Fid, applied: Applied) {
        let committed = self.store.transactions().committed().0;
        let mut commuting = self.commuting.lock();
        let [before, _] = applied.dir_versions;
        match before <= committed || commuting.get(&dir) == Some(&before) {
            true => drop(commuting.insert(dir, applied.transno.0)),
            false => drop(commuting.remove(&dir)),
        }
        if commuting.len() > COMMUTING_MAX {
            commuting.retain(|_, version| *version > committed);
        }
    }

    /// Keeps the locks of a session until its change is durable, but lets others read the name.
    fn share_until_commit(&self, session: Session, transno: Transno) {
        let Session { mut locks, .. } = session;
        locks.share();
        let index = self.store.index().clone();
        let transactions = self.store.transactions().clone();
        cpt::spawn(async move {
            match transactions.is_recovering() {
                // The committed number does not change until the recovery has ended.
                true => drop(index.sync().await),
                // Fails only when the store is dropped.
                false => {
                    let mut committed = transactions.watch_committed();
                    let durable = committed.wait_for(|last| *last >= transno);
                    drop(timeout(COMMIT_WAIT_MAX, durable).await);
                }
            }
            drop(locks);
        });
    }

    /// The kept records that name the sender, after a known one.
    async fn records_for(&self, sender: u32, after: Batchid) -> Result<Bytes, Errno> {
        let gate = self.gate(sender);
        let _closed = gate.write().await;
        let naming: Vec<Batchid> = self.ledger.lock().naming(sender, after).collect();
        let (mut records, mut len) = (Vec::new(), 0);
        for batchid in naming {
            // Forgotten meanwhile: the sender has it.
            let Some(record) = self.record(batchid).await? else {
                continue;
            };
            len += record.len();
            records.push(record);
            if len >= PULL_BYTES_MAX {
                break;
            }
        }
        Ok(encode_records(&records))
    }
}

fn sessions(export: &Arc<Export>) -> Arc<Sessions> {
    export.ext::<Sessions>()
}
