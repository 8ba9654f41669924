//! Does steps on the file and on its shadow, and tells the first difference.

use super::Config;
use super::file::Opened;
use super::shadow::{Difference, Shadow, pattern};
use super::step::{Op, Step};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// The file through all its mounts, and what it must hold.
pub(super) struct Run {
    mounts: Vec<Opened>,
    shadow: Shadow,
    cfg: Config,
    last: usize,
}

/// What not every file system has may be refused so.
const UNSUPPORTED: &[Errno] = &[Errno::OPNOTSUPP, Errno::NOSYS];

impl Run {
    /// Begins with an empty file.
    pub(super) fn new(paths: &[PathBuf], cfg: Config) -> io::Result<Run> {
        if let Some(first) = paths.first() {
            std::fs::File::create(first)?;
        }
        let mounts = paths.iter().map(|path| Opened::new(path, cfg.direct));
        Ok(Run {
            mounts: mounts.collect::<io::Result<_>>()?,
            shadow: Shadow::default(),
            cfg,
            last: 0,
        })
    }

    /// Does one step; tells what was not as it must be.
    pub(super) fn step(&mut self, step: Step) -> Result<(), String> {
        let failed = |e: io::Error| format!("failed: {e}");
        if step.via != self.last {
            self.mounts[self.last].settle().map_err(failed)?;
            self.last = step.via;
        }
        self.operate(step)?;
        // Every mount is asked in turn, not only the one that did it.
        let asked = step.number as usize % self.mounts.len();
        let sizes = self.mounts[asked].sizes().map_err(failed)?;
        if sizes != [self.shadow.size(); 2] {
            return Err(format!(
                "the size through mount {asked} is {} (fstat) and {} (stat), not {}",
                sizes[0],
                sizes[1],
                self.shadow.size()
            ));
        }
        Ok(())
    }

    /// Compares the whole file through each mount.
    pub(super) fn whole(&mut self) -> Result<(), String> {
        self.mounts[self.last]
            .settle()
            .map_err(|e| format!("failed: {e}"))?;
        let len = self.shadow.size().next_multiple_of(4096) + 4096;
        for (i, mount) in self.mounts.iter().enumerate() {
            let found = mount
                .read(0, len)
                .map_err(|e| format!("reading all through mount {i} failed: {e}"))?;
            self.same(0, self.shadow.size(), &found)
                .map_err(|e| format!("the whole file through mount {i}: {e}"))?;
        }
        Ok(())
    }

    fn same(&self, at: u64, len: u64, found: &[u8]) -> Result<(), String> {
        let expected = self.shadow.read(at, len).len();
        self.shadow.compare(at, found).map_err(|d| d.to_string())?;
        if found.len() != expected {
            return Err(format!("read {} bytes, not {expected}", found.len()));
        }
        Ok(())
    }

