//! The durable index: one fjall database (docs/decisions/001-metadata-store.md), committed in groups.
//!
//! A batch goes into the engine's journal buffer and its memory table when it is applied: visible at once, no system
//! call that waits. A thread of this module's own makes what was applied durable, [`LocalConfig::commit_interval`] after
//! the first change, or at once when somebody waits for it; with each group it writes the record of which
//! transactions are committed. The engine would hold its journal's lock while it syncs, which would stop everybody
//! for that long; so the journal is only flushed to the kernel through the engine, and the same file is synced here.
//! After a failed sync nothing is known about the disk: from then on every sync fails.

mod engine;

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
use cpt::BoxFuture;
use engine::{check_there, engine, make, open_engine};
use fjall::{Database, Keyspace, PersistMode};
use foldhash::HashSet;
use tokio::sync::watch;

use crate::{
    Batch, Index, Need, OsdError, Space, Transactions, files,
    journal::{self, COMMIT_KEY as TRANSACTIONS_KEY, Journals, Scratch, SyncThread},
    reclaim::Reclaim,
};

const TRANSACTIONS_VERSION: u32 = 1;
/// While more memory tables than this wait for the disk, or more unsorted files, new changes wait ([`Index::room`]);
/// the engine itself stops its callers, for whole milliseconds, at 4 and 20.
const SEALED_TABLES_MAX: usize = 2;
const UNSORTED_RUNS_MAX: usize = 14;
/// Size of a sorted file. Sorting takes some ten times as much free space for a while, which the reserve has to have.
const TABLE_BYTES: u64 = 8 << 20;
const ROOM_POLL: Duration = Duration::from_millis(2);

/// How long a change may be in this process alone: a process that is killed later does not take it along. (`sync` and
/// `syncfs` do not reach a FUSE file system, so that what they promise must be so without them.)
const KERNEL_INTERVAL: Duration = Duration::from_millis(1);

/// How much memory and time a local index takes.
#[derive(Clone, Copy, Debug)]
pub struct LocalConfig {
    /// How long a change waits for others before it is committed.
    pub commit_interval: Duration,
    /// Blocks of the store kept in memory, bytes.
    pub cache_bytes: u64,
    /// Size at which the table of the latest changes is written out, bytes.
    pub memtable_bytes: u64,
    /// The target has run before: that there is no index, or an empty one, is an error.
    pub initialised: bool,
}

/// Part of the process's memory that the cache may take at most, and a table of changes.
const MEMORY_SHARE: u64 = 128;

