//! Marks of the objects that a server may be changing, for targets that another server can take
//! over by force ([`crate::target::Fence`]).
//!
//! The old server may be stopped in the middle of a write, or the kernel of its node may hold
//! unsynced data, and both can reach the shared disk after the takeover. So the server marks an
//! existing object in the index, and syncs the index, before it changes the object's file. The mark
//! stays until the change is synced and the object has had no changes for a while. The next
//! generation copies the file of each marked object ([`super::adopt`]) and uses only the copy.
//!
//! The first change of a new object waits for no mark: without a record the next generation does
//! not use the file. The record and the mark reach the index in one batch, because the record may
//! be durable long before the data.

use std::sync::Arc;

use cpt::HashMap;
use parking_lot::Mutex;
use wire::Fid;

use super::record;
use crate::{Batch, Index, KEY_RESERVED, OsdError, target::Fence};

/// Prefix of the keys of marks; a FID follows. The value is the generation of the server.
pub(crate) const PREFIX: [u8; 1] = [KEY_RESERVED + 4];
const SHARDS: usize = 16;
/// A mark stays for this number of calls of [`ObjectMarks::settle`] after the last change.
const IDLE_MAX: u8 = 2;

pub(super) fn key(fid: &Fid) -> Vec<u8> {
    record::key_of(PREFIX, fid)
}

/// The object of a mark's key; `None` if the key is malformed.
pub(crate) fn fid_of(key: &[u8]) -> Option<Fid> {
    record::parse_key(PREFIX, key)
}

/// The marks of this server.
pub(super) struct ObjectMarks {
    index: Arc<dyn Index>,
    /// The value of each mark; `None`: the target is not shared and needs no marks.
    value: Option<[u8; 4]>,
    shards: [Mutex<HashMap<Fid, Mark>>; SHARDS],
}

#[derive(Default)]
struct Mark {
    /// No change has to wait for the mark: it is on disk, or not later than the object's record.
    durable: bool,
    /// Number of changes in progress.
    changes: usize,
    /// Calls of [`ObjectMarks::settle`] since the last change.
    idle: u8,
}

/// A change in progress of a marked object.
pub(super) struct MarkedChange {
    marks: Arc<ObjectMarks>,
    fid: Fid,
    durable: bool,
}

impl ObjectMarks {
    pub(super) fn new(index: Arc<dyn Index>, fence: &Fence) -> ObjectMarks {
        ObjectMarks {
            index,
            value: fence.is_shared().then(|| fence.generation().to_be_bytes()),
            shards: Default::default(),
        }
    }

    fn shard(&self, fid: &Fid) -> &Mutex<HashMap<Fid, Mark>> {
        &self.shards[fid.f_oid as usize % SHARDS]
    }

    /// Marks an existing object before a change; `None` if the target is not shared. The caller
    /// holds the object's write lock.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn begin(self: &Arc<Self>, fid: Fid) -> Result<Option<MarkedChange>, OsdError> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        let mut shard = self.shard(&fid).lock();
        if !shard.contains_key(&fid) {
            let mut batch = Batch::new();
            batch.put(key(&fid), value.to_vec());
            self.index.apply(batch)?;
        }
        let mark = shard.entry(fid).or_default();
        (mark.changes, mark.idle) = (mark.changes + 1, 0);
        Ok(Some(MarkedChange {
            marks: self.clone(),
            fid,
            durable: mark.durable,
        }))
    }

    /// Adds the mark of a new object to the batch with the object's first record.
    pub(super) fn add_new(&self, fid: Fid, batch: &mut Batch) {
        if let Some(value) = self.value {
            batch.put(key(&fid), value.to_vec());
            let mark = || Mark {
                durable: true,
                ..Mark::default()
            };
            self.shard(&fid).lock().entry(fid).or_insert_with(mark).idle = 0;
        }
    }

    /// Removes the mark of each object that has no unsynced changes and had no changes during the
    /// last [`IDLE_MAX`] calls; with `all`, does not wait for these calls. Returns the number of
    /// marks that stay.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn settle(&self, all: bool, is_dirty: impl Fn(&Fid) -> bool) -> Result<usize, OsdError> {
        let mut stay = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let (mut batch, mut removed) = (Batch::new(), Vec::new());
            for (fid, mark) in shard.iter_mut() {
                mark.idle = (mark.idle + 1).min(IDLE_MAX + 1);
                if mark.changes > 0 || is_dirty(fid) || (mark.idle <= IDLE_MAX && !all) {
                    stay += 1;
                    continue;
                }
                batch.delete(key(fid));
                removed.push(*fid);
            }
            if !removed.is_empty() {
                self.index.apply(batch)?;
            }
            for fid in removed {
                shard.remove(&fid);
            }
        }
        Ok(stay)
    }

    /// Adds the removal of an object's mark to the batch that destroys the object.
    pub(super) fn remove(&self, fid: &Fid, batch: &mut Batch) {
        if self.shard(fid).lock().remove(fid).is_some() {
            batch.delete(key(fid));
        }
    }
}

impl MarkedChange {
    /// Whether the index must be synced before the file changes.
    pub(super) fn waits_for_index(&self) -> bool {
        !self.durable
    }

    /// Records that the index was synced.
    pub(super) fn index_synced(&self) {
        if let Some(mark) = self.marks.shard(&self.fid).lock().get_mut(&self.fid) {
            mark.durable = true;
        }
    }
}

impl Drop for MarkedChange {
    fn drop(&mut self) {
        // A destroy may have removed the mark.
        if let Some(mark) = self.marks.shard(&self.fid).lock().get_mut(&self.fid) {
            (mark.changes, mark.idle) = (mark.changes.saturating_sub(1), 0);
        }
    }
}
