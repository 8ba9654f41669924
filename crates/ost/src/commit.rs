//! Transactions of an OST, and their commits.
//!
//! Each change of objects gets a transaction number. The target replies at once and commits later:
//! [`COMMIT_INTERVAL`] after a change, after enough written data, or on request. A commit syncs all
//! changed objects. Then it records the highest number up to which all transactions had ended when
//! the sync began. Clients keep requests for replay until their transaction is committed
//! (docs/protocol.md, "Recovery"). The index has transaction numbers of its own. The target does
//! not use them, because they count as committed before the objects' data is on disk.
//!
//! The record also has the boot id of the machine. If the target was killed but the machine kept
//! running, the kernel still holds all data that clients wrote. The next start syncs it. If no
//! client can replay its requests, the start also counts all changes as committed.
//!
//! Otherwise `last_committed` tells the clients which requests to replay. It stays the same until
//! all clients have done so ([`Committer::end_recovery`]): after another crash they replay the same
//! requests. Replays also restore what a killed process had only in memory, such as times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use wire::{Fid, Transno};

use osd::{Batch, BootId, Index, Objects, OsdError, TransactionGuard, Transactions};
use tokio::sync::{Notify, watch};

use crate::{OstError, writers::Writers};

/// The longest time from a change to the start of its commit.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(2);
/// More written data than this, bytes, starts a commit at once, because clients and the kernel hold
/// data in memory until it is committed. [`MEMORY_DIVISOR`] can set a lower limit.
const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;
/// More written data than the process's memory divided by this also starts a commit at once.
const MEMORY_DIVISOR: u64 = 16;

/// Key of the record. Its value: last committed u64 LE, epoch u64 LE, boot id of the machine (16
/// bytes, zeros after a clean stop).
pub(crate) const KEY: [u8; 2] = *b"st";

/// Begins transactions and commits them.
pub(crate) struct Committer {
    index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
    transactions: Arc<Transactions>,
    boot_id: BootId,
    writers: Writers,
    /// Data written since the last commit began, bytes.
    written_bytes: AtomicU64,
    /// More written data than this, bytes, starts a commit at once.
    written_bytes_max: u64,
    /// Notified after a change.
    changed: Notify,
    /// Notified to commit without waiting for the interval.
    commit_now: Notify,
    commits: watch::Sender<Commits>,
}

/// Counts of commits. A waiter uses them to wait for a commit that began after its change.
#[derive(Clone, Copy, Default)]
struct Commits {
    /// Number of begun commits.
    begun: u64,
    /// `begun` at the last successful commit.
    done: u64,
    /// Number of failed commits.
    failed: u64,
    /// The last failure was for lack of space.
    full: bool,
    /// The last commit before a stop has ended.
    stopped: bool,
}

impl Committer {
    /// Continues from the stored record. The new epoch is on disk when this returns. With
    /// `recovers`, begins a recovery: clients may replay requests.
    ///
    /// # Errors
    ///
    /// The record cannot be parsed, or the store fails.
    pub(crate) async fn open(
        index: Arc<dyn Index>,
        objects: Arc<dyn Objects>,
        boot_id: BootId,
        svname: &str,
        recovers: bool,
    ) -> Result<Committer, OstError> {
        let record = match index.get(&KEY).await? {
            None => CommitRecord::default(),
            Some(r) => parse(&r).ok_or_else(|| OstError::Record {
                svname: svname.into(),
                what: "transactions",
                expected: "16 or 32 bytes".into(),
                found: format!("{} bytes", r.len()),
            })?,
        };
        let transactions = Transactions::restore(record.committed, record.epoch);
        let machine_kept_running = record.boot_id == boot_id && boot_id != BootId::default();
        if machine_kept_running {
            objects.sync_file_system().await?;
        }
        if recovers {
            transactions.begin_recovery();
        } else if machine_kept_running {
            transactions.set_committed(Transno(transactions.epoch() << 32));
        }
        let committer = Committer {
            index,
            objects,
            transactions,
            boot_id,
            writers: Writers::default(),
            written_bytes: AtomicU64::new(0),
            written_bytes_max: UNCOMMITTED_BYTES_MAX.min(cpt::memory_bytes() / MEMORY_DIVISOR),
            changed: Notify::new(),
            commit_now: Notify::new(),
            commits: watch::Sender::new(Commits::default()),
        };
        committer.write_record(committer.last_committed(), boot_id)?;
        committer.index.sync().await?;
        Ok(committer)
    }

