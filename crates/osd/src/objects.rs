//! Objects: the data of files. Each is a sparse run of bytes with a few attributes, identified by a
//! FID.
//!
//! The first change of an object creates it; an OST's precreation does not. A method treats a
//! missing object as an empty one unless its documentation says otherwise. A write is visible at
//! once and durable after [`Objects::sync`]. All methods except [`Objects::cached_attr`] are
//! asynchronous, because the local store does file I/O on other threads.

use bytes::Bytes;
use cpt::BoxFuture;
use wire::{Fid, HasTimes, Time, Times};

use crate::OsdError;

/// Attributes of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjAttr {
    /// Size, bytes.
    pub size: u64,
    /// Allocated space, units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Time,
    /// Modification time.
    pub mtime: Time,
    /// Change time.
    pub ctime: Time,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Project id.
    pub projid: u32,
    /// The FID of the file, with the stripe's index in the version field. Zero if unknown.
    pub parent: Fid,
    /// Layout version of the file (FLR).
    pub layout_version: u32,
    /// Transaction number of the last change of data.
    pub data_version: u64,
}

wire::impl_has_times!(ObjAttr);

/// A change of attributes; `None` keeps a value. [`Objects::punch`] changes the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Access time.
    pub atime: Option<Time>,
    /// Modification time.
    pub mtime: Option<Time>,
    /// Change time; ignored if earlier than the present one.
    pub ctime: Option<Time>,
    /// The times of a write: modification and change time ([`Times::after_write`]).
    pub changed: Option<Times>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Project id.
    pub projid: Option<u32>,
    /// The FID of the file, with the stripe's index in the version field.
    pub parent: Option<Fid>,
    /// Layout version.
    pub layout_version: Option<u32>,
    /// Transaction number of the last change of data.
    pub data_version: Option<u64>,
}

impl SetAttr {
    /// The same change without times.
    pub fn without_times(self) -> SetAttr {
        SetAttr {
            atime: None,
            mtime: None,
            ctime: None,
            changed: None,
            ..self
        }
    }

    /// Applies the change to attributes.
    pub fn apply_to(&self, a: &mut ObjAttr) {
        macro_rules! each {
            ($($f:ident),*) => { $( if let Some(v) = self.$f { a.$f = v; } )* };
        }
        each!(
            atime,
            mtime,
            uid,
            gid,
            projid,
            parent,
            layout_version,
            data_version
        );
        if let Some(ctime) = self.ctime {
            a.ctime = a.ctime.max(ctime);
        }
        if let Some(times) = self.changed {
            a.set_times(a.times().after_write(times));
        }
    }
}

/// The kind of range that [`Objects::seek`] searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole; the end of the object counts as one.
    Hole,
}

/// The result of [`Objects::cached_attr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedAttr {
    /// The object exists, with these attributes.
    Present(ObjAttr),
    /// The object does not exist.
    Absent,
    /// Only [`Objects::attr`] can tell.
    Unknown,
}

/// A range of an object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// Data to write to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentData {
    /// Where the data begins.
    pub offset: u64,
    /// The data, in any number of buffers.
    pub data: Vec<Bytes>,
}

impl ExtentData {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        bytes_of(&self.data)
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The number of bytes in buffers.
pub(crate) fn bytes_of(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|p| p.len() as u64).sum()
}

/// The result of [`Objects::scrub`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Offset of the next part; `None` at the end of the object.
    pub next: Option<u64>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blocks of 4 KiB that got a checksum.
    pub filled: u64,
    /// Offsets of the blocks whose data does not match their checksum; if the part cannot be read,
    /// the offset of the part.
    pub damaged: Vec<u64>,
}

