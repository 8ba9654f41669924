//! The split of the data of an OST_READ or OST_WRITE into LNet memory descriptors (MDs). Client and
//! server must split in the same way. The split agrees with captured traffic of Lustre.

use std::ops::Range;

/// Niobufs are split into fragments at file offsets that are multiples of this number of bytes.
const FRAGMENT: u64 = 4096;

/// Fragments per MD: 1 MiB (`LNET_MTU`) of whole pages.
const FRAGMENTS_PER_MD: u64 = 256;

/// The lengths in bytes of the MDs for the file ranges `ranges`, in order. A fragment that is only
/// a part of a page counts as a whole page, so the first MD of an unaligned transfer is shorter.
pub fn md_lengths(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u32> {
    let mut lengths = Vec::new();
    let (mut bytes, mut fragments) = (0u64, 0u64);
    for range in ranges {
        let mut offset = range.start;
        while offset < range.end {
            if fragments == FRAGMENTS_PER_MD {
                lengths.push(bytes as u32);
                (bytes, fragments) = (0, 0);
            }
            // Adds at once all fragments that still fit into this MD.
            let full_offset = (offset / FRAGMENT + FRAGMENTS_PER_MD - fragments) * FRAGMENT;
            let end = full_offset.min(range.end);
            fragments += end.div_ceil(FRAGMENT) - offset / FRAGMENT;
            bytes += end - offset;
            offset = end;
        }
    }
    if bytes > 0 {
        lengths.push(bytes as u32);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_transfer_fills_every_descriptor() {
        assert_eq!(md_lengths(std::iter::once(0..4 << 20)), vec![1 << 20; 4]);
        assert_eq!(md_lengths(std::iter::once(0..(1 << 20) + 5)), vec![1 << 20, 5]);
        assert_eq!(md_lengths([]), Vec::<u32>::new());
    }

    #[test]
    fn a_partial_first_page_makes_a_shorter_first_descriptor() {
        assert_eq!(
            md_lengths(std::iter::once(100..100 + (1 << 20))),
            vec![(1 << 20) - 100, 100]
        );
        assert_eq!(
            md_lengths([0..10, 8192..8192 + (1 << 20)]),
            vec![10 + (1 << 20) - 4096, 4096]
        );
    }
}
