//! Transactions of an object target, and when they are on disk.
//!
//! What changes objects gets a transaction number. It is answered at once and made durable a little later: every
//! [`COMMIT_INTERVAL`], or when much has been written, or when somebody asks, all objects that changed are synced and
//! the number of the last transaction before that is recorded (guide 8.3: clients keep requests for replay until then).
//! The numbers are the target's own, not the index's: a transaction is only durable when the objects' data is.
//!
//! The record also says in which run of the machine it was made. A target that was killed finds everything that it
//! answered, if the machine has run on: it is put on disk at the next start, and counts as committed. After a loss of
//! power `last_committed` says how far one can trust it, and clients know what is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use osd::{Batch, InFlight, Index, Objects, OsdError, RunOfMachine, Transactions};
use tokio::sync::{Notify, watch};

use crate::OstError;

/// How long a change may wait for its commit.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(2);
/// So much written data starts a commit at once: clients, and the kernel, hold it in memory until then.
const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;
/// Part of the process's memory that it may be at most.
const UNCOMMITTED_SHARE: u64 = 16;

/// key 's' 't' -> last committed u64 LE, epoch u64 LE, run of the machine (0: stopped in order)
pub(crate) const KEY: [u8; 2] = *b"st";

/// Begins transactions and commits them.
pub(crate) struct Committer {
    index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
    transactions: Arc<Transactions>,
    run_of_machine: RunOfMachine,
    written_bytes: AtomicU64,
    written_bytes_max: u64,
    /// Something changed since the last commit.
    changed: Notify,
    /// A commit is wanted now.
    wanted: Notify,
    commits: watch::Sender<Commits>,
}

/// Commits are counted so that one who waits knows that one began after its change.
#[derive(Clone, Copy, Default)]
struct Commits {
    begun: u64,
    done: u64,
    failed: u64,
    /// The last one that failed did so for want of space.
    full: bool,
    stopped: bool,
}

impl Committer {
    /// Goes on where the last start ended; the new epoch is on disk when this returns.
    pub(crate) async fn open(
        index: Arc<dyn Index>,
        objects: Arc<dyn Objects>,
        run_of_machine: RunOfMachine,
        svname: &str,
    ) -> Result<Committer, OstError> {
        let kept = match index.get(&KEY)? {
            None => Kept::default(),
            Some(r) => parse(&r).ok_or_else(|| OstError::Record {
                svname: svname.into(),
                what: "transactions",
                expected: "16 or 32 bytes".into(),
                found: format!("{} bytes", r.len()),
            })?,
        };
        let transactions = Transactions::restore(kept.committed, kept.epoch);
        if kept.run_of_machine == run_of_machine && run_of_machine != RunOfMachine::default() {
            objects.sync_left().await?;
            transactions.set_committed(transactions.epoch() << 32);
        }
        let committer = Committer {
            index,
            objects,
            transactions,
            run_of_machine,
            written_bytes: AtomicU64::new(0),
            written_bytes_max: UNCOMMITTED_BYTES_MAX.min(cpt::memory_bytes() / UNCOMMITTED_SHARE),
            changed: Notify::new(),
            wanted: Notify::new(),
            commits: watch::Sender::new(Commits::default()),
        };
        committer.record(committer.last_committed(), run_of_machine)?;
        committer.index.sync().await?;
        Ok(committer)
    }

    /// This start's number: `ocd_instance`.
    pub(crate) fn epoch(&self) -> u64 {
        self.transactions.epoch()
    }

    pub(crate) fn last_committed(&self) -> u64 {
        self.transactions.committed()
    }

    /// Begins a transaction, once there is room in the index. Dropping it ends it.
    pub(crate) async fn begin(&self) -> InFlight {
        self.index.room().await;
        self.transactions.begin()
    }

    /// Ends a transaction that wrote so many bytes.
    pub(crate) fn end(&self, transaction: InFlight, written_bytes: u64) {
        drop(transaction);
        self.changed.notify_one();
        if self.written_bytes.fetch_add(written_bytes, SeqCst) + written_bytes > self.written_bytes_max {
            self.wanted.notify_one();
        }
    }

    /// Waits until everything that has ended by now is on disk.
    pub(crate) async fn commit(&self) -> Result<(), OsdError> {
        let mut commits = self.commits.subscribe();
        let now = *commits.borrow();
        // The one that is under way may have begun too early.
        let target = now.begun + 1;
        self.changed.notify_one();
        self.wanted.notify_one();
        let done = commits
            .wait_for(|c| c.done >= target || c.failed > now.failed || c.stopped)
            .await;
        match done {
            Ok(c) if c.done >= target => Ok(()),
            Ok(c) if c.stopped => Err(OsdError::Stopping),
            Ok(c) if c.full => Err(OsdError::NoSpace),
            _ => Err(OsdError::Failed {
                path: "objects".into(),
                why: "a commit failed: see the log".into(),
            }),
        }
    }

