//! Reads, writes and syncs of open files.

use crate::atime::Atime;
use crate::attr::SetAttr;
use crate::client::Client;
use crate::cred::Cred;
use crate::data::{Appended, DataFile, Fallocate, Seek};
use crate::layout::{Elsewhere, FileLayout};
use crate::ops::open::OpenFile;
use crate::pack;
use crate::stats::Operation;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use wire::{Errno, Fid, MDS_SYNC, OBD_CONNECT_LAYOUTLOCK, WireStruct};

/// The extended attribute with the Linux capabilities of a program file.
const CAPABILITY: &[u8] = b"security.capability";

/// Fails with `ENODATA` if the file's data is not in this file system: this client can neither
/// restore it from an archive (HSM) nor interpret a foreign layout.
pub(super) fn check_has_data(fid: Fid, layout: &FileLayout) -> Result<(), Errno> {
    match layout.elsewhere() {
        None => return Ok(()),
        Some(Elsewhere::Archive) => {
            lnet::warn_rate_limited!(%fid, "the file's data is in an archive: restore it with Lustre's `lfs hsm_restore`");
        }
        Some(Elsewhere::Foreign) => {
            lnet::warn_rate_limited!(%fid, "the file's layout is foreign: its data is in another system, as `lfs getstripe -v` shows");
        }
    }
    Err(Errno::ENODATA)
}

impl Client {
    /// The data of an open file by its current layout. Requests the layout again if its lock was
    /// revoked. (On a server without layout locks, layouts do not change.) Fails if data or locks
    /// of this descriptor were lost, and with `ENODATA` if the data is not in this file system.
    pub(crate) async fn data_of(&self, file: &OpenFile) -> Result<Arc<DataFile>, Errno> {
        file.descriptor.check()?;
        let mdc = self.lmv.mdc_of(file.fid).await?;
        let current = file.data.lock().clone();
        if !mdc.import.has(OBD_CONNECT_LAYOUTLOCK) && current.is_complete() {
            return Ok(current);
        }
        // The layout under the mount's current lock. The descriptor's layout may be older.
        let layout = self.layout(file.fid).await?;
        check_has_data(file.fid, &layout)?;
        let changed = {
            let mut known = file.layout.lock();
            let changed = !Arc::ptr_eq(&known, &layout) && known.raw != layout.raw;
            *known = layout.clone();
            changed
        };
        if !changed && current.is_complete() {
            if !current.has_adopted_objects() {
                self.adopt_objects_if_current(file.fid, &current);
            }
            return Ok(current);
        }
        let data = self.data(file.fid, layout).await;
        *file.data.lock() = data.clone();
        Ok(data)
    }

    /// As [`Client::data_of`], for a change of a range: first has the metadata target create
    /// missing objects of the range.
    async fn data_to_write(&self, file: &OpenFile, range: Range<u64>) -> Result<Arc<DataFile>, Errno> {
        loop {
            let data = self.data_of(file).await?;
            let Some(missing) = data.range_without_objects(&range) else {
                return Ok(data);
            };
            self.create_objects(file.fid, missing).await?;
        }
    }

    /// Whether the cached layout of the file is the layout of this data. If so, records that the
    /// data's objects belong to this file. The file's cached state stays locked meanwhile, so no
    /// swap of layouts can intervene: a swap first revokes this client's lock, and the revocation
    /// removes the cached layout.
    pub(crate) fn adopt_objects_if_current(&self, fid: Fid, data: &DataFile) -> bool {
        let Some(inode) = self.inodes.get(fid) else {
            return false;
        };
        let state = inode.state.lock();
        let cached = state.layout.as_ref();
        let is_current = cached.is_some_and(|layout| layout.raw == data.layout().raw);
        if is_current {
            data.adopt_objects();
        }
        is_current
    }

