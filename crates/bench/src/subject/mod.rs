//! The subjects of loads: a directory of any mounted file system ([`PathSubject`]), the client
//! library ([`LibrarySubject`]), or the name space of a metadata target, called directly in this
//! process ([`MddSubject`]).
//!
//! A method on a file gets the file's directory and its name in that directory. The directory is a
//! path from the subject's root with `/` as separator; the empty path is the root. The empty name
//! in the empty directory is the root itself, which may not exist yet.

mod data;
mod library;
mod mdd;
mod path;

use crate::BenchError;
use bytes::Bytes;
pub(crate) use data::AlignedBuffer;
pub use data::{DataFile, DataMode};
pub use library::LibrarySubject;
pub use mdd::MddSubject;
pub use path::PathSubject;
use std::sync::Arc;
use wire::Errno;

/// A file system under test. Its methods block, and several tasks may call them.
pub trait Subject: Send + Sync {
    /// The subject's name in tables and errors.
    fn name(&self) -> &str;
    /// Ids of the other processes that serve the subject. Measurements include their CPU time and
    /// memory.
    fn processes(&self) -> &[u32];
    /// Resolves a directory, so that later operations there need no path walk.
    fn enter(&self, dir: &str) -> Result<(), BenchError>;
    /// Creates an empty directory; returns false if it exists already.
    fn make_dir(&self, dir: &str, name: &str) -> Result<bool, BenchError>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Creates an empty directory on a given metadata target; returns false if it exists already.
    /// Fails if the subject can use only MDT0000.
    fn make_dir_on(&self, dir: &str, name: &str, mdt: u32) -> Result<bool, BenchError> {
        match mdt {
            0 => self.make_dir(dir, name),
            _ => Err(BenchError::Options(format!(
                "{} cannot make a directory on MDT{mdt:04x}",
                self.name()
            ))),
        }
    }
    /// The names in a directory, and whether each of them is a directory.
    fn list(&self, dir: &str) -> Result<Vec<(String, bool)>, BenchError>;
    /// Sets the default stripe count for new files in a directory, or, if directories have no
    /// defaults, for all new files.
    fn set_stripes(&self, dir: &str, stripes: u16) -> Result<(), BenchError>;
    /// Creates a file and closes it. In between, writes, syncs and reads back data if `new` says
    /// so.
    fn create(&self, dir: &str, name: &str, new: &NewFile) -> Result<(), BenchError>;
    /// Creates an empty file by mknod.
    fn mknod(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Stats a file or a directory.
    fn stat(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Looks up a name.
    fn lookup(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Opens a file, reads at most `bytes` bytes from its start, and closes it.
    fn open(&self, dir: &str, name: &str, bytes: usize) -> Result<Bytes, BenchError>;
    /// Renames a file or directory within a directory.
    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<(), BenchError>;
    /// Unlinks a file.
    fn unlink(&self, dir: &str, name: &str) -> Result<(), BenchError>;
    /// Sets an extended attribute.
    fn set_xattr(&self, dir: &str, name: &str, xattr: &str, value: &[u8]) -> Result<(), BenchError>;
    /// Writes back the changes that the subject still caches.
    fn sync(&self) -> Result<(), BenchError>;
    /// Opens a file for its data.
    fn open_data(&self, dir: &str, name: &str, mode: DataMode) -> Result<Box<dyn DataFile + '_>, BenchError>;
    /// Drops cached data of a file, as far as the subject can.
    fn drop_cache(&self, dir: &str, name: &str) -> Result<(), BenchError>;
}

/// Drops data of a subject that other processes or other files cache.
pub type DropCaches = Arc<dyn Fn() -> Result<(), BenchError> + Send + Sync>;

/// The options of a new file.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Fail with `EEXIST` if the name exists.
    pub exclusive: bool,
    /// Delay the creation of objects (`O_LOV_DELAY_CREATE`).
    pub delayed: bool,
    /// The data to write.
    pub data: Bytes,
    /// Read the data back through the same handle, and compare.
    pub read_back: bool,
    /// Fsync the file after writing.
    pub sync: bool,
}

impl NewFile {
    /// An empty file; its name must be new.
    pub const EMPTY: NewFile = NewFile {
        exclusive: true,
        delayed: false,
        data: Bytes::new(),
        read_back: false,
        sync: false,
    };
}

/// Creates a directory and its missing ancestors.
pub(crate) fn create_dirs(subject: &dyn Subject, path: &str) -> Result<(), BenchError> {
    let ends = path.match_indices('/').map(|(i, _)| i).chain([path.len()]);
    for end in ends {
        let (dir, name) = path[..end].rsplit_once('/').unwrap_or(("", &path[..end]));
        if !name.is_empty() {
            // Keep absolute paths absolute.
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

/// Joins a directory and a name.
pub(crate) fn join_path(dir: &str, name: &str) -> String {
    match (dir, name) {
        ("", name) => name.to_owned(),
        (dir, "") => dir.to_owned(),
        (dir, name) => format!("{dir}/{name}"),
    }
}

/// The name of a file or directory in errors.
fn object_name(dir: &str, name: &str) -> String {
    match join_path(dir, name) {
        path if path.is_empty() => "the directory itself".to_owned(),
        path => path,
    }
}

/// Removes a directory with everything in it.
pub(crate) fn remove_tree(subject: &dyn Subject, dir: &str, name: &str) -> Result<(), BenchError> {
    let path = join_path(dir, name);
    for (entry, is_dir) in subject.list(&path)? {
        if is_dir {
            remove_tree(subject, &path, &entry)?;
        } else {
            subject.unlink(&path, &entry)?;
        }
    }
    subject.remove_dir(dir, name)
}

/// The error of a failed operation with an errno.
fn errno_error(subject: &str, operation: &'static str, object: String, errno: Errno) -> BenchError {
    BenchError::Operation {
        subject: subject.to_owned(),
        operation,
        object,
        reason: errno.to_string(),
        errno: errno.0,
    }
}

/// The error of a failed operation without an errno.
pub(crate) fn operation_error(
    subject: &str,
    operation: &'static str,
    object: String,
    reason: &str,
) -> BenchError {
    BenchError::Operation {
        subject: subject.to_owned(),
        operation,
        object,
        reason: reason.to_owned(),
        errno: 0,
    }
}

/// The reason of the error if the data read back differs from the data written.
const READ_BACK_DIFFERS: &str = "the data read back differs from the data written";
