//! Objects: the data of files, each a sparse run of bytes with a few attributes, named by a FID.
//!
//! An object comes into being with its first write or attribute; precreation leaves no trace here. A method that
//! finds no object behaves as for an empty one, except where it says otherwise. What is written is visible at once
//! and durable after [`Objects::sync`]. All methods are asynchronous: the local store does its file I/O on threads
//! of its own.

use bytes::Bytes;
use cpt::BoxFuture;
use wire::{Fid, Time, Timed, Times};

use crate::OsdError;

/// What an object is, besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjAttr {
    /// Size, bytes.
    pub size: u64,
    /// Space it takes, units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Time,
    /// Modification time.
    pub mtime: Time,
    /// Change time.
    pub ctime: Time,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub projid: u32,
    /// The file that it is a part of: its FID, in whose version field is the stripe's index. Zero when not known.
    pub parent: Fid,
    /// Layout version of the file (FLR).
    pub layout_version: u32,
    /// Transaction number of the last change of data.
    pub data_version: u64,
}

wire::timed_by_fields!(ObjAttr);

/// A change of attributes: what is `None` stays. Not for the size, which [`Objects::punch`] changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Access time.
    pub atime: Option<Time>,
    /// Modification time.
    pub mtime: Option<Time>,
    /// Change time; an earlier one than there is stays without effect.
    pub ctime: Option<Time>,
    /// A change of contents, with its modification and change time ([`Times::after_write`]).
    pub changed: Option<Times>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Project.
    pub projid: Option<u32>,
    /// The file that it is a part of.
    pub parent: Option<Fid>,
    /// Layout version.
    pub layout_version: Option<u32>,
    /// Transaction number of the last change of data.
    pub data_version: Option<u64>,
}

impl SetAttr {
    /// The same, with times left as they are.
    pub fn without_times(self) -> SetAttr {
        SetAttr {
            atime: None,
            mtime: None,
            ctime: None,
            changed: None,
            ..self
        }
    }

    pub(crate) fn apply_to(&self, a: &mut ObjAttr) {
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
        if let Some(told) = self.changed {
            a.set_times(a.times().after_write(told));
        }
    }
}

/// What to look for with [`Objects::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole; the end of the object is one.
    Hole,
}

/// Data objects.
pub trait Objects: Send + Sync {
    /// Reads up to `len` bytes, fewer at the end of the object; holes read as zeros. In pieces of at most 1 MiB.
    fn read(&self, fid: Fid, offset: u64, len: u32) -> BoxFuture<'_, Result<Vec<Bytes>, OsdError>>;

    /// Writes, and sets attributes with it.
    fn write(
        &self,
        fid: Fid,
        offset: u64,
        data: Vec<Bytes>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Frees `start..end`; with `end == u64::MAX` sets the size to `start` instead. Sets attributes with it.
    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Reserves space for `start..end`, growing the object unless `keep_size`.
    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>>;

    /// The next data or hole at or after `offset`; [`OsdError::NotFound`] beyond the end, or where there is no more data.
    fn seek(&self, fid: Fid, offset: u64, what: Seek) -> BoxFuture<'_, Result<u64, OsdError>>;

    /// The attributes; `None` when there is no such object.
    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>>;

    /// The attributes, where they can be told without waiting: what [`Objects::attr`] would say, or `None`. `new` is an
    /// object of which there was nothing when the store was opened.
    fn attr_now(&self, fid: Fid, new: bool) -> Option<Option<ObjAttr>>;

    /// Sets attributes.
    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Removes the object; true when there was one.
    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>>;

    /// Waits until one object (or all) is on disk, with its attributes, as of this call.
    fn sync(&self, fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Waits until what an earlier process left to the system, when it was killed, is on disk.
    fn sync_left(&self) -> BoxFuture<'_, Result<(), OsdError>>;
}
