//! What the bulk of a test holds, and whether it arrived. Pure.
//!
//! Every 8 bytes are the same number. One side says with the request how much of it the other is to look at: nothing, the
//! first and the last 8 bytes of each page, or everything. All bulks are slices of one buffer.

use bytes::Bytes;
use lnet::Payload;
use std::sync::OnceLock;
use wire::{LNET_MTU, LST_BRW_CHECK_DISCARD, LST_BRW_CHECK_FULL, LST_BRW_CHECK_NONE, LST_BRW_CHECK_SIMPLE};

const MAGIC: u64 = 0xeeb0_eeb1_eeb2_eeb3;
const WORD: usize = size_of::<u64>();
pub(crate) const PAGE: usize = 4096;

/// How much of a bulk is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing; nor is it kept where it need not be (`LST_BRW_CHECK_DISCARD`).
    None,
    /// The first and the last 8 bytes of each page.
    Simple,
    /// Everything.
    Full,
}

impl Check {
    /// What a request's flags say; `None` if nobody knows them.
    pub(crate) fn from_wire(flags: u32) -> Option<Check> {
        Some(match flags {
            LST_BRW_CHECK_NONE | LST_BRW_CHECK_DISCARD => Check::None,
            LST_BRW_CHECK_SIMPLE => Check::Simple,
            LST_BRW_CHECK_FULL => Check::Full,
            _ => return None,
        })
    }
}

/// `len` bytes as they have to be, at most [`LNET_MTU`].
pub(crate) fn good(len: usize) -> Bytes {
    static ALL: OnceLock<Bytes> = OnceLock::new();
    let all = ALL.get_or_init(|| MAGIC.to_le_bytes().repeat(LNET_MTU as usize / WORD).into());
    all.slice(..len.min(all.len()))
}

/// `len` bytes of which the first word of each page is wrong.
pub(crate) fn damaged(len: usize) -> Bytes {
    let mut bytes = good(len).to_vec();
    for page in bytes.chunks_mut(PAGE) {
        if let Some(first) = page.first_mut() {
            *first ^= 1;
        }
    }
    bytes.into()
}

/// Whether `payload`, which began `offset` bytes into a page at its receiver, is as it has to be.
pub(crate) fn is_good(payload: &Payload, offset: usize, check: Check) -> bool {
    if check == Check::None {
        return true;
    }
    let bytes = payload.clone().into_bytes();
    let good = good(bytes.len());
    match check {
        Check::None => true,
        Check::Full => bytes == good,
        Check::Simple => {
            let same = |from: usize, to: usize| bytes.get(from..to) == good.get(from..to);
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
    use super::{Check, damaged, good, is_good};
    use bytes::Bytes;
    use lnet::Payload;

    fn with(len: usize, wrong_at: usize) -> Payload {
        let mut bytes = good(len).to_vec();
        bytes[wrong_at] ^= 1;
        Payload::from(bytes)
    }

    #[test]
    fn a_full_check_sees_every_byte() {
        for len in [1, 8, 4096, 4100, 10_000] {
            assert!(is_good(&good(len).into(), 0, Check::Full));
            for wrong in [0, len / 2, len - 1] {
                assert!(!is_good(&with(len, wrong), 0, Check::Full), "{wrong} of {len}");
            }
        }
        let pieces: Payload = vec![good(8), good(4088), Bytes::from_static(b"wrong!!!")].into();
        assert!(!is_good(&pieces, 0, Check::Full));
    }

    #[test]
    fn a_simple_check_sees_both_ends_of_each_page() {
        let seen = |wrong, offset| !is_good(&with(10_000, wrong), offset, Check::Simple);
        for wrong in [0, 7, 4088, 4095, 4096, 8191, 8192, 9999] {
            assert!(seen(wrong, 0), "{wrong}");
        }
        for wrong in [8, 4087, 5000] {
            assert!(!seen(wrong, 0), "{wrong}");
        }
        // A buffer that begins 96 bytes into a page has 4000 bytes in its first.
        assert!(seen(3999, 96) && seen(4000, 96) && !seen(4095, 96));
        assert!(is_good(&good(10_000).into(), 96, Check::Simple));
        assert!(is_good(&good(3).into(), 0, Check::Simple));
    }

    #[test]
    fn damage_is_seen_by_both_checks_and_by_nobody_who_does_not_look() {
        let bad = Payload::from(damaged(9000));
        assert!(!is_good(&bad, 0, Check::Full) && !is_good(&bad, 0, Check::Simple));
        assert!(is_good(&bad, 0, Check::None));
    }
}
