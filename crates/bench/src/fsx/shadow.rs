//! The copy of the file in memory, which is its expected content, with the step that wrote each
//! byte.

/// A difference between the file and its expected content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Offset of the first wrong byte.
    pub(super) offset: u64,
    /// Number of wrong bytes.
    pub(super) bytes: usize,
    /// At most 16 bytes from the first wrong one on, as found.
    pub(super) found: Vec<u8>,
    /// The expected bytes in their place.
    pub(super) expected: Vec<u8>,
    /// Number of the last step that wrote the first wrong byte; 0: no step, so the byte must be
    /// zero.
    pub(super) writer: u32,
}

/// Maximum number of bytes of a difference in the report.
const BYTES_SHOWN: usize = 16;

/// The expected content of the file.
#[derive(Default)]
pub(super) struct Shadow {
    data: Vec<u8>,
    /// Number of the last step that wrote each byte; 0: no step.
    writers: Vec<u32>,
}

/// The byte that a step writes at an offset: never zero, and different for neighbouring steps and
/// offsets.
fn byte(step: u32, offset: u64) -> u8 {
    (1 + (u64::from(step) * 41 + offset + (offset >> 8)) % 255) as u8
}

/// The data that a step writes.
pub(super) fn pattern(step: u32, offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(|offset| byte(step, offset)).collect()
}

impl Shadow {
    pub(super) fn size(&self) -> u64 {
        self.data.len() as u64
    }

    pub(super) fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        self.writers.resize(size as usize, 0);
    }

    fn grow(&mut self, end: u64) {
        self.resize(end.max(self.size()));
    }

    pub(super) fn write(&mut self, step: u32, offset: u64, data: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        self.grow(end as u64);
        self.data[start..end].copy_from_slice(data);
        self.writers[start..end].fill(step);
    }

    /// The content of a range, up to the end of the file.
    pub(super) fn read(&self, offset: u64, len: u64) -> &[u8] {
        let end = self.size().min(offset + len);
        &self.data[offset.min(end) as usize..end as usize]
    }

    /// Zeroes a range, up to the end of the file, as written by `step`.
    pub(super) fn zero(&mut self, step: u32, offset: u64, len: u64) {
        let zeros = vec![0; self.read(offset, len).len()];
        if !zeros.is_empty() {
            self.write(step, offset, &zeros);
        }
    }

    /// Extends the file to the end of a range, unless `keep_size`.
    pub(super) fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) {
        if !keep_size {
            self.grow(offset + len);
        }
    }

    pub(super) fn copy(&mut self, step: u32, from: u64, to: u64, len: u64) {
        let data = self.read(from, len).to_vec();
        if !data.is_empty() {
            self.write(step, to, &data);
        }
    }

    /// Whether a range, up to the end of the file, is all zeros.
    pub(super) fn is_zero(&self, offset: u64, end: u64) -> bool {
        self.read(offset, end.saturating_sub(offset))
            .iter()
            .all(|&b| b == 0)
    }

    /// Compares data read at an offset with the expected content.
    pub(super) fn compare(&self, offset: u64, found: &[u8]) -> Result<(), Difference> {
        let expected = self.read(offset, found.len() as u64);
        if expected == found {
            return Ok(());
        }
        let wrong = |(i, b): (usize, &u8)| expected.get(i) != Some(b);
        let Some(first) = found.iter().enumerate().position(wrong) else {
            return Ok(());
        };
        let shown = |data: &[u8]| data.iter().skip(first).take(BYTES_SHOWN).copied().collect();
        Err(Difference {
            offset: offset + first as u64,
            bytes: found.iter().enumerate().filter(|&x| wrong(x)).count(),
            found: shown(found),
            expected: shown(expected),
            writer: self.writers.get(offset as usize + first).copied().unwrap_or(0),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_the_first_wrong_byte_and_its_step() {
        let mut shadow = Shadow::default();
        shadow.write(7, 10, &pattern(7, 10, 20));
        let mut found = shadow.read(0, 100).to_vec();
        assert_eq!((found.len(), shadow.compare(0, &found)), (30, Ok(())));
        found[15] ^= 1;
        found[29] ^= 1;
        let difference = shadow.compare(0, &found).unwrap_err();
        assert_eq!(
            (difference.offset, difference.bytes, difference.writer),
            (15, 2, 7)
        );
        assert_eq!(difference.expected.len(), 15);
    }

    #[test]
    fn truncated_and_extended_range_is_zero() {
        let mut shadow = Shadow::default();
        shadow.write(1, 0, &pattern(1, 0, 8));
        shadow.resize(4);
        shadow.allocate(0, 6, false);
        shadow.allocate(0, 60, true);
        assert!(shadow.size() == 6 && shadow.is_zero(4, 6) && !shadow.is_zero(3, 6));
        shadow.zero(2, 1, 100);
        assert!(shadow.size() == 6 && shadow.is_zero(1, 6));
        shadow.copy(3, 0, 9, 1);
        assert_eq!((shadow.size(), shadow.read(9, 5).len()), (10, 1));
    }
}