    /// Whether the file still has the layout of this data. If not, the objects may belong to
    /// another file or be destroyed by now, and an operation that used them runs again. A change
    /// calls this with its extent locks held. If the file has another layout, the change does
    /// nothing.
    pub(crate) async fn is_current(&self, fid: Fid, data: &DataFile) -> Result<bool, Errno> {
        if self.adopt_objects_if_current(fid, data)
            || !self.lmv.mdc_of(fid).await?.import.has(OBD_CONNECT_LAYOUTLOCK)
        {
            return Ok(true);
        }
        let is_current = self.layout(fid).await?.raw == data.layout().raw;
        if is_current {
            data.adopt_objects();
        }
        Ok(is_current)
    }

    /// The result of a change of this data. `None`: the file has another layout now, so the change
    /// runs again, even if it failed: the old objects may be destroyed.
    pub(crate) async fn change_result<T>(
        &self,
        fid: Fid,
        data: &DataFile,
        result: Result<Option<T>, Errno>,
    ) -> Result<Option<T>, Errno> {
        match result {
            Err(error) if self.is_current(fid, data).await? => Err(error),
            Err(_) => Ok(None),
            done => done,
        }
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    ///
    /// `EBADF`: not open for reading; `ENODATA`: the data is not in this file system; `EIO`: data,
    /// locks or objects were lost; or an error of a server.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let _timer = self.stats.time(Operation::Read);
        if !file.flags.read && !file.flags.exec {
            return Err(Errno::EBADF);
        }
        let read = loop {
            let data = self.data_of(file).await?;
            let read = if data.layout().raw.is_empty() {
                self.read_without_objects(file.fid, offset, len).await
            } else if file.flags.direct {
                data.read_direct(offset, len).await
            } else {
                data.read(offset, len).await
            };
            if self.is_current(file.fid, &data).await? {
                break read?;
            }
        };
        file.descriptor.check()?;
        if self.atime.files() != Atime::Never && !file.flags.no_atime {
            file.data.lock().atime_tracker().record_read((self.clock)());
        }
        self.stats
            .add_bytes(Operation::ReadBytes, read.iter().map(Bytes::len).sum());
        Ok(read)
    }

    /// Reads a file without objects: zeros up to the size, which the MDT keeps.
    async fn read_without_objects(&self, fid: Fid, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let size = self.md(&Cred::root(), fid).await?.attr.size;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        Ok(match left.min(len) {
            0 => Vec::new(),
            len => vec![Bytes::from(vec![0; len])],
        })
    }

    /// Reads pages for a mapping. If the file is open for writing, a program may change the pages,
    /// and the kernel does not report the change.
    ///
    /// # Errors
    ///
    /// As [`Client::read`]; `EIO` while a descriptor of the file has lost data.
    pub async fn read_mapped(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        self.check_mappable(file)?;
        let end = offset.saturating_add(len as u64);
        // A program may change the pages, and their write-back requests no objects.
        let range = match file.flags.write {
            true => offset..end,
            false => offset..offset,
        };
        let pages = loop {
            let data = {
                // A revocation of the layout lock drops the file's pages, but not these.
                let _pending_read = self.kernel.begin_read(file.fid, offset..end);
                self.data_to_write(file, range.clone()).await?
            };
            let pages = match data.layout().raw.is_empty() {
                true => self.read_without_objects(file.fid, offset, len).await,
                false => data.read_pages(offset, len, file.flags.write).await,
            };
            if self.is_current(file.fid, &data).await? {
                break pages?;
            }
        };
        // If data was lost meanwhile, the kernel must not keep these pages.
        self.check_mappable(file)?;
        Ok(pages)
    }

    /// Fails if this descriptor has lost data or locks. Also fails while another descriptor of the
    /// file has lost data, because all mappings share the same pages.
    fn check_mappable(&self, file: &OpenFile) -> Result<(), Errno> {
        file.descriptor.check()?;
        match self.lov.losses().has_lost_data(file.fid) {
            false => Ok(()),
            true => Err(Errno::EIO),
        }
    }

    /// Writes dirty pages of a mapping back.
    ///
    /// # Errors
    ///
    /// `EIO` and other errors of the write: the pages' data is lost.
    pub async fn write_mapped(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
        self.check_mappable(file)?;
        self.begin_write(file);
        // Requests no new layout: the cancellation of a lock may be waiting for this write. The
        // pages were read by the layout that this mount used last.
        let data = self.lov.find_file(file.fid);
        let data = data.unwrap_or_else(|| file.data.lock().clone());
        data.write_mapped(offset, bytes).await
    }

