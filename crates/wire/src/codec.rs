//! Bounded reading and writing of little-endian bytes.
//!
//! A [`Reader`] never reads past its slice and never takes the size of an allocation from a length
//! that it has read. Every failure is a [`WireError`] with the expected and the found value.
//! Integers are little-endian: Nacre sends no others, and refuses messages of big-endian peers by
//! their byte-swapped magic.

use bytes::Bytes;
use thiserror::Error;

/// The reason why bytes or a text cannot be parsed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// Too few bytes; for a message of fixed size, also too many.
    #[error("{what}: needs {expected} bytes, found {found}")]
    Short {
        /// The structure or field.
        what: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// More bytes or items than accepted.
    #[error("{what}: found {found}, limit {limit}")]
    TooLong {
        /// The structure or field.
        what: &'static str,
        /// The greatest accepted number.
        limit: usize,
        /// The number of bytes or items found.
        found: usize,
    },
    /// A wrong magic number.
    #[error("{what}: magic {found:#x}, expected {expected:#x}")]
    Magic {
        /// The structure.
        what: &'static str,
        /// The expected magic.
        expected: u64,
        /// The magic found.
        found: u64,
    },
    /// A value that the field must not have.
    #[error("{what}: found {found:#x}, expected {expected}")]
    Value {
        /// The field.
        what: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value found.
        found: u64,
    },
    /// Text that is malformed (not UTF-8, or not of the expected form).
    #[error("{what}: {text:?} is not {expected}")]
    Text {
        /// The kind of text.
        what: &'static str,
        /// The expected form.
        expected: &'static str,
        /// The text, truncated.
        text: String,
    },
}

/// `Result` with a [`WireError`].
pub type Result<T> = std::result::Result<T, WireError>;

/// Rounds up to the next multiple of 8, the alignment of buffers and records.
pub const fn round_up8(n: usize) -> usize {
    (n + 7) & !7
}

/// Reads little-endian values from a slice, front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`; `what` names them in errors.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, what }
    }

    /// Takes the next `n` bytes.
    ///
    /// # Errors
    ///
    /// Fewer bytes are left.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(WireError::Short {
                what: self.what,
                expected: n,
                found: self.rest.len(),
            }),
        }
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// Fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(*head)
            }
            None => Err(WireError::Short {
                what: self.what,
                expected: N,
                found: self.rest.len(),
            }),
        }
    }

    /// Takes one byte.
    ///
    /// # Errors
    ///
    /// No byte is left.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Takes two bytes.
    ///
    /// # Errors
    ///
    /// Fewer bytes are left.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Takes four bytes.
    ///
    /// # Errors
    ///
    /// Fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes eight bytes.
    ///
    /// # Errors
    ///
    /// Fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Writes little-endian values into a growing buffer.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    buf: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with capacity for `n` bytes.
    pub fn with_capacity(n: usize) -> Self {
        Writer {
            buf: Vec::with_capacity(n),
        }
    }

    /// Appends bytes unchanged.
    pub fn put(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) {
        self.buf.push(v);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, v: u16) {
        self.put(&v.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, v: u32) {
        self.put(&v.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.put(&v.to_le_bytes());
    }

    /// Appends zeros until the length is a multiple of 8.
    pub fn align8(&mut self) {
        self.buf.resize(round_up8(self.buf.len()), 0);
    }

    /// Appends zeros until the length is `len`; does nothing if the writer is longer already.
    pub fn pad_to(&mut self, len: usize) {
        if self.buf.len() < len {
            self.buf.resize(len, 0);
        }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// The bytes written.
    pub fn finish(self) -> Bytes {
        Bytes::from(self.buf)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Reader, WireError, Writer};

    #[test]
    fn written_values_are_read_back() {
        let mut w = Writer::new();
        w.u8(1);
        w.u16(2);
        w.u32(3);
        w.u64(4);
        w.align8();
        let bytes = w.finish();
        assert_eq!(bytes.len(), 16);
        let mut r = Reader::new("test", &bytes);
        assert_eq!(
            (
                r.u8().unwrap(),
                r.u16().unwrap(),
                r.u32().unwrap(),
                r.u64().unwrap()
            ),
            (1, 2, 3, 4)
        );
        assert_eq!(r.rest(), [0]);
    }

    #[test]
    fn a_short_slice_is_an_error_with_both_lengths() {
        let err = Reader::new("lu_fid", &[0; 7]).u64().unwrap_err();
        assert_eq!(
            err,
            WireError::Short {
                what: "lu_fid",
                expected: 8,
                found: 7
            }
        );
        assert_eq!(err.to_string(), "lu_fid: needs 8 bytes, found 7");
    }
}
