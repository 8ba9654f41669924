//! Files that a task reads and writes at offsets.

use crate::BenchError;
use bytes::Bytes;

/// How a task opens a file for its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataMode {
    /// Also writes; a missing file is created. Otherwise the file must exist.
    pub write: bool,
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
}

impl DataMode {
    /// Only reads.
    pub const READ: DataMode = DataMode {
        write: false,
        direct: false,
    };
    /// Reads and writes.
    pub const WRITE: DataMode = DataMode {
        write: true,
        direct: false,
    };
}

/// An open file of a subject. Its methods block. A file that is dropped without
/// [`DataFile::close`] is closed without a report.
pub trait DataFile {
    /// Writes all bytes at an offset.
    fn write_at(&self, offset: u64, data: &Bytes) -> Result<(), BenchError>;
    /// Fills the buffer from an offset; returns fewer bytes only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, BenchError>;
    /// Waits until the data is on disk.
    fn sync(&self) -> Result<(), BenchError>;
    /// Closes the file. On a path, only [`DataFile::sync`] reports data that could not be written.
    fn close(self: Box<Self>) -> Result<(), BenchError>;
}

/// Alignment that direct I/O needs of buffers in memory, in bytes.
const ALIGNMENT: usize = 4096;

/// A buffer of zeros for direct I/O.
pub(crate) struct AlignedBuffer {
    space: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` bytes.
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let space = vec![0; len + ALIGNMENT];
        let start = space.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        AlignedBuffer { space, start, len }
    }

    /// The bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.space[self.start..self.start + self.len]
    }

    /// The bytes, to write them. They keep their place in memory.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from(self.space).slice(self.start..self.start + self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, AlignedBuffer};

    #[test]
    fn buffers_are_aligned() {
        for len in [1, 4096, 100_000] {
            let mut buffer = AlignedBuffer::new(len);
            buffer.bytes_mut().fill(7);
            assert_eq!(buffer.bytes_mut().as_ptr() as usize % ALIGNMENT, 0);
            let frozen = buffer.freeze();
            assert_eq!(frozen.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(frozen, vec![7; len]);
        }
    }
}
