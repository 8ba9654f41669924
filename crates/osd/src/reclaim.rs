//! Gives deleted data's space back when space is short.
//!
//! The engine keeps what was deleted until it happens to sort the files that it is in, which on a full target, where
//! nothing new is written, may be never. So while little is free and much was deleted, a thread has the engine write its
//! files anew without it. That takes as much space as what is left: it is done when that is there, and the index's
//! ordinary life goes on meanwhile.

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

/// How long a thread waits for more to be deleted.
const GATHER: Duration = Duration::from_secs(1);
/// How long the engine may take to write its memory out.
const FLUSH_MAX: Duration = Duration::from_secs(60);
const FLUSH_POLL: Duration = Duration::from_millis(20);
/// With fewer deleted records it is not begun, nor with a smaller share of what there is.
const DELETED_MIN: u64 = 256;
const DELETED_SHARE: u64 = 16;
/// What is left is estimated from counts: so much more must be free.
const MARGIN_BYTES: u64 = 16 << 20;
/// A key that is never there.
const NO_KEY: [u8; 2] = [KEY_RESERVED, b'n'];

/// What is deleted in an index, and what it takes to give its space back.
pub(crate) struct Reclaim {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    keyspace: Keyspace,
    space: Arc<Space>,
    /// Records, since it was looked last.
    deleted: AtomicU64,
    running: AtomicBool,
    stop: AtomicBool,
}

impl Reclaim {
    pub(crate) fn new(keyspace: Keyspace, space: Arc<Space>) -> Reclaim {
        let shared = Arc::new(Shared {
            keyspace,
            space,
            deleted: AtomicU64::new(0),
            running: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        Reclaim {
            shared,
            thread: Mutex::default(),
        }
    }

    /// So many records were deleted.
    pub(crate) fn deleted(&self, records: usize) {
        if records > 0 {
            self.shared.deleted.fetch_add(records as u64, Relaxed);
        }
    }

    /// Starts to give space back if that is worth while. Called after commits.
    pub(crate) fn look(&self) {
        let s = &self.shared;
        if s.deleted.load(Relaxed) < DELETED_MIN || !s.space.is_short() || s.running.swap(true, SeqCst) {
            return;
        }
        let shared = s.clone();
        let started = thread::Builder::new()
            .name("osd-reclaim".into())
            .spawn(move || {
                thread::park_timeout(GATHER);
                if !shared.stop.load(SeqCst)
                    && let Err(e) = shared.reclaim()
                {
                    tracing::warn!(path = %shared.keyspace.path().display(), "deleted data keeps its space for now: {e}");
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

impl Drop for Reclaim {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the reclaiming thread ended by a panic");
            }
        }
    }
}

impl Shared {
    fn reclaim(&self) -> fjall::Result<()> {
        self.deleted.store(0, Relaxed);
        // What is only in memory is not counted, and would not be left out.
        self.keyspace.rotate_memtable()?;
        let begun = Instant::now();
        while self.keyspace.sealed_memtable_count() > 0 {
            if self.stop.load(SeqCst) || begun.elapsed() > FLUSH_MAX {
                return Ok(());
            }
            thread::park_timeout(FLUSH_POLL);
        }
        let tree = &self.keyspace.tree;
        let (records, marks) = (tree.approximate_len() as u64, tree.tombstone_count());
        let before = tree.disk_space();
        // Each mark stands for a record that is gone, and is one itself.
        let share_left = records.saturating_sub(2 * marks) as f64 / records.max(1) as f64;
        let takes = (before as f64 * share_left * 1.25) as u64 + MARGIN_BYTES;
        if marks * DELETED_SHARE < records || takes > self.space.upkeep_bytes() {
            return Ok(());
        }
        self.keyspace.major_compact()?;
        let after = tree.disk_space();
        // The engine lets go of the files that it replaced when it next writes its memory out, if there is something in it:
        // until then, on a target where nothing can be made, they would stay.
        self.keyspace.remove(NO_KEY)?;
        self.keyspace.rotate_memtable()?;
        tracing::info!(path = %self.keyspace.path().display(), before, after, "space of deleted records is given back");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Reclaim;
    use crate::Space;
    use std::{
        path::Path,
        thread,
        time::{Duration, Instant},
    };

    /// Bytes of all tables in an engine's directory.
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
    fn what_was_deleted_is_off_the_disk_without_anything_new() {
        let dir = tempfile::tempdir().unwrap();
        let db = fjall::Database::builder(dir.path()).open().unwrap();
        let keyspace = db.keyspace("index", Default::default).unwrap();
        // What does not get smaller when it is packed.
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
        let reclaim = Reclaim::new(keyspace.clone(), Space::of_host(dir.path()).unwrap());
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
