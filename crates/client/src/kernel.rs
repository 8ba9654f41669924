//! What a mount tells the kernel to forget.
//!
//! A front end that lets the kernel keep names, attributes or pages gives an implementation to the client. The client
//! calls it when a lock that covered them is called back, and waits for the answer a bounded time only: the kernel may be
//! waiting, in the very same inode, for a request that needs the lock to go.

use cpt::BoxFuture;
use wire::Fid;

/// The kernel's caches.
pub trait KernelCache: Send + Sync + 'static {
    /// Forget that `name` in `parent` leads to `child` (to nothing, with a zero FID).
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], child: Fid) -> BoxFuture<'a, ()>;
    /// Forget attributes, and pages in this range: `offset < 0` means attributes only, `len == 0` means to the end.
    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()>;
}

/// Where a client's [`KernelCache`] is put when there is one: shared by the name space and the data half.
#[derive(Clone, Default)]
pub struct Kernel {
    cache: std::sync::Arc<std::sync::OnceLock<std::sync::Arc<dyn KernelCache>>>,
}

impl Kernel {
    /// Sets it; the first one stays.
    pub fn set(&self, cache: std::sync::Arc<dyn KernelCache>) {
        let _ = self.cache.set(cache);
    }

    /// The kernel's caches, if a kernel mounts this client.
    pub fn get(&self) -> Option<&dyn KernelCache> {
        self.cache.get().map(|c| &**c)
    }
}
