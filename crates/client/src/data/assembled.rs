//! The result of a read, put together from pieces of several objects.

use bytes::Bytes;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The pieces of a read, in order. Bytes that an object does not have are zeros if any byte follows them.
#[derive(Default)]
pub(super) struct Assembled {
    pub(super) data: Vec<Bytes>,
    len: u64,
    /// Bytes behind `len` that the objects did not return.
    pub(super) missing: u64,
    /// Whether some of it are zeros that no object returned.
    pub(super) has_added_zeros: bool,
}

impl Assembled {
    /// Adds the bytes of the next piece, of which `wanted` were asked for.
    pub(super) fn push(&mut self, data: Vec<Bytes>, wanted: u64) {
        let got: u64 = data.iter().map(|d| d.len() as u64).sum();
        if got > 0 {
            self.fill_to(self.len + self.missing);
            self.len += got;
            self.data.extend(data);
        }
        self.missing += wanted - got.min(wanted);
    }

    /// Zeros up to `len` bytes in all.
    pub(super) fn fill_to(&mut self, len: u64) {
        while self.len < len {
            let zeros = (len - self.len).min(ZEROS.len() as u64);
            self.data.push(Bytes::from_static(&ZEROS[..zeros as usize]));
            self.len += zeros;
            self.has_added_zeros = true;
        }
        self.missing = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Assembled;
    use bytes::Bytes;

    #[test]
    fn a_hole_between_pieces_reads_as_zeros_and_the_end_stays_short() {
        let mut out = Assembled::default();
        out.push(vec![Bytes::from_static(b"ab")], 4);
        out.push(vec![Bytes::from_static(b"cd")], 4);
        assert_eq!(out.data.concat(), b"ab\0\0cd");
        assert_eq!(out.missing, 2);
        out.fill_to(7);
        assert_eq!(out.data.concat(), b"ab\0\0cd\0");
    }
}
