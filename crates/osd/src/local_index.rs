//! The durable index: one fjall database (docs/decisions/001-metadata-store.md) with group commit.
//!
//! `apply` writes a batch into the engine's journal buffer and memory table: the batch is visible
//! at once, without a system call that waits. A committer thread makes applied batches durable,
//! [`LocalConfig::commit_interval`] after the first change, or at once when a caller waits in
//! `sync`. Each commit writes a record of the committed transactions, unless the disk is full.
//!
//! During a sync the engine would hold its journal's lock and block all other callers. So the
//! engine only flushes the journal to the kernel, and this module syncs the same file. After a
//! failed sync the state of the disk is unknown, and every later sync fails.

pub(crate) mod engine;
#[cfg(test)]
mod tests;

use std::{
    ops::Bound,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cpt::{BoxFuture, HashSet};
use engine::{check_exists, create, engine_error, open_engine};
use fjall::{Database, Keyspace, PersistMode};
use tokio::sync::{Semaphore, watch};

use crate::{
    Batch, Failure, Index, IndexRead, OsdError, Space, SpacePurpose, Transactions,
    disk_speed::DiskSpeed,
    engine_files, files,
    journal::{self, Journals, ScratchCopy, SyncThread},
    reclaim::Reclaimer,
    target::{self, Fence},
};

/// Above these numbers of unwritten memory tables or unsorted runs, new changes wait in
/// [`Index::throttle`]. The engine itself blocks its callers for whole milliseconds, at 4 tables
/// and at 20 runs.
const SEALED_TABLES_MAX: usize = 2;
const UNSORTED_RUNS_MAX: usize = 14;
/// Target size of a sorted table, bytes. Compaction temporarily needs about ten times as much
/// space; the reserve covers that.
const TABLE_BYTES: u64 = 8 << 20;
/// Maximum number of reads of an index on threads for blocking work at a time; others wait.
const BLOCKING_READS_MAX: usize = 64;
/// A read that took longer, apart from the time for its entries, waited for the disk.
const SLOW_READ: Duration = Duration::from_micros(200);
/// Time for each entry that a read returns.
const ENTRY_TIME: Duration = Duration::from_micros(1);
/// Number of fast reads in succession after which workers read.
const FAST_READS: u32 = 64;
/// Maximum number of entries that a scan on a worker returns.
const WORKER_ROWS_MAX: usize = 256;
/// Interval of checks for the end of reads, when the index is dropped.
const READ_POLL: Duration = Duration::from_micros(100);
/// A dropped index that waits for reads longer than this warns.
const READ_WARNING: Duration = Duration::from_secs(10);
/// Interval of checks in [`Index::throttle`].
const THROTTLE_POLL: Duration = Duration::from_millis(2);

/// Interval at which the committer flushes applied batches to the kernel: a kill of the process
/// loses only batches that are not flushed. The committer cannot wait for a program's `sync` or
/// `syncfs` instead, because these calls do not reach a FUSE file system.
const KERNEL_INTERVAL: Duration = Duration::from_millis(1);

/// Memory limits and commit interval of a local index.
#[derive(Clone, Copy, Debug)]
pub struct LocalConfig {
    /// Maximum time that the committer waits for further changes before a commit.
    pub commit_interval: Duration,
    /// Size of the block cache, bytes.
    pub cache_bytes: u64,
    /// Size at which a memory table is written out, bytes.
    pub memtable_bytes: u64,
    /// The target ran before: a missing or empty index is an error.
    pub initialised: bool,
}

impl LocalConfig {
    /// Default of [`LocalConfig::commit_interval`].
    pub const COMMIT_INTERVAL: Duration = Duration::from_millis(50);

    /// A killed process loses at most the batches that it applied in this time before its death.
    pub const KERNEL_INTERVAL: Duration = KERNEL_INTERVAL;
}

/// Block cache and memory table each use the process's memory divided by this, at least 1 MiB and
/// at most 16 MiB (cache) or 8 MiB (table).
const MEMORY_DIVISOR: u64 = 128;

impl Default for LocalConfig {
    /// Limits in proportion to the process's memory.
    fn default() -> LocalConfig {
        let share = (cpt::memory_bytes() / MEMORY_DIVISOR).max(1 << 20);
        LocalConfig {
            commit_interval: LocalConfig::COMMIT_INTERVAL,
            cache_bytes: share.min(16 << 20),
            memtable_bytes: share.min(8 << 20),
            initialised: false,
        }
    }
}

/// The index on the local file system.
pub struct LocalIndex {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
    /// The copy that a read-only index reads. The last field, because the engine must close the
    /// copy before it is removed.
    scratch: Option<ScratchCopy>,
}

struct Shared {
    db: Database,
    keyspace: Keyspace,
    path: PathBuf,
    config: LocalConfig,
    fence: Fence,
    space: Arc<Space>,
    reclaim: Reclaimer,
    read_speed: DiskSpeed,
    /// Permits for reads on threads for blocking work.
    read_permits: Arc<Semaphore>,
    transactions: Arc<Transactions>,
    /// Number of applied batches.
    applied: AtomicU64,
    /// A caller waits for a commit.
    commit_requested: AtomicBool,
    /// The committer sleeps until the next change.
    idle: AtomicBool,
    stop: AtomicBool,
    /// A batch or a commit failed: no further batch is accepted.
    failed: AtomicBool,
    durable: watch::Sender<DurableState>,
}

#[derive(Clone, Debug, Default)]
struct DurableState {
    /// Number of applied batches that are on disk.
    batches: u64,
    /// The first failure.
    failed: Option<Failure>,
}

impl LocalIndex {
    /// Opens the index in `path`, or creates an empty one. Reads the journals, so do not call it on
    /// a worker of the runtime.
    ///
    /// # Errors
    ///
    /// [`OsdError::Full`] without space to start, [`OsdError::MissingStore`] if
    /// `config.initialised` and the index is missing or empty, [`OsdError::DamagedJournal`],
    /// [`OsdError::DamagedIndex`], [`OsdError::Corrupt`] or [`OsdError::Engine`] if it is damaged.
    pub fn open(path: &Path, config: LocalConfig) -> Result<LocalIndex, OsdError> {
        LocalIndex::open_fenced(path, config, &Fence::unshared(&files::parent(path)))
    }

    /// Opens the index of a generation of the target, `path`. In a new generation, copies the index
    /// of the last generation that has one.
    pub(crate) fn open_fenced(
        path: &Path,
        config: LocalConfig,
        fence: &Fence,
    ) -> Result<LocalIndex, OsdError> {
        let space = space_of(path)?;
        space.check_start(path)?;
        if !path.exists() {
            match target::index_dir(&files::parent(path)) {
                earlier if earlier.exists() && fence.is_shared() => adopt(&earlier, path)?,
                _ if config.initialised => {}
                _ => create(path, config)?,
            }
        }
        check_exists(path)?;
        engine_files::check_versions(path)?;
        journal::prepare(path)?;
        let mut index = LocalIndex::open_in(path, path, config, fence)?;
        // The new epoch must be on disk before its first transaction number is used.
        let mut journals = Journals::new(path);
        let sync = SyncThread::start(move || journals.sync());
        let sync = sync.map_err(OsdError::io("start the sync thread of", path))?;
        index.shared.commit(&sync)?;
        let committer = thread::Builder::new().name("osd-commit".into()).spawn({
            let shared = index.shared.clone();
            move || shared.run_committer(&sync)
        });
        index.committer = Some(committer.map_err(OsdError::io("start the commit thread of", path))?);
        Ok(index)
    }

    /// Opens the index in `path` read-only. The engine opens a copy ([`ScratchCopy`]), so the index
    /// itself does not change and no epoch begins. The copy lacks damaged parts of the journals
    /// ([`journal::find_damage`]).
    ///
    /// # Errors
    ///
    /// [`OsdError::MissingStore`] if the index is missing, [`OsdError::DamagedIndex`] or
    /// [`OsdError::Engine`] if it is damaged,
    /// [`OsdError::Io`] if it cannot be copied.
    pub fn open_read_only(path: &Path, config: LocalConfig) -> Result<LocalIndex, OsdError> {
        check_exists(path)?;
        engine_files::check_versions(path)?;
        let scratch = ScratchCopy::copy_of(path)?;
        let unshared = Fence::unshared(&files::parent(path));
        let mut index = LocalIndex::open_in(path, scratch.path(), config, &unshared)?;
        index.scratch = Some(scratch);
        Ok(index)
    }

    /// Opens the index `path`; the engine opens `engine_dir`, which is the index itself or its
    /// copy.
    fn open_in(
        path: &Path,
        engine_dir: &Path,
        config: LocalConfig,
        fence: &Fence,
    ) -> Result<LocalIndex, OsdError> {
        let (db, keyspace) = open_engine(engine_dir, config)?;
        // Each start writes the transactions record, so the index of a target that ran is never
        // empty.
        if config.initialised && keyspace.is_empty().map_err(engine_error("read", path))? {
            return Err(OsdError::MissingStore {
                path: path.into(),
                why: "it is empty",
            });
        }
        let record = keyspace
            .get(Transactions::KEY)
            .map_err(engine_error("read", path))?;
        let transactions = Transactions::from_record(path, record.as_deref())?;
        let space = space_of(path)?;
        let reclaim = Reclaimer::new(keyspace.clone(), space.clone());
        let read_speed = DiskSpeed::new(SLOW_READ, FAST_READS, keyspace.table_count() == 0);
        let shared = Arc::new(Shared {
            db,
            keyspace,
            path: path.into(),
            config,
            fence: fence.clone(),
            space,
            reclaim,
            read_speed,
            read_permits: Arc::new(Semaphore::new(BLOCKING_READS_MAX)),
            transactions,
            applied: AtomicU64::new(0),
            commit_requested: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            durable: watch::Sender::new(DurableState::default()),
        });
        Ok(LocalIndex {
            shared,
            committer: None,
            scratch: None,
        })
    }

    fn committer(&self) -> Option<&Thread> {
        self.committer.as_ref().map(JoinHandle::thread)
    }
}

impl Drop for LocalIndex {
    /// Waits until the committer has committed all applied batches and ended, and until no thread
    /// reads the engine: the caller may open the index again.
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.committer.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!(path = %self.shared.path.display(), "the commit thread panicked");
            }
        }
        // Reads that wait for a thread end with an error.
        self.shared.read_permits.close();
        let mut since = Some(Instant::now());
        while Arc::strong_count(&self.shared) > 1 {
            thread::sleep(READ_POLL);
            if since.is_some_and(|since| since.elapsed() > READ_WARNING) {
                tracing::warn!(path = %self.shared.path.display(), "the store cannot close, because reads have not ended within {READ_WARNING:?}. Check its disk");
                since = None;
            }
        }
    }
}