    /// The number of this start, sent to clients as `ocd_instance`.
    pub(crate) fn epoch(&self) -> u64 {
        self.transactions.epoch()
    }

    /// The transactions of the target.
    pub(crate) fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    pub(crate) fn last_committed(&self) -> Transno {
        self.transactions.committed()
    }

    /// Whether clients replay requests.
    pub(crate) fn is_recovering(&self) -> bool {
        self.transactions.is_recovering()
    }

    /// Whether a client may replay a transaction: an earlier start executed it, and it is not on
    /// disk for certain.
    pub(crate) fn may_replay(&self, transno: Transno) -> bool {
        self.is_recovering() && transno > self.last_committed() && transno.0 <= self.epoch() << 32
    }

    /// Ends the recovery, and waits until all replays are on disk.
    ///
    /// # Errors
    ///
    /// As [`Committer::commit`].
    pub(crate) async fn end_recovery(&self) -> Result<(), OsdError> {
        self.transactions.end_recovery();
        // The commit of a transaction of this start covers the replays, which have lower numbers.
        drop(self.transactions.begin());
        self.commit().await
    }

    /// Begins a transaction after [`Index::throttle`]; with `replayed` under this number. Dropping
    /// the result ends the transaction.
    pub(crate) async fn begin(&self, replayed: Option<Transno>) -> TransactionGuard {
        self.index.throttle().await;
        match replayed {
            Some(transno) => self.transactions.replay(transno),
            None => self.transactions.begin(),
        }
    }

    /// Ends a client's transaction, which changed an object and wrote `written_bytes`. `client` is
    /// the handle of the client's export.
    pub(crate) fn end_of_client(
        &self,
        transaction: TransactionGuard,
        written_bytes: u64,
        (fid, client): (Fid, u64),
    ) {
        self.end(transaction, written_bytes);
        self.writers.add(fid, client);
    }

    /// Whether a sync of this object must commit everything ([`Writers`]).
    pub(crate) fn syncs_all_for(&self, fid: &Fid) -> bool {
        self.writers.are_several(fid)
    }

    /// Ends a transaction that wrote `written_bytes`.
    pub(crate) fn end(&self, transaction: TransactionGuard, written_bytes: u64) {
        drop(transaction);
        self.changed.notify_one();
        if self.written_bytes.fetch_add(written_bytes, SeqCst) + written_bytes > self.written_bytes_max {
            self.commit_now.notify_one();
        }
    }

    /// Waits until every transaction that ended before this call is on disk.
    ///
    /// # Errors
    ///
    /// `Stopping`, `NoSpace`, or `SyncFailed` if the commit failed for another reason.
    pub(crate) async fn commit(&self) -> Result<(), OsdError> {
        let mut commits = self.commits.subscribe();
        let before = *commits.borrow();
        // A running commit may have begun before the caller's change: wait for the next one.
        let target = before.begun + 1;
        self.changed.notify_one();
        self.commit_now.notify_one();
        let result = commits
            .wait_for(|c| c.done >= target || c.failed > before.failed || c.stopped)
            .await;
        match result {
            Ok(c) if c.done >= target => Ok(()),
            Ok(c) if c.stopped => Err(OsdError::Stopping),
            Ok(c) if c.full => Err(OsdError::NoSpace),
            _ => Err(OsdError::SyncFailed {
                path: "objects".into(),
                why: "a commit failed: see the log".into(),
            }),
        }
    }

