//! The part of the MDT that has the inode: it plans the operation and carries it out.

use std::{
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
    message::{Message, NameChange, View},
    record::UpdateRecord,
};
use crate::{
    cred::Cred,
    namespace::{self, ChangeResult, NewInode, RemotePlan, UnlinkArgs},
    peers::Peer,
    store::{Change, Mutation, Origin, RequestStore},
};
use osd::SpacePurpose;

/// Pause of a replay until it asks a recovering MDT again.
const REPLAY_PAUSE: Duration = Duration::from_millis(100);

/// A directory to create under a name of another MDT.
pub(crate) struct NewDirectory {
    /// The directory of the name.
    pub parent: Fid,
    /// The MDT of that directory.
    pub parent_mdt: u32,
    /// The name.
    pub name: Bytes,
    /// The new directory; its FID is not in use.
    pub node: NewInode,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
}

/// A directory to remove, with its name on another MDT.
pub(crate) struct RemovedDirectory {
    /// The directory of the name.
    pub parent: Fid,
    /// The MDT of that directory.
    pub parent_mdt: u32,
    /// The name.
    pub name: Bytes,
    /// Whether the client removes a directory.
    pub is_rmdir: bool,
    /// The time of the change.
    pub time: wire::Time,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
    /// The client.
    pub export: Arc<Export>,
}

/// The result of a removal.
pub(crate) enum Removal {
    /// The directory is removed.
    Done(Box<ChangeResult>),
    /// The name leads to this inode, and another MDT than this one has it.
    Elsewhere(Fid),
}

/// A name that another MDT has locked. Dropping it releases the name.
struct RemoteName {
    mdt: u32,
    peer: Arc<Peer>,
    session: u64,
    view: View,
    /// Whether the other MDT has ended the session.
    has_ended: bool,
}

impl Drop for RemoteName {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (peer, mdt, session) = (self.peer.clone(), self.mdt, self.session);
        cpt::spawn(async move {
            // If the connection has ended, so has the session.
            if let Err(e) = call(&peer, &Message::Release { session }).await {
                tracing::debug!("cannot release a name of MDT{mdt:04x}: {e}");
            }
        });
    }
}

/// Whether another MDT has applied its share.
enum Given {
    /// It has.
    Applied,
    /// It has not, because it has restarted since it locked the name.
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

impl Updates {
    /// Locks a name on another MDT. Only a replay waits for an MDT that is away or recovers; the
    /// clients of other requests send them again.
    ///
    /// # Errors
    ///
    /// `EINPROGRESS` if the MDT is away or recovers; an error of the name or of its directory.
    async fn lock_name(
        &self,
        mdt: u32,
        change: NameChange,
        (dir, name): (Fid, &Bytes),
        is_replay: bool,
    ) -> Result<RemoteName, Errno> {
        let peer = self.peers.get(mdt)?;
        self.note_partner(mdt).await?;
        loop {
            if !is_replay && !peer.is_connected() {
                return Err(Errno::EINPROGRESS);
            }
            let session = self.last_session.fetch_add(1, Ordering::Relaxed) + 1;
            let message = Message::Prepare {
                session,
                change,
                dir,
                name: name.clone(),
                is_replay,
            };
            match call(&peer, &message).await {
                Ok(view) => {
                    return Ok(RemoteName {
                        mdt,
                        peer,
                        session,
                        view: View::decode(&view)?,
                        has_ended: false,
                    });
                }
                // The other MDT has restarted, and the session is gone.
                Err(RpcError::Evicted(_)) => {}
                Err(RpcError::Status(Errno::EAGAIN)) if is_replay => sleep(REPLAY_PAUSE).await,
                Err(RpcError::Status(Errno::EAGAIN)) => return Err(Errno::EINPROGRESS),
                Err(e) => return Err(errno_of(e)),
            }
        }
    }

    /// Gives the other MDT its share.
    async fn give_share(&self, name: &mut RemoteName, record: &Bytes) -> Given {
        name.has_ended = true;
        loop {
            let message = Message::Apply {
                session: name.session,
                record: record.clone(),
            };
            match call(&name.peer, &message).await {
                Ok(_) => return Given::Applied,
                Err(RpcError::Status(Errno::ESTALE)) => return Given::SessionGone,
                Err(RpcError::Status(e)) => return Given::Refused(e),
                // The answer is lost: ask again whether the other MDT has the record.
                Err(RpcError::Evicted(_)) => {}
                Err(_) => return Given::Unknown,
            }
        }
    }