    fn operate(&mut self, step: Step) -> Result<(), String> {
        let (n, mount, size) = (step.number, &mut self.mounts[step.via], self.shadow.size());
        let direct = self.cfg.direct;
        match step.op {
            Op::Read { at, len } => {
                if let Some(found) = done(mount.read(at, len), unaligned(direct, &[at, len]))? {
                    self.same(at, len, &found)?;
                }
            }
            Op::Write { at, len } => {
                let data = pattern(n, at, len as usize);
                if let Some(written) = done(mount.write(at, &data), unaligned(direct, &[at, len]))? {
                    all("written", written as u64, len)?;
                    self.shadow.write(n, at, &data);
                }
            }
            Op::Append { len } if size < self.cfg.size_max => {
                let data = pattern(n, size, len as usize);
                if let Some(written) = done(mount.append(&data), unaligned(direct, &[size, len]))? {
                    all("appended", written as u64, len)?;
                    self.shadow.write(n, size, &data);
                }
            }
            Op::Append { .. } => {}
            // A mapping ends with the file.
            Op::MapRead { at, .. } | Op::MapWrite { at, .. } if at >= size => {}
            Op::MapRead { at, len } => {
                let len = len.min(size - at);
                if let Some(found) = done(mount.map_read(at, len), &[])? {
                    self.same(at, len, &found)?;
                }
            }
            Op::MapWrite { at, len } => {
                let data = pattern(n, at, len.min(size - at) as usize);
                done(mount.map_write(at, &data), &[])?;
                self.shadow.write(n, at, &data);
            }
            Op::Truncate { size } => {
                done(mount.truncate(size), &[])?;
                self.shadow.resize(size);
            }
            Op::Punch { at, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if done(mount.fallocate(mode, at, len), UNSUPPORTED)?.is_some() {
                    self.shadow.zero(n, at, len);
                }
            }
            Op::Zero { at, len } => {
                let mode = FallocateFlags::ZERO_RANGE;
                if done(mount.fallocate(mode, at, len), UNSUPPORTED)?.is_some() {
                    self.shadow.allocate(at, len, false);
                    self.shadow.zero(n, at, len);
                }
            }
            Op::Allocate { at, len, keep_size } => {
                let mode = if keep_size {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                if done(mount.fallocate(mode, at, len), UNSUPPORTED)?.is_some() {
                    self.shadow.allocate(at, len, keep_size);
                }
            }
            Op::Copy { from, to, len } => self.copy(step.via, n, from, to, len)?,
            Op::SeekData { at } => self.seek_data(step.via, at)?,
            Op::SeekHole { at } => self.seek_hole(step.via, at)?,
            Op::Reopen => drop(done(mount.reopen(), &[])?),
            Op::Fsync => drop(done(mount.fsync(false), &[])?),
            Op::Fdatasync => drop(done(mount.fsync(true), &[])?),
        }
        Ok(())
    }

    /// A copy may stop early; what it says it copied is there.
    fn copy(&mut self, via: usize, n: u32, from: u64, to: u64, len: u64) -> Result<(), String> {
        let refused = [UNSUPPORTED, unaligned(self.cfg.direct, &[from, to, len])].concat();
        let Some(copied) = done(self.mounts[via].copy(from, to, len), &refused)? else {
            return Ok(());
        };
        let there = self.shadow.read(from, len).len() as u64;
        if copied > there || (copied == 0 && there > 0) {
            return Err(format!("copied {copied} bytes of {there}"));
        }
        self.shadow.copy(n, from, to, copied);
        Ok(())
    }

    /// Data may be found where there is none, never the other way round.
    fn seek_data(&self, via: usize, at: u64) -> Result<(), String> {
        let size = self.shadow.size();
        match self.mounts[via].seek(SeekFrom::Data(at)) {
            Ok(data) if data >= at && data < size && self.shadow.is_zero(at, data) => Ok(()),
            Ok(data) => Err(format!("SEEK_DATA gave {data}, which is behind data or no data")),
            Err(e) if is(&e, Errno::NXIO) && self.shadow.is_zero(at, size) => Ok(()),
            Err(e) => Err(format!("SEEK_DATA failed: {e}")),
        }
    }

    /// A hole reads as zero, and the file's end is one.
    fn seek_hole(&self, via: usize, at: u64) -> Result<(), String> {
        let size = self.shadow.size();
        match self.mounts[via].seek(SeekFrom::Hole(at)) {
            Ok(hole) if hole >= at && at < size && hole <= size && self.shadow.is_zero(hole, hole + 1) => {
                Ok(())
            }
            Ok(hole) => Err(format!("SEEK_HOLE gave {hole}, where no hole is")),
            Err(e) if is(&e, Errno::NXIO) && at >= size => Ok(()),
            Err(e) => Err(format!("SEEK_HOLE failed: {e}")),
        }
    }
}

fn is(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}

fn all(what: &str, n: u64, of: u64) -> Result<(), String> {
    if n == of {
        Ok(())
    } else {
        Err(format!("{what} {n} bytes of {of}"))
    }
}

/// How a direct run's operation may be refused that is not aligned to the blocks of any disk.
fn unaligned(direct: bool, numbers: &[u64]) -> &'static [Errno] {
    if direct && numbers.iter().any(|n| n % 4096 != 0) {
        &[Errno::INVAL]
    } else {
        &[]
    }
}

/// The answer; nothing where it was refused as it may be, which has changed nothing.
fn done<T>(answer: io::Result<T>, allowed: &[Errno]) -> Result<Option<T>, String> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(e) if allowed.iter().any(|errno| is(&e, *errno)) => Ok(None),
        Err(e) => Err(format!("failed: {e}")),
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes differ from offset {:#x} on: found {:02x?}, expected {:02x?} (",
            self.bytes, self.at, self.found, self.expected
        )?;
        match self.writer {
            0 => write!(f, "never written)"),
            n => write!(f, "of step {n})"),
        }
    }
}