/// The objects of a target.
pub trait Objects: Send + Sync {
    /// Reads each extent: up to `len` bytes, fewer at the end of the object, in buffers of at most
    /// 1 MiB. Holes read as zeros. The result has the data of each extent.
    ///
    /// # Errors
    ///
    /// [`OsdError::DamagedObject`] if the object's file is damaged, [`OsdError::DamagedBlock`] if
    /// data does not match its checksum.
    fn read_extents(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> BoxFuture<'_, Result<Vec<Vec<Bytes>>, OsdError>>;

    /// Writes each extent, and sets attributes. The result has the outcome of each extent; an error
    /// of one does not stop the others.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] without space, [`OsdError::DamagedObject`] if the object's file is
    /// damaged, [`OsdError::NotFound`] if the object is destroyed at the same time. An extent that
    /// changes a part of a block fails with [`OsdError::DamagedBlock`] if the block does not match
    /// its checksum.
    fn write_extents(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<Vec<Result<(), OsdError>>, OsdError>>;

    /// Reads one extent.
    ///
    /// # Errors
    ///
    /// As [`Objects::read_extents`].
    fn read(&self, fid: Fid, offset: u64, len: u32) -> BoxFuture<'_, Result<Vec<Bytes>, OsdError>> {
        Box::pin(async move {
            let mut read = self.read_extents(fid, vec![Extent { offset, len }]).await?;
            Ok(read.pop().unwrap_or_default())
        })
    }

    /// Writes one extent, and sets attributes.
    ///
    /// # Errors
    ///
    /// As [`Objects::write_extents`].
    fn write(
        &self,
        fid: Fid,
        offset: u64,
        data: Vec<Bytes>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let extents = vec![ExtentData { offset, data }];
            let written = self.write_extents(fid, extents, attr).await?;
            written.into_iter().collect()
        })
    }

    /// Frees `start..end`; with `end == u64::MAX` truncates to `start` instead. Sets attributes.
    ///
    /// # Errors
    ///
    /// [`OsdError::DamagedObject`] if the object's file is damaged and the range does not remove
    /// the damage.
    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Allocates space for `start..end`; the object grows unless `keep_size`.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] without space, [`OsdError::Invalid`] for an empty range.
    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>>;

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    ///
    /// [`OsdError::NotFound`] beyond the end, or if no data follows;
    /// [`OsdError::DamagedObject`] if the object's file is damaged.
    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>>;

    /// The attributes; `None` if there is no such object.
    ///
    /// # Errors
    ///
    /// [`OsdError::DamagedObject`] if the object's file is damaged.
    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>>;

    /// The attributes if they are known without waiting. `new`: the object did not exist when the
    /// store was opened.
    fn cached_attr(&self, fid: Fid, new: bool) -> CachedAttr;

    /// Sets attributes; creates the object if it is missing.
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] or another error of the index.
    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Removes the change marks of parts of objects that have had no changes for a while; with
    /// `all`, of all parts without unsynced changes. After a crash, the store discards the
    /// checksums of marked parts. Returns true if marks remain: the caller must call this again
    /// later, and with `all` before the target stops.
    ///
    /// # Errors
    ///
    /// An error of the index.
    fn settle(&self, all: bool) -> BoxFuture<'_, Result<bool, OsdError>> {
        let _ = all;
        Box::pin(async { Ok(false) })
    }

    /// Reads the first part of an object with data at or after `offset`, and compares it with its
    /// checksums. With `fill`, blocks without a checksum get one. A store in memory has no
    /// checksums.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if the file cannot be opened, or an error of the index.
    fn scrub(&self, fid: Fid, offset: u64, fill: bool) -> BoxFuture<'_, Result<Scrubbed, OsdError>> {
        let _ = (fid, offset, fill);
        Box::pin(async { Ok(Scrubbed::default()) })
    }

    /// Destroys the object; true if it existed.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if its file cannot be removed.
    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>>;

    /// Waits until one object (`None`: all) is on disk with its attributes, as of this call.
    ///
    /// # Errors
    ///
    /// [`OsdError::SyncFailed`] if this or an earlier sync failed.
    fn sync(&self, fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Waits until all data of the store's file system in the page cache is on disk, including data
    /// that a killed process wrote. A store in memory does nothing.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if the sync fails.
    fn sync_file_system(&self) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Keeps all later changes in memory: they are visible, but never durable ([`crate::Barrier`]).
    /// Waits for the changes in progress.
    ///
    /// # Errors
    ///
    /// [`OsdError::Unsupported`] if the objects cannot do that.
    fn discard_changes(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async { Err(OsdError::Unsupported("a barrier of a store in memory")) })
    }
}
