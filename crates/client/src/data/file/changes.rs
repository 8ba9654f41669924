//! Changes of a file's data and of its objects' times.
//!
//! Another client may swap the file's layout while a change waits for its extent locks. Then the
//! objects belong to another file. So each change first awaits `is_current` with its locks held. If
//! the layout is no longer current, the change does nothing. While the change holds the locks,
//! no client can copy the data and swap the layouts.

use super::{DataFile, lock_on};
use crate::atime::AtimeTracker;
use crate::data::ranged_ops::Fallocate;
use crate::data::striped_io::StripedWrite;
use bytes::Bytes;
use ldlm::{LockMode, LockRef};
use std::future::Future;
use std::ops::Range;
use wire::{Errno, OBD_OBJECT_EOF, StripeIndex, Time};

impl DataFile {
    /// The part of a write's length that fits the largest file size. `EFBIG`: no byte fits.
    fn fit_write(&self, offset: u64, len: usize) -> Result<usize, Errno> {
        match self.size_max().checked_sub(offset) {
            None | Some(0) if len > 0 => Err(Errno::EFBIG),
            bytes_left => Ok(len.min(bytes_left.unwrap_or(0).try_into().unwrap_or(usize::MAX))),
        }
    }

    /// PW locks on a range of the file; `None` if the layout is not current.
    async fn lock_if_current(
        &self,
        start: u64,
        end: u64,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Option<Vec<LockRef>>, Errno> {
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
        let mut locks = Vec::with_capacity(1);
        for stripe in StripeIndex::all(self.objects.len()) {
            if let Some(range) = self.object_range(stripe, range.start, range.end) {
                let object = self.object(stripe)?;
                let epoch = object.page_epoch()?;
                // The cancellation of a lock waits for the kernel, and the kernel waits for this
                // write.
                locks.push(object.lock_including_revoked(LockMode::Pw, range).await?);
                // After a swap of layouts the object has another file's data.
                if object.osc().evictions() != epoch || object.file() != self.fid {
                    return Err(Errno::EIO);
                }
            }
        }
        self.write_locked(range.start, data, &locks).await
    }

    /// Writes into the cache under locks that the caller holds. (A second request for the locks
    /// could deadlock: the client does not reuse a lock that the server revokes, and a new lock
    /// waits for the cancellation of the old one.)
    async fn write_locked(&self, offset: u64, data: Bytes, locks: &[LockRef]) -> Result<usize, Errno> {
        let len = self.fit_write(offset, data.len())?;
        let _write = self.writes.begin();
        let mut written = StripedWrite::default();
        for piece in self.layout.extents(offset, len as u64) {
            let from = (piece.file_offset - offset) as usize;
            let part = data.slice(from..from + piece.len as usize);
            let object = self.object(piece.stripe)?;
            let done = object
                .write(piece.object_offset, part, lock_on(locks, object)?)
                .await;
            if !written.add(piece.len, done) {
                break;
            }
        }
        written.result()
    }

    /// Appends at the current end of the file. Returns the offset and the number of written bytes;
    /// `None` if the layout is not current.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub async fn append(
        &self,
        data: Bytes,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<Option<(u64, usize)>, Errno> {
        let _appending = self.change_lock.write().await;
        let Some(locks) = self.lock_if_current(0, OBD_OBJECT_EOF, is_current).await? else {
            return Ok(None);
        };
        let attrs = StripeIndex::all(self.objects.len())
            .map(|i| Ok(self.object(i)?.locked_attr()))
            .collect::<Result<Vec<_>, Errno>>()?;
        let end = self.merge(&attrs).size;
        Ok(Some((end, self.write_locked(end, data, &locks).await?)))
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
        let end = offset + len as u64;
        let Some(locks) = self.lock_if_current(offset, end, is_current).await? else {
            return Ok(None);
        };
        let _write = self.writes.begin();
        let mut written = StripedWrite::default();
        for piece in self.layout.extents(offset, len as u64) {
            let from = (piece.file_offset - offset) as usize;
            let part = data.slice(from..from + piece.len as usize);
            let object = self.object(piece.stripe)?;
            let range = piece.object_offset..piece.object_offset + piece.len;
            let done = object.write_through(range, part, lock_on(&locks, object)?).await;
            if !written.add(piece.len, done) {
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
        let locks = self
            .lock_objects(LockMode::Pw, size, OBD_OBJECT_EOF, true)
            .await?;
        if !is_current.await? {
            return Ok(false);
        }
        let _request_to_osts = self.kernel().map(|kernel| kernel.begin_truncate(self.fid));
        self.for_each_object(|stripe, object| {
            let size = self.layout.object_size(stripe, size);
            let lock = lock_on(&locks, &object).cloned();
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
        for stripe in StripeIndex::all(self.objects.len()) {
            if let Some(range) = self.object_range(stripe, offset, end) {
                let object = self.object(stripe)?;
                let lock = lock_on(&locks, object)?;
                object.fallocate(op.mode(), range, op.keeps_size(), lock).await?;
            }
        }
        Ok(true)
    }

    /// Sets the objects' times, after the caller has set the metadata target's. False if the layout
    /// is not current.
    /// Takes locks only to set a time in the past. In other cases the caller must check the layout
    /// again afterwards.
    ///
    /// # Errors
    ///
    /// As [`DataFile::write`].
    pub async fn set_times(
        &self,
        atime: Option<Time>,
        mtime: Option<Time>,
        ctime: Time,
        is_current: impl Future<Output = Result<bool, Errno>>,
    ) -> Result<bool, Errno> {
        let mut objects = self.objects.iter().flatten();
        let locks = match objects.any(|object| object.set_times_needs_lock(mtime, atime, ctime)) {
            true => self.lock(LockMode::Pw, 0, OBD_OBJECT_EOF).await?,
            false => Vec::new(),
        };
        if !is_current.await? {
            return Ok(false);
        }
        if atime.is_some() {
            *self.atime_tracker() = AtimeTracker::default();
        }
        self.for_each_object(|_, object| {
            let lock = lock_on(&locks, &object).ok().cloned();
            async move { object.set_times(mtime, atime, ctime, lock.as_ref()).await }
        })
        .await?;
        Ok(true)
    }
}
