//! The queue of a target's objects to write back.

use super::Object;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Objects to write back, in the order in which they were queued.
#[derive(Debug, Default)]
pub(in crate::data) struct DirtyObjects {
    objects: Mutex<VecDeque<Arc<Object>>>,
    /// Wakes the write-back task before the end of its period.
    wake: Notify,
}

impl DirtyObjects {
    /// Adds an object; returns whether it is the only one.
    pub(in crate::data) fn push(&self, object: Arc<Object>) -> bool {
        let mut objects = self.objects.lock();
        objects.push_back(object);
        objects.len() == 1
    }

    /// Removes and returns all objects.
    pub(in crate::data) fn take(&self) -> Vec<Arc<Object>> {
        self.objects.lock().drain(..).collect()
    }

    pub(in crate::data) fn is_empty(&self) -> bool {
        self.objects.lock().is_empty()
    }

    /// Wakes the write-back task.
    pub(in crate::data) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for the next call of [`DirtyObjects::wake`].
    pub(in crate::data) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Object {
    /// Records a write of `bytes` bytes into the cache. Wakes the write-back task if necessary.
    /// `newly_dirty`: the object had no dirty data before.
    pub(super) fn note_write(self: &Arc<Self>, newly_dirty: bool, bytes: u64) {
        let is_first_dirty = newly_dirty && self.dirty.push(self.clone());
        if is_first_dirty || self.osc.budget().under_pressure() || self.has_filled_rpc(bytes) {
            self.dirty.wake();
        }
    }
}