/// Copies the index of an earlier generation under a temporary name and renames it.
fn adopt(earlier: &Path, path: &Path) -> Result<(), OsdError> {
    tracing::info!(
        "{}: copying {} for a new generation",
        path.display(),
        earlier.display()
    );
    let new = target::incomplete_index(path);
    journal::copy_generation(earlier, &new)?;
    std::fs::rename(&new, path).map_err(OsdError::io("rename", &new))?;
    let target = files::parent(path);
    files::sync_dir(&target).map_err(OsdError::io("sync", target))
}

/// The space of the target that owns the index.
fn space_of(path: &Path) -> Result<Arc<Space>, OsdError> {
    Space::of_host(files::parent(path))
}

impl Shared {
    /// Runs the committer until the index is dropped or a commit fails.
    fn run_committer(&self, sync: &SyncThread) {
        let mut committed = self.durable.borrow().batches;
        loop {
            while self.applied.load(SeqCst) == committed && !self.stop.load(SeqCst) {
                self.idle.store(true, SeqCst);
                if self.applied.load(SeqCst) == committed && !self.stop.load(SeqCst) {
                    thread::park();
                }
                self.idle.store(false, SeqCst);
            }
            if self.applied.load(SeqCst) == committed {
                // A second record after the last change proves that the change was on disk
                // (`journal::scan`).
                if let Err(e) = self.commit(sync) {
                    self.fail(&Failure::of("commit", &e));
                }
                return;
            }
            // Collect further changes unless a caller waits. Flush to the kernel more often, so
            // that a killed process loses little.
            let deadline = Instant::now() + self.config.commit_interval;
            let mut flushed = committed;
            while !self.commit_requested.load(SeqCst) && !self.stop.load(SeqCst) {
                let Some(left) = deadline
                    .checked_duration_since(Instant::now())
                    .filter(|d| !d.is_zero())
                else {
                    break;
                };
                thread::park_timeout(left.min(KERNEL_INTERVAL));
                self.flush_to_kernel(&mut flushed);
            }
            self.commit_requested.store(false, SeqCst);
            match self.commit(sync) {
                Ok(batches) => {
                    committed = batches;
                    self.reclaim.start_if_worthwhile();
                }
                Err(e) => {
                    self.fail(&Failure::of("commit", &e));
                    return;
                }
            }
        }
    }

