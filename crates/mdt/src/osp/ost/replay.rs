//! Recovery of the MDT: the objects of files that clients create again.
//!
//! A crash of the MDT may undo the creation of files and the rise of the bound of allocated ids. A
//! client that creates such a file again names the objects that the file had. Their ids raise the
//! bound again. Until recovery ends, the MDT sends no orphan cleanup to the OST, because the OST
//! would destroy the objects above the old bound.

use wire::{Errno, Fid};

use super::Ost;

impl Ost {
    /// Records that a file has this object again.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the MDT cannot have allocated the object shortly before its restart; or the
    /// error of changing the store.
    pub(crate) fn readopt(&self, object: Fid) -> Result<(), Errno> {
        let mut pool = self.pool.lock();
        if let Some(last_used) = pool.readopt(object)? {
            // The store must have the record before the create. The pool's lock keeps the records
            // in order.
            self.save_last_used(last_used)?;
        }
        Ok(())
    }

    /// Waits until the MDT may create objects.
    pub(super) async fn wait_may_create(&self) {
        let mut may_create = self.signals.may_create.clone();
        let allowed = may_create.wait_for(|may| *may).await.is_ok();
        if !allowed {
            // The set of OSTs was dropped without a stop, as by a crash: this OST must not go on.
            std::future::pending::<()>().await;
        }
    }
}