impl Default for LocalConfig {
    /// By the memory that the process may use.
    fn default() -> LocalConfig {
        let share = (cpt::memory_bytes() / MEMORY_SHARE).max(1 << 20);
        LocalConfig {
            commit_interval: Duration::from_millis(50),
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
    /// The copy that is open. Removed after the engine has closed it.
    scratch: Option<Scratch>,
}

struct Shared {
    db: Database,
    keyspace: Keyspace,
    path: PathBuf,
    config: LocalConfig,
    space: Arc<Space>,
    reclaim: Reclaim,
    transactions: Arc<Transactions>,
    /// Batches applied so far.
    applied: AtomicU64,
    /// Somebody waits for a commit.
    wanted: AtomicBool,
    /// The committer sleeps until the next change.
    idle: AtomicBool,
    stop: AtomicBool,
    /// A commit failed: nothing more is taken.
    failed: AtomicBool,
    durable: watch::Sender<Durable>,
}

#[derive(Clone, Debug, Default)]
struct Durable {
    /// How many of the applied batches are on disk.
    batches: u64,
    failed: Option<String>,
}

impl LocalIndex {
    /// Opens the index in `path`, or makes an empty one. May read the journal of the last run: not for a runtime's worker.
    pub fn open(path: &Path, config: LocalConfig) -> Result<LocalIndex, OsdError> {
        let space = space_of(path)?;
        space.check(Need::Upkeep).map_err(|_| OsdError::Full {
            path: path.into(),
            needed_mib: ((space.reserved_bytes() / 16) >> 20) + 1,
        })?;
        if !path.exists() && !config.initialised {
            make(path, config)?;
        }
        check_there(path)?;
        journal::prepare(path)?;
        let mut index = LocalIndex::open_in(path, path, config)?;
        // The new epoch is on disk before the first number of it is handed out.
        let mut journals = Journals::new(path);
        let sync = SyncThread::start(move || journals.sync());
        let sync = sync.map_err(OsdError::io("start the syncing thread of", path))?;
        index.shared.commit(&sync)?;
        let committer = thread::Builder::new().name("osd-commit".into()).spawn({
            let shared = index.shared.clone();
            move || shared.run(&sync)
        });
        index.committer = Some(committer.map_err(OsdError::io("start the committing thread of", path))?);
        Ok(index)
    }

    /// Opens the index in `path` to be read: no epoch begins, no batch is taken, and not a byte of it changes, since the
    /// engine opens a copy ([`Scratch`]). What is damaged in its journals is not in the copy ([`journal::damage`]).
    pub fn open_unchanged(path: &Path, config: LocalConfig) -> Result<LocalIndex, OsdError> {
        check_there(path)?;
        let scratch = Scratch::of(path)?;
        let mut index = LocalIndex::open_in(path, scratch.path(), config)?;
        index.scratch = Some(scratch);
        Ok(index)
    }

    /// Opens the index of the target at `path`; the engine opens the directory `at`.
    fn open_in(path: &Path, at: &Path, config: LocalConfig) -> Result<LocalIndex, OsdError> {
        let (db, keyspace) = open_engine(at, config)?;
        // Each start writes the record of transactions, so that the index of a target that has run is never empty.
        if config.initialised && keyspace.is_empty().map_err(engine("read", path))? {
            return Err(OsdError::Lost {
                path: path.into(),
                why: "it is empty",
            });
        }
        let kept = keyspace.get(TRANSACTIONS_KEY).map_err(engine("read", path))?;
        let (committed, epoch) = match kept {
            Some(record) => parse_transactions(path, &record)?,
            None => (0, 0),
        };
        let transactions = Transactions::restore(committed, epoch);
        let space = space_of(path)?;
        let reclaim = Reclaim::new(keyspace.clone(), space.clone());
        let shared = Arc::new(Shared {
            db,
            keyspace,
            path: path.into(),
            config,
            space,
            reclaim,
            transactions,
            applied: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            durable: watch::Sender::new(Durable::default()),
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
    /// Commits what is applied and waits for the thread to end.
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.committer.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!(path = %self.shared.path.display(), "the committing thread ended by a panic");
            }
        }
    }
}

/// The space of the target whose index this is.
fn space_of(path: &Path) -> Result<Arc<Space>, OsdError> {
    Space::of_host(files::parent(path))
}

fn transactions_record(committed: u64, epoch: u64) -> [u8; 20] {
    let mut r = [0; 20];
    r[..4].copy_from_slice(&TRANSACTIONS_VERSION.to_le_bytes());
    r[4..12].copy_from_slice(&committed.to_le_bytes());
    r[12..].copy_from_slice(&epoch.to_le_bytes());
    r
}

fn parse_transactions(path: &Path, record: &[u8]) -> Result<(u64, u64), OsdError> {
    let corrupt = |why: String| OsdError::Corrupt {
        path: path.into(),
        what: "transactions".into(),
        why,
    };
    let r: [u8; 20] = record
        .try_into()
        .map_err(|_| corrupt(format!("expected 20 bytes, found {}", record.len())))?;
    let number = |from: usize, to: usize| r[from..to].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    match number(0, 4) {
        1 => Ok((number(4, 12), number(12, 20))),
        v => Err(corrupt(format!(
            "expected version {TRANSACTIONS_VERSION}, found {v}"
        ))),
    }
}

impl Shared {
    fn run(&self, sync: &SyncThread) {
        let mut done = self.durable.borrow().batches;
        loop {
            while self.applied.load(SeqCst) == done && !self.stop.load(SeqCst) {
                self.idle.store(true, SeqCst);
                if self.applied.load(SeqCst) == done && !self.stop.load(SeqCst) {
                    thread::park();
                }
                self.idle.store(false, SeqCst);
            }
            if self.applied.load(SeqCst) == done {
                // A second record after the last change shows that the change was on disk (`journal::scan`).
                if let Err(e) = self.commit(sync) {
                    self.fail(&format!("commit: {e}"));
                }
                return;
            }
            // Let others join, unless somebody waits; what a killed process must not take along is with the kernel sooner.
            let deadline = Instant::now() + self.config.commit_interval;
            let mut with_kernel = done;
            while !self.wanted.load(SeqCst) && !self.stop.load(SeqCst) {
                let Some(left) = deadline
                    .checked_duration_since(Instant::now())
                    .filter(|d| !d.is_zero())
                else {
                    break;
                };
                thread::park_timeout(left.min(KERNEL_INTERVAL));
                self.give_to_kernel(&mut with_kernel);
            }
            self.wanted.store(false, SeqCst);
            match self.commit(sync) {
                Ok(batches) => {
                    done = batches;
                    self.reclaim.look();
                }
                Err(e) => {
                    self.fail(&format!("commit: {e}"));
                    return;
                }
            }
        }
    }

    /// Gives the kernel what was applied since `with_kernel` batches. An error comes again at the commit.
    fn give_to_kernel(&self, with_kernel: &mut u64) {
        let applied = self.applied.load(SeqCst);
        if applied != *with_kernel && self.db.persist(PersistMode::Buffer).is_ok() {
            *with_kernel = applied;
        }
    }

    fn write(&self, batch: &Batch) -> Result<(), OsdError> {
        let mut b = self.db.batch();
        let mut put = HashSet::default();
        if !batch.deletes.is_empty() {
            put.extend(batch.puts.iter().map(|(key, _)| key));
        }
        // Within one batch of the engine no entry is later than another.
        for key in batch.deletes.iter().filter(|key| !put.contains(key)) {
            b.remove(&self.keyspace, &key[..]);
        }
        for (key, value) in &batch.puts {
            b.insert(&self.keyspace, &key[..], &value[..]);
        }
        b.commit().map_err(|e| {
            // Half of it may be in the journal: the engine takes nothing more, and the next start cuts it off.
            let e = engine("apply a batch", &self.path)(e);
            self.fail(&e.to_string());
            self.read_only()
        })
    }

    /// From now on nothing is taken any more.
    fn fail(&self, why: &str) {
        if !self.failed.swap(true, SeqCst) {
            tracing::error!(path = %self.path.display(), "the store is read-only from now on: {why}; see to its disk (is it full?) and start the target again");
            self.durable.send_modify(|d| d.failed = Some(why.to_owned()));
        }
    }

    fn read_only(&self) -> OsdError {
        OsdError::ReadOnly {
            path: self.path.clone(),
            why: self.why_failed(),
        }
    }

    fn why_failed(&self) -> String {
        let why = self.durable.borrow().failed.clone();
        why.unwrap_or_else(|| "the committing thread is gone".into())
    }

    fn failure(&self) -> OsdError {
        OsdError::Failed {
            path: self.path.clone(),
            why: self.why_failed(),
        }
    }

    /// Makes durable what is applied by now; how many batches that is.
    fn commit(&self, sync: &SyncThread) -> Result<u64, OsdError> {
        // Counted before it is made durable: what comes meanwhile may be durable too, but is not promised.
        let batches = self.applied.load(SeqCst);
        let transno = self.transactions.applied().max(self.transactions.committed());
        // A start's own numbers begin above its epoch; before the first one there is nothing to advance to.
        let transno = if transno == self.transactions.epoch() << 32 {
            self.transactions.committed()
        } else {
            transno
        };
        let record = transactions_record(transno, self.transactions.epoch());
        // On a file system that is full to the brim nothing is added; clients keep what they know is not committed.
        let recorded = self.space.check(Need::Upkeep).is_ok();
        if recorded {
            self.keyspace
                .insert(TRANSACTIONS_KEY, record)
                .map_err(engine("write", &self.path))?;
        }
        // Into the kernel under the engine's lock, onto the disk outside of it.
        self.db
            .persist(PersistMode::Buffer)
            .map_err(engine("flush", &self.path))?;
        let mut with_kernel = batches;
        sync.sync(KERNEL_INTERVAL, || self.give_to_kernel(&mut with_kernel))?;
        if recorded {
            self.transactions.set_committed(transno);
        }
        self.durable.send_modify(|d| d.batches = batches);
        Ok(batches)
    }
}

impl Index for LocalIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let found = self
            .shared
            .keyspace
            .get(key)
            .map_err(engine("read", &self.shared.path))?;
        Ok(found.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let range = self
            .shared
            .keyspace
            .range::<&[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        let mut out = Vec::new();
        for entry in range.take(limit) {
            let (k, v) = entry.into_inner().map_err(engine("scan", &self.shared.path))?;
            out.push((Bytes::copy_from_slice(&k), Bytes::copy_from_slice(&v)));
        }
        Ok(out)
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        if self.committer.is_none() {
            return Err(OsdError::Invalid("the index was opened to be read"));
        }
        let s = &self.shared;
        let done = if s.failed.load(SeqCst) {
            Err(s.read_only())
        } else if batch.is_empty() {
            // A transaction without changes, such as opening for reading.
            Ok(())
        } else {
            s.space.check(Need::Upkeep).and_then(|()| s.write(&batch))
        };
        batch.transnos().for_each(|t| s.transactions.finish(t));
        done?;
        s.reclaim.deleted(batch.deletes.len());
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
                s.wanted.store(true, SeqCst);
                if let Some(thread) = self.committer() {
                    thread.unpark();
                }
            }
            let reached = durable
                .wait_for(|d| d.failed.is_some() || d.batches >= target)
                .await;
            match reached {
                Ok(d) if d.failed.is_none() => Ok(()),
                _ => Err(s.failure()),
            }
        })
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let k = &self.shared.keyspace;
            while k.sealed_memtable_count() > SEALED_TABLES_MAX || k.l0_table_count() > UNSORTED_RUNS_MAX {
                tokio::time::sleep(ROOM_POLL).await;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn open(path: &Path) -> LocalIndex {
        LocalIndex::open(path, LocalConfig::default()).unwrap()
    }

    fn one(key: &str, value: &str) -> Batch {
        let mut b = Batch::new();
        b.put(key.to_owned(), value.to_owned());
        b
    }

    #[tokio::test]
    async fn what_was_synced_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let (epoch, transno) = {
            let index = open(&path);
            let t = index.transactions().begin();
            let mut b = one("k1", "v1");
            b.put("k2", "v2").transno = Some(t.transno());
            index.apply(b).unwrap();
            assert_eq!(index.get(b"k1").unwrap().unwrap(), "v1");
            index.sync().await.unwrap();
            assert_eq!(index.transactions().committed(), t.transno());
            (index.transactions().epoch(), t.transno())
        };
        let index = open(&path);
        assert_eq!(index.scan(b"k", b"l", 9).unwrap().len(), 2);
        assert_eq!(index.transactions().committed(), transno);
        assert!(index.transactions().epoch() > epoch);
        assert!(index.transactions().begin().transno() > transno);
    }

