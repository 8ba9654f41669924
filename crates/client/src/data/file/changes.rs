//! Changes of a file's data and of its objects' times.
//!
//! Another client may swap the file's layout while a change waits for its extent locks. Then the
//! objects belong to another file. So each change first awaits `is_current` with its locks held. If
//! the layout is no longer current, the change does nothing. While the change holds the locks,
//! no client can copy the data and swap the layouts.

use super::DataFile;
use crate::atime::AtimeTracker;
use crate::data::held_locks::HeldLocks;
use crate::data::object::SetTimes;
use crate::data::ranged_ops::{Appended, Fallocate};
use crate::data::striped_io::StripedWrite;
use crate::layout::ObjectIndex;
use bytes::Bytes;
use ldlm::LockMode;
use std::future::Future;
use std::ops::Range;
use wire::{Errno, OBD_OBJECT_EOF};

impl DataFile {
    /// The part of a write's length that fits the largest file size. `EFBIG`: no byte fits.
    fn fit_write(&self, offset: u64, len: usize) -> Result<usize, Errno> {
        match self.size_max().checked_sub(offset) {
            None | Some(0) if len > 0 => Err(Errno::EFBIG),
            bytes_left => Ok(len.min(bytes_left.unwrap_or(0).try_into().unwrap_or(usize::MAX))),
        }
    }

    /// Checks that the range of a write has objects: the caller requests them before the write.
    /// `EIO` otherwise.
    fn check_has_objects(&self, offset: u64, len: usize) -> Result<(), Errno> {
        match self.range_without_objects(&(offset..offset.saturating_add(len as u64))) {
            Some(_) => Err(Errno::EIO),
            None => Ok(()),
        }
    }

