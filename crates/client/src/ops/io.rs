//! Reading, writing, flushing of open files.

use crate::attr::SetAttr;
use crate::client::Client;
use crate::cred::Cred;
use crate::data::{DataFile, Fallocate, Seek};
use crate::ops::open::OpenFile;
use crate::pack;
use bytes::Bytes;
use ldlm::LockMode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{Errno, Fid, MDS_INODELOCK_LAYOUT, MDS_SYNC, OBD_CONNECT_LAYOUTLOCK, WireStruct};

impl Client {
    /// The data of an open file, by its layout of now: a layout whose lock was called back is asked for again. Where the
    /// server has no layout locks, layouts do not change.
    pub(crate) async fn data_of(&self, file: &OpenFile) -> Result<Arc<DataFile>, Errno> {
        let mdc = self.lmv.of(file.fid).await?;
        let current = file.data.lock().clone();
        if !mdc.import.has(OBD_CONNECT_LAYOUTLOCK)
            || mdc.find(file.fid, LockMode::Cr, MDS_INODELOCK_LAYOUT).is_some()
        {
            return Ok(current);
        }
        let layout = self.layout(file.fid).await?;
        let changed = {
            let mut known = file.layout.lock();
            let changed = known.raw != layout.raw;
            *known = layout.clone();
            changed
        };
        if !changed {
            return Ok(current);
        }
        let data = self.lov.file(file.fid, layout);
        *file.data.lock() = data.clone();
        Ok(data)
    }

    /// Reads; short at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        if !file.flags.read && !file.flags.exec {
            return Err(Errno::EBADF);
        }
        let data = self.data_of(file).await?;
        if file.flags.direct {
            data.read_direct(offset, len).await
        } else {
            data.read(offset, len).await
        }
    }

    /// Writes; with `append` at the end, wherever that is.
    pub async fn write(&self, file: &OpenFile, offset: u64, bytes: Bytes) -> Result<usize, Errno> {
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
        file.wrote.store(true, Ordering::Release);
        let written = if file.flags.append {
            data.append(bytes).await.map(|_| len)?
        } else if file.flags.direct {
            data.write_direct(offset, bytes).await?
        } else {
            data.write(offset, bytes).await?
        };
        if file.flags.sync {
            self.fsync(file, false).await?;
        }
        Ok(written)
    }

    /// A descriptor of the file is closed: the closer learns of errors that writing back has met. What is dirty stays, as
    /// locks allow it.
    pub fn flush(&self, file: &OpenFile) -> Result<(), Errno> {
        if !file.has_written() {
            return Ok(());
        }
        let data = file.data.lock().clone();
        data.take_error()
    }

    /// Before a write by somebody who may not keep such bits: takes set-user-ID and set-group-ID from the file.
    pub async fn kill_priv(&self, file: &OpenFile) -> Result<(), Errno> {
        let root = Cred::root();
        let mode = self.md(&root, file.fid).await?.attr.mode & 0o7777;
        let mut kept = mode & !0o4000;
        if mode & 0o010 != 0 {
            kept &= !0o2000;
        }
        if kept == mode {
            return Ok(());
        }
        let set = SetAttr {
            mode: Some(kept),
            ..SetAttr::default()
        };
        self.setattr(&root, file.fid, &set, None).await.map(drop)
    }

    /// What was written through this file is on the servers, though not yet on their disks. A front end calls it at a
    /// close whose caller is not asked again: sync(2) does not come to a FUSE file system.
    pub async fn write_back(&self, file: &OpenFile) -> Result<(), Errno> {
        if !file.has_written() {
            return Ok(());
        }
        let data = file.data.lock().clone();
        data.flush().await
    }

    /// Data and attributes are on the servers' disks.
    pub async fn fsync(&self, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
        let data = self.data_of(file).await?;
        data.fsync(datasync).await?;
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

    /// Everything that this mount has written is on the servers' disks.
    pub async fn sync(&self) -> Result<(), Errno> {
        self.lov.sync_all().await?;
        for mdc in self.lmv.all() {
            let body = pack::body(&Cred::root(), Fid::ZERO, Fid::ZERO, 0, crate::cred::NO_GROUP);
            mdc.ask(MDS_SYNC, vec![body.to_bytes(), Bytes::new()]).await?;
        }
        Ok(())
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
        file.wrote.store(true, Ordering::Release);
        self.data_of(file).await?.fallocate(what, offset, len).await
    }

    /// The next data or hole.
    pub async fn seek(&self, file: &OpenFile, what: Seek, offset: u64) -> Result<u64, Errno> {
        self.data_of(file).await?.seek(what, offset).await
    }
}