    #[tokio::test]
    async fn deletes_come_before_puts_in_a_batch() {
        let dir = tempfile::tempdir().unwrap();
        let index = open(&dir.path().join("index"));
        index.apply(one("a", "1")).unwrap();
        let mut b = one("a", "2");
        b.delete("a").delete("b");
        index.apply(b).unwrap();
        assert_eq!(index.get(b"a").unwrap().unwrap(), "2");
    }

    #[tokio::test]
    async fn changes_become_durable_without_anybody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let index = open(&dir.path().join("index"));
        let t = index.transactions().begin();
        index
            .apply(Batch {
                transno: Some(t.transno()),
                ..one("a", "1")
            })
            .unwrap();
        let mut committed = index.transactions().watch_committed();
        committed.wait_for(|c| *c == t.transno()).await.unwrap();
    }

    #[test]
    fn an_interrupted_making_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let half = dir.path().join("index.new");
        fs::create_dir(&half).unwrap();
        fs::write(half.join("lock"), b"").unwrap();
        let index = open(&dir.path().join("index"));
        index.apply(one("a", "1")).unwrap();
    }

    /// All files below a directory that are not journals.
    fn tables(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let below = entries.flat_map(|path| match path.is_dir() {
            true => tables(&path),
            false => vec![path],
        });
        below
            .filter(|p| p.extension().is_none_or(|e| e != "jnl"))
            .collect()
    }

    #[test]
    fn damaged_tables_are_errors_and_never_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let index = open(&path);
        for n in 0..200 {
            index
                .apply(one(&format!("key {n}"), &"value ".repeat(20)))
                .unwrap();
        }
        index.shared.keyspace.rotate_memtable_and_wait().unwrap();
        drop(index);
        for file in tables(&path) {
            let whole = fs::read(&file).unwrap();
            for at in (0..whole.len()).step_by(whole.len() / 20 + 1) {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(&file, flipped).unwrap();
                if let Ok(read) = LocalIndex::open_unchanged(&path, LocalConfig::default()) {
                    let _ = read.scan(b"a", b"z", usize::MAX);
                }
            }
            fs::write(&file, &whole).unwrap();
        }
        let read = LocalIndex::open_unchanged(&path, LocalConfig::default()).unwrap();
        assert_eq!(read.scan(b"a", b"z", usize::MAX).unwrap().len(), 200);
    }

    #[test]
    fn a_bad_transaction_record_is_refused() {
        let path = Path::new("x");
        assert_eq!(
            parse_transactions(path, &transactions_record(5, 6)).unwrap(),
            (5, 6)
        );
        assert!(parse_transactions(path, b"").is_err());
        let mut newer = transactions_record(5, 6);
        newer[0] = 2;
        assert!(parse_transactions(path, &newer).is_err());
    }
}