    /// Flushes the batches applied since the last flush to the kernel. Ignores an error: the next
    /// commit reports it.
    fn flush_to_kernel(&self, flushed: &mut u64) {
        let applied = self.applied.load(SeqCst);
        if applied != *flushed && self.db.persist(PersistMode::Buffer).is_ok() {
            *flushed = applied;
        }
    }

    fn write(&self, batch: &Batch) -> Result<(), OsdError> {
        let mut b = self.db.batch();
        let mut put_keys = HashSet::default();
        if !batch.deletes.is_empty() {
            put_keys.extend(batch.puts.iter().map(|(key, _)| key));
        }
        // The engine does not order the entries of a batch: omit the delete of a key that the batch
        // also puts.
        for key in batch.deletes.iter().filter(|key| !put_keys.contains(key)) {
            b.remove(&self.keyspace, &key[..]);
        }
        for (key, value) in &batch.puts {
            b.insert(&self.keyspace, &key[..], &value[..]);
        }
        b.commit().map_err(|e| {
            // The journal may contain a part of the batch. The engine accepts no further batch, and
            // the next start truncates that part.
            let e = engine_error("apply a batch", &self.path)(e);
            self.fail(&Failure::Disk(e.to_string()));
            self.failure().of_change(&self.path)
        })
    }

