//! The part of an MDT that has names or inodes of an operation that another MDT coordinates.

use std::{
    collections::BTreeMap,
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
    message::{Above, InodeChange, InodeView, Item, Message, NameChange, NamesView, View, encode_records},
    record::UpdateRecord,
};
use crate::{
    locks::{RequestLocks, SharedUntilCommit},
    namespace::{self, ChangeResult, Share, ShareContext},
    store::Mutation,
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
/// The longest time for which a message waits for locks. Then it frees its slot, which another
/// message may need to release these locks, and the coordinator sends it again.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// Maximum number of sessions of another MDT.
const SESSIONS_MAX: usize = 4096;

/// The sessions of a coordinator, stored with its export.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<u64, Session>>);

/// The sessions of coordinators without a connection, by MDT: those of operations that may be
/// decided. The next start of the coordinator ends them.
#[derive(Default)]
pub(super) struct HeldSessions(Mutex<BTreeMap<u32, Held>>);

/// The held sessions of a coordinator.
#[derive(Default)]
struct Held {
    sessions: HashMap<u64, Session>,
    /// The coordinator has ended its sessions up to this number.
    resolved: u64,
}

impl HeldSessions {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().values().all(|held| held.sessions.is_empty())
    }

    /// Ends all sessions.
    pub(super) fn clear(&self) {
        let all = |held: &mut Held| std::mem::take(&mut held.sessions);
        let ended: Vec<_> = self.0.lock().values_mut().map(all).collect();
        drop(ended);
    }

    /// Holds sessions of a coordinator. Returns those that it has ended before.
    fn hold(&self, coordinator: u32, joined: impl Iterator<Item = (u64, Session)>) -> Vec<(u64, Session)> {
        let mut all = self.0.lock();
        let held = all.entry(coordinator).or_default();
        let (ended, joined): (Vec<_>, Vec<_>) = joined.partition(|(number, _)| *number <= held.resolved);
        held.sessions.extend(joined);
        ended
    }

    /// Ends the sessions of a coordinator up to a number, also those that would be held later.
    fn resolve(&self, coordinator: u32, last: u64) -> HashMap<u64, Session> {
        let mut all = self.0.lock();
        let held = all.entry(coordinator).or_default();
        held.resolved = held.resolved.max(last);
        held.sessions.extract_if(|number, _| *number <= last).collect()
    }
}

