//! After a start: gets the records that this MDT may lack from the other MDTs. Later: forgets
//! records that both MDTs have on disk.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use cpt::{HashMap, JoinSet};
use osd::Batch;
use tokio::time::sleep;
use wire::Errno;

use super::{
    Updates,
    coordinator::call,
    kept,
    ledger::Batchid,
    mark_key,
    message::{Message, decode_records},
    note_reply,
    record::UpdateRecord,
};
use crate::store::{Change, Mutation, keys};

/// Pause before another attempt to reach an MDT.
const RETRY: Duration = Duration::from_millis(500);
/// Records gather for this time before the MDT forgets them.
const FORGET_AFTER: Duration = Duration::from_secs(1);

impl Updates {
    /// The task of a start: asks each partner for the records that name this MDT, and applies those
    /// that it lacks. Then this MDT is ready.
    pub(crate) async fn recover(self: Arc<Self>) {
        let partners: Vec<u32> = self.partners.lock().await.iter().copied().collect();
        let mut pulls = JoinSet::new();
        for mdt in partners {
            let this = self.clone();
            pulls.spawn(async move { this.pull_until_done(mdt).await });
        }
        let mut aborted = self.aborted.subscribe();
        let aborted = async move { aborted.wait_for(|aborted| *aborted).await.map(drop) };
        let pulling = async { while pulls.join_next().await.is_some() {} };
        tokio::pin!(pulling);
        tokio::select! {
            biased;
            () = &mut pulling => {}
            _ = aborted => {
                tracing::warn!(
                    "{}: the administrator ended the wait for operations that other MDTs know; run 'nacre fsck' if these MDTs do not return",
                    self.svname
                );
                self.set_ready();
                pulling.await;
            }
        }
        self.set_ready();
        self.kept_more.notify_one();
    }

    async fn pull_until_done(&self, mdt: u32) {
        let mut is_reported = false;
        while let Err(e) = self.pull(mdt).await {
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(
                    "{}: waits for MDT{mdt:04x}, which may know operations that this MDT has lost ({e}); 'lctl abort_recovery' ends the wait",
                    self.svname
                );
            }
            sleep(RETRY).await;
        }
        self.unasked.lock().remove(&mdt);
    }

    /// Gets the records of another MDT that name this one, and applies those that it lacks.
    async fn pull(&self, mdt: u32) -> Result<(), Errno> {
        let mut after = Batchid::default();
        loop {
            let peer = self.peers.get(mdt)?;
            let records = call(&peer, &Message::Pull { after })
                .await
                .map_err(|e| e.errno())?;
            let records = decode_records(&records)?;
            if records.is_empty() {
                return Ok(());
            }
            let mut redone = Vec::new();
            for encoded in records {
                let record = UpdateRecord::decode(&encoded)?;
                after = record.batchid;
                if !self.ledger.lock().has(record.batchid, mdt) {
                    let (share, _) = record.share_of(self.index).ok_or(Errno::EPROTO)?;
                    self.redo(share.to_vec(), kept(&record, encoded.clone())).await?;
                    self.ledger.lock().keep(record.batchid, mdt);
                    redone.push(record);
                }
            }
            self.replies.rcu(|replies| {
                let mut replies = HashMap::clone(replies);
                redone
                    .iter()
                    .for_each(|record| note_reply(record, self.index, &mut replies));
                replies
            });
        }
    }

    /// Applies a share that this MDT has lost.
    async fn redo(&self, share: Vec<Mutation>, kept: Mutation) -> Result<(), Errno> {
        let mut change = Change::new();
        match self.is_applicable(&share).await? {
            true => change.mutations = share,
            false => tracing::error!(
                "{}: an operation that another MDT has applied is no longer possible here: {share:?}. Run 'nacre fsck'",
                self.svname
            ),
        }
        change.mutations.push(kept);
        self.store.apply(change).await?;
        Ok(())
    }

    /// Whether the state that a share builds on is still there. It always is unless the wait for
    /// records was aborted.
    async fn is_applicable(&self, share: &[Mutation]) -> Result<bool, Errno> {
        for mutation in share {
            let is_possible = match mutation {
                Mutation::EntryAdded { dir, name, .. } => {
                    self.store.find(*dir).await?.is_some() && self.store.entry(*dir, name).await?.is_none()
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

    /// Forgets what both MDTs of each pair have on disk. Returns whether nothing is left to forget.
    async fn forget_all(&self, told: &mut BTreeMap<u32, u64>) -> bool {
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
        participants.is_empty()
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
