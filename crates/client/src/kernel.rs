//! Invalidation of the kernel's caches.
//!
//! A front end that lets the kernel cache names, attributes or pages gives the client an
//! implementation of [`KernelCache`]. The client calls it before it cancels a revoked lock that
//! covered cached state, and after it has lost such a lock in another way. The cancellation waits
//! for the kernel only a bounded time: the kernel may hold the same inode for a request that waits
//! for this lock.

use cpt::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use wire::Fid;

/// The kernel's caches.
pub trait KernelCache: Send + Sync + 'static {
    /// Invalidates the entry `name` of `parent`, which leads to `child` (zero FID: to no file, or
    /// to an unknown file).
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], child: Fid) -> BoxFuture<'a, ()>;
    /// Invalidates a file's attributes, and its pages in `len` bytes from `offset`. `offset < 0`:
    /// attributes only; `len == 0`: to the end of the file.
    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()>;
}

/// Calls in progress that affect invalidations.
#[derive(Default)]
struct PendingCalls {
    /// Reads for which the kernel holds pages: each a file and a byte range.
    reads: Vec<(Fid, Range<u64>)>,
    /// The files that truncates change.
    truncates: Vec<Fid>,
}

/// Number of shards of the pending calls. The object ID in the file's FID selects the shard.
const SHARDS: u64 = 16;

/// A client's [`KernelCache`], if set, and the calls in progress that affect its invalidations. The
/// code for names and the code for data share it.
#[derive(Clone, Default)]
pub struct Kernel {
    cache: Arc<OnceLock<Arc<dyn KernelCache>>>,
    pending: Arc<[Mutex<PendingCalls>; SHARDS as usize]>,
}

impl Kernel {
    /// Sets the kernel's caches. A second call has no effect.
    pub fn set(&self, cache: Arc<dyn KernelCache>) {
        let _ = self.cache.set(cache);
    }

    /// The kernel's caches, if set.
    pub fn get(&self) -> Option<&dyn KernelCache> {
        self.cache.get().map(|c| &**c)
    }

    fn pending(&self, file: Fid) -> MutexGuard<'_, PendingCalls> {
        self.pending[(u64::from(file.f_oid) % SHARDS) as usize].lock()
    }

    /// Marks pages (a byte range) that the kernel holds locked for a read in progress.
    /// [`Kernel::invalidate_file`] skips them until the guard is dropped: they have no data yet,
    /// and their read may wait for the lock that this client is cancelling.
    pub(crate) fn begin_read(&self, file: Fid, pages: Range<u64>) -> PendingRead<'_> {
        self.pending(file).reads.push((file, pages.clone()));
        PendingRead {
            kernel: self,
            file,
            pages,
        }
    }

    /// Marks a file that a call of the kernel truncates, while the call waits for a server's reply.
    /// Until the call ends, the kernel writes no dirty page of the file back, so an invalidation
    /// waits for the call. A call that waits for a lock drops the guard: that lock may wait for the
    /// invalidation.
    pub(crate) fn begin_truncate(&self, file: Fid) -> PendingTruncate<'_> {
        self.pending(file).truncates.push(file);
        PendingTruncate { kernel: self, file }
    }

    /// Whether a call that truncates the file waits for a server's reply.
    pub(crate) fn is_truncating(&self, file: Fid) -> bool {
        self.pending(file).truncates.contains(&file)
    }

    /// Invalidates a file's attributes and its pages, except the pages of reads in progress.
    pub(crate) async fn invalidate_file(&self, file: Fid) {
        let Some(cache) = self.get() else { return };
        let mut pending: Vec<Range<u64>> = {
            let all = self.pending(file);
            let of_file = all.reads.iter().filter(|(read_file, _)| *read_file == file);
            of_file.map(|(_, pages)| pages.clone()).collect()
        };
        pending.sort_by_key(|pages| pages.start);
        let mut from = 0;
        for pages in pending {
            if from < pages.start {
                cache
                    .inval_inode(file, from as i64, (pages.start - from) as i64)
                    .await;
            }
            from = from.max(pages.end);
        }
        cache.inval_inode(file, from as i64, 0).await;
    }
}

/// Guard of [`Kernel::begin_read`].
pub(crate) struct PendingRead<'a> {
    kernel: &'a Kernel,
    file: Fid,
    pages: Range<u64>,
}

impl Drop for PendingRead<'_> {
    fn drop(&mut self) {
        let reads = &mut self.kernel.pending(self.file).reads;
        let is_same = |(file, pages): &(Fid, Range<u64>)| *file == self.file && *pages == self.pages;
        if let Some(index) = reads.iter().position(is_same) {
            reads.swap_remove(index);
        }
    }
}

/// Guard of [`Kernel::begin_truncate`].
pub(crate) struct PendingTruncate<'a> {
    kernel: &'a Kernel,
    file: Fid,
}

impl Drop for PendingTruncate<'_> {
    fn drop(&mut self) {
        let truncates = &mut self.kernel.pending(self.file).truncates;
        if let Some(index) = truncates.iter().position(|file| *file == self.file) {
            truncates.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Kernel, KernelCache};
    use cpt::BoxFuture;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use wire::Fid;

    #[derive(Default)]
    struct RecordedInvalidations(Mutex<Vec<(i64, i64)>>);

    impl KernelCache for RecordedInvalidations {
        fn inval_entry<'a>(&'a self, _: Fid, _: &'a [u8], _: Fid) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }

        fn inval_inode(&self, _: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()> {
            self.0.lock().push((offset, len));
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn pages_of_reads_in_progress_are_not_invalidated() {
        let (kernel, recorded) = (Kernel::default(), Arc::new(RecordedInvalidations::default()));
        kernel.set(recorded.clone());
        let file = |f_oid| Fid {
            f_seq: 1,
            f_oid,
            f_ver: 0,
        };
        let _other = kernel.begin_read(file(17), 0..4096);
        let late = kernel.begin_read(file(1), 8192..12288);
        let early = kernel.begin_read(file(1), 0..4096);
        kernel.invalidate_file(file(1)).await;
        assert_eq!(
            std::mem::take(&mut *recorded.0.lock()),
            [(4096, 4096), (12288, 0)]
        );
        drop(late);
        kernel.invalidate_file(file(1)).await;
        assert_eq!(std::mem::take(&mut *recorded.0.lock()), [(4096, 0)]);
        drop(early);
        kernel.invalidate_file(file(1)).await;
        assert_eq!(std::mem::take(&mut *recorded.0.lock()), [(0, 0)]);
    }
}
