//! Which files of objects are on disk, and how long they are at least: noticing a file that was lost or cut.
//!
//! The record of an object in the index has that size. It is raised after a sync of the file, and lowered before the file
//! is cut, each in time: a record never says more than what the disk holds, whenever the power fails. So writing needs
//! no record before it is answered, and cutting waits for the index only where the size was raised since the last cut.

use std::{fs, path::Path, sync::Arc};

use cpt::BoxFuture;
use wire::Fid;

use super::{
    LocalObjects, Shared,
    cache::{Dirty, Entry, State},
};
use crate::{OsdError, blocking};

impl State {
    /// Compares the file with the record; both were just read.
    pub(super) fn look_for_damage(&mut self, path: &Path) {
        let (Some(size), found) = (self.on_disk, self.file.as_ref().map(|_| self.attr.size)) else {
            return;
        };
        let why = match found {
            None => format!("it is missing, expected at least {size} bytes"),
            Some(found) if found < size => format!("it has {found} bytes, expected at least {size}"),
            Some(_) => return,
        };
        tracing::error!(
            "object file {}: {why}; reading and writing it fails",
            path.display()
        );
        self.damage = Some(why);
    }
}

impl Entry {
    /// An error if the object's file is not what was written.
    pub(super) fn check(&self) -> Result<(), OsdError> {
        match self.state.lock().damage.clone() {
            None => Ok(()),
            Some(why) => Err(self.damaged(why)),
        }
    }

    fn damaged(&self, why: String) -> OsdError {
        OsdError::DamagedObject {
            path: self.path.clone(),
            why,
        }
    }

    /// The file and how many bytes of a read it must have; `None` when there is nothing to read.
    pub(super) fn to_read(&self, offset: u64, len: u32) -> Option<(Arc<fs::File>, u64)> {
        let state = self.state.lock();
        let len = state.attr.size.saturating_sub(offset).min(len.into());
        state.file.clone().filter(|_| len > 0).map(|file| (file, len))
    }

    /// The file turned out to be shorter than it was when it was opened or written.
    pub(super) fn ended_early(&self, offset: u64, found: u64) -> OsdError {
        let mut state = self.state.lock();
        let end = offset + found;
        let why = format!(
            "it ends at byte {end}, expected at least {} bytes",
            state.attr.size
        );
        tracing::error!(
            "object file {}: {why}; reading and writing it fails",
            self.path.display()
        );
        state.damage = Some(why.clone());
        drop(state);
        self.damaged(why)
    }
}

impl Shared {
    /// The files of these objects are on disk as they were then: their records say so from now on. A record that cannot
    /// be written is written with the next one.
    pub(super) fn settle(&self, synced: &[(Fid, Dirty)]) {
        for (fid, then) in synced {
            let settled = self.settle_one(fid, then);
            if let Err(e) = settled {
                tracing::debug!(%fid, "its size is not recorded yet: {e}");
            }
        }
    }

    fn settle_one(&self, fid: &Fid, then: &Dirty) -> Result<(), OsdError> {
        let entry = self.cache.find(fid).map_or_else(|| self.load(*fid), Ok)?;
        {
            let mut state = entry.state.lock();
            let later = self.cache.dirty(fid);
            if !later.is_some_and(|later| then.only_grew_until(&later))
                || state.damage.is_some()
                || state.file.is_none()
            {
                return Ok(());
            }
            let size = state.on_disk.unwrap_or(0).max(then.size);
            if state.on_disk == Some(size) {
                return Ok(());
            }
            state.on_disk = Some(size);
            state.record_stale = true;
        }
        self.write_record(&entry)
    }

    /// Before a file is cut to `size`: its record says no more than that. True when that has to reach the disk first.
    /// A damaged file that is cut to what is left of it is whole again.
    fn before_cut(&self, entry: &Entry, size: u64) -> Result<bool, OsdError> {
        {
            let mut state = entry.state.lock();
            let found = match &state.file {
                Some(file) => {
                    let meta = file.metadata();
                    meta.map_err(OsdError::io("stat", &entry.path))?.len()
                }
                None => 0,
            };
            if let Some(why) = state.damage.take_if(|_| size > found) {
                state.damage = Some(why.clone());
                drop(state);
                return Err(entry.damaged(why));
            }
            state.damage = None;
            if state.file.is_some() && size < state.attr.size {
                self.cache.mark_cut(&entry.fid, size);
            }
            let missing = state.file.is_none() && state.on_disk.is_some();
            if !missing && state.on_disk.is_none_or(|on_disk| on_disk <= size) {
                return Ok(false);
            }
            state.on_disk = state.file.as_ref().map(|_| size);
            state.record_stale = true;
        }
        self.write_record(entry)?;
        Ok(true)
    }
}

impl LocalObjects {
    /// Runs `f`, which changes the size of an object's file, on a thread for blocking work, after those that write to
    /// the object and before later ones; with `cut` the file gets that size.
    pub(super) fn in_turn<T: Send + 'static>(
        &self,
        fid: Fid,
        cut: Option<u64>,
        f: impl FnOnce(&Shared, &Entry) -> Result<T, OsdError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, OsdError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            let turn = entry.writing.clone().lock_owned().await;
            if let Some(size) = cut
                && shared.before_cut(&entry, size)?
            {
                shared.index.sync().await?;
            }
            blocking(move || {
                let _turn = turn;
                f(&shared, &entry)
            })
            .await
        })
    }
}
