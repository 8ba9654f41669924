//! The file through one mount: system calls, and volatile copies from and to mappings. The copies
//! are volatile because other mounts may change mapped memory at any time.

use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

/// Alignment of memory, offsets and lengths for direct I/O, in bytes; also the page size.
const ALIGNMENT: usize = 4096;

/// The file, opened through one mount.
pub(super) struct MountedFile {
    path: PathBuf,
    direct: bool,
    file: File,
    /// A second descriptor, for appending.
    append_file: File,
    /// Whether data written through a mapping may be unsynced.
    mapped_dirty: bool,
}

impl MountedFile {
    /// Opens the file; `direct`: with `O_DIRECT`.
    pub(super) fn new(path: &Path, direct: bool) -> io::Result<MountedFile> {
        let flags = if direct {
            rustix::fs::OFlags::DIRECT.bits() as i32
        } else {
            0
        };
        let open = |options: &mut OpenOptions| options.custom_flags(flags).open(path);
        Ok(MountedFile {
            path: path.to_owned(),
            direct,
            file: open(OpenOptions::new().read(true).write(true))?,
            append_file: open(OpenOptions::new().append(true))?,
            mapped_dirty: false,
        })
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.write_back_mapped()?;
        *self = MountedFile::new(&self.path, self.direct)?;
        Ok(())
    }

    /// Writes back data written through a mapping; until then only the local kernel has it.
    pub(super) fn write_back_mapped(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mapped_dirty) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// The sizes according to fstat and to stat, in bytes.
    pub(super) fn sizes(&self) -> io::Result<[u64; 2]> {
        Ok([self.file.metadata()?.len(), std::fs::metadata(&self.path)?.len()])
    }

    pub(super) fn read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut buffer = AlignedBuffer::new(len as usize);
        let n = self.file.read_at(buffer.bytes(), offset)?;
        Ok(buffer.bytes()[..n].to_vec())
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_at(AlignedBuffer::of(data).bytes(), offset)
    }

    pub(super) fn append(&mut self, data: &[u8]) -> io::Result<usize> {
        self.append_file.write(AlignedBuffer::of(data).bytes())
    }

    pub(super) fn map_read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        self.map(offset, len, |slice, before| {
            let mut data = vec![0; before + len as usize];
            slice.copy_to(&mut data);
            data.split_off(before)
        })
    }

    pub(super) fn map_write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.mapped_dirty = true;
        self.map(offset, data.len() as u64, |slice, before| {
            if let Ok(slice) = slice.offset(before) {
                slice.copy_from(data);
            }
        })
    }

    /// Makes the kernel fetch the current size. Some system calls trust the cached size and do not
    /// ask the file system.
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Maps the pages of a range inside the file. `work` gets the mapping and the number of its
    /// bytes before the range.
    fn map<R>(
        &self,
        offset: u64,
        len: u64,
        work: impl FnOnce(vm_memory::VolatileSlice<'_>, usize) -> R,
    ) -> io::Result<R> {
        let size = self.refresh_size()?;
        if size < offset + len {
            // Access beyond the end of a mapped file raises SIGBUS.
            return Err(io::Error::other(format!(
                "cannot map {len} bytes at {offset}: the file ends at {size}"
            )));
        }
        let before = offset % ALIGNMENT as u64;
        let range = FileOffset::new(self.file.try_clone()?, offset - before);
        let region = MmapRegion::<()>::from_file(range, (before + len) as usize).map_err(io::Error::other)?;
        let slice = region
            .get_slice(0, (before + len) as usize)
            .map_err(io::Error::other)?;
        Ok(work(slice, before as usize))
    }

    pub(super) fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    pub(super) fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, mode, offset, len)?)
    }

    pub(super) fn copy(&self, mut from: u64, mut to: u64, len: u64) -> io::Result<u64> {
        self.refresh_size()?;
        let n = rustix::fs::copy_file_range(
            &self.file,
            Some(&mut from),
            &self.file,
            Some(&mut to),
            len as usize,
        )?;
        Ok(n as u64)
    }

    pub(super) fn seek(&self, to: rustix::fs::SeekFrom) -> io::Result<u64> {
        Ok(rustix::fs::seek(&self.file, to)?)
    }

    pub(super) fn fsync(&mut self, data_only: bool) -> io::Result<()> {
        self.mapped_dirty = false;
        if data_only {
            self.file.sync_data()
        } else {
            self.file.sync_all()
        }
    }
}

/// A buffer aligned for direct I/O.
struct AlignedBuffer {
    memory: Vec<u8>,
    /// Index of the first aligned byte in `memory`.
    start: usize,
    /// Length of the buffer from `start`.
    len: usize,
}

impl AlignedBuffer {
    fn new(len: usize) -> AlignedBuffer {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        AlignedBuffer { memory, start, len }
    }

    fn of(data: &[u8]) -> AlignedBuffer {
        let mut aligned = AlignedBuffer::new(data.len());
        aligned.bytes().copy_from_slice(data);
        aligned
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