    /// PW locks on a range of the file; `None` if the layout is not current.
    async fn lock_if_current(
        &self,
        start: u64,
        end: u64,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Option<HeldLocks>, Errno> {
        let locks = self.lock(LockMode::Pw, start, end).await?;
        Ok(is_current.await?.then_some(locks))
    }

    /// Writes into the cache. Returns the number of written bytes; `None` if the layout is not
    /// current.
    ///
    /// # Errors
    ///
    /// `EFBIG`, `ENOSPC`, `EDQUOT`; `EIO`: a lock was lost; `ENODEV`: an unknown target; an error
    /// of an OST or of `is_current`.
    pub async fn write(
        &self,
        offset: u64,
        data: Bytes,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Option<usize>, Errno> {
        let _writing = self.change_lock.read().await;
        let end = offset.saturating_add(data.len() as u64);
        let Some(locks) = self.lock_if_current(offset, end, is_current).await? else {
            return Ok(None);
        };
        self.write_locked(offset, data, &locks).await.map(Some)
    }

    /// Writes back pages of a mapping. The pages are within the file, so appends need not be
    /// excluded. Rejects pages that were read before an eviction: they may be outdated.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`]. The kernel then drops the pages, so their data is lost.
    pub async fn write_mapped(&self, offset: u64, data: Bytes) -> Result<usize, Errno> {
        let (end, bytes) = (offset.saturating_add(data.len() as u64), data.len());
        let written = self.write_pages(offset..end, data).await;
        if let (Err(error), Some(object)) = (written, self.objects.iter().flatten().next()) {
            let (osc, file) = (object.osc(), self.fid);
            if osc.record_loss(file, error) > 0 {
                tracing::error!(ost = osc.name(), %file, %error, bytes,
                    "data of a mapping could not be written and is lost; the open descriptors of the file fail with EIO");
            }
        }
        written
    }

    async fn write_pages(&self, range: Range<u64>, data: Bytes) -> Result<usize, Errno> {
        let mut locks = HeldLocks::new();
        for (index, range) in self.layout.objects_in(range.clone()) {
            let object = self.object(index)?;
            let epoch = object.page_epoch()?;
            // The cancellation of a lock waits for the kernel, and the kernel waits for this write.
            let lock = object.lock_including_revoked(LockMode::Pw, range).await?;
            locks.push(index, lock);
            // After a swap of layouts the object has another file's data.
            if object.osc().evictions() != epoch || object.file() != self.fid {
                return Err(Errno::EIO);
            }
        }
        self.write_locked(range.start, data, &locks).await
    }

    /// Writes into the cache under locks that the caller holds. (A second request for the locks
    /// could deadlock: the client does not reuse a lock that the server revokes, and a new lock
    /// waits for the cancellation of the old one.)
    async fn write_locked(&self, offset: u64, data: Bytes, locks: &HeldLocks) -> Result<usize, Errno> {
        let len = self.fit_write(offset, data.len())?;
        self.check_has_objects(offset, len)?;
        let _write = self.writes.begin();
        let mut written = StripedWrite::default();
        for extent in self.layout.extents(offset, len as u64) {
            let from = (extent.file_offset - offset) as usize;
            let part = data.slice(from..from + extent.len as usize);
            let (object, lock) = (self.object(extent.object)?, locks.on(extent.object)?);
            let done = object.write(extent.object_offset, part, lock).await;
            if !written.add(extent.len, done) {
                break;
            }
        }
        written.result()
    }

    /// Appends at the current end of the file.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub async fn append(
        &self,
        data: Bytes,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Appended, Errno> {
        let _appending = self.change_lock.write().await;
        let Some(locks) = self.lock_if_current(0, OBD_OBJECT_EOF, is_current).await? else {
            return Ok(Appended::OldLayout);
        };
        let attr = |(index, ())| Ok((index, self.object(index)?.locked_attr()));
        let attrs = self.all().map(attr).collect::<Result<Vec<_>, Errno>>()?;
        let end = self.merge(attrs).size;
        let range = end..end.saturating_add(self.fit_write(end, data.len())? as u64);
        if let Some(range) = self.range_without_objects(&range) {
            return Ok(Appended::NeedsObjects(range));
        }
        let bytes = self.write_locked(end, data, &locks).await?;
        Ok(Appended::Written { offset: end, bytes })
    }

    /// Writes to the servers without the cache. Returns the number of written bytes; `None` if the
    /// layout is not current.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub async fn write_direct(
        &self,
        offset: u64,
        data: Bytes,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Option<usize>, Errno> {
        let _writing = self.change_lock.read().await;
        let len = self.fit_write(offset, data.len())?;
        self.check_has_objects(offset, len)?;
        let end = offset + len as u64;
        let Some(locks) = self.lock_if_current(offset, end, is_current).await? else {
            return Ok(None);
        };
        let _write = self.writes.begin();
        let mut written = StripedWrite::default();
        for extent in self.layout.extents(offset, len as u64) {
            let from = (extent.file_offset - offset) as usize;
            let part = data.slice(from..from + extent.len as usize);
            let (object, lock) = (self.object(extent.object)?, locks.on(extent.object)?);
            let done = object.write_through(extent.object_range(), part, lock).await;
            if !written.add(extent.len, done) {
                break;
            }
        }
        written.result().map(Some)
    }

    /// Truncates or extends the file. False if the layout is not current.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub async fn truncate(
        &self,
        size: u64,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<bool, Errno> {
        let _changing = self.change_lock.write().await;
        let _space_change = self.space_changes.begin();
        // The cancellation of a lock waits for the kernel, and the kernel writes no dirty page of a
        // mapping back before a truncate ends.
        let beyond = |(index, size): (ObjectIndex, u64)| (index, size..OBD_OBJECT_EOF);
        let ranges = self.layout.truncated(size).map(beyond);
        let locks = self.lock_objects(LockMode::Pw, ranges, true).await?;
        if !is_current.await? {
            return Ok(false);
        }
        let _request_to_osts = self.kernel().map(|kernel| kernel.begin_truncate(self.fid));
        self.for_each(self.layout.truncated(size), |object, index, size| {
            let lock = locks.on(index).cloned();
            async move { object.truncate(size, &lock?).await }
        })
        .await?;
        Ok(true)
    }

    /// Allocates, punches or zeroes a range. False if the layout is not current.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`]; `EOPNOTSUPP`: the OST cannot do it.
    pub async fn fallocate(
        &self,
        op: Fallocate,
        offset: u64,
        len: u64,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<bool, Errno> {
        let _changing = self.change_lock.write().await;
        let _space_change = self.space_changes.begin();
        let end = offset.saturating_add(len);
        self.check_size(end)?;
        let Some(locks) = self.lock_if_current(offset, end, is_current).await? else {
            return Ok(false);
        };
        for (index, range) in self.layout.objects_in(offset..end) {
            let (object, lock) = (self.object(index)?, locks.on(index)?);
            object.fallocate(op.mode(), range, op.keeps_size(), lock).await?;
        }
        Ok(true)
    }

    /// Sets the objects' times, after the caller has set the metadata target's. False if the layout
    /// is not current. Takes locks only to set a time in the past. In other cases the caller must
    /// check the layout again afterwards.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub(crate) async fn set_times(
        &self,
        set: SetTimes,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<bool, Errno> {
        let mut objects = self.objects.iter().flatten();
        let locks = match objects.any(|object| object.set_times_needs_lock(&set)) {
            true => self.lock(LockMode::Pw, 0, OBD_OBJECT_EOF).await?,
            false => HeldLocks::new(),
        };
        if !is_current.await? {
            return Ok(false);
        }
        if set.atime.is_some() {
            *self.atime_tracker() = AtimeTracker::default();
        }
        self.for_each(self.all(), |object, index, ()| {
            let lock = locks.on(index).ok().cloned();
            async move { object.set_times(&set, lock.as_ref()).await }
        })
        .await?;
        Ok(true)
    }
}
