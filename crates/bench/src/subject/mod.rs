//! What a load runs on: a directory of any mounted file system ([`PathSubject`]), the client library without a kernel
//! between ([`LibrarySubject`]), or the stack of a metadata target below network and requests ([`StackSubject`]).
//!
//! A place is named by its directory, a path from the subject's root whose parts are separated by `/` (empty: the
//! root), and a name in it. The root itself, which may have to be made, is the empty name in the empty directory.

mod library;
mod path;
mod stack;

use crate::BenchError;
use bytes::Bytes;
pub use library::LibrarySubject;
pub use path::PathSubject;
pub use stack::StackSubject;
use wire::Errno;

/// A place where files can be made. Its methods block, and may be called by several tasks.
pub trait Subject: Send + Sync {
    /// Its name in tables.
    fn name(&self) -> &str;
    /// Other processes that work for it.
    fn processes(&self) -> &[u32];
    /// Finds a directory, so that what follows in it need not be found again.
    fn enter(&self, dir: &str) -> Result<(), BenchError>;
    /// Makes an empty directory. Whether it is there now because of this: `false`, it was there.
    fn make_dir(&self, dir: &str, name: &str) -> Result<bool, BenchError>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Makes an empty directory on another metadata target, where that can be.
    fn make_dir_on(&self, dir: &str, name: &str, mdt: u32) -> Result<bool, BenchError> {
        match mdt {
            0 => self.make_dir(dir, name),
            _ => Err(BenchError::Options(format!(
                "{} cannot make a directory on MDT{mdt:04x}",
                self.name()
            ))),
        }
    }
    /// What is in a directory, and which of it are directories.
    fn list(&self, dir: &str) -> Result<Vec<(String, bool)>, BenchError>;
    /// How many stripes files that are made in a directory get; files in it have what they have.
    fn set_stripes(&self, dir: &str, stripes: u16) -> Result<(), BenchError>;
    /// Opens a file that is created by this, writes to it, and closes it.
    fn create(&self, dir: &str, name: &str, new: &NewFile) -> Result<(), BenchError>;
    /// Makes an empty file without opening it.
    fn mknod(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Asks for the attributes of a file or a directory.
    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Asks what a name leads to.
    fn lookup(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Opens a file, reads its first bytes, as many as there are up to `bytes`, and closes it.
    fn open(&self, dir: &str, name: &str, bytes: usize) -> Result<Bytes, BenchError>;
    /// Gives a name another one in the same directory.
    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<(), BenchError>;
    /// Unlinks a file.
    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Sets an extended attribute.
    fn set_xattr(&self, dir: &str, name: &str, xattr: &str, value: &[u8]) -> Result<(), BenchError>;
    /// Has everything written that is in the kernel's cache of this file system.
    fn sync(&self) -> Result<(), BenchError>;
    /// Writes `blocks` blocks one after the other into a new file, and fsyncs it.
    fn write(&self, dir: &str, name: &str, block: &Bytes, blocks: u64) -> Result<(), BenchError>;
    /// Reads a file from start to end in pieces of `block` bytes.
    fn read(&self, dir: &str, name: &str, block: usize) -> Result<u64, BenchError>;
    /// Drops what is cached of the file, as far as the subject can.
    fn forget(&self, dir: &str, name: &str) -> Result<(), BenchError>;
}

/// A file to create.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// The name must not be there.
    pub exclusive: bool,
    /// It gets no objects now (`O_LOV_DELAY_CREATE`).
    pub delayed: bool,
    /// What is written into it.
    pub data: Bytes,
    /// The data is read again through the same handle, and must be the same.
    pub read_back: bool,
    /// It is fsynced after that.
    pub sync: bool,
}

impl NewFile {
    /// An empty one that was not there.
    pub const EMPTY: NewFile = NewFile {
        exclusive: true,
        delayed: false,
        data: Bytes::new(),
        read_back: false,
        sync: false,
    };
}

/// Makes a directory and what is missing of those above it.
pub(crate) fn make_all(subject: &dyn Subject, path: &str) -> Result<(), BenchError> {
    let ends = path.match_indices('/').map(|(i, _)| i).chain([path.len()]);
    for end in ends {
        let (dir, name) = path[..end].rsplit_once('/').unwrap_or(("", &path[..end]));
        if !name.is_empty() {
            // An absolute path stays one.
            let dir = if dir.is_empty() && path.starts_with('/') {
                "/"
            } else {
                dir
            };
            subject.make_dir(dir, name)?;
        }
    }
    Ok(())
}

/// A place in words.
pub(crate) fn joined(dir: &str, name: &str) -> String {
    match (dir, name) {
        ("", name) => name.to_owned(),
        (dir, "") => dir.to_owned(),
        (dir, name) => format!("{dir}/{name}"),
    }
}

/// Removes a directory with everything in it.
pub(crate) fn remove_all(subject: &dyn Subject, dir: &str, name: &str) -> Result<(), BenchError> {
    let whole = joined(dir, name);
    for (entry, is_dir) in subject.list(&whole)? {
        if is_dir {
            remove_all(subject, &whole, &entry)?;
        } else {
            subject.unlink(&whole, &entry)?;
        }
    }
    subject.remove_dir(dir, name)
}

/// An operation of the client or the target that failed.
fn failed(subject: &str, operation: &'static str, what: String, errno: Errno) -> BenchError {
    BenchError::Operation {
        subject: subject.to_owned(),
        operation,
        what,
        why: errno.to_string(),
        errno: errno.0,
    }
}

/// An operation that does not do what it must.
pub(crate) fn wrong(subject: &str, operation: &'static str, what: String, why: &str) -> BenchError {
    BenchError::Operation {
        subject: subject.to_owned(),
        operation,
        what,
        why: why.to_owned(),
        errno: 0,
    }
}

/// Says that what was read is not what was written.
const READ_BACK_DIFFERS: &str = "what is read back is not what was written";
