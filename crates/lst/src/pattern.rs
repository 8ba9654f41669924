//! The data pattern of bulk tests, and its verification. No I/O.
//!
//! Every 8-byte word is the same number. A request states how much of the data the receiver checks:
//! nothing, the first and the last word of each page, or everything. Bulk data is a slice of one
//! buffer, unless it is corrupted on purpose.

use bytes::Bytes;
use lnet::Payload;
use std::sync::OnceLock;
use wire::{LNET_MTU, LST_BRW_CHECK_DISCARD, LST_BRW_CHECK_FULL, LST_BRW_CHECK_NONE, LST_BRW_CHECK_SIMPLE};

/// The repeated word.
const MAGIC: u64 = 0xeeb0_eeb1_eeb2_eeb3;
/// Size of a word, in bytes.
const WORD: usize = size_of::<u64>();
/// Size of a page of bulk data, in bytes.
pub const PAGE: usize = 4096;

/// The part of a bulk transfer that the receiver checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing. `LST_BRW_CHECK_DISCARD`, which allows the receiver to discard the data, is the same
    /// here.
    None,
    /// The first and the last 8 bytes of each page.
    Simple,
    /// Everything.
    Full,
}

impl Check {
    /// Parses a request's flags; `None` if unknown.
    pub(crate) fn from_wire(flags: u32) -> Option<Check> {
        Some(match flags {
            LST_BRW_CHECK_NONE | LST_BRW_CHECK_DISCARD => Check::None,
            LST_BRW_CHECK_SIMPLE => Check::Simple,
            LST_BRW_CHECK_FULL => Check::Full,
            _ => return None,
        })
    }
}

/// `len` bytes of the pattern, at most [`LNET_MTU`].
pub(crate) fn pattern(len: usize) -> Bytes {
    static ALL: OnceLock<Bytes> = OnceLock::new();
    let all = ALL.get_or_init(|| MAGIC.to_le_bytes().repeat(LNET_MTU as usize / WORD).into());
    all.slice(..len.min(all.len()))
}

/// `len` bytes of the pattern, with the first word of each page corrupted.
pub(crate) fn corrupted_pattern(len: usize) -> Bytes {
    let mut bytes = pattern(len).to_vec();
    for page in bytes.chunks_mut(PAGE) {
        if let Some(first) = page.first_mut() {
            *first ^= 1;
        }
    }
    bytes.into()
}

/// Whether the part of `payload` that `check` selects matches the pattern. The payload begins
/// `offset` bytes into a page of the receiver's buffer.
pub(crate) fn matches(payload: &Payload, offset: usize, check: Check) -> bool {
    if check == Check::None {
        return true;
    }
    let bytes = payload.clone().into_bytes();
    let expected = pattern(bytes.len());
    match check {
        Check::None => true,
        Check::Full => bytes == expected,
        Check::Simple => {
            let same = |from: usize, to: usize| bytes.get(from..to) == expected.get(from..to);
            let mut from = 0;
            while from < bytes.len() {
                let to = bytes.len().min(from + PAGE - (offset + from) % PAGE);
                if !same(from, to.min(from + WORD)) || !same(to.saturating_sub(WORD).max(from), to) {
                    return false;
                }
                from = to;
            }
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, corrupted_pattern, matches, pattern};
    use bytes::Bytes;
    use lnet::Payload;

    fn pattern_with_wrong_byte(len: usize, offset: usize) -> Payload {
        let mut bytes = pattern(len).to_vec();
        bytes[offset] ^= 1;
        Payload::from(bytes)
    }

    #[test]
    fn full_check_detects_any_wrong_byte() {
        for len in [1, 8, 4096, 4100, 10_000] {
            assert!(matches(&pattern(len).into(), 0, Check::Full));
            for wrong in [0, len / 2, len - 1] {
                assert!(
                    !matches(&pattern_with_wrong_byte(len, wrong), 0, Check::Full),
                    "{wrong} of {len}"
                );
            }
        }
        let pieces: Payload = vec![pattern(8), pattern(4088), Bytes::from_static(b"wrong!!!")].into();
        assert!(!matches(&pieces, 0, Check::Full));
    }

    #[test]
    fn simple_check_detects_errors_at_the_ends_of_pages() {
        let detects =
            |wrong, offset| !matches(&pattern_with_wrong_byte(10_000, wrong), offset, Check::Simple);
        for wrong in [0, 7, 4088, 4095, 4096, 8191, 8192, 9999] {
            assert!(detects(wrong, 0), "{wrong}");
        }
        for wrong in [8, 4087, 5000] {
            assert!(!detects(wrong, 0), "{wrong}");
        }
        // A buffer that begins 96 bytes into a page has 4000 bytes in this page.
        assert!(detects(3999, 96) && detects(4000, 96) && !detects(4095, 96));
        assert!(matches(&pattern(10_000).into(), 96, Check::Simple));
        assert!(matches(&pattern(3).into(), 0, Check::Simple));
    }

    #[test]
    fn both_checks_detect_corruption_and_no_check_ignores_it() {
        let bad = Payload::from(corrupted_pattern(9000));
        assert!(!matches(&bad, 0, Check::Full) && !matches(&bad, 0, Check::Simple));
        assert!(matches(&bad, 0, Check::None));
    }
}
