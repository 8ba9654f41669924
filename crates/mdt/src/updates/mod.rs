//! Operations on several MDTs: an inode may have its names on other MDTs than itself
//! (docs/decisions/010-operations-on-several-mdts.md).
//!
//! The MDT that gets the client's request coordinates: it locks names and inodes on the other MDTs
//! in *sessions*, plans with the views of these MDTs, and sends an update record. The other MDTs
//! apply their shares one after the other and end the sessions; then the coordinator applies its
//! own. All keep the whole record in the transaction of their share, so after a crash each can give
//! the others their shares. Records are redone, never undone.
//!
//! The order of the locks is that of [`crate::locks`], on whatever MDTs they are. A participant
//! waits for no other MDT.

mod coordinator;
mod ledger;
mod message;
mod operation;
mod participant;
mod record;
mod recover;
mod rename;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use cpt::HashMap;
use osd::{Batch, SpacePurpose, prefix_end};
use parking_lot::Mutex;
use rpc::KeptReply;
use tokio::sync::{Notify, RwLock, watch};
use wire::{Errno, Fid, Xid};

use self::{ledger::Pair, participant::HeldSessions};
use crate::{
    cred::Cred,
    locks::Locks,
    peers::Peers,
    sequences::Sequences,
    store::{Mutation, Store, keys},
};

pub(crate) use coordinator::{NewDirectory, NewLink, Removal, RemovedName};
#[cfg(test)]
pub(crate) use ledger::Batchid;
pub(crate) use ledger::Ledger;
pub(crate) use record::UpdateRecord;
pub(crate) use rename::Rename;

/// Name of the setting with the MDTs that may keep records of operations with this MDT.
const PARTNERS: &str = "updates.partners";
/// Prefix of the settings with the marks of the ledger ([`Ledger::forgotten`]).
const FORGOTTEN: &str = "updates.forgotten.";
/// Maximum number of records that a start reads at once.
const RECORDS_PER_SCAN: usize = 1024;
/// Maximum number of marks: two for each other MDT.
const MARKS_MAX: usize = 1 << 17;

/// The operations of this MDT with others.
pub(crate) struct Updates {
    /// The index of this MDT.
    index: u32,
    svname: String,
    store: Arc<Store>,
    peers: Arc<Peers>,
    locks: Locks,
    /// Knows which MDT has an inode.
    sequences: Arc<Sequences>,
    ledger: Mutex<Ledger>,
    /// The MDTs with which this MDT has had operations since its last clean stop; on disk.
    partners: tokio::sync::Mutex<BTreeSet<u32>>,
    /// The partners that this start has not asked for records yet.
    unasked: Mutex<BTreeSet<u32>>,
    /// The partners that may hold sessions of an earlier start of this MDT, or lack its records.
    unresolved: Mutex<BTreeSet<u32>>,
    /// Whether this start has asked all partners once.
    has_asked_once: AtomicBool,
    /// Held while a record is applied again, so that it is applied once.
    redoing: tokio::sync::Mutex<()>,
    /// Sessions of coordinators that are away.
    held: HeldSessions,
    /// Holds back the records for another MDT while an operation with it is being applied.
    gates: Mutex<BTreeMap<u32, Arc<RwLock<()>>>>,
    /// The replies to operations that this MDT coordinated before its start, by client and xid.
    replies: ArcSwap<HashMap<(u32, Xid), KeptReply>>,
    /// Whether this MDT has all records that name it, for readers without a wait.
    is_ready: AtomicBool,
    /// The same, for those that wait.
    ready: watch::Sender<bool>,
    /// Whether the administrator has ended the wait for the records of other MDTs.
    aborted: watch::Sender<bool>,
    /// Operations that run; the stop of the target waits for them.
    running: Arc<RwLock<()>>,
    /// Wakes the task that forgets records.
    kept_more: Arc<Notify>,
    last_session: AtomicU64,
    /// The number of sessions of other MDTs.
    sessions: Arc<AtomicUsize>,
    /// The versions up to which only operations with other MDTs have changed a directory since its
    /// last committed change.
    commuting: Mutex<HashMap<Fid, u64>>,
    /// `mdt.*.enable_remote_dir`.
    pub(crate) enable_remote_dir: Arc<AtomicU64>,
    /// `mdt.*.enable_remote_dir_gid`.
    pub(crate) enable_remote_dir_gid: Arc<AtomicI64>,
    /// `mdt.*.enable_remote_rename`.
    pub(crate) enable_remote_rename: Arc<AtomicU64>,
}

