//! The file as one mount shows it: plain system calls, and mappings through volatile copies, since what is mapped may change at
//! any time by other mounts.

use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

/// What memory, offsets and lengths of direct I/O are aligned to.
const ALIGNED: usize = 4096;

/// The file, open through one mount.
pub(super) struct Opened {
    path: PathBuf,
    direct: bool,
    file: File,
    /// The same, for appending.
    end: File,
    /// Whether something that was written through a mapping may still be in this machine's memory only.
    mapped_dirty: bool,
}

impl Opened {
    pub(super) fn new(path: &Path, direct: bool) -> io::Result<Opened> {
        let flags = if direct {
            rustix::fs::OFlags::DIRECT.bits() as i32
        } else {
            0
        };
        let open = |options: &mut OpenOptions| options.custom_flags(flags).open(path);
        Ok(Opened {
            path: path.to_owned(),
            direct,
            file: open(OpenOptions::new().read(true).write(true))?,
            end: open(OpenOptions::new().append(true))?,
            mapped_dirty: false,
        })
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.settle()?;
        *self = Opened::new(&self.path, self.direct)?;
        Ok(())
    }

    /// Hands on what was written through a mapping: nobody but the kernel knows of it until then.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mapped_dirty) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// The size as the open file has it, and as the path has it.
    pub(super) fn sizes(&self) -> io::Result<[u64; 2]> {
        Ok([self.file.metadata()?.len(), std::fs::metadata(&self.path)?.len()])
    }

    pub(super) fn read(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut buffer = Aligned::new(len as usize);
        let n = self.file.read_at(buffer.bytes(), at)?;
        Ok(buffer.bytes()[..n].to_vec())
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) -> io::Result<usize> {
        self.file.write_at(Aligned::of(data).bytes(), at)
    }

    pub(super) fn append(&mut self, data: &[u8]) -> io::Result<usize> {
        self.end.write(Aligned::of(data).bytes())
    }

    pub(super) fn map_read(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        self.map(at, len, |slice, before| {
            let mut data = vec![0; before + len as usize];
            slice.copy_to(&mut data);
            data.split_off(before)
        })
    }

    pub(super) fn map_write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.mapped_dirty = true;
        self.map(at, data.len() as u64, |slice, before| {
            if let Ok(slice) = slice.offset(before) {
                slice.copy_from(data);
            }
        })
    }

    /// Asks for the size before the kernel does what it ends at the size that it knows: it asks nobody for another one.
    fn learn_size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Maps the pages of a range that the file has, and gives them with the number of bytes before the range.
    fn map<R>(
        &self,
        at: u64,
        len: u64,
        work: impl FnOnce(vm_memory::VolatileSlice<'_>, usize) -> R,
    ) -> io::Result<R> {
        let size = self.learn_size()?;
        if size < at + len {
            // What lies behind the end of a mapped file kills who touches it.
            return Err(io::Error::other(format!(
                "the file ends at {size}, in the mapping"
            )));
        }
        let before = at % ALIGNED as u64;
        let range = FileOffset::new(self.file.try_clone()?, at - before);
        let region = MmapRegion::<()>::from_file(range, (before + len) as usize).map_err(io::Error::other)?;
        let slice = region
            .get_slice(0, (before + len) as usize)
            .map_err(io::Error::other)?;
        Ok(work(slice, before as usize))
    }

    pub(super) fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    pub(super) fn fallocate(&self, mode: FallocateFlags, at: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, mode, at, len)?)
    }

    pub(super) fn copy(&self, mut from: u64, mut to: u64, len: u64) -> io::Result<u64> {
        self.learn_size()?;
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

/// Memory that begins where direct I/O wants it.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGNED];
        let start = memory.as_ptr().align_offset(ALIGNED);
        Aligned { memory, start, len }
    }

    fn of(data: &[u8]) -> Aligned {
        let mut aligned = Aligned::new(data.len());
        aligned.bytes().copy_from_slice(data);
        aligned
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
