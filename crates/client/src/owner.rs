//! What a mount does when a metadata target calls: locks called back, connections lost, evictions.
//!
//! A callback is answered at once and acted on when the lock has no reference left: what it covered is forgotten here,
//! and the kernel is told, before the lock is given back. The kernel's answer is waited for a bounded time only, because
//! the kernel may hold, for that very name, a request that waits for this lock to go.

use crate::inode::Inodes;
use crate::kernel::Kernel;
use crate::mdc::Mdc;
use ldlm::{LockInfo, LockOwner};
use rpc::{BoxFuture, ImportEvent, ImportOwner, Reply};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use wire::{Errno, Fid, MDS_INODELOCK_DOM, Message, OstLvb};

/// How long giving back a lock waits for the kernel to forget.
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

    /// Whose it is. Once.
    pub(crate) fn set_mdc(&self, mdc: &Arc<Mdc>) {
        let _ = self.mdc.set(Arc::downgrade(mdc));
    }

    /// What is known under the locks.
    pub(crate) fn inodes(&self) -> &Arc<Inodes> {
        &self.inodes
    }

    fn mdc(&self) -> Option<Arc<Mdc>> {
        self.mdc.get()?.upgrade()
    }
}

/// Tells the kernel that a file's attributes, and these names of it, are no longer known.
async fn tell(kernel: &Kernel, fid: Fid, names: &[(Fid, Box<[u8]>)]) {
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
            if tokio::time::timeout(KERNEL_WAIT, tell(&self.kernel, fid, &names))
                .await
                .is_err()
            {
                tracing::debug!(%fid, "the kernel is busy with a name that it was to forget");
            }
        })
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    /// A lock that went without being called back, given up with a request. The request's own effect the kernel knows. Of
    /// the file's other names (hard links) it is told without waiting: it may hold their directory for that very request.
    fn dropped(&self, lock: LockInfo, bits: u64) {
        let fid = Fid::from_res_id(&lock.res);
        let names = self.inodes.forget(fid, bits);
        if self.kernel.get().is_some() {
            let kernel = self.kernel.clone();
            // As far as it goes without waiting it goes at once.
            cpt::begin_here(&self.runtime, async move { tell(&kernel, fid, &names).await });
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
        tracing::warn!("evicted: locks and caches of this target are gone");
        if let Some(mdc) = self.mdc() {
            mdc.locks.clear();
            mdc.flocks.lose_all();
        }
        let fids = self.inodes.clear();
        let kernel = self.kernel.clone();
        self.runtime.spawn(async move {
            for fid in fids {
                tell(&kernel, fid, &[]).await;
            }
        });
    }
}