impl Updates {
    /// Reads the ledger from the store of the MDT with this index.
    ///
    /// # Errors
    ///
    /// `EIO` or `EPROTO` if a record is malformed, or the error of the index.
    pub(crate) async fn load(
        (index, svname): (u32, &str),
        store: Arc<Store>,
        peers: Arc<Peers>,
        locks: Locks,
        sequences: Arc<Sequences>,
    ) -> Result<Arc<Updates>, Errno> {
        let records = read_records(&store).await?;
        let ledger = read_ledger(&store, index, &records).await?;
        let mut replies = HashMap::default();
        records
            .iter()
            .for_each(|record| note_reply(record, index, &mut replies));
        let partners = match store.index().get(&keys::setting(PARTNERS)).await? {
            None => BTreeSet::new(),
            Some(list) => list
                .as_chunks()
                .0
                .iter()
                .map(|index| u32::from_le_bytes(*index))
                .collect(),
        };
        Ok(Arc::new(Updates {
            index,
            svname: svname.to_owned(),
            is_ready: partners.is_empty().into(),
            ready: watch::Sender::new(partners.is_empty()),
            aborted: watch::Sender::new(false),
            unasked: Mutex::new(partners.clone()),
            unresolved: Mutex::new(partners.clone()),
            has_asked_once: partners.is_empty().into(),
            redoing: tokio::sync::Mutex::default(),
            held: HeldSessions::default(),
            // Other MDTs may hold sessions of earlier starts.
            last_session: AtomicU64::new(store.transactions().epoch() << 32),
            store,
            peers,
            locks,
            sequences,
            ledger: Mutex::new(ledger),
            partners: tokio::sync::Mutex::new(partners),
            gates: Mutex::default(),
            replies: ArcSwap::from_pointee(replies),
            running: Arc::default(),
            kept_more: Arc::default(),
            sessions: Arc::default(),
            commuting: Mutex::default(),
            enable_remote_dir: Arc::new(AtomicU64::new(1)),
            enable_remote_dir_gid: Arc::default(),
            enable_remote_rename: Arc::new(AtomicU64::new(1)),
        }))
    }

    /// The index of this MDT.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The MDT that has an inode.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if no MDT answers that knows the location of the FID; `ENOENT` if no MDT has
    /// the FID's sequence.
    pub(crate) async fn mdt_of(&self, fid: Fid) -> Result<u32, Errno> {
        if self.peers.is_empty() || self.store.find(fid).await?.is_some() {
            return Ok(self.index);
        }
        let range = self.sequences.locate(&Sequences::range_of(fid)).await?;
        Ok(range.lsr_index)
    }

    /// Checks that the user may create a directory under a name of another MDT. `is_requested`: the
    /// user requests the MDT, and not a default layout.
    ///
    /// # Errors
    ///
    /// `EPERM` by `enable_remote_dir` or `enable_remote_dir_gid`.
    pub(crate) fn check_may_place(&self, cred: &Cred, is_requested: bool) -> Result<(), Errno> {
        if cred.is_replay {
            return Ok(());
        }
        let gid = self.enable_remote_dir_gid.load(Relaxed);
        let is_allowed = !is_requested || cred.is_admin() || gid == -1 || gid == i64::from(cred.fsgid);
        match self.enable_remote_dir.load(Relaxed) != 0 && is_allowed {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// Whether renames between MDTs are allowed.
    pub(crate) fn allows_renames(&self) -> bool {
        self.enable_remote_rename.load(Relaxed) != 0
    }

    /// Waits until this MDT has applied all records that name it. Until then, it serves no client.
    pub(crate) async fn wait_until_ready(&self) {
        if self.is_ready() {
            return;
        }
        let mut ready = self.ready.subscribe();
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Whether this MDT has applied all records that name it.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Acquire)
    }

    fn set_ready(&self) {
        self.is_ready.store(true, Release);
        self.ready.send_replace(true);
    }

    /// The number below the sessions of this start, and above those of earlier ones.
    fn first_session(&self) -> u64 {
        self.store.transactions().epoch() << 32
    }

    /// Whether this start has asked all partners for records once.
    fn has_asked_once(&self) -> bool {
        self.has_asked_once.load(Acquire)
    }

    /// Ends the wait for the records of MDTs that are away, and their sessions here
    /// (`lctl abort_recovery`).
    pub(crate) fn abort_wait(&self) {
        self.aborted.send_replace(true);
        self.held.clear();
    }

    /// The reply to a request that an earlier start executed with another MDT.
    pub(crate) fn reply_of(&self, client: u32, xid: Xid) -> Option<KeptReply> {
        self.replies.load().get(&(client, xid)).copied()
    }

    /// Whether no earlier start has executed requests that clients may replay.
    pub(crate) fn has_no_replies(&self) -> bool {
        self.replies.load().is_empty()
    }

    /// The number of sessions of other MDTs, and the number of kept records.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let sessions = self.sessions.load(Relaxed);
        (sessions, self.ledger.lock().len())
    }

