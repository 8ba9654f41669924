//! The file system that holds the files of objects. The traits let a simulator replace the host's
//! file system.
//!
//! All methods except [`FileSystem::sync_delay`] block on the disk.

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;

use crate::{READ_PIECE, Seek, files};

/// A file system. A change is visible at once; a sync makes it durable.
pub trait FileSystem: Send + Sync {
    /// Maximum number of files that this process may have open, for all purposes.
    fn open_files_max(&self) -> u64;

    /// Creates a directory with mode 0700.
    ///
    /// # Errors
    ///
    /// The error of `mkdir`.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    ///
    /// The error of `open`, `NotFound` for a missing file.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>>;

    /// Opens a file for reading and writing; creates a missing one with mode 0600.
    ///
    /// # Errors
    ///
    /// The error of `open`, `NotFound` for a missing directory.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// The error of `unlink`, `NotFound` for a missing file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    ///
    /// The error of opening or syncing the directory.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes everything durable on the file system that holds `path`.
    ///
    /// # Errors
    ///
    /// The error of opening `path` or of `syncfs`.
    fn sync_all(&self, path: &Path) -> io::Result<()>;

    /// Called before each series of syncs. A simulated disk waits here as long as the syncs take.
    /// On the host this returns at once, because the syncs themselves take that time.
    fn sync_delay(&self) -> BoxFuture<'_, ()>;
}

/// An open file.
pub trait ObjectFile: Send + Sync {
    /// Size in bytes, and allocated space in units of 512 bytes.
    ///
    /// # Errors
    ///
    /// The error of `stat`.
    fn measure(&self) -> io::Result<(u64, u64)>;

    /// Reads up to `len` bytes, fewer at the end of the file, in buffers of up to [`READ_PIECE`].
    /// With `cached_only`, returns `None` unless it can read without waiting.
    ///
    /// # Errors
    ///
    /// The error of `read`.
    fn read(&self, offset: u64, len: u64, cached_only: bool) -> io::Result<Option<Vec<Bytes>>>;

    /// Writes all of `data`.
    ///
    /// # Errors
    ///
    /// The error of `write`; a part may be written.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Truncates or extends the file to `size` bytes.
    ///
    /// # Errors
    ///
    /// The error of `ftruncate`.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Frees a range; the size stays.
    ///
    /// # Errors
    ///
    /// The error of `fallocate`.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Allocates a range; the file grows unless `keep_size`.
    ///
    /// # Errors
    ///
    /// The error of `fallocate`.
    fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> io::Result<()>;

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    ///
    /// The error of `lseek`, `ENXIO` beyond the end or if no data follows.
    fn seek(&self, offset: u64, kind: Seek) -> io::Result<u64>;

    /// Makes data and size durable.
    ///
    /// # Errors
    ///
    /// The error of `fdatasync`. The content of the disk is then unknown.
    fn sync_data(&self) -> io::Result<()>;
}

/// The file systems of this host.
pub(super) struct HostFiles;

impl FileSystem for HostFiles {
    fn open_files_max(&self) -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current.unwrap_or(u64::MAX)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        files::create_dir(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(file))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let mut options = files::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        files::sync_dir(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(path)?)?)
    }

    fn sync_delay(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl ObjectFile for fs::File {
    fn measure(&self) -> io::Result<(u64, u64)> {
        self.metadata().map(|m| (m.size(), m.blocks()))
    }

    fn read(&self, offset: u64, len: u64, cached_only: bool) -> io::Result<Option<Vec<Bytes>>> {
        let flags = match cached_only {
            true => ReadWriteFlags::NOWAIT,
            false => ReadWriteFlags::empty(),
        };
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let mut piece = vec![0; (len - done).min(READ_PIECE) as usize];
            let mut filled = 0;
            while filled < piece.len() {
                let into = IoSliceMut::new(&mut piece[filled..]);
                match rustix::io::preadv2(self, &mut [into], offset + done + filled as u64, flags) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(rustix::io::Errno::INTR) => {}
                    // The page cache lacks a part, or the file system does not support `NOWAIT`.
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) if cached_only => {
                        return Ok(None);
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            let short = filled < piece.len();
            piece.truncate(filled);
            done += filled as u64;
            if filled > 0 {
                pieces.push(Bytes::from(piece));
            }
            if short {
                break;
            }
        }
        Ok(Some(pieces))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self, how, offset, len)?)
    }

    fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let how = match keep_size {
            true => FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::empty(),
        };
        Ok(rustix::fs::fallocate(self, how, offset, len)?)
    }

    fn seek(&self, offset: u64, kind: Seek) -> io::Result<u64> {
        let to = match kind {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Ok(rustix::fs::seek(self, to)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }
}
