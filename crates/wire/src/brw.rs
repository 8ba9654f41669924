//! What both ends of an OST_READ or OST_WRITE must agree on: how the bytes are split over memory
//! descriptors, and how their checksum is computed. Checked against captured traffic.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use simd_adler32::Adler32;
use std::ops::Range;

use crate::{
    OBD_CKSUM_ADLER, OBD_CKSUM_CRC32, OBD_CKSUM_CRC32C, OBD_FL_CKSUM_ADLER, OBD_FL_CKSUM_ALL,
    OBD_FL_CKSUM_CRC32, OBD_FL_CKSUM_CRC32C,
};

/// Niobufs are cut into fragments at these boundaries of the file.
const FRAGMENT: u64 = 4096;

/// Fragments in one memory descriptor: 1 MiB (`LNET_MTU`) of whole pages.
const FRAGMENTS_PER_MD: u64 = 256;

/// The lengths of the memory descriptors that carry `ranges`, in order. Every fragment, whole or part of a
/// page, takes the place of a page, so an unaligned transfer has a shorter first descriptor.
pub fn md_lengths(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u32> {
    let mut lengths = Vec::new();
    let (mut bytes, mut fragments) = (0u64, 0u64);
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if fragments == FRAGMENTS_PER_MD {
                lengths.push(bytes as u32);
                (bytes, fragments) = (0, 0);
            }
            // All the fragments that still fit, at once.
            let room = (at / FRAGMENT + FRAGMENTS_PER_MD - fragments) * FRAGMENT;
            let to = room.min(range.end);
            fragments += to.div_ceil(FRAGMENT) - at / FRAGMENT;
            bytes += to - at;
            at = to;
        }
    }
    if bytes > 0 {
        lengths.push(bytes as u32);
    }
    lengths
}

/// A checksum over bulk data, as negotiated in `ocd_cksum_types` and named in `o_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumType {
    /// CRC-32 (IEEE), without the final inversion.
    Crc32,
    /// Adler-32, as zlib's.
    Adler,
    /// CRC-32C (Castagnoli).
    Crc32c,
}

impl ChecksumType {
    /// All types that are implemented, as bits of `ocd_cksum_types`.
    pub const SUPPORTED: u32 = OBD_CKSUM_CRC32 | OBD_CKSUM_ADLER | OBD_CKSUM_CRC32C;

    /// The fastest of the types that both sides offer. Adler is what remains when nothing was agreed.
    pub fn preferred(types: u32) -> ChecksumType {
        if types & OBD_CKSUM_CRC32C != 0 {
            ChecksumType::Crc32c
        } else if types & OBD_CKSUM_CRC32 != 0 && types & OBD_CKSUM_ADLER == 0 {
            ChecksumType::Crc32
        } else {
            ChecksumType::Adler
        }
    }

    /// The type that `o_flags` names: an enumeration in `OBD_FL_CKSUM_ALL`; none means Adler. `None` for
    /// a type that is not implemented.
    pub fn from_flags(o_flags: u32) -> Option<ChecksumType> {
        match o_flags & OBD_FL_CKSUM_ALL {
            OBD_FL_CKSUM_CRC32 => Some(ChecksumType::Crc32),
            OBD_FL_CKSUM_CRC32C => Some(ChecksumType::Crc32c),
            0 | OBD_FL_CKSUM_ADLER => Some(ChecksumType::Adler),
            _ => None,
        }
    }

    /// The bits for `o_flags`.
    pub fn flags(self) -> u32 {
        match self {
            ChecksumType::Crc32 => OBD_FL_CKSUM_CRC32,
            ChecksumType::Adler => OBD_FL_CKSUM_ADLER,
            ChecksumType::Crc32c => OBD_FL_CKSUM_CRC32C,
        }
    }

    /// The checksum of `data` in order.
    pub fn of<'a>(self, data: impl IntoIterator<Item = &'a Bytes>) -> u32 {
        match self {
            ChecksumType::Adler => {
                let mut adler = Adler32::new();
                data.into_iter().for_each(|d| adler.write(d));
                adler.finish()
            }
            ChecksumType::Crc32 => !crc(CrcAlgorithm::Crc32IsoHdlc, data),
            ChecksumType::Crc32c => crc(CrcAlgorithm::Crc32Iscsi, data),
        }
    }
}

fn crc<'a>(algorithm: CrcAlgorithm, data: impl IntoIterator<Item = &'a Bytes>) -> u32 {
    let mut digest = Digest::new(algorithm);
    data.into_iter().for_each(|d| digest.update(d));
    digest.finalize() as u32
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

    #[test]
    fn checksums_have_the_published_values() {
        let check = [Bytes::from_static(b"1234"), Bytes::from_static(b"56789")];
        assert_eq!(ChecksumType::Crc32c.of(&check), 0xe306_9283);
        assert_eq!(ChecksumType::Crc32.of(&check), !0xcbf4_3926);
        assert_eq!(ChecksumType::Adler.of(&check), 0x091e_01de);
    }

    #[test]
    fn checksums_are_those_of_a_captured_write() {
        // 64 KiB of 'C' with checksum_type=crc32c, crc32 and adler: o_cksum of the captured OST_WRITEs.
        let page = Bytes::from(vec![b'C'; 4096]);
        let data = vec![page; 16];
        assert_eq!(ChecksumType::Crc32c.of(&data), 612_868_921);
        assert_eq!(ChecksumType::Crc32.of(&data), 3_840_061_972);
        assert_eq!(ChecksumType::Adler.of(&data), 527_893_486);
    }
}