/// An item that is locked for a coordinator.
struct Session {
    locks: SharedUntilCommit,
    /// The directory or inode that may change.
    fid: Fid,
    /// The reply to [`Message::Prepare`].
    view: Bytes,
    /// Whether the operation may be decided ([`Message::Join`]).
    is_joined: bool,
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
        let mut answer = Bytes::new();
        match Message::decode(&req.bytes(MESSAGE))? {
            Message::Prepare {
                session,
                item,
                is_replay,
            } => {
                if !self.is_ready() || (recovers && !is_replay) {
                    return Err(Errno::EAGAIN);
                }
                answer = self.prepare(export, sender, session, item).await?;
            }
            Message::Join { sessions, mdts } => self.join(export, &sessions, &mdts).await?,
            Message::Apply {
                sessions,
                is_decided,
                record,
            } => {
                self.apply_record(export, sender, &sessions, is_decided, record)
                    .await?;
            }
            Message::Release { session } => drop(self.take_sessions(export, sender, &[session])),
            Message::Pull { after, is_second } => {
                if is_second && !self.has_asked_once() {
                    return Err(Errno::EAGAIN);
                }
                answer = self.records_for(sender, after).await?;
            }
            Message::Forget { number } => {
                if self.unasked.lock().contains(&sender) {
                    // The sender may keep the only copy of a record that this MDT lacks.
                    return Err(Errno::EAGAIN);
                }
                self.forget(sender, sender, number)?;
                self.store.index().sync().await?;
            }
            Message::Redo { record } => {
                let decoded = UpdateRecord::decode(&record)?;
                if decoded.batchid.coordinator != sender {
                    return Err(Errno::EPROTO);
                }
                self.redo_if_missing(&decoded, record).await?;
            }
            Message::Resolve { last_session } => {
                if !self.held.is_empty() {
                    // The next changes of the names may build on the records.
                    self.store.index().sync().await?;
                }
                drop(self.held.resolve(sender, last_session));
            }
            Message::FindAbove { fid } => {
                let (chain, is_whole) = namespace::ancestors(&self.store, fid).await?;
                answer = Above { chain, is_whole }.encode();
            }
        }
        Ok(Reply::new(vec![answer]))
    }

    /// Ends the sessions of an export; holds those of operations that may be decided.
    pub(crate) fn end_sessions(&self, export: &Arc<Export>) {
        let mut ended = std::mem::take(&mut *sessions(export).0.lock());
        if let Some(coordinator) = self.peers.index_of(export) {
            let joined = ended.extract_if(|_, session| session.is_joined);
            drop(self.held.hold(coordinator, joined));
        }
        drop(ended);
    }

    /// Locks an item, and reads it.
    async fn prepare(
        &self,
        export: &Arc<Export>,
        sender: u32,
        session: u64,
        item: Item,
    ) -> Result<Bytes, Errno> {
        if let Some(known) = sessions(export).0.lock().get(&session) {
            return Ok(known.view.clone());
        }
        if sessions(export).0.lock().len() >= SESSIONS_MAX {
            return Err(Errno::EAGAIN);
        }
        self.note_partners(&[sender]).await?;
        self.store.index().throttle().await;
        let mut locks = self.locks.request_locks(Some(export), false);
        let locking = async {
            Ok::<View, Errno>(match &item {
                Item::Names { dir, names, change } => {
                    View::Names(self.lock_names(&mut locks, *dir, names, *change).await?)
                }
                Item::Inode { fid, change } => View::Inode(self.lock_inode(&mut locks, *fid, *change).await?),
                Item::Renames => {
                    locks.lock_renames().await?;
                    View::Renames
                }
            })
        };
        let view = match timeout(LOCK_WAIT_MAX, locking).await {
            Ok(view) => view?.encode(),
            Err(_) => return Err(Errno::EBUSY),
        };
        let new = Session {
            locks: locks.share_until_commit(),
            fid: match item {
                Item::Names { dir: fid, .. } | Item::Inode { fid, .. } => fid,
                Item::Renames => Fid::ZERO,
            },
            view: view.clone(),
            is_joined: false,
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

    /// Locks names of a directory of this MDT, and reads the directory and the entries.
    pub(super) async fn lock_names(
        &self,
        locks: &mut RequestLocks<'_>,
        dir: Fid,
        names: &[Bytes],
        change: NameChange,
    ) -> Result<NamesView, Errno> {
        locks.lock_names_for_sharing(dir, names).await?;
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let entry = self.store.entry(dir, name).await?;
            if let Some(entry) = entry.filter(|_| change == NameChange::Remove) {
                // The clients' locks that cover the name.
                locks.lock_for_removal(entry.fid).await?;
            }
            entries.push(entry);
        }
        let inode = self.store.inode(dir).await?;
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if inode.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if !self.commutes(dir, inode.version) {
            self.commit_before_sharing(inode.version).await?;
        }
        Ok(NamesView { dir: inode, entries })
    }

    /// Locks an inode for a change of its names, and reads it. If another MDT has it, revokes the
    /// clients' locks on it that this MDT has granted.
    pub(super) async fn lock_inode(
        &self,
        locks: &mut RequestLocks<'_>,
        fid: Fid,
        change: InodeChange,
    ) -> Result<InodeView, Errno> {
        match change {
            InodeChange::Link => locks.lock_for_link(fid).await?,
            InodeChange::Unlink => locks.lock_for_removal(fid).await?,
        }
        let Some(inode) = self.store.find(fid).await? else {
            return Ok(InodeView::default());
        };
        self.commit_before_sharing(inode.version).await?;
        Ok(InodeView {
            has_entries: inode.is_dir() && !self.store.is_empty_dir(fid).await?,
            inode: Some(inode),
        })
    }

    /// Commit on sharing: an operation may become durable on another MDT before a change that it
    /// builds on, so that change is committed first.
    async fn commit_before_sharing(&self, version: u64) -> Result<(), Errno> {
        if version > self.store.transactions().committed().0 {
            self.store.index().sync().await?;
        }
        Ok(())
    }

    /// Notes the MDTs of an operation that may be decided soon.
    async fn join(&self, export: &Arc<Export>, ids: &[u64], mdts: &[u32]) -> Result<(), Errno> {
        let others: Vec<u32> = mdts.iter().copied().filter(|mdt| *mdt != self.index).collect();
        self.note_partners(&others).await?;
        self.check_changeable()?;
        let sessions = sessions(export);
        let mut sessions = sessions.0.lock();
        for id in ids {
            sessions.get_mut(id).ok_or(Errno::ESTALE)?.is_joined = true;
        }
        Ok(())
    }

    /// Ends sessions of a coordinator and returns them; `None` if one is missing.
    fn take_sessions(&self, export: &Arc<Export>, sender: u32, ids: &[u64]) -> Option<Vec<Session>> {
        let sessions = sessions(export);
        // All of them end, also if one is missing.
        let taken: Vec<Option<Session>> = {
            let mut current = sessions.0.lock();
            let mut held = self.held.0.lock();
            let mut held = held.get_mut(&sender).map(|held| &mut held.sessions);
            ids.iter()
                .map(|id| current.remove(id).or_else(|| held.as_mut()?.remove(id)))
                .collect()
        };
        taken.into_iter().collect()
    }

    /// Applies this MDT's share of a record, and ends the sessions.
    async fn apply_record(
        &self,
        export: &Arc<Export>,
        sender: u32,
        ids: &[u64],
        is_decided: bool,
        encoded: Bytes,
    ) -> Result<(), Errno> {
        let record = UpdateRecord::decode(&encoded)?;
        let (share, named) = record.share_of(self.index).ok_or(Errno::EPROTO)?;
        if record.batchid.coordinator != sender {
            return Err(Errno::EPROTO);
        }
        let gate = self.gate(sender);
        let _open = gate.read().await;
        if export.is_gone() {
            // The sender may have restarted, and got the records that name it.
            return Err(Errno::ENOTCONN);
        }
        let sessions = self.take_sessions(export, sender, ids);
        if self.ledger.lock().has(record.batchid, &named) {
            return Ok(());
        }
        let Some(sessions) = sessions else {
            return match is_decided {
                // This MDT has restarted, and waits for the records of the sender.
                true => self.redo_if_missing(&record, encoded).await,
                false => Err(Errno::ESTALE),
            };
        };
        let is_locked = |fid| sessions.iter().any(|session| session.fid == fid);
        if !share.fids().all(is_locked) {
            return Err(Errno::EPROTO);
        }
        let context = ShareContext {
            kept: Some(kept(&record, encoded)),
            is_admitted: is_decided,
            // Clients that recover may have the inode open.
            keeps_orphans: self.store.transactions().is_recovering(),
            ..ShareContext::default()
        };
        let applied = namespace::apply_share((&*self.store).into(), share, context).await?;
        self.ledger.lock().keep(record.batchid, named);
        self.note_commuting(share, &applied);
        let locks = sessions.into_iter().map(|session| session.locks).collect();
        self.share_until_commit(locks, applied.transno);
        Ok(())
    }

    /// Whether this is the version of a directory that only operations with other MDTs have changed
    /// since the last commit. Operations on different names commute. The lock of a name excludes
    /// another operation on the same name until the commit.
    fn commutes(&self, dir: Fid, version: u64) -> bool {
        self.commuting.lock().get(&dir) == Some(&version)
    }

    /// Notes the directories that an operation with another MDT has changed.
    pub(super) fn note_commuting(&self, share: &Share, applied: &ChangeResult) {
        let committed = self.store.transactions().committed().0;
        let mut commuting = self.commuting.lock();
        let dirs = share.mutations.iter().filter_map(|mutation| match mutation {
            Mutation::DirChanged { dir, .. } => Some(*dir),
            _ => None,
        });
        for (dir, before) in dirs.zip(applied.pre_versions) {
            match before <= committed || commuting.get(&dir) == Some(&before) {
                true => drop(commuting.insert(dir, applied.transno.0)),
                false => drop(commuting.remove(&dir)),
            }
        }
        if commuting.len() > COMMUTING_MAX {
            commuting.retain(|_, version| *version > committed);
        }
    }

    /// Keeps locks until their change is durable, but lets others read the names.
    pub(super) fn share_until_commit(&self, mut locks: Vec<SharedUntilCommit>, transno: Transno) {
        locks.iter_mut().for_each(SharedUntilCommit::share);
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