    /// Carries out a planned operation: first the share of the other MDT, then the own one with
    /// `apply_own`, which gets the mutation that keeps the record. `None` if the other MDT has
    /// restarted meanwhile: the caller plans again.
    async fn carry_out(
        &self,
        mut name: RemoteName,
        plan: &RemotePlan,
        origin: Origin,
        apply_own: impl AsyncFnOnce(Mutation) -> Result<ChangeResult, Errno>,
    ) -> Result<Option<ChangeResult>, Errno> {
        let mdt = name.mdt;
        let gate = self.gate(mdt);
        let _open = gate.read().await;
        let batchid = self.ledger.lock().begin(mdt);
        let in_flight = InFlight {
            updates: self,
            batchid,
        };
        let record = UpdateRecord {
            batchid,
            participant: mdt,
            own_share: plan.inode_share.clone(),
            participant_share: plan.name_share.clone(),
            reply: origin.slot.map(|slot| (slot, plan.pre_versions)),
        };
        let encoded = record.encode();
        match self.give_share(&mut name, &encoded).await {
            Given::Applied => {}
            Given::SessionGone => return Ok(None),
            Given::Refused(e) => return Err(e),
            Given::Unknown => {
                // This MDT stops: its next start asks the other one.
                std::mem::forget(in_flight);
                return Err(Errno::ENOTCONN);
            }
        }
        match apply_own(kept(&record, encoded)).await {
            Ok(result) => {
                self.ledger.lock().keep(batchid, mdt);
                self.kept_more.notify_one();
                Ok(Some(result))
            }
            Err(e) => {
                tracing::error!(
                    "{}: cannot apply an operation that MDT{mdt:04x} has applied: {e}. The next start of this MDT repeats it",
                    self.svname
                );
                std::mem::forget(in_flight);
                Err(e)
            }
        }
    }

    /// Creates a directory under a name of another MDT.
    ///
    /// # Errors
    ///
    /// As [`namespace::create`]; `ENOTCONN` if this MDT stops.
    pub(crate) async fn create_dir(self: Arc<Self>, new: NewDirectory) -> Result<ChangeResult, Errno> {
        let _running = self.running.clone().read_owned().await;
        let name_of_new = (new.parent, &new.name);
        let is_replay = new.origin.replayed.is_some();
        if !is_replay {
            self.store
                .index()
                .space()
                .check(SpacePurpose::Growth)
                .map_err(Errno::from)?;
        }
        loop {
            let name = self
                .lock_name(new.parent_mdt, NameChange::Add, name_of_new, is_replay)
                .await?;
            let View { dir, entry } = &name.view;
            let in_use = entry.is_some();
            let plan =
                namespace::plan_remote_create(dir, in_use, &new.cred, (new.parent, &new.name), &new.node)?;
            let apply = async |kept| {
                let mut change = Change {
                    origin: new.origin,
                    pre_versions: plan.pre_versions,
                    ..Change::new()
                };
                change.mutations.extend_from_slice(&plan.inode_share);
                change.mutations.push(kept);
                let applied = self.store.apply(change).await?;
                let mut inode = plan.inode.clone();
                inode.version = applied.transno.0;
                Ok(ChangeResult {
                    transno: applied.transno,
                    fid: new.node.fid,
                    inode,
                    pre_versions: plan.pre_versions,
                })
            };
            if let Some(result) = self.carry_out(name, &plan, new.origin, apply).await? {
                return Ok(result);
            }
        }
    }

    /// Removes a directory, and its name on another MDT.
    ///
    /// # Errors
    ///
    /// As [`namespace::unlink`]; `ENOTCONN` if this MDT stops, or if the client disconnects.
    pub(crate) async fn remove_dir(self: Arc<Self>, removed: RemovedDirectory) -> Result<Removal, Errno> {
        let _running = self.running.clone().read_owned().await;
        let name_removed = (removed.parent, &removed.name);
        let is_replay = removed.origin.replayed.is_some();
        let args = UnlinkArgs {
            parent: removed.parent,
            name: &removed.name,
            is_rmdir: removed.is_rmdir,
            time: removed.time,
        };
        loop {
            let name = self
                .lock_name(removed.parent_mdt, NameChange::Remove, name_removed, is_replay)
                .await?;
            let View { dir, entry } = &name.view;
            namespace::check_remote_dir(&removed.cred, dir)?;
            let fid = entry.ok_or(Errno::ENOENT)?.fid;
            if self.store.find(fid).await?.is_none() {
                return Ok(Removal::Elsewhere(fid));
            }
            let mut locks = self.locks.request_locks(Some(&removed.export), false);
            locks.lock_for_removal(fid).await?;
            let plan = namespace::plan_remote_unlink(&self.store, dir, &removed.cred, args, fid).await?;
            // Commit on sharing: the removal may become durable on the other MDT before the changes
            // that emptied the directory.
            if plan.inode.version > self.store.transactions().committed().0 {
                self.store.index().sync().await?;
            }
            let store = RequestStore::new(&self.store, removed.origin);
            let apply =
                async |kept| namespace::drop_remote_name(store, args, fid, plan.pre_versions, kept).await;
            if let Some(result) = self.carry_out(name, &plan, removed.origin, apply).await? {
                return Ok(Removal::Done(Box::new(result)));
            }
        }
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
        // The connections end only when this MDT stops: the client sends the request again.
        _ => Errno::ENOTCONN,
    }
}
