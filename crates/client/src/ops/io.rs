//! Reading, writing, flushing of open files.

use crate::atime::Atime;
use crate::attr::SetAttr;
use crate::client::Client;
use crate::cred::Cred;
use crate::data::{DataFile, Fallocate, Seek};
use crate::ops::open::OpenFile;
use crate::pack;
use bytes::Bytes;
use std::sync::Arc;
use wire::{Errno, Fid, MDS_SYNC, OBD_CONNECT_LAYOUTLOCK, WireStruct};

/// Where a program's capabilities are.
const CAPABILITY: &[u8] = b"security.capability";

impl Client {
    /// The data of an open file by its present layout: the client asks for a layout whose lock was revoked again. Where the
    /// server has no layout locks, layouts do not change.
    /// Fails if data or locks of this open file were lost.
    pub(crate) async fn data_of(&self, file: &OpenFile) -> Result<Arc<DataFile>, Errno> {
        file.descriptor.check()?;
        let mdc = self.lmv.of(file.fid).await?;
        let current = file.data.lock().clone();
        if !mdc.import.has(OBD_CONNECT_LAYOUTLOCK) && current.is_complete() {
            return Ok(current);
        }
        // Under the lock that the mount has now, which may not be the one of this file's layout.
        let layout = self.layout(file.fid).await?;
        let changed = {
            let mut known = file.layout.lock();
            let changed = !Arc::ptr_eq(&known, &layout) && known.raw != layout.raw;
            *known = layout.clone();
            changed
        };
        if !changed && current.is_complete() {
            return Ok(current);
        }
        let data = self.data(file.fid, layout).await;
        *file.data.lock() = data.clone();
        Ok(data)
    }

