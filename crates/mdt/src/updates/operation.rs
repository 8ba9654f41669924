//! An operation that this MDT coordinates: the locks on all MDTs, and how the shares are applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rpc::{Export, Request, RpcError};
use tokio::time::sleep;
use wire::{Errno, Fid, OUT_UPDATE, SEQ_CONTROLLER_PORTAL};

use super::{
    Updates, kept,
    ledger::Batchid,
    message::{Above, InodeChange, InodeView, Item, Message, NameChange, NamesView, View},
    record::UpdateRecord,
};
use crate::{
    locks::RequestLocks,
    namespace::{self, ChangeResult, RemotePlan, Share, ShareContext},
    peers::Peer,
    store::{Origin, RequestStore},
};

/// Pause until a message is sent again after the connection was replaced, or to a recovering MDT.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of attempts to lock an item of another MDT; each waits a second there.
const LOCK_ATTEMPTS: usize = 300;
/// Maximum number of changes of the MDT on the way from a directory to the root. A longer way is a
/// cycle in a damaged file system.
const MDT_CHANGES_MAX: usize = 4096;

/// An item that another MDT has locked. Dropping it releases the item.
struct RemoteSession {
    mdt: u32,
    peer: Arc<Peer>,
    session: u64,
    /// Whether the other MDT has ended the session.
    has_ended: bool,
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (peer, mdt, session) = (self.peer.clone(), self.mdt, self.session);
        cpt::spawn(async move {
            loop {
                match call(&peer, &Message::Release { session }).await {
                    // The other MDT may hold the session without the connection.
                    Err(RpcError::Evicted(_)) => sleep(PAUSE).await,
                    Err(e) => {
                        tracing::debug!("cannot release a session of MDT{mdt:04x}: {e}");
                        return;
                    }
                    Ok(_) => return,
                }
            }
        });
    }
}

/// The rename lock of the file system, held on MDT0000.
pub(crate) struct RenameLock {
    _session: RemoteSession,
}

/// The end of the attempt to carry out an operation.
enum Given {
    /// The other MDT has applied its share.
    Applied,
    /// It has not, because it has restarted since it locked its items.
    SessionGone,
    /// It has not, for this reason.
    Refused(Errno),
    /// The connection has ended for good before an answer came.
    Unknown,
}

/// A number in flight. Dropping it ends the operation.
struct InFlight<'a> {
    updates: &'a Updates,
    batchid: Batchid,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.updates.ledger.lock().end(self.batchid);
    }
}

/// An attempt to execute an operation. It holds locks on this MDT and sessions on others.
pub(super) struct Operation<'a> {
    updates: &'a Updates,
    origin: Origin,
    locks: RequestLocks<'a>,
    sessions: Vec<RemoteSession>,
    /// The MDTs of the directories and inodes that are locked.
    places: BTreeMap<Fid, u32>,
}

