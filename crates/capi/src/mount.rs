//! The mounts of this process. Each has a number by which C refers to it.
//!
//! Numbers are never reused, so a call with the number of an unmounted file system fails with
//! `EBADF`.

use crate::attrs;
use crate::ffi::Fs;
use crate::table::OpenTable;
use parking_lot::RwLock;
use posix::MountError;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wire::{Errno, Fid};

static MOUNTS: RwLock<BTreeMap<usize, Arc<Mount>>> = RwLock::new(BTreeMap::new());
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(1);

/// A mounted file system with its open files.
pub(crate) struct Mount {
    mount: posix::Mount,
    pub(crate) open_files: OpenTable,
    /// The mount's number, shown to programs as `st_dev` of its files.
    number: usize,
}

impl Deref for Mount {
    type Target = posix::Mount;

    fn deref(&self) -> &posix::Mount {
        &self.mount
    }
}

/// Mounts a file system.
pub(crate) fn mount(source: &[u8], options: &[u8]) -> Result<Fs, MountError> {
    let mount = posix::Mount::start(source, options)?;
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let open_files = OpenTable::default();
    let mount = Mount {
        mount,
        open_files,
        number,
    };
    MOUNTS.write().insert(number, Arc::new(mount));
    Ok(Fs::of(number))
}

/// Writes cached data back, closes open files and unmounts. Returns the first error of a close. The
/// file system is unmounted even after an error.
pub(crate) fn umount(fs: &Fs) -> Result<(), Errno> {
    // A child process fails here: it does not have the mount's threads.
    let mount = find(fs)?;
    if MOUNTS.write().remove(&mount.number).is_none() {
        return Err(Errno::EBADF);
    }
    mount.unmount(async || {
        let mut result = Ok(());
        for open in mount.open_files.drain() {
            result = result.and(open.close(&mount).await);
        }
        result
    })
}

/// Finds the mount that C refers to. `EFAULT`: NULL; `EBADF`: not mounted; `ENOTCONN`: a parent
/// process mounted it.
fn find(fs: &Fs) -> Result<Arc<Mount>, Errno> {
    let number = fs.number()?;
    let mount = MOUNTS.read().get(&number).cloned().ok_or(Errno::EBADF)?;
    if mount.was_inherited_by_fork() {
        return Err(Errno::ENOTCONN);
    }
    Ok(mount)
}

/// Runs a call on a mount, on the caller's thread; returns its result.
pub(crate) fn run_on<T>(fs: &Fs, call: impl AsyncFnOnce(&Mount) -> Result<T, Errno>) -> Result<T, Errno> {
    let mount = find(fs)?;
    mount.run(async || call(&mount).await)
}

impl Mount {
    /// The attributes of a file, for C.
    pub(crate) async fn stat(&self, fid: Fid) -> Result<libc::stat, Errno> {
        let attr = posix::attrs::stat(self, fid).await?;
        Ok(attrs::stat_of(self.number, &attr))
    }
}
