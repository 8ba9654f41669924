//! The minimum size of each object's file on disk, recorded so that a lost or truncated file is
//! detected.
//!
//! The size is in the object's record in the index. The store raises it after a sync of the file
//! and lowers it before a truncate, so a record never claims more than the disk holds, even after a
//! power cut. A write therefore need not wait for the record. A truncate waits for the index only
//! if the recorded size exceeds the new one, or the file is missing.

use std::path::Path;

use wire::Fid;

use super::{
    Shared,
    cache::{DirtyState, Entry, State},
};
use crate::OsdError;

impl State {
    /// Compares the file with the record, both just read from the disk. Sets `damage` if the file
    /// is missing or too short.
    pub(super) fn check_durable_size(&mut self, path: &Path) {
        let (Some(size), found) = (self.durable_size, self.file.as_ref().map(|_| self.attr.size)) else {
            return;
        };
        let why = match found {
            None => format!("file is missing, expected at least {size} bytes"),
            Some(found) if found < size => format!("file has {found} bytes, expected at least {size}"),
            Some(_) => return,
        };
        tracing::error!(
            "object file {}: {why}; reads and writes of the object fail",
            path.display()
        );
        self.damage = Some(why);
    }
}

impl Entry {
    /// Fails if the object's file does not match its record.
    pub(super) fn check_undamaged(&self) -> Result<(), OsdError> {
        match self.state.lock().damage.clone() {
            None => Ok(()),
            Some(why) => Err(self.damage_error(why)),
        }
    }

    pub(super) fn damage_error(&self, why: String) -> OsdError {
        OsdError::DamagedObject {
            path: self.path.clone(),
            why,
        }
    }

    /// Records and logs that the file ended after `found` bytes of a read at `offset`: it is
    /// shorter than at its open or last write.
    pub(super) fn report_early_end(&self, offset: u64, found: u64) -> OsdError {
        let mut state = self.state.lock();
        let end = offset + found;
        let why = format!(
            "file ends at byte {end}, expected at least {} bytes",
            state.attr.size
        );
        tracing::error!(
            "object file {}: {why}; reads and writes of the object fail",
            self.path.display()
        );
        state.damage = Some(why.clone());
        drop(state);
        self.damage_error(why)
    }
}

impl Shared {
    /// Records the sizes of synced files. After a failure the entry's record stays stale and is
    /// written later.
    pub(super) fn record_durable_sizes(&self, synced: &[(Fid, DirtyState)]) {
        for (fid, synced_state) in synced {
            let recorded = self.record_durable_size(fid, synced_state);
            if let Err(e) = recorded {
                tracing::debug!(%fid, "durable size not recorded yet: {e}");
            }
        }
    }

    fn record_durable_size(&self, fid: &Fid, synced_state: &DirtyState) -> Result<(), OsdError> {
        let entry = self.cache.find(fid).map_or_else(|| self.load(*fid, None), Ok)?;
        {
            let mut state = entry.state.lock();
            let present = self.cache.dirty(fid);
            if !present.is_some_and(|present| synced_state.only_grew_until(&present))
                || state.damage.is_some()
                || state.file.is_none()
            {
                return Ok(());
            }
            let size = state.durable_size.unwrap_or(0).max(synced_state.size);
            if state.durable_size == Some(size) {
                return Ok(());
            }
            state.durable_size = Some(size);
            state.record_stale = true;
        }
        self.write_record(&entry)
    }

    /// Lowers the recorded size before a truncate to `size`; true if the record must reach the disk
    /// first. A damaged file counts as undamaged once it is truncated to at most its present size.
    pub(super) fn lower_durable_size(&self, entry: &Entry, size: u64) -> Result<bool, OsdError> {
        {
            let mut state = entry.state.lock();
            let found = match &state.file {
                Some(file) => file.measure().map_err(OsdError::io("stat", &entry.path))?.0,
                None => 0,
            };
            if let Some(why) = state.damage.take_if(|_| size > found) {
                state.damage = Some(why.clone());
                drop(state);
                return Err(entry.damage_error(why));
            }
            state.damage = None;
            if state.file.is_some() && size < state.attr.size {
                self.cache.mark_truncated(&entry.fid, size);
            }
            let missing = state.file.is_none() && state.durable_size.is_some();
            if !missing && state.durable_size.is_none_or(|durable_size| durable_size <= size) {
                return Ok(false);
            }
            state.durable_size = state.file.as_ref().map(|_| size);
            state.record_stale = true;
        }
        self.write_record(entry)?;
        Ok(true)
    }
}
