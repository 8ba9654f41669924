//! After a start: gets the records that this MDT may lack from the other MDTs, and gives them those
//! that they may lack. Later: forgets records that all their MDTs have on disk.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering::Release},
    time::Duration,
};

use bytes::Bytes;
use cpt::{HashMap, JoinSet};
use osd::Batch;
use tokio::time::sleep;
use wire::{Errno, Fid};

use super::{
    Updates, kept,
    ledger::Batchid,
    mark_key,
    message::{Message, decode_records},
    note_reply,
    operation::call,
    record::UpdateRecord,
};
use crate::{
    namespace::{self, Share, ShareContext},
    store::{Mutation, keys},
};

/// Pause before another attempt to reach an MDT.
const RETRY: Duration = Duration::from_millis(500);
/// Records gather for this time before the MDT forgets them.
const FORGET_AFTER: Duration = Duration::from_secs(1);

impl Updates {
    /// The task of a start: asks each partner for the records that name this MDT, and applies those
    /// that it lacks. Then this MDT is ready, and gives its partners those that they may lack.
    ///
    /// It asks twice, because a partner that starts too may get a record only after it has answered
    /// for the first time.
    pub(crate) async fn recover(self: Arc<Self>) {
        let partners: Vec<u32> = self.partners.lock().await.iter().copied().collect();
        let mut aborted = self.aborted.subscribe();
        let aborted = async move { aborted.wait_for(|aborted| *aborted).await.map(drop) };
        let pulling = async {
            self.pull_from_all(&partners, false).await;
            self.has_asked_once.store(true, Release);
            if partners.len() > 1 {
                self.pull_from_all(&partners, true).await;
            }
            self.unasked.lock().clear();
        };
        tokio::pin!(pulling);
        tokio::select! {
            biased;
            () = &mut pulling => {}
            _ = aborted => {
                tracing::warn!(
                    "{}: the administrator ended the wait for operations that other MDTs know; run 'nacre fsck' if these MDTs do not return",
                    self.svname
                );
                self.has_asked_once.store(true, Release);
                self.set_ready();
                pulling.await;
            }
        }
        self.set_ready();
        self.kept_more.notify_one();
    }

    async fn pull_from_all(self: &Arc<Self>, partners: &[u32], is_second: bool) {
        let mut pulls = JoinSet::new();
        for mdt in partners.iter().copied() {
            let this = self.clone();
            pulls.spawn(async move { this.pull_until_done(mdt, is_second).await });
        }
        while pulls.join_next().await.is_some() {}
    }

