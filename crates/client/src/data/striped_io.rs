//! Results of reads and writes that span several objects of a file.

use bytes::Bytes;
use wire::Errno;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The pieces of a read, in order. Missing bytes become zeros if any byte follows them.
#[derive(Default)]
pub(super) struct StripedRead {
    pub(super) data: Vec<Bytes>,
    /// Bytes in `data`.
    pub(super) len: u64,
    /// Whether `data` has zeros that no object returned.
    pub(super) has_added_zeros: bool,
}

impl StripedRead {
    /// Appends the bytes of the next piece, which begins `start` bytes after the begin of the read.
    pub(super) fn push(&mut self, start: u64, data: Vec<Bytes>) {
        let received: u64 = data.iter().map(|d| d.len() as u64).sum();
        if received > 0 {
            self.fill_to(start);
            self.len += received;
            self.data.extend(data);
        }
    }

    /// Appends zeros up to a total length of `len` bytes.
    pub(super) fn fill_to(&mut self, len: u64) {
        while self.len < len {
            let zeros = (len - self.len).min(ZEROS.len() as u64);
            self.data.push(Bytes::from_static(&ZEROS[..zeros as usize]));
            self.len += zeros;
            self.has_added_zeros = true;
        }
    }
}

/// The progress of a striped write. A partial write returns its length without the error; the
/// program's next write encounters the error.
#[derive(Default)]
pub(super) struct StripedWrite {
    /// Bytes written so far.
    bytes: u64,
    error: Option<Errno>,
}

impl StripedWrite {
    /// Adds the result of a part of `len` bytes; returns whether all of it was written.
    pub(super) fn add(&mut self, len: u64, written: Result<u64, Errno>) -> bool {
        match written {
            Ok(bytes) => self.bytes += bytes,
            Err(e) => self.error = Some(e),
        }
        self.error.is_none() && written == Ok(len)
    }

    pub(super) fn result(self) -> Result<usize, Errno> {
        match self.error {
            Some(e) if self.bytes == 0 => Err(e),
            _ => Ok(self.bytes as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StripedRead;
    use bytes::Bytes;

    #[test]
    fn a_hole_between_pieces_reads_as_zeros_and_the_end_of_file_is_short() {
        let mut out = StripedRead::default();
        out.push(0, vec![Bytes::from_static(b"ab")]);
        out.push(4, vec![Bytes::from_static(b"cd")]);
        out.push(8, Vec::new());
        assert_eq!((out.data.concat(), out.len), (b"ab\0\0cd".to_vec(), 6));
        out.fill_to(7);
        assert_eq!(out.data.concat(), b"ab\0\0cd\0");
    }
}