    /// Makes the index read-only.
    fn fail(&self, failure: &Failure) {
        if self.failed.swap(true, SeqCst) {
            return;
        }
        let path = self.path.display();
        let why = match failure {
            Failure::Disk(why) => {
                tracing::error!(%path, "the store is now read-only: {why}. Check its disk (is it full?) and restart the target");
                why
            }
            Failure::TakenOver(why) => {
                tracing::error!(%path, "the store is now read-only: another server has taken it over: {why}");
                why
            }
        };
        self.space.set_failure(why);
        self.durable.send_modify(|d| d.failed = Some(failure.clone()));
    }

    /// The first failure.
    fn failure(&self) -> Failure {
        let failure = self.durable.borrow().failed.clone();
        failure.unwrap_or_else(|| Failure::Disk("the commit thread ended".into()))
    }

    /// Makes all batches applied so far durable; returns their number.
    fn commit(&self, sync: &SyncThread) -> Result<u64, OsdError> {
        // Read the count before the commit: batches applied later may miss this commit.
        let batches = self.applied.load(SeqCst);
        let transno = self.transactions.committable();
        let record = self.transactions.record(transno);
        // Without space for upkeep do not write the record. The transactions then stay uncommitted,
        // and clients keep their requests for replay.
        let recorded = self.space.check(SpacePurpose::Upkeep).is_ok();
        if recorded {
            self.keyspace
                .insert(Transactions::KEY, record)
                .map_err(engine_error("write", &self.path))?;
        }
        // Flush to the kernel under the engine's lock; sync to disk outside of it.
        self.db
            .persist(PersistMode::Buffer)
            .map_err(engine_error("flush", &self.path))?;
        let mut flushed = batches;
        sync.sync(KERNEL_INTERVAL, || self.flush_to_kernel(&mut flushed))?;
        // After the sync: a server that takes the target over copies the index after it has begun
        // its generation, so the copy has these batches or this check fails.
        self.fence.check()?;
        if recorded {
            self.transactions.set_committed(transno);
        }
        self.durable.send_modify(|d| d.batches = batches);
        Ok(batches)
    }
}