impl<'a> Operation<'a> {
    /// An attempt for a request of this client, without locks.
    pub(super) fn new(updates: &'a Updates, export: &'a Export, origin: Origin) -> Operation<'a> {
        Operation {
            updates,
            origin,
            locks: updates.locks.request_locks(Some(export), false),
            sessions: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    fn is_replay(&self) -> bool {
        self.origin.replayed.is_some()
    }

    /// Locks one name of a directory.
    ///
    /// # Errors
    ///
    /// As [`Operation::lock_names`].
    pub(super) async fn lock_name(
        &mut self,
        place: (u32, Fid),
        name: &Bytes,
        change: NameChange,
    ) -> Result<NamesView, Errno> {
        self.lock_names(place, vec![name.clone()], change).await
    }

    /// Locks names of a directory.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if the MDT of the directory is away or recovers; an error of the directory.
    pub(super) async fn lock_names(
        &mut self,
        (mdt, dir): (u32, Fid),
        names: Vec<Bytes>,
        change: NameChange,
    ) -> Result<NamesView, Errno> {
        self.places.insert(dir, mdt);
        if mdt == self.updates.index {
            let locks = &mut self.locks;
            return self.updates.lock_names(locks, dir, &names, change).await;
        }
        let count = names.len();
        match self.prepare(mdt, Item::Names { dir, names, change }).await? {
            View::Names(view) if view.entries.len() == count => Ok(view),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Locks an inode of the MDT `mdt`, or the clients' locks on it that this MDT has granted.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if the MDT is away or recovers.
    pub(super) async fn lock_inode(
        &mut self,
        (mdt, fid): (u32, Fid),
        change: InodeChange,
    ) -> Result<InodeView, Errno> {
        let view = match mdt == self.updates.index {
            true => self.updates.lock_inode(&mut self.locks, fid, change).await?,
            false => match self.prepare(mdt, Item::Inode { fid, change }).await? {
                View::Inode(view) => view,
                _ => return Err(Errno::EPROTO),
            },
        };
        if view.inode.is_some() {
            self.places.insert(fid, mdt);
        }
        Ok(view)
    }

    /// Takes the rename lock of the file system.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if MDT0000 is away or recovers.
    pub(super) async fn lock_renames(&mut self) -> Result<(), Errno> {
        if self.updates.index == 0 {
            return self.locks.lock_renames().await;
        }
        self.prepare(0, Item::Renames).await.map(drop)
    }

    /// Locks an item of another MDT.
    async fn prepare(&mut self, mdt: u32, item: Item) -> Result<View, Errno> {
        let (session, view) = self.updates.lock_item(mdt, item, self.is_replay()).await?;
        self.sessions.push(session);
        Ok(view)
    }

    /// The share of each MDT in a plan.
    fn divide(&self, plan: &RemotePlan) -> Result<BTreeMap<u32, Share>, Errno> {
        let own = self.updates.index;
        let mut shares = BTreeMap::from([(own, Share::default())]);
        let place = |fid| self.places.get(&fid).copied().ok_or(Errno::EIO);
        for mutation in &plan.mutations {
            let mdt = mutation.names_of().map_or(Ok(own), place)?;
            shares.entry(mdt).or_default().mutations.push(mutation.clone());
        }
        for relink in &plan.relinks {
            let mdt = place(relink.fid)?;
            shares.entry(mdt).or_default().relinks.push(relink.clone());
        }
        Ok(shares)
    }

    /// Carries out a planned operation: the shares of the other MDTs one after the other, then the
    /// own one. `None` if an MDT has restarted meanwhile, and no MDT has applied its share: the
    /// caller begins again.
    ///
    /// # Errors
    ///
    /// `ENOSPC`, or another error of a store; `ENOTCONN` if this MDT stops.
    pub(super) async fn carry_out(mut self, plan: RemotePlan) -> Result<Option<ChangeResult>, Errno> {
        let (updates, origin) = (self.updates, self.origin);
        let shares = self.divide(&plan)?;
        let mut participants: Vec<u32> = shares
            .keys()
            .copied()
            .filter(|mdt| *mdt != updates.index)
            .collect();
        // Only the first one can refuse its share, for example without space.
        participants.sort_by_key(|mdt| !shares.get(mdt).is_some_and(Share::grows));
        let mut gates = Vec::with_capacity(participants.len());
        for mdt in participants.iter().copied().collect::<BTreeSet<u32>>() {
            gates.push(updates.gate(mdt).read_owned().await);
        }
        let batchid = updates.ledger.lock().begin(participants.iter().copied());
        let in_flight = InFlight { updates, batchid };
        if participants.len() > 1 && !self.join(&shares, &participants).await? {
            return Ok(None);
        }
        let record = UpdateRecord {
            batchid,
            shares,
            reply: origin.slot.map(|slot| (slot, plan.pre_versions)),
        };
        let encoded = record.encode();
        if !participants.is_empty() {
            updates.check_changeable()?;
        }
        let mut is_complete = true;
        for (place, mdt) in participants.iter().enumerate() {
            let is_decided = place > 0;
            match self.give_share(*mdt, &encoded, is_decided).await {
                Given::Applied => {}
                Given::SessionGone => return Ok(None),
                Given::Refused(e) if !is_decided => return Err(e),
                Given::Refused(e) => {
                    tracing::error!(
                        "{}: MDT{mdt:04x} cannot apply an operation that another MDT has applied: {e}. The next start of MDT{mdt:04x} repeats it",
                        updates.svname
                    );
                    is_complete = false;
                }
                Given::Unknown => {
                    // This MDT stops: its next start asks the others.
                    std::mem::forget(in_flight);
                    return Err(Errno::ENOTCONN);
                }
            }
        }
        let (own_share, others) = record.share_of(updates.index).ok_or(Errno::EIO)?;
        let context = ShareContext {
            described: (plan.fid, plan.inode),
            pre_versions: plan.pre_versions,
            kept: (!participants.is_empty()).then(|| kept(&record, encoded)),
            is_admitted: !participants.is_empty(),
            keeps_orphans: updates.store.transactions().is_recovering(),
        };
        let store = RequestStore::new(&updates.store, origin);
        match namespace::apply_share(store, own_share, context).await {
            Ok(mut result) => {
                if !participants.is_empty() {
                    updates.ledger.lock().keep(batchid, others);
                    updates.note_commuting(own_share, &result);
                    let locks = vec![self.locks.share_until_commit()];
                    updates.share_until_commit(locks, result.transno);
                    updates.kept_more.notify_one();
                }
                if !is_complete {
                    // The record stays until then.
                    std::mem::forget(in_flight);
                }
                result.pre_versions = plan.pre_versions;
                Ok(Some(result))
            }
            Err(e) if participants.is_empty() => Err(e),
            Err(e) => {
                tracing::error!(
                    "{}: cannot apply an operation that another MDT has applied: {e}. The next start of this MDT repeats it",
                    updates.svname
                );
                std::mem::forget(in_flight);
                Err(e)
            }
        }
    }

    /// Tells each of several participants the others. False: one has restarted since it locked
    /// its items.
    async fn join(&self, shares: &BTreeMap<u32, Share>, participants: &[u32]) -> Result<bool, Errno> {
        let mdts: Vec<u32> = shares.keys().copied().collect();
        for mdt in participants {
            let (sessions, peer) = self.sessions_of(*mdt)?;
            let mdts = mdts.clone();
            match call(&peer, &Message::Join { sessions, mdts }).await {
                Ok(_) => {}
                Err(RpcError::Status(Errno::ESTALE) | RpcError::Evicted(_)) => return Ok(false),
                Err(e) => return Err(errno_of(e)),
            }
        }
        Ok(true)
    }

    /// The sessions on an MDT that may change it, and the connection to the MDT.
    fn sessions_of(&self, mdt: u32) -> Result<(Vec<u64>, Arc<Peer>), Errno> {
        let of_mdt = || self.sessions.iter().filter(|session| session.mdt == mdt);
        let first = of_mdt().next().ok_or(Errno::EIO)?;
        Ok((
            of_mdt().map(|session| session.session).collect(),
            first.peer.clone(),
        ))
    }

    /// Gives another MDT its share, and ends the sessions there.
    async fn give_share(&mut self, mdt: u32, record: &Bytes, is_decided: bool) -> Given {
        let (sessions, peer) = match self.sessions_of(mdt) {
            Ok(found) => found,
            Err(e) => return Given::Refused(e),
        };
        for session in self.sessions.iter_mut().filter(|session| session.mdt == mdt) {
            session.has_ended = true;
        }
        loop {
            let message = Message::Apply {
                sessions: sessions.clone(),
                is_decided,
                record: record.clone(),
            };
            match call(&peer, &message).await {
                Ok(_) => return Given::Applied,
                Err(RpcError::Status(Errno::ESTALE)) => return Given::SessionGone,
                // The answer is lost, or came from an ended connection: ask again whether the other
                // MDT has the record.
                Err(RpcError::Evicted(_) | RpcError::Status(Errno::ENOTCONN)) => sleep(PAUSE).await,
                Err(RpcError::Status(e)) => return Given::Refused(e),
                Err(_) => return Given::Unknown,
            }
        }
    }
}

impl Updates {
    /// Takes the rename lock of the file system for a rename on this MDT alone. `None` on MDT0000,
    /// where [`RequestLocks::lock_renames`] takes it.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if MDT0000 is away or recovers.
    pub(crate) async fn lock_renames(&self, is_replay: bool) -> Result<Option<RenameLock>, Errno> {
        if self.index == 0 || self.peers.is_empty() {
            return Ok(None);
        }
        let (_session, _) = self.lock_item(0, Item::Renames, is_replay).await?;
        Ok(Some(RenameLock { _session }))
    }

    /// Locks an item on another MDT. Only a replay waits for an MDT that is away or recovers; the
    /// clients of other requests send them again.
    async fn lock_item(&self, mdt: u32, item: Item, is_replay: bool) -> Result<(RemoteSession, View), Errno> {
        let peer = self.peers.get(mdt)?;
        self.note_partners(&[mdt]).await?;
        let session = self.last_session.fetch_add(1, Ordering::Relaxed) + 1;
        let message = Message::Prepare {
            session,
            item,
            is_replay,
        };
        for _ in 0..LOCK_ATTEMPTS {
            if !is_replay && !peer.is_connected() {
                return Err(Errno::EINPROGRESS);
            }
            match call(&peer, &message).await {
                Ok(view) => {
                    let session = RemoteSession {
                        mdt,
                        peer,
                        session,
                        has_ended: false,
                    };
                    return Ok((session, View::decode(&view)?));
                }
                // Other requests hold the locks.
                Err(RpcError::Status(Errno::EBUSY)) => {}
                // The other MDT has restarted, or has ended the connection.
                Err(RpcError::Evicted(_) | RpcError::Status(Errno::ENOTCONN)) => sleep(PAUSE).await,
                Err(RpcError::Status(Errno::EAGAIN)) if is_replay => sleep(PAUSE).await,
                Err(RpcError::Status(Errno::EAGAIN)) => return Err(Errno::EINPROGRESS),
                Err(e) => return Err(errno_of(e)),
            }
        }
        Err(Errno::ETIMEDOUT)
    }

    /// A directory and those above it, up to the root, on whatever MDTs they are.
    ///
    /// # Errors
    ///
    /// `EIO` if the directories form a cycle; `ENOENT` if one is gone; or an error of the way to
    /// another MDT.
    pub(super) async fn directories_above(&self, dir: Fid, is_replay: bool) -> Result<Vec<Fid>, Errno> {
        let mut all = Vec::new();
        let mut lowest = dir;
        for _ in 0..MDT_CHANGES_MAX {
            let mdt = self.mdt_of(lowest).await?;
            let (mut chain, is_whole) = match mdt == self.index {
                true => namespace::ancestors(&self.store, lowest).await?,
                false => {
                    let peer = self.peers.get(mdt)?;
                    if !is_replay && !peer.is_connected() {
                        return Err(Errno::EINPROGRESS);
                    }
                    let answer = match call(&peer, &Message::FindAbove { fid: lowest }).await {
                        Err(RpcError::Evicted(_)) => {
                            sleep(PAUSE).await;
                            continue;
                        }
                        answer => answer.map_err(errno_of)?,
                    };
                    let Above { chain, is_whole } = Above::decode(&answer)?;
                    (chain, is_whole)
                }
            };
            if is_whole {
                all.append(&mut chain);
                return Ok(all);
            }
            // The last one is the first of the next part.
            lowest = chain.pop().ok_or(Errno::EPROTO)?;
            all.append(&mut chain);
        }
        Err(Errno::EIO)
    }
}

/// Sends a message to another MDT.
pub(super) async fn call(peer: &Peer, message: &Message) -> Result<Bytes, RpcError> {
    let mut request = Request::new(OUT_UPDATE, vec![message.encode()]);
    if !matches!(message, Message::Prepare { .. }) {
        // A portal for messages that never wait for locks: those that wait cannot take the slots
        // from the messages that release the locks.
        request.portal = Some(SEQ_CONTROLLER_PORTAL);
    }
    // The start of this MDT reports an MDT that is away.
    request.no_delay = matches!(message, Message::Pull { .. });
    let reply = peer.import().call(request).await?;
    Ok(reply.msg.bytes(1))
}

/// The error of an operation after a message to another MDT has failed.
fn errno_of(error: RpcError) -> Errno {
    match error {
        RpcError::Status(errno) => errno,
        // The connections end only when this MDT stops: the client sends the request again. While
        // this MDT runs, the client would get the same reply again.
        _ => Errno::ENOTCONN,
    }
}