    /// Commits until `stop` is set, then once more.
    pub(crate) async fn run(&self, mut stop: watch::Receiver<bool>) {
        loop {
            let stopped = tokio::select! {
                biased;
                _ = stop.wait_for(|s| *s) => true,
                () = self.changed.notified() => false,
            };
            // Let more changes join the commit.
            let last = stopped
                || tokio::select! {
                    biased;
                    _ = stop.wait_for(|s| *s) => true,
                    () = self.commit_now.notified() => false,
                    () = tokio::time::sleep(COMMIT_INTERVAL) => false,
                };
            self.commits.send_modify(|c| c.begun += 1);
            let result = self.commit_once(last).await;
            if let Ok(true) = result {
                // Change marks remain: commit again, which calls `settle`, even without a change.
                self.changed.notify_one();
            }
            let result = result.map(drop);
            let before = *self.commits.borrow();
            self.commits.send_modify(|c| match &result {
                Ok(()) => c.done = c.begun,
                Err(e) => {
                    c.failed += 1;
                    c.full = matches!(e, OsdError::NoSpace);
                }
            });
            let failed_before = before.failed > 0 && before.done + 1 < before.begun;
            match result {
                Err(e) => {
                    self.index.space().note_error(&e);
                    if !failed_before {
                        tracing::error!("commit failed: {e}; retrying every {COMMIT_INTERVAL:?}");
                    }
                    self.changed.notify_one();
                }
                Ok(()) if failed_before => tracing::info!("commits succeed again"),
                Ok(()) => {}
            }
            if last {
                self.commits.send_modify(|c| c.stopped = true);
                return;
            }
        }
    }

    /// Syncs the objects and writes the record. The `last` commit before a stop records no boot id.
    /// Returns true if change marks remain ([`Objects::settle`]).
    async fn commit_once(&self, last: bool) -> Result<bool, OsdError> {
        self.written_bytes.store(0, SeqCst);
        let covers_all = !self.is_recovering();
        let committed = self.transactions.committable();
        self.writers.begin_commit();
        self.objects.sync(None).await?;
        let marks_stay = self.objects.settle(last).await?;
        let boot_id = match last {
            true => BootId::default(),
            false => self.boot_id,
        };
        if last || committed > self.last_committed() {
            self.write_record(committed, boot_id)?;
            self.index.sync().await?;
            self.transactions.set_committed(committed);
        }
        if covers_all {
            self.writers.end_commit();
        }
        Ok(marks_stay)
    }

    /// Writes the record to the index.
    fn write_record(&self, committed: Transno, boot_id: BootId) -> Result<(), OsdError> {
        let numbers = [committed.0, self.transactions.epoch()].map(u64::to_le_bytes);
        let mut batch = Batch::new();
        batch.put_twice(&KEY[..], [&numbers.concat()[..], &boot_id.0].concat());
        self.index.apply(batch)
    }
}

/// The content of the record.
#[derive(Debug, Default)]
pub(crate) struct CommitRecord {
    committed: Transno,
    epoch: u64,
    boot_id: BootId,
}

