//! The owner of the import and lock client of an OST: passes their callbacks to the objects.

use super::OstObjects;
use crate::data::object::lock_range;
use cpt::BoxFuture;
use ldlm::{LockInfo, LockOwner};
use rpc::{ImportEvent, ImportOwner, Reply, RpcError};
use std::sync::{Arc, Weak};
use wire::{Errno, Message, OstLvb, WireStruct};

/// The owner. The reference is weak, so the import and the lock client do not keep the objects
/// alive.
pub(in crate::data) struct OstOwner(pub(super) Weak<OstObjects>);

impl ImportOwner for OstOwner {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            let ost = self.0.upgrade().ok_or(Errno::ENODEV)?;
            ost.osc.locks().ast(opc, msg).await
        })
    }

    fn replay_locks<'a>(&'a self) -> BoxFuture<'a, Result<(), RpcError>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(ost) => ost.osc.locks().replay().await,
                None => Ok(()),
            }
        })
    }

    fn event(&self, event: ImportEvent) {
        let Some(ost) = self.0.upgrade() else { return };
        match event {
            ImportEvent::Connected(data) => {
                ost.osc.handle_connect(&data);
                ost.report_lost_changes();
            }
            ImportEvent::Evicted => ost.handle_eviction(),
            // An idle disconnect returns the grant.
            ImportEvent::Idle => ost.osc.budget().set_grant(0),
            ImportEvent::Disconnected | ImportEvent::Closed => {}
        }
    }

    fn in_use(&self) -> bool {
        let in_use = |ost: Arc<OstObjects>| {
            let locks = ost.osc.locks();
            locks.lock_count() > 0 || locks.has_pending() || ost.osc.budget().dirty() > 0
        };
        self.0.upgrade().is_some_and(in_use)
    }
}

impl LockOwner for OstOwner {
    fn granted(&self, lock: LockInfo, lvb: &[u8]) {
        let object = self.0.upgrade().and_then(|ost| ost.find_object(&lock.res));
        if let (Some(object), Ok(lvb)) = (object, OstLvb::from_bytes(lvb)) {
            object.add_lock(lock.cookie, lock_range(&lock.policy), &lvb);
        }
    }

    fn blocking<'a>(&'a self, lock: LockInfo, _cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(ost) = self.0.upgrade() else { return };
            let Some(object) = ost.find_object(&lock.res) else {
                return;
            };
            if lock.discard {
                object.forget_destroyed();
            }
            // The kernel first: it writes back dirty pages of mappings, still under this lock.
            ost.osc.invalidate_in_kernel(object.file()).await;
            object.flush_and_forget(lock_range(&lock.policy)).await;
            object.remove_lock(lock.cookie);
            ost.drop_if_unused(&object);
        })
    }

    fn glimpse(&self, lock: LockInfo) -> Option<OstLvb> {
        self.0.upgrade()?.find_object(&lock.res)?.lvb_under(lock.cookie)
    }

    fn dropped(&self, lock: LockInfo, _bits: u64) {
        let Some(ost) = self.0.upgrade() else { return };
        let Some(object) = ost.find_object(&lock.res) else {
            return;
        };
        object.drop_after_lock_loss(lock_range(&lock.policy));
        object.remove_lock(lock.cookie);
        ost.drop_if_unused(&object);
    }
}