    /// Writes `bytes` at `offset`; in append mode at the end of the file. Returns the number of
    /// written bytes.
    ///
    /// # Errors
    ///
    /// `EBADF`: not open for writing, or a foreign layout; `EFBIG`, `ENOSPC`, `EDQUOT`; `EIO`: data
    /// or locks were lost; or another error of a server.
    pub async fn write(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
        self.write_with_offset(file, offset, bytes)
            .await
            .map(|(_, written)| written)
    }

    /// As [`Client::write`]; returns the offset of the write too.
    ///
    /// # Errors
    ///
    /// As [`Client::write`].
    pub async fn write_with_offset(
        &self,
        file: &OpenFile,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(u64, usize), Errno> {
        let _timer = self.stats.time(Operation::Write);
        // As Lustre's client, which has no way to write to a foreign layout.
        let is_foreign = file.layout.lock().elsewhere() == Some(Elsewhere::Foreign);
        if !file.flags.write || is_foreign {
            return Err(Errno::EBADF);
        }
        let len = bytes.len();
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Errno::EFBIG);
        }
        if self.begin_write(file) {
            self.remove_file_capabilities(file).await?;
        }
        let written = if file.flags.append {
            self.append(file, bytes).await?
        } else {
            (offset, self.write_at(file, offset, bytes).await?)
        };
        file.descriptor.check()?;
        if file.flags.sync {
            self.fsync(file, false).await?;
        }
        self.stats.add_bytes(Operation::WriteBytes, written.1);
        Ok(written)
    }

    async fn write_at(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
        let range = offset..offset + bytes.len() as u64;
        loop {
            let data = self.data_to_write(file, range.clone()).await?;
            let (bytes, is_current) = (bytes.clone(), self.is_current(file.fid, &data));
            let written = match file.flags.direct {
                true => data.write_direct(offset, bytes, is_current).await,
                false => data.write(offset, bytes, is_current).await,
            };
            if let Some(written) = self.change_result(file.fid, &data, written).await? {
                return Ok(written);
            }
        }
    }

    async fn append(&self, file: &OpenFile, bytes: Bytes) -> Result<(u64, usize), Errno> {
        loop {
            let data = self.data_of(file).await?;
            let is_current = self.is_current(file.fid, &data);
            let appended = match data.append(bytes.clone(), is_current).await {
                Ok(Appended::NeedsObjects(range)) => {
                    self.create_objects(file.fid, range).await?;
                    continue;
                }
                Ok(Appended::Written { offset, bytes }) => Ok(Some((offset, bytes))),
                Ok(Appended::OldLayout) => Ok(None),
                Err(e) => Err(e),
            };
            if let Some(written) = self.change_result(file.fid, &data, appended).await? {
                return Ok(written);
            }
        }
    }

    /// Drops the file's set-ID bits before a write by a user that may not keep them.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn kill_priv(&self, cred: &Cred, file: &Arc<OpenFile>) -> Result<(), Errno> {
        let attr = self.md(&Cred::root(), file.fid).await?.attr;
        let is_member = cred.gid == attr.gid || cred.suppgid(attr.gid) == attr.gid;
        let drops_set_gid = attr.mode & 0o2000 != 0 && (attr.mode & 0o010 != 0 || !is_member);
        if cred.uid == 0 || attr.mode & 0o4000 == 0 && !drops_set_gid {
            return Ok(());
        }
        let set = SetAttr {
            kill_priv: true,
            ..SetAttr::default()
        };
        self.setattr(cred, file.fid, &set, Some(file)).await.map(drop)
    }

    /// Drops the capabilities of a program (`security.capability`) before the first write to it.
    async fn remove_file_capabilities(&self, file: &OpenFile) -> Result<(), Errno> {
        if file.created {
            return Ok(());
        }
        let root = Cred::root();
        match self.getxattr(&root, file.fid, CAPABILITY).await {
            Ok(_) => match self.removexattr(&root, file.fid, CAPABILITY).await {
                // Another client removed them first.
                Err(Errno::ENODATA) => Ok(()),
                done => done,
            },
            Err(Errno::ENODATA) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Sends the file's dirty data to the servers if this descriptor has written; does not wait for
    /// the servers' disks. A front end calls this when a descriptor is closed, because a FUSE file
    /// system does not receive sync(2). Reports data that could not be written; a later fsync
    /// reports it again. With [`MountOptions::lazy_close`](crate::MountOptions::lazy_close), sends
    /// nothing: the data follows within half a second, and only errors so far are reported.
    ///
    /// # Errors
    ///
    /// The error of data that was lost.
    pub async fn write_back(&self, file: &OpenFile) -> Result<(), Errno> {
        file.descriptor.check()?;
        if !file.has_written() {
            return Ok(());
        }
        if !self.lazy_close {
            let data = file.data.lock().clone();
            data.flush().await?;
            file.descriptor.check()?;
        }
        self.lov.losses().check(file.fid, &file.loss_cursor)
    }

    /// Waits until data and attributes are on the servers' disks. `datasync` makes no difference.
    ///
    /// # Errors
    ///
    /// The error of data that was lost. Each descriptor reports a lack of space once, and other
    /// losses with each call.
    pub async fn fsync(&self, file: &OpenFile, _datasync: bool) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Fsync);
        if let Err(failed) = file.descriptor.check() {
            // Marks the loss as reported.
            let _ = self.lov.losses().report(file.fid, &file.loss_cursor);
            return Err(failed);
        }
        if file.layout.lock().elsewhere() == Some(Elsewhere::Foreign) {
            return self.sync_md(file.fid).await;
        }
        let data = self.data_of(file).await?;
        let synced = data.fsync().await;
        self.lov.losses().report(file.fid, &file.loss_cursor)?;
        synced?;
        self.sync_md(file.fid).await
    }

    /// Waits until a directory's entries are on the server's disk.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn fsyncdir(&self, fid: Fid) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Fsync);
        self.sync_md(fid).await
    }

    async fn sync_md(&self, fid: Fid) -> Result<(), Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let body = pack::body(&Cred::root(), fid, Fid::ZERO, 0, crate::cred::NO_GROUP);
        mdc.call(MDS_SYNC, vec![body.to_bytes(), Bytes::new()])
            .await
            .map(drop)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    ///
    /// `EBADF`: not open for writing; `EINVAL`: an empty range; `EFBIG`, `ENOSPC`; `EOPNOTSUPP`:
    /// the OST cannot do it; or another error of a server.
    pub async fn fallocate(
        &self,
        file: &OpenFile,
        op: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Fallocate);
        if !file.flags.write {
            return Err(Errno::EBADF);
        }
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        if self.begin_write(file) {
            self.remove_file_capabilities(file).await?;
        }
        let range = match op {
            // A hole needs no objects.
            Fallocate::PunchHole => offset..offset,
            _ => offset..offset + len,
        };
        loop {
            let data = self.data_to_write(file, range.clone()).await?;
            let is_current = self.is_current(file.fid, &data);
            let done = data.fallocate(op, offset, len, is_current).await;
            let done = done.map(|done| done.then_some(()));
            if let Some(done) = self.change_result(file.fid, &data, done).await? {
                return Ok(done);
            }
        }
    }

    /// The offset of the next data or hole at or after `offset`.
    ///
    /// # Errors
    ///
    /// `ENXIO`: no more data, or `offset` is beyond the end; or an error of a server.
    pub async fn seek(&self, file: &OpenFile, op: Seek, offset: u64) -> Result<u64, Errno> {
        let _timer = self.stats.time(Operation::Seek);
        loop {
            let data = self.data_of(file).await?;
            if data.layout().raw.is_empty() {
                let size = self.md(&Cred::root(), file.fid).await?.attr.size;
                return match op {
                    Seek::Hole if offset < size => Ok(offset),
                    _ => Err(Errno::ENXIO),
                };
            }
            let found = data.seek(op, offset).await;
            if self.is_current(file.fid, &data).await? {
                return found;
            }
        }
    }
}
