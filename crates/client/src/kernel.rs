//! Invalidation of the kernel's caches.
//!
//! A front end that lets the kernel cache names, attributes or pages gives the client an
//! implementation of [`KernelCache`]. The client calls it before it cancels a revoked lock that
//! covered them, and after it has lost such a lock in another way. The cancellation waits a bounded
//! time only: the kernel may hold the same inode for a request that waits for this lock.

use cpt::BoxFuture;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use wire::Fid;

/// The kernel's caches.
pub trait KernelCache: Send + Sync + 'static {
    /// Invalidates the entry `name` of `parent`, which leads to `child` (zero FID: to no file).
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], child: Fid) -> BoxFuture<'a, ()>;
    /// Invalidates a file's attributes, and its pages in `len` bytes from `offset`. `offset < 0`:
    /// attributes only; `len == 0`: to the end of the file.
    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()>;
}

/// The pages that the kernel holds for reads in progress: each a file and a byte range.
type Awaited = Mutex<Vec<(Fid, Range<u64>)>>;

/// Number of shards of the awaited pages, by the object ID in the file's FID.
const SHARDS: u64 = 16;

/// A client's [`KernelCache`], if set, and the pages that reads in progress hold. Shared by the
/// code for names and the code for data.
#[derive(Clone, Default)]
pub struct Kernel {
    cache: Arc<OnceLock<Arc<dyn KernelCache>>>,
    awaited: Arc<[Awaited; SHARDS as usize]>,
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

    fn awaited(&self, file: Fid) -> &Awaited {
        &self.awaited[(u64::from(file.f_oid) % SHARDS) as usize]
    }

    /// Marks pages that the kernel holds locked for a read in progress. [`Kernel::forget_pages`]
    /// skips them until the guard is dropped: they hold no data yet, and their read may wait for
    /// the very lock that is being cancelled.
    pub(crate) fn await_pages(&self, file: Fid, pages: Range<u64>) -> AwaitedPages<'_> {
        self.awaited(file).lock().push((file, pages.clone()));
        AwaitedPages {
            kernel: self,
            file,
            pages,
        }
    }

    /// Invalidates a file's attributes and its pages, except those that a read in progress holds.
    pub(crate) async fn forget_pages(&self, file: Fid) {
        let Some(cache) = self.get() else { return };
        let mut awaited: Vec<Range<u64>> = {
            let all = self.awaited(file).lock();
            let of_file = all.iter().filter(|(awaited_file, _)| *awaited_file == file);
            of_file.map(|(_, pages)| pages.clone()).collect()
        };
        awaited.sort_by_key(|pages| pages.start);
        let mut from = 0;
        for pages in awaited {
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

/// Guard of [`Kernel::await_pages`].
pub(crate) struct AwaitedPages<'a> {
    kernel: &'a Kernel,
    file: Fid,
    pages: Range<u64>,
}

impl Drop for AwaitedPages<'_> {
    fn drop(&mut self) {
        let mut all = self.kernel.awaited(self.file).lock();
        let is_same = |(file, pages): &(Fid, Range<u64>)| *file == self.file && *pages == self.pages;
        if let Some(index) = all.iter().position(is_same) {
            all.swap_remove(index);
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
        let _other = kernel.await_pages(file(17), 0..4096);
        let late = kernel.await_pages(file(1), 8192..12288);
        let early = kernel.await_pages(file(1), 0..4096);
        kernel.forget_pages(file(1)).await;
        assert_eq!(
            std::mem::take(&mut *recorded.0.lock()),
            [(4096, 4096), (12288, 0)]
        );
        drop(late);
        kernel.forget_pages(file(1)).await;
        assert_eq!(std::mem::take(&mut *recorded.0.lock()), [(4096, 0)]);
        drop(early);
        kernel.forget_pages(file(1)).await;
        assert_eq!(std::mem::take(&mut *recorded.0.lock()), [(0, 0)]);
    }
}
