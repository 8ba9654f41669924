//! File I/O that workers do themselves: opening an object, and small writes beyond its end, such
//! as the only write of a small file. While the disk is fast ([`DiskSpeed`]), this takes less time
//! than a switch to a thread for blocking work. Syncs are never among it.

use std::{sync::Arc, time::Duration};

use cpt::HashSet;
use parking_lot::Mutex;
use wire::Fid;

use super::{LocalObjects, Shared, cache::Entry, checksums::BLOCK, record};
use crate::{ExtentData, OsdError, blocking, disk_speed::DiskSpeed};

/// Work that took longer waited for the disk. A shorter delay may also come from other threads.
const SLOW: Duration = Duration::from_millis(1);
/// Number of fast pieces of work in succession after which workers do the work.
const FAST_PIECES: u32 = 16;
/// Maximum number of bytes that a worker writes at once.
const BYTES_MAX: u64 = 64 << 10;

/// The state that decides whether a worker does the work.
pub(super) struct WorkerIo {
    speed: DiskSpeed,
    /// The directories in which this process has created files. The first file of a directory may
    /// need a sync.
    dirs: Mutex<HashSet<(u64, u8)>>,
}

impl Default for WorkerIo {
    fn default() -> WorkerIo {
        WorkerIo {
            speed: DiskSpeed::new(SLOW, FAST_PIECES, false),
            dirs: Mutex::default(),
        }
    }
}

/// The directory of an object's file, as [`super::file_path`] names it.
fn dir_of(fid: &Fid) -> (u64, u8) {
    (fid.f_seq, fid.f_oid as u8)
}

impl WorkerIo {
    /// Records that the directory of an object's file exists.
    pub(super) fn add_dir(&self, fid: &Fid) {
        self.dirs.lock().insert(dir_of(fid));
    }
}

impl LocalObjects {
    /// The object's cache entry, loaded if necessary.
    pub(super) async fn entry(&self, fid: Fid) -> Result<Arc<Entry>, OsdError> {
        let shared = &self.shared;
        if let Some(entry) = shared.cache.find(&fid) {
            return Ok(entry);
        }
        let speed = &shared.worker_io.speed;
        let record = match speed.is_fast() {
            true => shared.index.get(&record::key(&fid)).now().ok().transpose()?,
            false => None,
        };
        match record {
            Some(record) => speed.measure(|| shared.load(fid, Some(record)), |_| Duration::ZERO),
            None => {
                let loading = shared.clone();
                shared.run_small(false, move || loading.load(fid, None)).await
            }
        }
    }
}

impl Shared {
    /// Whether a worker may write these extents to an object: they are small, need no earlier data
    /// of the file, and the index need not be read from the disk. The caller holds the write lock.
    pub(super) fn worker_may_write(&self, entry: &Entry, extents: &[ExtentData]) -> bool {
        let bytes: u64 = extents.iter().map(ExtentData::len).sum();
        let (has_file, size) = {
            let state = entry.state.lock();
            (state.file.is_some(), state.attr.size)
        };
        let is_beyond_end = |e: &ExtentData| size <= e.offset - e.offset % BLOCK;
        let blocks = |e: &ExtentData| e.offset / BLOCK..(e.offset + e.len()).div_ceil(BLOCK);
        bytes <= BYTES_MAX
            && extents.iter().all(is_beyond_end)
            && (has_file || self.worker_io.dirs.lock().contains(&dir_of(&entry.fid)))
            && !entry.create_lock.is_locked()
            && extents
                .iter()
                .all(|e| self.checksums.cache_from_memory(entry.fid, &blocks(e)))
    }

    /// Does small work: on this thread if it is a worker that may do it and the disk is fast, else
    /// on a thread for blocking work.
    pub(super) async fn run_small<T: Send + 'static>(
        self: &Arc<Self>,
        worker_may: bool,
        work: impl FnOnce() -> Result<T, OsdError> + Send + 'static,
    ) -> Result<T, OsdError> {
        let shared = self.clone();
        let measured = move || shared.worker_io.speed.measure(work, |_| Duration::ZERO);
        match worker_may && self.worker_io.speed.is_fast() {
            true => measured(),
            false => blocking(measured).await,
        }
    }
}