    /// Commits until `stop`, and a last time then.
    pub(crate) async fn run(&self, mut stop: watch::Receiver<bool>) {
        loop {
            let stopped = tokio::select! {
                _ = stop.wait_for(|s| *s) => true,
                () = self.changed.notified() => false,
            };
            // Let other changes join.
            let last = stopped
                || tokio::select! {
                    _ = stop.wait_for(|s| *s) => true,
                    () = self.wanted.notified() => false,
                    () = tokio::time::sleep(COMMIT_INTERVAL) => false,
                };
            self.commits.send_modify(|c| c.begun += 1);
            let done = self.commit_once(last).await;
            let before = *self.commits.borrow();
            self.commits.send_modify(|c| match &done {
                Ok(()) => c.done = c.begun,
                Err(e) => {
                    c.failed += 1;
                    c.full = matches!(e, OsdError::NoSpace);
                }
            });
            let failed_before = before.failed > 0 && before.done + 1 < before.begun;
            match done {
                Err(e) => {
                    if !failed_before {
                        tracing::error!("commit failed: {e}; trying again every {COMMIT_INTERVAL:?}");
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

    async fn commit_once(&self, last: bool) -> Result<(), OsdError> {
        self.written_bytes.store(0, SeqCst);
        let applied = self.transactions.applied();
        self.objects.sync(None).await?;
        // If no number of this start has been handed out yet, what was committed before it stays true.
        let committed = match applied > self.transactions.epoch() << 32 {
            true => applied,
            false => self.last_committed(),
        };
        let run_of_machine = match last {
            true => RunOfMachine::default(),
            false => self.run_of_machine,
        };
        if last || committed > self.last_committed() {
            self.record(committed, run_of_machine)?;
            self.index.sync().await?;
            self.transactions.set_committed(committed);
        }
        Ok(())
    }

    fn record(&self, committed: u64, run_of_machine: RunOfMachine) -> Result<(), OsdError> {
        let numbers = [committed, self.transactions.epoch()].map(u64::to_le_bytes);
        let mut batch = Batch::new();
        batch.put(&KEY[..], [&numbers.concat()[..], &run_of_machine.0].concat());
        self.index.apply(batch)
    }
}

/// What the record says.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    committed: u64,
    epoch: u64,
    run_of_machine: RunOfMachine,
}

/// Reads the record. One of 16 bytes, of before the run was kept, is as of a target that was stopped in order.
pub(crate) fn parse(record: &[u8]) -> Option<Kept> {
    let (committed, rest) = record.split_first_chunk()?;
    let (epoch, run) = rest.split_first_chunk()?;
    let run_of_machine = match run {
        [] => RunOfMachine::default(),
        run => RunOfMachine(run.try_into().ok()?),
    };
    Some(Kept {
        committed: u64::from_le_bytes(*committed),
        epoch: u64::from_le_bytes(*epoch),
        run_of_machine,
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
                RunOfMachine([1; 16]),
                "t",
            )
            .await
            .unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_killed_target_answered_counts_as_committed_unless_the_machine_stopped_too() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let killed = open(&index).await;
        let answered = killed.begin().await.transno();
        assert!(killed.last_committed() < answered);
        let again = open(&index).await;
        assert!(again.last_committed() >= answered);
        let answered = again.begin().await.transno();
        let objects = Arc::new(MemoryObjects::default());
        let other_run = Committer::open(index.clone(), objects, RunOfMachine([2; 16]), "t").await;
        let other_run = other_run.unwrap();
        assert!(other_run.last_committed() < answered);
        assert!(other_run.begin().await.transno() > answered);
    }

    #[test]
    fn records_of_both_lengths_are_read() {
        let short = parse(&[1; 16]).unwrap();
        assert_eq!(short.run_of_machine, RunOfMachine::default());
        assert_eq!(parse(&[1; 32]).unwrap().run_of_machine, RunOfMachine([1; 16]));
        for len in [0, 15, 17, 31, 33] {
            assert!(parse(&vec![1; len]).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_committed_after_the_interval_or_when_wanted() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let c = open(&index).await;
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn({
            let c = c.clone();
            async move { c.run(stopped).await }
        });
        let first = c.begin().await;
        let transno = first.transno();
        assert!(c.last_committed() < transno);
        c.end(first, 0);
        let mut committed = c.transactions.watch_committed();
        committed.wait_for(|t| *t >= transno).await.unwrap();

        let second = c.begin().await;
        let transno = second.transno();
        c.end(second, 0);
        let begun = tokio::time::Instant::now();
        c.commit().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(c.last_committed(), transno);

        stop.send(true).unwrap();
        task.await.unwrap();
        let again = open(&index).await;
        assert_eq!(again.last_committed(), transno);
        assert!(again.begin().await.transno() > transno);
        assert!(again.epoch() > c.epoch());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_flight_is_not_committed() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let c = open(&index).await;
        let (_stop, stopped) = watch::channel(false);
        let running = c.clone();
        tokio::spawn(async move { running.run(stopped).await });
        let slow = c.begin().await;
        let fast = c.begin().await;
        c.end(fast, 0);
        c.commit().await.unwrap();
        assert!(c.last_committed() < slow.transno());
    }
}
