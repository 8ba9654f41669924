//! The objects of one target that are in use or locked: their table, the write-back task, and the
//! effects of lock callbacks and evictions on them. The task writes back old data and whole RPCs;
//! under pressure, all dirty data.

mod eviction;
mod owner;

use super::brw::ObjectId;
use super::cache::SweepResult;
use super::cache_limit::{CacheLimit, CachedObjects};
use super::config::DataConfig;
use super::losses::Losses;
use super::object::{DIRTY_AGE_MAX, DirtyObjects, Object, resource};
use super::osc::{Osc, OscTarget};
use crate::mdc::Mdc;
use crate::umount::{self, Unsaved};
use bytes::Bytes;
pub(super) use owner::OstOwner;
use parking_lot::Mutex;
use rpc::{Ptlrpc, Request};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::{LdlmResId, OST_SYNC, OstBody, WireStruct};

/// Longest wait of the write-back task between two rounds while data is dirty.
const FLUSH_PERIOD: Duration = Duration::from_millis(100);

/// The objects of one target.
#[derive(Debug)]
pub(super) struct OstObjects {
    osc: Arc<Osc>,
    /// All objects that are in use or locked.
    objects: Mutex<BTreeMap<LdlmResId, Arc<Object>>>,
    dirty: Arc<DirtyObjects>,
    write_back_task: Mutex<Option<AbortHandle>>,
    weak_self: Weak<OstObjects>,
}

/// An object that a file uses. The table drops it after its last use.
#[derive(Debug)]
pub(super) struct UsedObject {
    object: Arc<Object>,
    table: Arc<OstObjects>,
}

/// A watch for changes of a file's data on its MDT. Keeps the object, so that it counts on. Without
/// an object: no file used one when the watch began, or the file was not known.
#[derive(Default)]
pub(crate) struct DataWatch {
    object: Option<UsedObject>,
    changes: u64,
}

impl DataWatch {
    /// Whether the mount has cached bytes of the data.
    pub(crate) fn has_cached_bytes(&self) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| object.has_cached_bytes())
    }

    /// The number of changes before the watch.
    pub(in crate::data) fn changes(&self) -> u64 {
        self.changes
    }
}

impl Deref for UsedObject {
    type Target = Arc<Object>;

    fn deref(&self) -> &Arc<Object> {
        &self.object
    }
}

impl Drop for UsedObject {
    fn drop(&mut self) {
        self.table.drop_if_unused(&self.object);
    }
}

impl OstObjects {
    /// Creates the client of the OST, connects in the background, and starts the write-back task.
    pub(super) fn start(
        rpc: &Arc<Ptlrpc>,
        target: OscTarget,
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
    ) -> Arc<OstObjects> {
        let ost = Arc::new_cyclic(|weak_self: &Weak<OstObjects>| {
            let owner = Arc::new(OstOwner(weak_self.clone()));
            OstObjects {
                osc: Osc::new(rpc, target, cfg, cache_limit, losses, owner),
                objects: Mutex::default(),
                dirty: Arc::default(),
                write_back_task: Mutex::default(),
                weak_self: weak_self.clone(),
            }
        });
        cache_limit.add(ost.weak_self.clone());
        let task = cpt::spawn(write_back(ost.weak_self.clone()));
        *ost.write_back_task.lock() = Some(task.abort_handle());
        ost.osc.start_connecting();
        ost
    }

    /// Creates the table of objects on a metadata target.
    pub(super) fn of_mdt(
        mdc: &Arc<Mdc>,
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
    ) -> Arc<OstObjects> {
        let mdt = Arc::new_cyclic(|weak_self| OstObjects {
            osc: Osc::of_mdt(mdc, cfg, cache_limit, losses),
            objects: Mutex::default(),
            dirty: Arc::default(),
            // Each write is sent at once.
            write_back_task: Mutex::default(),
            weak_self: weak_self.clone(),
        });
        cache_limit.add(mdt.weak_self.clone());
        mdt
    }

    /// The owner of the locks on the objects.
    pub(super) fn owner(&self) -> OstOwner {
        OstOwner(self.weak_self.clone())
    }

    /// Drops the objects at the end of a mount. The end of the metadata target's connection waits
    /// for their changes.
    pub(super) fn forget_all(&self) {
        self.objects.lock().clear();
    }

    /// The client of the target.
    pub(super) fn osc(&self) -> &Arc<Osc> {
        &self.osc
    }

    /// The object with this ID: one value for all callers while it is in use or locked.
    pub(super) fn object(self: &Arc<Self>, id: ObjectId) -> UsedObject {
        let mut objects = self.objects.lock();
        let object = objects
            .entry(resource(&id))
            .or_insert_with(|| Arc::new(Object::new(self.osc.clone(), self.dirty.clone(), id)));
        UsedObject {
            object: object.clone(),
            table: self.clone(),
        }
    }

