//! Callbacks and events of a metadata target: blocking ASTs and evictions.
//!
//! The lock client acknowledges a blocking AST at once. When the lock has no reference left, this
//! module drops the state that the lock covered, invalidates the kernel's copy, and then lets the
//! lock client cancel. The wait for the kernel is bounded, because the kernel may hold the inode or
//! name for a request that itself waits for this lock.

use crate::inode::Inodes;
use crate::kernel::Kernel;
use crate::mdc::Mdc;
use ldlm::{LockInfo, LockOwner};
use rpc::{BoxFuture, ImportEvent, ImportOwner, Reply};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use wire::{Errno, Fid, MDS_INODELOCK_DOM, Message, OstLvb};

/// The longest time for which the cancellation of a lock, or the answer to a getattr or setattr,
/// waits for the kernel's invalidation.
pub(crate) const KERNEL_WAIT: Duration = Duration::from_millis(500);

/// The owner of one metadata target's import and locks.
pub(crate) struct MdcOwner {
    inodes: Arc<Inodes>,
    kernel: Kernel,
    runtime: Handle,
    mdc: OnceLock<Weak<Mdc>>,
}

impl MdcOwner {
    pub(crate) fn new(inodes: Arc<Inodes>, kernel: Kernel, runtime: Handle) -> Arc<MdcOwner> {
        Arc::new(MdcOwner {
            inodes,
            kernel,
            runtime,
            mdc: OnceLock::new(),
        })
    }

    /// Sets the metadata target. Called once.
    pub(crate) fn set_mdc(&self, mdc: &Arc<Mdc>) {
        let _ = self.mdc.set(Arc::downgrade(mdc));
    }

    /// The cached state that this target's locks cover.
    pub(crate) fn inodes(&self) -> &Arc<Inodes> {
        &self.inodes
    }

    fn mdc(&self) -> Option<Arc<Mdc>> {
        self.mdc.get()?.upgrade()
    }
}

/// Invalidates a file's attributes and the given names in the kernel.
async fn invalidate_kernel(kernel: &Kernel, fid: Fid, names: &[(Fid, Box<[u8]>)]) {
    let Some(cache) = kernel.get() else { return };
    cache.inval_inode(fid, -1, 0).await;
    for (parent, name) in names {
        cache.inval_entry(*parent, name, fid).await;
    }
}

impl LockOwner for MdcOwner {
    fn blocking<'a>(&'a self, lock: LockInfo, cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let fid = Fid::from_res_id(&lock.res);
            let names = self.inodes.forget(fid, cancel_bits);
            if cancel_bits & MDS_INODELOCK_DOM != 0
                && let Some(mdc) = self.mdc()
            {
                mdc.close_now(fid).await;
            }
            if tokio::time::timeout(KERNEL_WAIT, invalidate_kernel(&self.kernel, fid, &names))
                .await
                .is_err()
            {
                tracing::debug!(%fid, "lock cancelled before the kernel finished its invalidation");
            }
        })
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    /// The client lost a lock without a blocking AST: with a request (ELC), or by an eviction. The
    /// kernel knows the effect of a request, but not on the file's other names (hard links). The
    /// client does not wait for the invalidation, because the kernel may hold the directory of
    /// these names for the request.
    fn dropped(&self, lock: LockInfo, bits: u64) {
        let fid = Fid::from_res_id(&lock.res);
        let names = self.inodes.forget(fid, bits);
        if self.kernel.get().is_some() {
            let kernel = self.kernel.clone();
            // Starts on this thread; a task of the runtime continues if the kernel makes it wait.
            cpt::poll_then_spawn(&self.runtime, async move {
                invalidate_kernel(&kernel, fid, &names).await
            });
        }
    }
}

impl ImportOwner for MdcOwner {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            match self.mdc() {
                Some(mdc) => mdc.locks.ast(opc, msg).await,
                None => Err(Errno::ESHUTDOWN),
            }
        })
    }

    fn event(&self, e: ImportEvent) {
        if !matches!(e, ImportEvent::Evicted) {
            return;
        }
        tracing::warn!("evicted by the MDT: its locks and cached attributes are dropped");
        if let Some(mdc) = self.mdc() {
            mdc.locks.clear();
            mdc.flocks.fail_all();
        }
        let fids = self.inodes.clear();
        let kernel = self.kernel.clone();
        self.runtime.spawn(async move {
            for fid in fids {
                invalidate_kernel(&kernel, fid, &[]).await;
            }
        });
    }
}
