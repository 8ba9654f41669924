//! Handles the callbacks and events of a metadata target: blocking ASTs and evictions.
//!
//! The lock client acknowledges a blocking AST at once. When the lock has no reference left, this
//! module drops the state that the lock covered and invalidates the kernel's copy. Then the lock
//! client cancels the lock. The wait for the kernel is bounded, because the kernel may hold the
//! inode or name for a request that itself waits for this lock.

use crate::data::Lov;
use crate::inode::{Inodes, KernelCopies};
use crate::kernel::Kernel;
use crate::layout::FileLayout;
use crate::mdc::Mdc;
use cpt::Handle;
use ldlm::{LockInfo, LockOwner};
use rpc::{BoxFuture, ImportEvent, ImportOwner, Reply, RpcError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use wire::{Errno, Fid, INODELOCK_UNWRITTEN, MDS_INODELOCK_DOM, MDS_INODELOCK_LAYOUT, Message, OstLvb};

/// The longest time for which the cancellation of a lock, or the answer to a getattr or setattr,
/// waits for the kernel's invalidation.
pub(crate) const KERNEL_WAIT_MAX: Duration = Duration::from_millis(500);

/// The longest time for which the cancellation of a layout lock waits for the write-back of the
/// file's data. Less than the server waits for the cancellation.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(20);

/// The owner of one metadata target's import and locks.
pub(crate) struct MdcOwner {
    inodes: Arc<Inodes>,
    kernel: Kernel,
    runtime: Handle,
    mdc: OnceLock<Weak<Mdc>>,
    lov: Arc<OnceLock<Weak<Lov>>>,
}

impl MdcOwner {
    /// `lov`: the object targets, set later.
    pub(crate) fn new(
        inodes: Arc<Inodes>,
        kernel: Kernel,
        runtime: Handle,
        lov: Arc<OnceLock<Weak<Lov>>>,
    ) -> Arc<MdcOwner> {
        Arc::new(MdcOwner {
            inodes,
            kernel,
            runtime,
            mdc: OnceLock::new(),
            lov,
        })
    }

    /// Sets the metadata target. Called once.
    pub(crate) fn set_mdc(&self, mdc: &Arc<Mdc>) {
        let _ = self.mdc.set(Arc::downgrade(mdc));
    }

    /// Writes a file's data back before its layout lock is cancelled, because another file may have
    /// the objects next. First drops the file's pages in the kernel, which writes back the dirty
    /// pages of mappings; then sends the dirty data. Waits at most [`FLUSH_WAIT_MAX`]. If another
    /// file has the object by then, the target refuses data sent later, and the file's descriptors
    /// fail.
    async fn flush_layout(&self, fid: Fid, layout: Arc<FileLayout>) {
        let lov = self.lov.get().and_then(Weak::upgrade);
        let Some(data) = lov.and_then(|lov| lov.file_in_use(fid, layout)) else {
            return;
        };
        let flush = async {
            let _ = tokio::time::timeout(KERNEL_WAIT_MAX, self.kernel.invalidate_file(fid)).await;
            let _ = data.flush().await;
        };
        if tokio::time::timeout(FLUSH_WAIT_MAX, flush).await.is_err() {
            tracing::warn!(%fid, "cancelled the layout lock before write-back of the file's data: an OST does not answer");
        }
    }

    /// The owner of the data on the target.
    fn data(&self) -> Option<impl LockOwner + ImportOwner + use<>> {
        let lov = self.lov.get().and_then(Weak::upgrade)?;
        lov.owner_of_mdt_data(self.mdc()?.index)
    }

    /// The owner of the data on the target, if a lock protects the data.
    fn data_under(&self, lock: &LockInfo, bits: u64) -> Option<impl LockOwner + ImportOwner + use<>> {
        let has_dom = lock.policy.bits() & bits & MDS_INODELOCK_DOM != 0;
        has_dom.then(|| self.data()).flatten()
    }

    fn mdc(&self) -> Option<Arc<Mdc>> {
        self.mdc.get()?.upgrade()
    }
}

/// Invalidates a file's attributes and the given names in the kernel.
async fn invalidate_kernel(kernel: &Kernel, copies: &KernelCopies) {
    let Some(cache) = kernel.get() else { return };
    cache.inval_inode(copies.fid, -1, 0).await;
    for (parent, name) in &copies.names {
        cache.inval_entry(*parent, name, copies.fid).await;
    }
}

impl LockOwner for MdcOwner {
    fn granted(&self, lock: LockInfo, lvb: &[u8]) {
        if let Some(data) = self.data_under(&lock, u64::MAX) {
            data.granted(lock, lvb);
        }
    }

    fn blocking<'a>(&'a self, lock: LockInfo, cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let fid = Fid::from_res_id(&lock.res);
            if let Some(data) = self.data_under(&lock, cancel_bits) {
                data.blocking(lock, cancel_bits).await;
            }
            let layout = match cancel_bits & MDS_INODELOCK_LAYOUT {
                0 => None,
                _ => self.inodes.layout(fid).filter(|layout| !layout.is_empty()),
            };
            let copies = self.inodes.forget(fid, cancel_bits);
            if let Some(layout) = layout {
                self.flush_layout(fid, layout).await;
            }
            if cancel_bits & INODELOCK_UNWRITTEN != 0
                && let Some(mdc) = self.mdc()
            {
                mdc.close_now(fid).await;
            }
            if tokio::time::timeout(KERNEL_WAIT_MAX, invalidate_kernel(&self.kernel, &copies))
                .await
                .is_err()
            {
                tracing::debug!(%fid, "lock cancelled before the kernel finished its invalidation");
            }
        })
    }

    fn glimpse(&self, lock: LockInfo) -> Option<OstLvb> {
        self.data_under(&lock, u64::MAX)?.glimpse(lock)
    }

    /// The client lost a lock without a blocking AST: with a request (ELC), or by an eviction. The
    /// kernel knows the effect of its request, except on the file's other names (hard links). The
    /// client does not wait for the invalidation, because the kernel may hold the directory of
    /// these names for the request.
    fn dropped(&self, lock: LockInfo, bits: u64) {
        if let Some(data) = self.data_under(&lock, bits) {
            data.dropped(lock, bits);
        }
        let fid = Fid::from_res_id(&lock.res);
        let copies = self.inodes.forget(fid, bits);
        if self.kernel.get().is_some() {
            let kernel = self.kernel.clone();
            // Starts on this thread; a task of the runtime continues if the kernel makes it wait.
            cpt::poll_then_spawn(
                &self.runtime,
                async move { invalidate_kernel(&kernel, &copies).await },
            );
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

    fn replay_locks<'a>(&'a self) -> BoxFuture<'a, Result<(), RpcError>> {
        Box::pin(async move {
            let Some(mdc) = self.mdc() else {
                return Ok(());
            };
            mdc.flocks.replay(&mdc.locks).await?;
            mdc.locks.replay().await
        })
    }

    fn event(&self, event: ImportEvent) {
        let is_eviction = matches!(event, ImportEvent::Evicted);
        if let Some(data) = self.data() {
            data.event(event);
        }
        if !is_eviction {
            return;
        }
        let mdc = self.mdc();
        let target = mdc.as_ref().map(|mdc| mdc.import.name());
        tracing::warn!(
            target,
            "evicted by the MDT: the locks from this MDT and all cached names and attributes are dropped"
        );
        if let Some(mdc) = &mdc {
            mdc.locks.clear();
            mdc.flocks.fail_all();
        }
        let fids = self.inodes.clear();
        let kernel = self.kernel.clone();
        self.runtime.spawn(async move {
            for fid in fids {
                invalidate_kernel(&kernel, &KernelCopies::of(fid)).await;
            }
        });
    }
}
