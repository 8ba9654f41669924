//! Executes steps on the file and on the copy in memory, and reports the first difference.

use super::Config;
use super::file::MountedFile;
use super::shadow::{Difference, Shadow, pattern};
use super::step::{BLOCK, Op, Step};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// The file through all mounts, and its expected content.
pub(super) struct Run {
    mounts: Vec<MountedFile>,
    shadow: Shadow,
    cfg: Config,
    /// Index of the mount of the previous step.
    last_mount_index: usize,
}

/// Errors of operations that the file system does not support.
const UNSUPPORTED: &[Errno] = &[Errno::OPNOTSUPP, Errno::NOSYS];

impl Run {
    /// Creates the file, or truncates it to 0 bytes, and opens it through all mounts.
    pub(super) fn new(paths: &[PathBuf], cfg: Config) -> io::Result<Run> {
        if let Some(first) = paths.first() {
            std::fs::File::create(first)?;
        }
        let mounts = paths.iter().map(|path| MountedFile::new(path, cfg.direct));
        Ok(Run {
            mounts: mounts.collect::<io::Result<_>>()?,
            shadow: Shadow::default(),
            cfg,
            last_mount_index: 0,
        })
    }

    /// Executes a step and compares the file's size. The error describes the difference.
    pub(super) fn step(&mut self, step: Step) -> Result<(), String> {
        if step.mount_index != self.last_mount_index {
            self.mounts[self.last_mount_index]
                .write_back_mapped()
                .map_err(write_back_error)?;
            self.last_mount_index = step.mount_index;
        }
        self.execute(step)?;
        // Check the size through each mount in turn, not only through the one of the step.
        let checked_index = step.number as usize % self.mounts.len();
        let sizes = self.mounts[checked_index]
            .sizes()
            .map_err(|e| format!("stat through mount {checked_index} failed: {e}"))?;
        if sizes != [self.shadow.size(); 2] {
            return Err(format!(
                "the size through mount {checked_index} is {} (fstat) and {} (stat), not {}",
                sizes[0],
                sizes[1],
                self.shadow.size()
            ));
        }
        Ok(())
    }

    /// Compares the whole file through each mount. The error describes the difference.
    pub(super) fn check_whole_file(&mut self) -> Result<(), String> {
        self.mounts[self.last_mount_index]
            .write_back_mapped()
            .map_err(write_back_error)?;
        // Beyond the end, a read must return nothing. Direct I/O requires a multiple of the block.
        let len = self.shadow.size().next_multiple_of(BLOCK) + BLOCK;
        for (i, mount) in self.mounts.iter().enumerate() {
            let found = mount
                .read(0, len)
                .map_err(|e| format!("reading all through mount {i} failed: {e}"))?;
            self.check_read(0, self.shadow.size(), &found)
                .map_err(|e| format!("the whole file through mount {i}: {e}"))?;
        }
        Ok(())
    }

    fn check_read(&self, offset: u64, len: u64, found: &[u8]) -> Result<(), String> {
        let expected = self.shadow.read(offset, len).len();
        self.shadow.compare(offset, found).map_err(|d| d.to_string())?;
        if found.len() != expected {
            return Err(format!("read {} bytes, not {expected}", found.len()));
        }
        Ok(())
    }

