//! The index of a simulated disk: a double of [`osd::LocalIndex`] that may lose batches in a crash.
//!
//! Readers see a [`MemoryIndex`]. A task commits: [`LocalConfig::COMMIT_INTERVAL`] after the first
//! change, or at once when a caller waits in `sync`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use cpt::BoxFuture;
use osd::{Batch, Index, IndexRead, LocalConfig, MemoryIndex, OsdError, Space, Transactions};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use wire::Transno;

use super::disk::{Disk, Handle};

/// An opening of the index. Dropping it makes all batches durable at once.
pub(super) struct SimIndex {
    shared: Arc<Shared>,
    read_only: bool,
}

struct Shared {
    handle: Handle,
    memory: MemoryIndex,
    transactions: Arc<Transactions>,
    /// Notified after a batch.
    changed: Notify,
    /// Notified when a caller waits for a commit.
    requested: Notify,
    closed: AtomicBool,
    durable: watch::Sender<Durable>,
}

#[derive(Clone, Debug, Default)]
struct Durable {
    /// Number of batches on disk.
    batches: u64,
    /// The first failure.
    failed: Option<String>,
}

impl SimIndex {
    /// Opens the index for changes. The new epoch is on disk when this returns.
    pub(super) async fn open(handle: Handle, memory: MemoryIndex) -> Result<SimIndex, OsdError> {
        let path = handle.lock().ok_or(OsdError::Stopping)?.path();
        let index = SimIndex::new(handle, memory, &path, false)?;
        if !index.shared.commit().await {
            return Err(index.shared.sync_error());
        }
        cpt::spawn(index.shared.clone().run_committer());
        Ok(index)
    }

    /// Opens the index read-only.
    pub(super) fn read_only(handle: Handle, memory: MemoryIndex, path: &Path) -> Result<SimIndex, OsdError> {
        SimIndex::new(handle, memory, path, true)
    }

    fn new(handle: Handle, memory: MemoryIndex, path: &Path, read_only: bool) -> Result<SimIndex, OsdError> {
        let record = memory.get(&Transactions::KEY).wait()?;
        let transactions = Transactions::from_record(path, record.as_deref())?;
        // A read-only open already holds the disk's lock.
        if !read_only && let Some(mut disk) = handle.lock() {
            let restored = *transactions.watch_committed().borrow();
            disk.durable_transno = disk.durable_transno.max(restored);
            disk.transactions = Some(transactions.clone());
        }
        Ok(SimIndex {
            shared: Arc::new(Shared {
                handle,
                memory,
                transactions,
                changed: Notify::new(),
                requested: Notify::new(),
                closed: AtomicBool::new(false),
                durable: watch::Sender::new(Durable::default()),
            }),
            read_only,
        })
    }
}

impl Drop for SimIndex {
    fn drop(&mut self) {
        let s = &self.shared;
        s.closed.store(true, Relaxed);
        s.changed.notify_one();
        if !self.read_only && s.failure().is_none() {
            s.commit_now();
        }
    }
}

impl Shared {
    /// Commits until the index is closed or a commit fails.
    async fn run_committer(self: Arc<Self>) {
        loop {
            while !self.closed.load(Relaxed) && self.pending() == Some(0) {
                self.changed.notified().await;
            }
            if self.closed.load(Relaxed) {
                return;
            }
            // Collect further changes unless a caller waits.
            let _ = timeout(LocalConfig::COMMIT_INTERVAL, self.requested.notified()).await;
            if self.closed.load(Relaxed) || !self.commit().await {
                return;
            }
        }
    }

    /// Number of batches that are not on disk; `None` if the handle is dead.
    fn pending(&self) -> Option<usize> {
        self.handle.lock().map(|disk| disk.journal.pending())
    }

    /// Makes all batches applied so far durable. Returns false after a failure.
    async fn commit(&self) -> bool {
        let Some((batches, committed)) = self.handle.lock().map(|mut disk| self.begin_commit(&mut disk))
        else {
            self.fail("the disk is gone");
            return false;
        };
        self.handle.sync_delay().await;
        let synced = match self.handle.lock() {
            Some(mut disk) if !disk.is_failing => {
                disk.journal.sync_to(batches);
                Ok(())
            }
            Some(mut disk) => {
                // The content of the disk is unknown from now on.
                let pending = disk.journal.pending();
                let lost = disk.rng.usize(0..=pending);
                let durable = disk.journal.appended() - lost as u64;
                disk.journal.sync_to(durable);
                disk.journal.lose(lost);
                Err("commit: the disk failed")
            }
            None => Err("the disk is gone"),
        };
        match synced {
            Ok(()) => self.end_commit(batches, committed),
            Err(why) => self.fail(why),
        }
        synced.is_ok()
    }