    /// Watches an object for changes by this mount, from now on.
    pub(super) fn watch(self: &Arc<Self>, res: &LdlmResId) -> DataWatch {
        let object = self.find_object(res);
        DataWatch {
            changes: object.as_ref().map_or(0, |object| object.changes()),
            object: object.map(|object| UsedObject {
                object,
                table: self.clone(),
            }),
        }
    }

    pub(super) fn find_object(&self, res: &LdlmResId) -> Option<Arc<Object>> {
        self.objects.lock().get(res).cloned()
    }

    /// Removes an object from the table if it is neither in use nor locked. `object` is the
    /// caller's only reference.
    fn drop_if_unused(&self, object: &Arc<Object>) {
        let mut objects = self.objects.lock();
        // The table's reference and the caller's.
        if Arc::strong_count(object) == 2 && !object.is_locked() {
            objects.remove(object.resource());
        }
    }

    fn all_objects(&self) -> Vec<Arc<Object>> {
        self.objects.lock().values().cloned().collect()
    }

    /// The first object at or after the resource `first`, or the first of all.
    fn object_from(&self, first: Option<&LdlmResId>) -> Option<Arc<Object>> {
        let objects = self.objects.lock();
        let next = match first {
            Some(first) => objects.range(first..).next(),
            None => objects.first_key_value(),
        };
        next.map(|(_, object)| object.clone())
    }

    /// Drops the cached data, dirty or not, of an object that the target will destroy. Cancels its
    /// unused locks, so that the target need not revoke them.
    pub(super) fn discard(&self, id: &ObjectId) {
        let res = resource(id);
        if let Some(object) = self.find_object(&res) {
            object.forget_destroyed();
            // An in-flight write needs its lock, so the target revokes that lock.
            if !object.is_writing() {
                self.osc.locks().cancel_unused_of(&res);
            }
            self.drop_if_unused(&object);
        }
    }

    /// One round of write-back: under pressure all dirty data, else old data and whole RPCs.
    async fn write_back_round(&self) {
        for object in self.dirty.take() {
            let Some(since) = object.dirty_since() else {
                self.drop_if_unused(&object);
                continue;
            };
            let is_old = since.elapsed() >= DIRTY_AGE_MAX;
            let full_only = !is_old && !self.osc.budget().under_pressure();
            object.start_writing(0..u64::MAX, full_only).await;
            match object.dirty_since() {
                Some(_) => {
                    self.dirty.push(object);
                }
                None => self.drop_if_unused(&object),
            }
        }
    }

    /// Leaves the OST: until `deadline` writes dirty data and waits for the commit of all changes,
    /// then cancels locks and disconnects.
    pub(super) async fn umount(&self, deadline: Instant) -> Option<Unsaved> {
        let import = self.osc.import();
        let write_and_commit = async {
            for object in self.all_objects() {
                object.flush(0..u64::MAX).await;
            }
            let sync = Request::new(OST_SYNC, vec![OstBody::default().to_bytes(), Bytes::new()]);
            umount::commit(import, sync).await;
        };
        let uncommitted = umount::save(import, write_and_commit, deadline).await;
        umount::limit_step(
            import,
            "take the lock cancellations",
            self.osc.locks().cancel_all(),
        )
        .await;
        let is_unwritten = |object: &Arc<Object>| object.has_unwritten_data();
        let has_unwritten_data = self.all_objects().iter().any(is_unwritten);
        if let Some(task) = self.write_back_task.lock().take() {
            task.abort();
        }
        umount::limit_step(import, "answer OST_DISCONNECT", import.disconnect()).await;
        self.osc.remove_params();
        self.objects.lock().clear();
        self.dirty.take();
        match has_unwritten_data {
            true => Some(Unsaved::Data {
                import: import.name().to_owned(),
            }),
            false => uncommitted,
        }
    }
}

impl CachedObjects for OstObjects {
    fn sweep(
        &self,
        (first, offset): (Option<&LdlmResId>, u64),
        bytes: u64,
        steps_max: usize,
    ) -> Option<(LdlmResId, SweepResult)> {
        let object = self.object_from(first)?;
        let res = *object.resource();
        let offset = if first == Some(&res) { offset } else { 0 };
        let swept = object.sweep(offset, bytes, steps_max);
        // The last task that used the object may have dropped its reference meanwhile.
        self.drop_if_unused(&object);
        Some((res, swept))
    }
}

/// The write-back task. Ends with the objects.
async fn write_back(ost: Weak<OstObjects>) {
    loop {
        let Some(ost) = ost.upgrade() else { return };
        if ost.dirty.is_empty() {
            ost.dirty.woken().await;
        } else {
            // Wakes at the latest after a period: by then some dirty data may be old.
            let _ = tokio::time::timeout(FLUSH_PERIOD, ost.dirty.woken()).await;
        }
        ost.write_back_round().await;
    }
}
