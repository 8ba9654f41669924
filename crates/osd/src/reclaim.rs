//! Reclaims the space of deleted records when space is short.
//!
//! The engine keeps deleted records until it compacts their tables. A full target gets no new
//! writes, so the engine may never compact. When little space is free and many records were
//! deleted, a thread therefore makes the engine compact all tables. A compaction temporarily needs
//! as much space as the remaining records take; it begins only if more is free. The index stays in
//! use meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fjall::{AbstractTree, Keyspace};
use parking_lot::Mutex;

use crate::{KEY_RESERVED, OsdError, Space};

/// Delay before a compaction, to collect further deletes.
const COLLECT_DELAY: Duration = Duration::from_secs(1);
/// Time limit for writing out the memory tables.
const FLUSH_MAX: Duration = Duration::from_secs(60);
/// Interval of checks whether the memory tables are written.
const FLUSH_POLL: Duration = Duration::from_millis(20);
/// Minimum number of deleted records for a compaction.
const DELETED_MIN: u64 = 256;
/// Minimum number of tombstones for a compaction: the number of all records divided by this.
const DELETED_DIVISOR: u64 = 16;
/// A compaction needs this multiple of the remaining records' size, plus [`MARGIN_BYTES`], because
/// that size is an estimate.
const MARGIN_FACTOR: f64 = 1.25;
const MARGIN_BYTES: u64 = 16 << 20;
/// A key that never has a value. Deleting it adds a tombstone, so the memory table is not empty.
const NO_KEY: [u8; 2] = [KEY_RESERVED, b'n'];

/// Counts deletes in an index and starts compactions.
pub(crate) struct Reclaimer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    keyspace: Keyspace,
    space: Arc<Space>,
    /// Records deleted since the last run of the thread.
    deleted: AtomicU64,
    running: AtomicBool,
    stop: AtomicBool,
}

impl Reclaimer {
    pub(crate) fn new(keyspace: Keyspace, space: Arc<Space>) -> Reclaimer {
        let shared = Arc::new(Shared {
            keyspace,
            space,
            deleted: AtomicU64::new(0),
            running: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        Reclaimer {
            shared,
            thread: Mutex::default(),
        }
    }

    /// Counts deleted records.
    pub(crate) fn count_deleted(&self, records: usize) {
        if records > 0 {
            self.shared.deleted.fetch_add(records as u64, Relaxed);
        }
    }

    /// Starts a compaction if space is short and enough records were deleted. Called after commits.
    pub(crate) fn start_if_worthwhile(&self) {
        let s = &self.shared;
        if s.deleted.load(Relaxed) < DELETED_MIN || !s.space.is_short() || s.running.swap(true, SeqCst) {
            return;
        }
        let shared = s.clone();
        let started = thread::Builder::new()
            .name("osd-reclaim".into())
            .spawn(move || {
                thread::park_timeout(COLLECT_DELAY);
                if !shared.stop.load(SeqCst)
                    && let Err(e) = shared.reclaim()
                {
                    tracing::warn!(path = %shared.keyspace.path().display(), "cannot reclaim the space of deleted records: {e}");
                }
                shared.running.store(false, SeqCst);
            });
        match started {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(e) => {
                let e = OsdError::io("start the reclaiming thread of", s.keyspace.path())(e);
                tracing::warn!("{e}");
                s.running.store(false, SeqCst);
            }
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the reclaim thread panicked");
            }
        }
    }
}

impl Shared {
    /// Writes out the memory tables. Then compacts all tables, if enough of their records are
    /// deleted and enough space is free.
    fn reclaim(&self) -> fjall::Result<()> {
        self.deleted.store(0, Relaxed);
        // The engine's counts and its compaction skip memory tables: write them out first.
        self.keyspace.rotate_memtable()?;
        let begun = Instant::now();
        while self.keyspace.sealed_memtable_count() > 0 {
            if self.stop.load(SeqCst) || begun.elapsed() > FLUSH_MAX {
                return Ok(());
            }
            thread::park_timeout(FLUSH_POLL);
        }
        let tree = &self.keyspace.tree;
        let (records, tombstones) = (tree.approximate_len() as u64, tree.tombstone_count());
        let before_bytes = tree.disk_space();
        // A tombstone and its deleted record both count as records.
        let remaining = records.saturating_sub(2 * tombstones) as f64 / records.max(1) as f64;
        let needed_bytes = (before_bytes as f64 * remaining * MARGIN_FACTOR) as u64 + MARGIN_BYTES;
        if tombstones * DELETED_DIVISOR < records || needed_bytes > self.space.upkeep_bytes() {
            return Ok(());
        }
        self.keyspace.major_compact()?;
        let after_bytes = tree.disk_space();
        // The engine releases the replaced tables when it next writes out a nonempty memory table;
        // on a full target no change would cause that.
        self.keyspace.remove(NO_KEY)?;
        self.keyspace.rotate_memtable()?;
        tracing::info!(path = %self.keyspace.path().display(), before_bytes, after_bytes, "reclaimed the space of deleted records");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Reclaimer;
    use crate::Space;
    use std::{
        path::Path,
        thread,
        time::{Duration, Instant},
    };

    /// Size of all tables in an engine's directory, bytes.
    fn tables_bytes(dir: &Path) -> u64 {
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        entries
            .map(|path| match path.is_dir() {
                true => tables_bytes(&path),
                false if dir.ends_with("tables") => path.metadata().map_or(0, |m| m.len()),
                false => 0,
            })
            .sum()
    }

    #[test]
    fn compaction_removes_deleted_records_without_new_writes() {
        let dir = tempfile::tempdir().unwrap();
        let db = fjall::Database::builder(dir.path()).open().unwrap();
        let keyspace = db.keyspace("index", Default::default).unwrap();
        // Values that cannot be compressed.
        let mut noise = 1u64;
        let mut value = || -> Vec<u8> {
            let next = |_| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                noise as u8
            };
            (0..10_000).map(next).collect()
        };
        for n in 0..1000u32 {
            keyspace.insert(n.to_be_bytes(), value()).unwrap();
        }
        keyspace.rotate_memtable_and_wait().unwrap();
        assert!(tables_bytes(dir.path()) > 8_000_000);
        for n in 0..990u32 {
            keyspace.remove(n.to_be_bytes()).unwrap();
        }
        let reclaim = Reclaimer::new(keyspace.clone(), Space::of_host(dir.path()).unwrap());
        reclaim.shared.reclaim().unwrap();
        let begun = Instant::now();
        while tables_bytes(dir.path()) > 1_000_000 {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{}",
                tables_bytes(dir.path())
            );
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(keyspace.iter().count(), 10);
    }
}