impl Shared {
    /// Reads a value. May block on the disk.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let found = self
            .read_speed
            .measure(|| self.keyspace.get(key), |_| ENTRY_TIME)
            .map_err(engine_error("read", &self.path))?;
        Ok(found.map(|v| Bytes::copy_from_slice(&v)))
    }

    /// Reads a range of a nonempty interval. May block on the disk.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        let read = || {
            let entries = self.keyspace.range::<&[u8], _>(bounds).take(limit);
            let bytes = |entry: fjall::Guard| {
                let (k, v) = entry.into_inner().map_err(engine_error("scan", &self.path))?;
                Ok((Bytes::copy_from_slice(&k), Bytes::copy_from_slice(&v)))
            };
            entries.map(bytes).collect::<Result<Vec<_>, OsdError>>()
        };
        match limit <= WORKER_ROWS_MAX {
            true => self
                .read_speed
                .measure(read, |rows| ENTRY_TIME * rows.as_ref().map_or(0, Vec::len) as u32),
            // A long scan takes long even if the data is in memory.
            false => read(),
        }
    }
}

impl Index for LocalIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        let s = &self.shared;
        if s.read_speed.is_fast() {
            return IndexRead::ready(s.get(key));
        }
        let (shared, key) = (s.clone(), Bytes::copy_from_slice(key));
        IndexRead::blocking(&s.read_permits, move || shared.get(&key))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        let s = &self.shared;
        if from >= to {
            return IndexRead::ready(Ok(Vec::new()));
        }
        if limit <= WORKER_ROWS_MAX && s.read_speed.is_fast() {
            return IndexRead::ready(s.scan(from, to, limit));
        }
        let (shared, range) = (s.clone(), [from, to].map(Bytes::copy_from_slice));
        IndexRead::blocking(&s.read_permits, move || shared.scan(&range[0], &range[1], limit))
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        if self.committer.is_none() {
            return Err(OsdError::Invalid("the index was opened read-only"));
        }
        let s = &self.shared;
        let done = if s.failed.load(SeqCst) {
            Err(s.failure().of_change(&s.path))
        } else if batch.is_empty() {
            // A transaction without changes, such as an open for reading.
            Ok(())
        } else {
            s.space.check(SpacePurpose::Upkeep).and_then(|()| s.write(&batch))
        };
        batch.transnos().for_each(|t| s.transactions.finish(t));
        done?;
        s.reclaim.count_deleted(batch.deletes.len());
        s.applied.fetch_add(1, SeqCst);
        if s.idle.swap(false, SeqCst)
            && let Some(thread) = self.committer()
        {
            thread.unpark();
        }
        Ok(())
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let s = &self.shared;
            let target = s.applied.load(SeqCst);
            let mut durable = s.durable.subscribe();
            if durable.borrow().batches < target {
                s.commit_requested.store(true, SeqCst);
                if let Some(thread) = self.committer() {
                    thread.unpark();
                }
            }
            let reached = durable
                .wait_for(|d| d.failed.is_some() || d.batches >= target)
                .await;
            match reached {
                Ok(d) if d.failed.is_none() => Ok(()),
                _ => Err(s.failure().of_sync(&s.path)),
            }
        })
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let k = &self.shared.keyspace;
            while k.sealed_memtable_count() > SEALED_TABLES_MAX || k.l0_table_count() > UNSORTED_RUNS_MAX {
                tokio::time::sleep(THROTTLE_POLL).await;
            }
        })
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.shared.transactions
    }

    fn space(&self) -> &Arc<Space> {
        &self.shared.space
    }
}