/// Parses the record. A record of the older format (16 bytes) has no boot id and counts as written
/// by a clean stop.
pub(crate) fn parse(record: &[u8]) -> Option<CommitRecord> {
    let (committed, rest) = record.split_first_chunk()?;
    let (epoch, boot) = rest.split_first_chunk()?;
    let boot_id = match boot {
        [] => BootId::default(),
        boot => BootId(boot.try_into().ok()?),
    };
    Some(CommitRecord {
        committed: Transno(u64::from_le_bytes(*committed)),
        epoch: u64::from_le_bytes(*epoch),
        boot_id,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::{MemoryIndex, MemoryObjects};

    use super::*;

    async fn open(index: &Arc<dyn Index>) -> Arc<Committer> {
        Arc::new(
            Committer::open(
                index.clone(),
                Arc::new(MemoryObjects::default()),
                BootId([1; 16]),
                "t",
                false,
            )
            .await
            .unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_a_killed_target_are_committed_unless_the_machine_rebooted() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let killed = open(&index).await;
        let transno = killed.begin(None).await.transno();
        assert!(killed.last_committed() < transno);
        let restarted = open(&index).await;
        assert!(restarted.last_committed() >= transno);
        let transno = restarted.begin(None).await.transno();
        let objects = Arc::new(MemoryObjects::default());
        let after_reboot = Committer::open(index.clone(), objects, BootId([2; 16]), "t", false).await;
        let after_reboot = after_reboot.unwrap();
        assert!(after_reboot.last_committed() < transno);
        assert!(after_reboot.begin(None).await.transno() > transno);
    }

    #[tokio::test(start_paused = true)]
    async fn committed_number_stays_until_all_clients_have_recovered() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let killed = open(&index).await;
        let lost = killed.begin(None).await.transno();
        let committed = killed.last_committed();
        let recover = async || {
            let objects = Arc::new(MemoryObjects::default());
            let opened = Committer::open(index.clone(), objects, BootId([1; 16]), "t", true).await;
            Arc::new(opened.unwrap())
        };
        // The first recovery ends in a crash.
        let c = recover().await;
        assert_eq!(c.last_committed(), committed);
        let (_stop, stopped) = watch::channel(false);
        let (running, crash) = (c.clone(), stopped.clone());
        let run = cpt::spawn(async move { running.run(crash).await });
        assert!(c.may_replay(lost) && !c.may_replay(committed));
        let replay = c.begin(Some(lost)).await;
        assert_eq!(replay.transno(), lost);
        c.end(replay, 0);
        let new = c.begin(None).await;
        assert!(!c.may_replay(new.transno()));
        c.end(new, 0);
        c.commit().await.unwrap();
        assert_eq!(c.last_committed(), committed);
        run.abort();

        let c = recover().await;
        assert_eq!(c.last_committed(), committed);
        let running = c.clone();
        cpt::spawn(async move { running.run(stopped).await });
        c.end(c.begin(Some(lost)).await, 0);
        c.end_recovery().await.unwrap();
        assert!(c.last_committed().0 > c.epoch() << 32);
        assert!(!c.is_recovering() && !c.may_replay(lost));
    }

    #[test]
    fn records_of_both_lengths_parse() {
        let short = parse(&[1; 16]).unwrap();
        assert_eq!(short.boot_id, BootId::default());
        assert_eq!(parse(&[1; 32]).unwrap().boot_id, BootId([1; 16]));
        for len in [0, 15, 17, 31, 33] {
            assert!(parse(&vec![1; len]).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_committed_after_the_interval_or_on_request() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let c = open(&index).await;
        let (stop, stopped) = watch::channel(false);
        let task = cpt::spawn({
            let c = c.clone();
            async move { c.run(stopped).await }
        });
        let first = c.begin(None).await;
        let transno = first.transno();
        assert!(c.last_committed() < transno);
        c.end(first, 0);
        let mut committed = c.transactions.watch_committed();
        committed.wait_for(|t| *t >= transno).await.unwrap();

        let second = c.begin(None).await;
        let transno = second.transno();
        c.end(second, 0);
        let begun = tokio::time::Instant::now();
        c.commit().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(c.last_committed(), transno);

        stop.send(true).unwrap();
        task.await.unwrap();
        let restarted = open(&index).await;
        assert_eq!(restarted.last_committed(), transno);
        assert!(restarted.begin(None).await.transno() > transno);
        assert!(restarted.epoch() > c.epoch());
    }

    #[tokio::test(start_paused = true)]
    async fn transactions_in_flight_are_not_committed() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let c = open(&index).await;
        let (_stop, stopped) = watch::channel(false);
        let running = c.clone();
        cpt::spawn(async move { running.run(stopped).await });
        let slow = c.begin(None).await;
        let fast = c.begin(None).await;
        c.end(fast, 0);
        c.commit().await.unwrap();
        assert!(c.last_committed() < slow.transno());
    }
}
