//! The files of a disk as the file system of [`osd::LocalObjects`].

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;
use fastrand::Rng;
use osd::{FileSystem, ObjectFile, Seek, SparseData};

use super::disk::{Disk, Handle};
use super::files::{File, FileId};

/// The limit of file descriptors. It is so small that [`osd::LocalObjects`] often closes files of
/// objects and opens them again.
const OPEN_FILES_MAX: u64 = 8192;
/// One in this number of reads that accept only cached data finds none.
const UNCACHED_DIVISOR: u8 = 4;

/// The file system of a disk, until its node stops or its machine loses power: then the handle is
/// dead and every call fails.
pub(super) struct SimFileSystem {
    handle: Handle,
}

impl SimFileSystem {
    pub(super) fn new(handle: Handle) -> SimFileSystem {
        SimFileSystem { handle }
    }

    fn open_file(&self, id: FileId) -> Arc<dyn ObjectFile> {
        Arc::new(OpenFile {
            handle: self.handle.clone(),
            id,
        })
    }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Runs `f` on the handle's disk; `ESHUTDOWN` if the handle is dead.
fn with_disk<T>(handle: &Handle, f: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
    let mut disk = handle.lock().ok_or_else(|| error(libc::ESHUTDOWN))?;
    f(&mut disk)
}

impl FileSystem for SimFileSystem {
    fn open_files_max(&self) -> u64 {
        OPEN_FILES_MAX
    }

    /// All directories exist.
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        Err(error(libc::EEXIST))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let found = with_disk(&self.handle, |disk| Ok(disk.files.find(path)))?;
        found
            .map(|id| self.open_file(id))
            .ok_or_else(|| error(libc::ENOENT))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let id = with_disk(&self.handle, |disk| Ok(disk.files.find_or_create(path)))?;
        Ok(self.open_file(id))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        with_disk(&self.handle, |disk| {
            let freed = disk.files.remove(path).ok_or_else(|| error(libc::ENOENT))?;
            disk.space.release(freed);
            Ok(())
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        with_disk(&self.handle, |disk| {
            if disk.is_failing {
                return Err(error(libc::EIO));
            }
            disk.files.sync_dir(path);
            Ok(())
        })
    }

    fn sync_all(&self, _path: &Path) -> io::Result<()> {
        with_disk(&self.handle, |disk| {
            if disk.is_failing {
                disk.files.fail_sync_all(&mut disk.rng);
                return Err(error(libc::EIO));
            }
            disk.files.sync_all();
            Ok(())
        })
    }

    fn sync_delay(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.handle.sync_delay())
    }
}

/// An open file.
struct OpenFile {
    handle: Handle,
    id: FileId,
}

impl OpenFile {
    fn with<T>(&self, f: impl FnOnce(&mut File, &mut Rng) -> io::Result<T>) -> io::Result<T> {
        with_disk(&self.handle, |disk| {
            let file = disk.files.file(self.id);
            f(file.ok_or_else(|| error(libc::ESTALE))?, &mut disk.rng)
        })
    }

    /// Changes the file. The change may allocate only in `growth`, and fails without space for it.
    /// If the disk fails, `torn` makes a part of the change.
    fn change(
        &self,
        growth: Range<u64>,
        f: impl FnOnce(&mut File, &mut Rng),
        torn: impl FnOnce(&mut File, &mut Rng),
    ) -> io::Result<()> {
        with_disk(&self.handle, |disk| {
            let fails = disk.draw_failure();
            let file = disk.files.file(self.id).ok_or_else(|| error(libc::ESTALE))?;
            let before = file.data().allocated();
            let reserved = file.data().missing(&growth);
            // A range that cannot fit is rejected before its pages are visited.
            let is_too_large = (growth.end - growth.start).saturating_sub(before) > disk.config.capacity;
            if is_too_large || disk.space.reserve(reserved).is_err() {
                disk.count_failure();
                return Err(error(libc::ENOSPC));
            }
            match fails {
                true => torn(file, &mut disk.rng),
                false => f(file, &mut disk.rng),
            }
            let unused = (before + reserved).saturating_sub(file.data().allocated());
            disk.space.release(unused);
            match fails {
                true => Err(error(libc::EIO)),
                false => Ok(()),
            }
        })
    }
}

/// A change that fails without an effect.
fn nothing(_: &mut File, _: &mut Rng) {}

impl ObjectFile for OpenFile {
    fn measure(&self) -> io::Result<(u64, u64)> {
        self.with(|file, _| Ok((file.data().size(), file.data().allocated() / 512)))
    }

    fn read(&self, offset: u64, len: u64, cached_only: bool) -> io::Result<Option<Vec<Bytes>>> {
        self.with(|file, rng| {
            let is_cached = !cached_only || rng.u8(0..UNCACHED_DIVISOR) > 0;
            Ok(is_cached.then(|| file.data().read(offset, len)))
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let range = offset..offset + data.len() as u64;
        let torn = |file: &mut File, rng: &mut Rng| {
            // Write a random number of the first whole pages, possibly none.
            let pages = rng.usize(0..=data.len() / SparseData::PAGE as usize);
            if pages > 0 {
                file.write(offset, &data[..pages * SparseData::PAGE as usize], rng);
            }
        };
        self.change(range, |file, rng| file.write(offset, data, rng), torn)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.change(0..0, |file, rng| file.set_size(size, rng), nothing)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let range = offset..offset.saturating_add(len);
        self.change(0..0, |file, rng| file.punch(range, rng), nothing)
    }

    fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let range = offset..offset.saturating_add(len);
        self.change(
            range.clone(),
            |file, rng| file.allocate(range, keep_size, rng),
            nothing,
        )
    }

    fn seek(&self, offset: u64, kind: Seek) -> io::Result<u64> {
        self.with(|file, _| {
            let found = file.data().seek(offset, kind);
            found.map_err(|_| error(libc::ENXIO))
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let is_failing = with_disk(&self.handle, |disk| Ok(disk.is_failing))?;
        self.with(|file, rng| match is_failing {
            true => {
                file.fail_sync(rng);
                Err(error(libc::EIO))
            }
            false => {
                file.sync();
                Ok(())
            }
        })
    }
}