    /// Makes all batches durable without a wait.
    fn commit_now(&self) {
        if let Some(mut disk) = self.handle.lock().filter(|disk| !disk.is_failing) {
            let (batches, committed) = self.begin_commit(&mut disk);
            disk.journal.sync_to(batches);
            drop(disk);
            self.end_commit(batches, committed);
        }
    }

    /// Appends the record of the transactions. Returns the number of batches to sync, and the
    /// transactions that the record counts as committed.
    fn begin_commit(&self, disk: &mut Disk) -> (u64, Option<Transno>) {
        let committed = self.transactions.committable();
        let mut record = Batch::new();
        record.put(
            &Transactions::KEY[..],
            self.transactions.record(committed).to_vec(),
        );
        // Without space for upkeep there is no record. The transactions then stay uncommitted, and
        // clients keep their requests for replay.
        let is_recorded = self.memory.apply(record.clone()).is_ok();
        if is_recorded {
            disk.journal.append(record);
        }
        (disk.journal.appended(), is_recorded.then_some(committed))
    }

    fn end_commit(&self, batches: u64, committed: Option<Transno>) {
        if let Some(committed) = committed {
            if let Some(mut disk) = self.handle.lock() {
                disk.durable_transno = disk.durable_transno.max(committed);
            }
            self.transactions.set_committed(committed);
        }
        self.durable.send_modify(|d| d.batches = d.batches.max(batches));
    }

    /// Makes the index read-only.
    fn fail(&self, why: &str) {
        self.memory.space().set_failure(why);
        self.durable.send_modify(|d| {
            d.failed.get_or_insert_with(|| why.to_owned());
        });
    }

    fn failure(&self) -> Option<String> {
        self.durable.borrow().failed.clone()
    }

    /// The error of a sync after a failure or a crash.
    fn sync_error(&self) -> OsdError {
        match self.handle.lock() {
            Some(disk) => OsdError::SyncFailed {
                path: disk.path(),
                why: self.failure().unwrap_or_default(),
            },
            None => OsdError::Stopping,
        }
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        let mut disk = self.handle.lock().ok_or(OsdError::Stopping)?;
        if let Some(why) = self.failure() {
            return Err(OsdError::ReadOnly {
                path: disk.path(),
                why,
            });
        }
        // A transaction without changes, such as an open for reading, still needs a commit.
        if !batch.is_empty() {
            self.memory.apply(batch.clone())?;
        }
        disk.journal.append(batch);
        self.changed.notify_one();
        Ok(())
    }

    /// Runs a read of the entries. It may wait; then it returns the value from the beginning or the
    /// end of the wait.
    fn delayed_read<T: Send + 'static>(
        &self,
        read: impl Fn(&MemoryIndex) -> Result<T, OsdError> + Send + 'static,
    ) -> IndexRead<'_, T> {
        let Some(time) = self.handle.read_time() else {
            return IndexRead::ready(self.read().and_then(read));
        };
        IndexRead::waiting(async move {
            let before = self.read().and_then(&read);
            sleep(time).await;
            let after = self.read().and_then(read)?;
            match time.as_millis() % 2 {
                0 => before,
                _ => Ok(after),
            }
        })
    }

    /// The entries; fails if the handle is dead.
    fn read(&self) -> Result<&MemoryIndex, OsdError> {
        let is_alive = self.handle.lock().is_some();
        is_alive.then_some(&self.memory).ok_or(OsdError::Stopping)
    }
}

impl Index for SimIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        let key = Bytes::copy_from_slice(key);
        self.shared.delayed_read(move |memory| memory.get(&key).wait())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        let [from, to] = [from, to].map(Bytes::copy_from_slice);
        self.shared
            .delayed_read(move |memory| memory.scan(&from, &to, limit).wait())
    }

    fn apply(&self, mut batch: Batch) -> Result<(), OsdError> {
        if self.read_only {
            return Err(OsdError::Invalid("the index was opened read-only"));
        }
        let transnos: Vec<Transno> = batch.transnos().collect();
        (batch.transno, batch.joined) = (None, Vec::new());
        let done = self.shared.apply(batch);
        transnos
            .into_iter()
            .for_each(|t| self.shared.transactions.finish(t));
        done
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let s = &self.shared;
            if self.read_only {
                return Ok(());
            }
            let target = s.handle.lock().ok_or(OsdError::Stopping)?.journal.appended();
            let mut durable = s.durable.subscribe();
            if durable.borrow().batches < target {
                s.requested.notify_one();
            }
            let reached = durable.wait_for(|d| d.failed.is_some() || d.batches >= target);
            match reached.await {
                Ok(d) if d.failed.is_none() => Ok(()),
                _ => Err(s.sync_error()),
            }
        })
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.shared.transactions
    }

    fn space(&self) -> &Arc<Space> {
        self.shared.memory.space()
    }
}