    fn execute(&mut self, step: Step) -> Result<(), String> {
        let (number, mount, size) = (
            step.number,
            &mut self.mounts[step.mount_index],
            self.shadow.size(),
        );
        let direct = self.cfg.direct;
        match step.op {
            Op::Read { offset, len } => {
                if let Some(found) =
                    unless_allowed(mount.read(offset, len), alignment_errors(direct, &[offset, len]))?
                {
                    self.check_read(offset, len, &found)?;
                }
            }
            Op::Write { offset, len } => {
                let data = pattern(number, offset, len as usize);
                if let Some(written) = unless_allowed(
                    mount.write(offset, &data),
                    alignment_errors(direct, &[offset, len]),
                )? {
                    check_count("written", written as u64, len)?;
                    self.shadow.write(number, offset, &data);
                }
            }
            Op::Append { len } if size < self.cfg.size_max => {
                let data = pattern(number, size, len as usize);
                if let Some(written) =
                    unless_allowed(mount.append(&data), alignment_errors(direct, &[size, len]))?
                {
                    check_count("appended", written as u64, len)?;
                    self.shadow.write(number, size, &data);
                }
            }
            Op::Append { .. } => {}
            // Mappings end at the end of the file.
            Op::MapRead { offset, .. } | Op::MapWrite { offset, .. } if offset >= size => {}
            Op::MapRead { offset, len } => {
                let len = len.min(size - offset);
                if let Some(found) = unless_allowed(mount.map_read(offset, len), &[])? {
                    self.check_read(offset, len, &found)?;
                }
            }
            Op::MapWrite { offset, len } => {
                let data = pattern(number, offset, len.min(size - offset) as usize);
                unless_allowed(mount.map_write(offset, &data), &[])?;
                self.shadow.write(number, offset, &data);
            }
            Op::Truncate { size } => {
                unless_allowed(mount.truncate(size), &[])?;
                self.shadow.resize(size);
            }
            Op::Punch { offset, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if unless_allowed(mount.fallocate(mode, offset, len), UNSUPPORTED)?.is_some() {
                    self.shadow.zero(number, offset, len);
                }
            }
            Op::Zero { offset, len } => {
                let mode = FallocateFlags::ZERO_RANGE;
                if unless_allowed(mount.fallocate(mode, offset, len), UNSUPPORTED)?.is_some() {
                    self.shadow.allocate(offset, len, false);
                    self.shadow.zero(number, offset, len);
                }
            }
            Op::Allocate {
                offset,
                len,
                keep_size,
            } => {
                let mode = if keep_size {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                if unless_allowed(mount.fallocate(mode, offset, len), UNSUPPORTED)?.is_some() {
                    self.shadow.allocate(offset, len, keep_size);
                }
            }
            Op::Copy { from, to, len } => self.copy(step.mount_index, number, from, to, len)?,
            Op::SeekData { offset } => self.seek_data(step.mount_index, offset)?,
            Op::SeekHole { offset } => self.seek_hole(step.mount_index, offset)?,
            Op::Reopen => drop(unless_allowed(mount.reopen(), &[])?),
            Op::Fsync => drop(unless_allowed(mount.fsync(false), &[])?),
            Op::Fdatasync => drop(unless_allowed(mount.fsync(true), &[])?),
        }
        Ok(())
    }

    /// A copy may be shorter than requested; the copied part must be correct.
    fn copy(&mut self, mount_index: usize, number: u32, from: u64, to: u64, len: u64) -> Result<(), String> {
        let allowed_errors = [UNSUPPORTED, alignment_errors(self.cfg.direct, &[from, to, len])].concat();
        let Some(copied) = unless_allowed(self.mounts[mount_index].copy(from, to, len), &allowed_errors)?
        else {
            return Ok(());
        };
        let available = self.shadow.read(from, len).len() as u64;
        if copied > available || (copied == 0 && available > 0) {
            return Err(format!("copied {copied} bytes of {available}"));
        }
        self.shadow.copy(number, from, to, copied);
        Ok(())
    }

    /// SEEK_DATA may report a hole as data, but not data as a hole.
    fn seek_data(&self, mount_index: usize, offset: u64) -> Result<(), String> {
        let size = self.shadow.size();
        match self.mounts[mount_index].seek(SeekFrom::Data(offset)) {
            Ok(data) if data >= offset && data < size && self.shadow.is_zero(offset, data) => Ok(()),
            Ok(data) => Err(format!(
                "SEEK_DATA from {offset} returned {data}, which skips data or is not between {offset} and the end {size}"
            )),
            Err(e) if is_errno(&e, Errno::NXIO) && self.shadow.is_zero(offset, size) => Ok(()),
            Err(e) => Err(format!("SEEK_DATA from {offset} failed: {e}")),
        }
    }

    /// The reported hole must read as zero; the end of the file counts as a hole.
    fn seek_hole(&self, mount_index: usize, offset: u64) -> Result<(), String> {
        let size = self.shadow.size();
        match self.mounts[mount_index].seek(SeekFrom::Hole(offset)) {
            Ok(hole)
                if hole >= offset && offset < size && hole <= size && self.shadow.is_zero(hole, hole + 1) =>
            {
                Ok(())
            }
            Ok(hole) => Err(format!(
                "SEEK_HOLE from {offset} returned {hole}, which is data or not between {offset} and the end {size}"
            )),
            Err(e) if is_errno(&e, Errno::NXIO) && offset >= size => Ok(()),
            Err(e) => Err(format!("SEEK_HOLE from {offset} failed: {e}")),
        }
    }
}

fn write_back_error(e: io::Error) -> String {
    format!("writing back mapped data failed: {e}")
}

fn is_errno(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}

fn check_count(verb: &str, count: u64, expected: u64) -> Result<(), String> {
    if count == expected {
        Ok(())
    } else {
        Err(format!("{verb} {count} bytes of {expected}"))
    }
}

/// The errors that the alignment of these offsets and lengths allows: `EINVAL` if I/O is direct and
/// one of them is not a multiple of 4096.
fn alignment_errors(direct: bool, offsets_and_lengths: &[u64]) -> &'static [Errno] {
    if direct && offsets_and_lengths.iter().any(|n| n % BLOCK != 0) {
        &[Errno::INVAL]
    } else {
        &[]
    }
}

/// The result of a system call; `None` for an allowed error, which must not have changed the file.
fn unless_allowed<T>(result: io::Result<T>, allowed: &[Errno]) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if allowed.iter().any(|errno| is_errno(&e, *errno)) => Ok(None),
        Err(e) => Err(format!("the operation failed: {e}")),
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes differ from offset {:#x} on: found {:02x?}, expected {:02x?} (",
            self.bytes, self.offset, self.found, self.expected
        )?;
        match self.writer {
            0 => write!(f, "never written)"),
            n => write!(f, "written by step {n})"),
        }
    }
}