    async fn pull_until_done(&self, mdt: u32, is_second: bool) {
        let mut is_reported = false;
        while let Err(e) = self.pull(mdt, is_second).await {
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(
                    "{}: waits for MDT{mdt:04x}, which may know operations that this MDT has lost ({e}); 'lctl abort_recovery' ends the wait",
                    self.svname
                );
            }
            sleep(RETRY).await;
        }
    }

    /// Gets the records of another MDT that name this one, and applies those that it lacks.
    async fn pull(&self, mdt: u32, is_second: bool) -> Result<(), Errno> {
        let mut after = Batchid::default();
        loop {
            let peer = self.peers.get(mdt)?;
            let records = call(&peer, &Message::Pull { after, is_second })
                .await
                .map_err(|e| e.errno())?;
            let records = decode_records(&records)?;
            if records.is_empty() {
                return Ok(());
            }
            for encoded in records {
                let record = UpdateRecord::decode(&encoded)?;
                after = record.batchid;
                self.redo_if_missing(&record, encoded).await?;
            }
        }
    }

    /// Applies a share that this MDT has lost, and keeps the record.
    pub(super) async fn redo_if_missing(&self, record: &UpdateRecord, encoded: Bytes) -> Result<(), Errno> {
        let (share, named) = record.share_of(self.index).ok_or(Errno::EPROTO)?;
        let _one_at_a_time = self.redoing.lock().await;
        if self.ledger.lock().has(record.batchid, &named) {
            return Ok(());
        }
        let share = match self.is_applicable(record, share).await? {
            true => share.clone(),
            false => {
                tracing::error!(
                    "{}: an operation that another MDT has applied is no longer possible here: {share:?}. Run 'nacre fsck'",
                    self.svname
                );
                Share::default()
            }
        };
        let context = ShareContext {
            kept: Some(kept(record, encoded)),
            is_admitted: true,
            keeps_orphans: true,
            ..ShareContext::default()
        };
        namespace::apply_share((&*self.store).into(), &share, context).await?;
        self.ledger.lock().keep_unconfirmed(record.batchid, named);
        self.replies.rcu(|replies| {
            let mut replies = HashMap::clone(replies);
            note_reply(record, self.index, &mut replies);
            replies
        });
        Ok(())
    }

    /// Whether the state that a share builds on is still there. It always is unless the wait for
    /// records was aborted.
    async fn is_applicable(&self, record: &UpdateRecord, share: &Share) -> Result<bool, Errno> {
        for relink in &share.relinks {
            if self.store.find(relink.fid).await?.is_none() {
                return Ok(false);
            }
        }
        let replaces = |dir: &Fid, name: &Bytes| {
            let mut relinks = record.shares.values().flat_map(|share| &share.relinks);
            relinks.any(|relink| relink.removed.as_ref() == Some(&(*dir, name.clone())))
        };
        for mutation in &share.mutations {
            let is_possible = match mutation {
                Mutation::EntryAdded { dir, name, .. } => {
                    self.store.find(*dir).await?.is_some()
                        && self.store.entry(*dir, name).await?.is_some() == replaces(dir, name)
                }
                Mutation::EntryRemoved { dir, name } => self.store.entry(*dir, name).await?.is_some(),
                Mutation::InodeMade { fid, .. } => self.store.find(*fid).await?.is_none(),
                Mutation::InodeChanged { fid, .. } => self.store.find(*fid).await?.is_some(),
                _ => true,
            };
            if !is_possible {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives a partner the records of earlier starts that it may lack, and ends the sessions of
    /// these starts there.
    async fn resolve(&self, mdt: u32) -> Result<(), Errno> {
        let peer = self.peers.get(mdt)?;
        if !peer.is_connected() {
            return Err(Errno::ENOTCONN);
        }
        let unconfirmed = self.ledger.lock().unconfirmed(mdt);
        for batchid in unconfirmed {
            if let Some(record) = self.record(batchid).await? {
                call(&peer, &Message::Redo { record })
                    .await
                    .map_err(|e| e.errno())?;
            }
            self.ledger.lock().confirm(batchid, mdt);
        }
        let last_session = self.first_session();
        call(&peer, &Message::Resolve { last_session })
            .await
            .map_err(|e| e.errno())?;
        self.unresolved.lock().remove(&mdt);
        Ok(())
    }

    /// The task that forgets records: asks each participant to sync, syncs the own store, forgets
    /// the settled records, and tells the participant.
    pub(crate) async fn forget_settled(updates: Weak<Updates>) {
        // The marks that the participants know.
        let mut told: BTreeMap<u32, u64> = BTreeMap::new();
        let Some(kept_more) = updates.upgrade().map(|updates| updates.kept_more.clone()) else {
            return;
        };
        while let Some(this) = updates.upgrade() {
            if told.is_empty() {
                told.extend(this.partners.lock().await.iter().map(|mdt| (*mdt, 0)));
            }
            let is_idle = !this.is_ready() || this.forget_all(&mut told).await;
            drop(this);
            if is_idle {
                kept_more.notified().await;
            }
            sleep(FORGET_AFTER).await;
        }
    }

    /// Resolves the earlier starts, and forgets what both MDTs of each pair have on disk. Returns
    /// whether nothing is left to do.
    async fn forget_all(&self, told: &mut BTreeMap<u32, u64>) -> bool {
        let unresolved = self.unresolved.lock().clone();
        for mdt in &unresolved {
            if let Err(e) = self.resolve(*mdt).await {
                tracing::debug!("{}: MDT{mdt:04x} may lack update records: {e}", self.svname);
            }
        }
        let participants = {
            let ledger = self.ledger.lock();
            let untold = told
                .iter()
                .filter(|(mdt, mark)| **mark < ledger.forgotten(self.index, **mdt));
            let mut participants = ledger.participants();
            participants.extend(untold.map(|(mdt, _)| *mdt));
            participants
        };
        for mdt in &participants {
            if let Err(e) = self.forget_of(*mdt, told).await {
                tracing::debug!("{}: MDT{mdt:04x} keeps its update records: {e}", self.svname);
            }
        }
        participants.is_empty() && unresolved.is_empty()
    }

    async fn forget_of(&self, mdt: u32, told: &mut BTreeMap<u32, u64>) -> Result<(), Errno> {
        let peer = self.peers.get(mdt)?;
        if !peer.is_connected() {
            return Err(Errno::ENOTCONN);
        }
        if self.unasked.lock().contains(&mdt) {
            return Err(Errno::EINPROGRESS);
        }
        let settled = self.ledger.lock().settled(mdt);
        for _ in 0..2 {
            let number = self.ledger.lock().forgotten(self.index, mdt);
            call(&peer, &Message::Forget { number })
                .await
                .map_err(|e| e.errno())?;
            told.insert(mdt, number);
            self.store.index().sync().await?;
            self.forget(self.index, mdt, settled)?;
        }
        Ok(())
    }

    /// Forgets records of a coordinator that name this MDT and `other`, up to a number.
    pub(super) fn forget(&self, coordinator: u32, other: u32, number: u64) -> Result<(), Errno> {
        let mut ledger = self.ledger.lock();
        let Some((records, pair)) = ledger.forget(coordinator, other, number) else {
            return Ok(());
        };
        let mut batch = Batch::new();
        for batchid in records {
            batch.delete(keys::update(batchid.coordinator, batchid.number));
        }
        batch.put_twice(mark_key(pair), number.to_le_bytes().to_vec());
        // Under the lock of the ledger, so that the marks on disk never decrease.
        self.store.index().apply(batch)?;
        Ok(())
    }
}
