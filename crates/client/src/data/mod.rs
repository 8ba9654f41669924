//! File data: objects on their targets, extent locks, the page cache, read-ahead and write-back.

use crate::attr::{DataAttr, SetTime};
use crate::kernel::Kernel;
use crate::layout::LovLayout;
use bytes::Bytes;
use mgc::FsConfig;
use params::Registry;
use rpc::Ptlrpc;
use std::sync::Arc;
use wire::{Errno, Fid, ObdStatfs};

/// What the data half of a mount needs to know beside the configuration.
pub struct DataConfig {
    /// The mount's UUID, the same for all its imports.
    pub client_uuid: String,
    /// What names of parameters and imports end in (`testfs-OST0000-osc-<instance>`).
    pub instance: String,
    /// Where parameters go.
    pub params: Registry,
    /// The kernel's caches, to be told when an extent lock is called back.
    pub kernel: Kernel,
}

/// All object targets of a file system, and the files whose data is cached.
pub struct Lov {}

/// What to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Give it space; `keep_size`: without making the file longer.
    Allocate {
        /// Do not make the file longer.
        keep_size: bool,
    },
    /// Take its space: it reads as zeros.
    PunchHole,
    /// Make it read as zeros.
    ZeroRange {
        /// Do not make the file longer.
        keep_size: bool,
    },
}

/// What to look for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next byte that is in a hole; the end of the file is one.
    Hole,
}

impl Lov {
    /// Makes an import to every object target; connects in the background, and again whenever a connection is lost.
    pub fn new(_rpc: &Arc<Ptlrpc>, _conf: &FsConfig, _cfg: DataConfig) -> Arc<Lov> {
        todo!()
    }

    /// The data of a file: the same object for the same FID as long as it is in use or has anything cached; a newer layout
    /// takes the place of the one it had.
    pub fn file(&self, _fid: Fid, _layout: Arc<LovLayout>) -> Arc<DataFile> {
        todo!()
    }

    /// Forgets a file that is gone: dirty pages are dropped, not written.
    pub fn discard(&self, _fid: Fid) {
        todo!()
    }

    /// What all object targets say of their space: one each, those that do not answer left out.
    pub async fn statfs(&self) -> Vec<ObdStatfs> {
        todo!()
    }

    /// Writes all dirty data back and waits until it is on disk.
    pub async fn sync_all(&self) -> Result<(), Errno> {
        todo!()
    }

    /// Writes all dirty data back, cancels all locks, disconnects: each in bounded time, also when a target is gone.
    pub async fn umount(&self) {
        todo!()
    }
}

/// The data of one file.
pub struct DataFile {}

impl DataFile {
    /// Reads; short at the end of the file.
    pub async fn read(&self, _offset: u64, _len: usize) -> Result<Vec<Bytes>, Errno> {
        todo!()
    }

    /// Writes into the cache.
    pub async fn write(&self, _offset: u64, _data: Bytes) -> Result<usize, Errno> {
        todo!()
    }

    /// Writes at the end, wherever another client may have put it; says where that was.
    pub async fn append(&self, _data: Bytes) -> Result<u64, Errno> {
        todo!()
    }

    /// Reads past the cache.
    pub async fn read_direct(&self, _offset: u64, _len: usize) -> Result<Vec<Bytes>, Errno> {
        todo!()
    }

    /// Writes past the cache.
    pub async fn write_direct(&self, _offset: u64, _data: Bytes) -> Result<usize, Errno> {
        todo!()
    }

    /// Writes dirty pages back and waits; an error that an earlier write-back met is told here, once.
    pub async fn flush(&self) -> Result<(), Errno> {
        todo!()
    }

    /// `flush`, and waits until it is on the targets' disks.
    pub async fn fsync(&self, _datasync: bool) -> Result<(), Errno> {
        todo!()
    }

    /// Size and times: from locks and cache when they cover them, else by a glimpse.
    pub async fn size(&self) -> Result<DataAttr, Errno> {
        todo!()
    }

    /// Size and times, when a lock says that nobody else can have changed them.
    pub fn cached_size(&self) -> Option<DataAttr> {
        todo!()
    }

    /// Cuts or extends it.
    pub async fn truncate(&self, _size: u64) -> Result<(), Errno> {
        todo!()
    }

    /// Allocates, punches or zeroes a range.
    pub async fn fallocate(&self, _what: Fallocate, _offset: u64, _len: u64) -> Result<(), Errno> {
        todo!()
    }

    /// The next data or hole from `offset` on; `ENXIO` at or beyond the end.
    pub async fn seek(&self, _what: Seek, _offset: u64) -> Result<u64, Errno> {
        todo!()
    }

    /// Sets the objects' times, after the metadata target has.
    pub async fn set_times(&self, _atime: Option<SetTime>, _mtime: Option<SetTime>) -> Result<(), Errno> {
        todo!()
    }
}
