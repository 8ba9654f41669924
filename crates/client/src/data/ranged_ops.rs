//! Parameters of fallocate and lseek, and the result of an append.

use std::ops::Range;

/// A change of the space of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate space. Extends the file to the end of the range, except with `keep_size`.
    Allocate {
        /// Whether the file's size stays as it is.
        keep_size: bool,
    },
    /// Release the space: the range reads as zeros.
    PunchHole,
    /// Let the range read as zeros.
    ZeroRange {
        /// Whether the file's size stays as it is.
        keep_size: bool,
    },
}

impl Fallocate {
    /// fallocate(2)'s mode bits.
    pub(super) fn mode(self) -> u32 {
        const KEEP_SIZE: u32 = 0x1;
        const PUNCH_HOLE: u32 = 0x2;
        const ZERO_RANGE: u32 = 0x10;
        let keep = if self.keeps_size() { KEEP_SIZE } else { 0 };
        keep | match self {
            Fallocate::Allocate { .. } => 0,
            Fallocate::PunchHole => PUNCH_HOLE,
            Fallocate::ZeroRange { .. } => ZERO_RANGE,
        }
    }

    pub(super) fn keeps_size(self) -> bool {
        match self {
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => keep_size,
            Fallocate::PunchHole => true,
        }
    }
}

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The bytes were written.
    Written {
        /// The former end of the file.
        offset: u64,
        /// Number of written bytes.
        bytes: usize,
    },
    /// The layout is not current: nothing was written.
    OldLayout,
    /// This range of the file has no objects yet: nothing was written.
    NeedsObjects(Range<u64>),
}

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}