    /// Reads; short at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        if !file.flags.read && !file.flags.exec {
            return Err(Errno::EBADF);
        }
        let data = self.data_of(file).await?;
        let read = if data.layout().raw.is_empty() {
            self.read_without_objects(file.fid, offset, len).await?
        } else if file.flags.direct {
            data.read_direct(offset, len).await?
        } else {
            data.read(offset, len).await?
        };
        file.descriptor.check()?;
        if self.atime.files() != Atime::Never && !file.flags.no_atime {
            data.access().read((self.clock)());
        }
        Ok(read)
    }

    /// A file without objects is one hole, of the size that the MDT keeps.
    async fn read_without_objects(&self, fid: Fid, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let size = self.md(&Cred::root(), fid).await?.attr.size;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        Ok(match left.min(len) {
            0 => Vec::new(),
            len => vec![Bytes::from(vec![0; len])],
        })
    }

    /// Reads pages for a mapping, which somebody who may write may change without a word.
    pub async fn read_mapped(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        self.may_map(file)?;
        let data = self.data_of(file).await?;
        let pages = match data.layout().raw.is_empty() {
            true => self.read_without_objects(file.fid, offset, len).await?,
            false => data.read_pages(offset, len, file.flags.write).await?,
        };
        // A loss meanwhile has these pages left out of what the kernel drops.
        self.may_map(file)?;
        Ok(pages)
    }

    /// All mappings of a file show the same pages: there are none while one of them has lost data.
    fn may_map(&self, file: &OpenFile) -> Result<(), Errno> {
        file.descriptor.check()?;
        match self.lov.losses().has_lost_data(file.fid) {
            false => Ok(()),
            true => Err(Errno::EIO),
        }
    }

    /// Writes pages of a mapping back.
    pub async fn write_mapped(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
        self.may_map(file)?;
        self.begin_write(file);
        // Not by a layout that is asked for anew: giving a lock back may be waiting for this.
        let data = file.data.lock().clone();
        data.write_mapped(offset, bytes).await
    }

    /// Writes; with `append` at the end, wherever that is.
    pub async fn write(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
        self.write_where(file, offset, bytes)
            .await
            .map(|(_, written)| written)
    }

    /// The same; says where it has written, too.
    pub async fn write_where(
        &self,
        file: &OpenFile,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(u64, usize), Errno> {
        if !file.flags.write {
            return Err(Errno::EBADF);
        }
        let len = bytes.len();
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Errno::EFBIG);
        }
        let data = self.data_of(file).await?;
        if self.begin_write(file) {
            self.take_capabilities(file).await?;
        }
        let written = if file.flags.append {
            data.append(bytes).await?
        } else if file.flags.direct {
            (offset, data.write_direct(offset, bytes).await?)
        } else {
            (offset, data.write(offset, bytes).await?)
        };
        file.descriptor.check()?;
        if file.flags.sync {
            self.fsync(file, false).await?;
        }
        Ok(written)
    }

    /// Drops the file's set-ID bits before a write of a user who may not keep them.
    pub async fn kill_priv(&self, cred: &Cred, file: &Arc<OpenFile>) -> Result<(), Errno> {
        let attr = self.md(&Cred::root(), file.fid).await?.attr;
        let member = cred.gid == attr.gid || cred.suppgid(attr.gid) == attr.gid;
        let set_gid = attr.mode & 0o2000 != 0 && (attr.mode & 0o010 != 0 || !member);
        if cred.uid == 0 || attr.mode & 0o4000 == 0 && !set_gid {
            return Ok(());
        }
        let set = SetAttr {
            kill_priv: true,
            ..SetAttr::default()
        };
        self.setattr(cred, file.fid, &set, Some(file)).await.map(drop)
    }

    /// Before the first write to a program that was there already: what it could do it can do no more (`security.capability`).
    async fn take_capabilities(&self, file: &OpenFile) -> Result<(), Errno> {
        if file.created {
            return Ok(());
        }
        let root = Cred::root();
        match self.getxattr(&root, file.fid, CAPABILITY).await {
            Ok(_) => match self.removexattr(&root, file.fid, CAPABILITY).await {
                // Somebody else was faster.
                Err(Errno::ENODATA) => Ok(()),
                done => done,
            },
            Err(Errno::ENODATA) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// What was written through this file is on the servers, though not yet on their disks. A front end calls it when a
    /// descriptor is closed: sync(2) does not come to a FUSE file system. The closer learns of data that could not be
    /// written; a later fsync says it again.
    pub async fn write_back(&self, file: &OpenFile) -> Result<(), Errno> {
        file.descriptor.check()?;
        if !file.has_written() {
            return Ok(());
        }
        let data = file.data.lock().clone();
        data.flush().await?;
        file.descriptor.check()?;
        self.lov.losses().check(file.fid, &file.told)
    }

    /// Data and attributes are on the servers' disks; or the error that kept data from getting there: for want of space once
    /// for each open file, otherwise from now on. There is nothing that `datasync` could leave out.
    pub async fn fsync(&self, file: &OpenFile, _datasync: bool) -> Result<(), Errno> {
        if let Err(failed) = file.descriptor.check() {
            // Now somebody has been told.
            let _ = self.lov.losses().tell(file.fid, &file.told);
            return Err(failed);
        }
        let data = self.data_of(file).await?;
        let synced = data.fsync().await;
        self.lov.losses().tell(file.fid, &file.told)?;
        synced?;
        self.sync_md(file.fid).await
    }

    /// A directory's entries are on the server's disk.
    pub async fn fsyncdir(&self, fid: Fid) -> Result<(), Errno> {
        self.sync_md(fid).await
    }

    async fn sync_md(&self, fid: Fid) -> Result<(), Errno> {
        let mdc = self.lmv.of(fid).await?;
        let body = pack::body(&Cred::root(), fid, Fid::ZERO, 0, crate::cred::NO_GROUP);
        mdc.ask(MDS_SYNC, vec![body.to_bytes(), Bytes::new()])
            .await
            .map(drop)
    }

    /// Allocates, punches or zeroes a range.
    pub async fn fallocate(
        &self,
        file: &OpenFile,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
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
            self.take_capabilities(file).await?;
        }
        self.data_of(file).await?.fallocate(what, offset, len).await
    }

    /// The next data or hole.
    pub async fn seek(&self, file: &OpenFile, what: Seek, offset: u64) -> Result<u64, Errno> {
        let data = self.data_of(file).await?;
        if data.layout().raw.is_empty() {
            let size = self.md(&Cred::root(), file.fid).await?.attr.size;
            return match what {
                Seek::Hole if offset < size => Ok(offset),
                _ => Err(Errno::ENXIO),
            };
        }
        data.seek(what, offset).await
    }
}