    /// Stops: waits for the operations that run. After a clean stop, no record is missing. The
    /// caller has disconnected from the other MDTs, and syncs the store afterwards.
    pub(crate) async fn stop(&self) {
        self.set_ready();
        let _no_more = self.running.write().await;
        let is_quiet = self.ledger.lock().is_quiet() && self.held.is_empty();
        let has_resolved = self.unasked.lock().is_empty() && self.unresolved.lock().is_empty();
        if !is_quiet || !has_resolved {
            return;
        }
        let mut batch = Batch::new();
        batch.delete_twice(keys::setting(PARTNERS));
        if let Err(e) = self.store.index().apply(batch) {
            tracing::warn!(
                "{}: cannot record that no update record is missing: {e}",
                self.svname
            );
        }
    }

    /// Records durably that records of other MDTs may name this one.
    async fn note_partners(&self, others: &[u32]) -> Result<(), Errno> {
        let mut partners = self.partners.lock().await;
        if others.iter().all(|mdt| partners.contains(mdt)) {
            return Ok(());
        }
        let mut all = partners.clone();
        all.extend(others);
        let list: Vec<u8> = all.iter().flat_map(|index| index.to_le_bytes()).collect();
        let mut batch = Batch::new();
        batch.put_twice(keys::setting(PARTNERS), list);
        self.store.index().apply(batch)?;
        self.store.index().sync().await?;
        *partners = all;
        Ok(())
    }

    /// Checks that the store takes changes, before another MDT decides an operation.
    fn check_changeable(&self) -> Result<(), Errno> {
        self.store.index().space().check(SpacePurpose::Upkeep)?;
        Ok(self.store.index().apply(Batch::new())?)
    }

    /// The gate of another MDT: open while no operation with it is being applied.
    fn gate(&self, other: u32) -> Arc<RwLock<()>> {
        self.gates.lock().entry(other).or_default().clone()
    }

    /// Reads a kept record.
    async fn record(&self, batchid: ledger::Batchid) -> Result<Option<Bytes>, Errno> {
        let key = keys::update(batchid.coordinator, batchid.number);
        Ok(self.store.index().get(&key).await?)
    }
}

/// The mutation that keeps a record.
fn kept(record: &UpdateRecord, encoded: Bytes) -> Mutation {
    Mutation::UpdateKept {
        key: keys::update(record.batchid.coordinator, record.batchid.number),
        record: encoded,
    }
}

/// Notes the reply of a record that this MDT coordinates.
fn note_reply(record: &UpdateRecord, own: u32, replies: &mut HashMap<(u32, Xid), KeptReply>) {
    if record.batchid.coordinator == own
        && let Some((client, reply)) = record.kept_reply()
    {
        replies.insert((client, reply.xid), reply);
    }
}

/// Reads all kept records.
async fn read_records(store: &Store) -> Result<Vec<UpdateRecord>, Errno> {
    let mut from = Bytes::from_static(keys::UPDATES);
    let end = prefix_end(keys::UPDATES);
    let mut records = Vec::new();
    loop {
        let rows = store.index().scan(&from, &end, RECORDS_PER_SCAN).await?;
        for (_, value) in &rows {
            records.push(UpdateRecord::decode(value)?);
        }
        match rows.last() {
            Some((key, _)) if rows.len() == RECORDS_PER_SCAN => from = [&key[..], b"\0"].concat().into(),
            _ => return Ok(records),
        }
    }
}

/// The ledger of the MDT with this index, which keeps these records.
///
/// # Errors
///
/// `EIO` if a record or a mark is malformed, or the error of the index.
pub(crate) async fn read_ledger(
    store: &Store,
    index: u32,
    records: &[UpdateRecord],
) -> Result<Ledger, Errno> {
    let mut ledger = Ledger::new(index, store.transactions().epoch() << 32);
    let from = keys::setting(FORGOTTEN);
    let marks = store.index().scan(&from, &prefix_end(&from), MARKS_MAX).await?;
    for (key, value) in marks {
        let (pair, number) = parse_mark(&key[from.len()..], &value).ok_or(Errno::EIO)?;
        ledger.set_forgotten(pair, number);
    }
    for record in records {
        let (_, others) = record.share_of(index).ok_or(Errno::EIO)?;
        ledger.keep_unconfirmed(record.batchid, others);
    }
    Ok(ledger)
}

/// The setting with the mark of a pair.
fn mark_key(pair: Pair) -> Bytes {
    keys::setting(&format!(
        "{FORGOTTEN}{:x}.{:x}",
        pair.coordinator, pair.participant
    ))
}

/// Parses a mark: the end of its setting's name, and the value.
fn parse_mark(name: &[u8], value: &[u8]) -> Option<(Pair, u64)> {
    let (coordinator, participant) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let pair = Pair {
        coordinator: u32::from_str_radix(coordinator, 16).ok()?,
        participant: u32::from_str_radix(participant, 16).ok()?,
    };
    Some((pair, u64::from_le_bytes(value.try_into().ok()?)))
}
