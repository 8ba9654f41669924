//! Checksums of the data of an OST_READ or OST_WRITE. The tests compare them with captured traffic.
//!
//! The T10 types have two steps: each sector of the file gets a guard tag of 16 bits, as on disks
//! with protection information, and the checksum is Adler-32 of all guard tags. The guard tag of a
//! partly transferred sector covers the transferred bytes. So the T10 types depend on file offsets.

use std::ops::Range;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use simd_adler32::Adler32;

use crate::{
    OBD_CKSUM_ADLER, OBD_CKSUM_CRC32, OBD_CKSUM_CRC32C, OBD_CKSUM_T10CRC4K, OBD_CKSUM_T10CRC512,
    OBD_CKSUM_T10IP4K, OBD_CKSUM_T10IP512, OBD_FL_CKSUM_ADLER, OBD_FL_CKSUM_ALL, OBD_FL_CKSUM_CRC32,
    OBD_FL_CKSUM_CRC32C, OBD_FL_CKSUM_T10CRC4K, OBD_FL_CKSUM_T10CRC512, OBD_FL_CKSUM_T10IP4K,
    OBD_FL_CKSUM_T10IP512,
};

/// A checksum type for bulk data, negotiated in `ocd_cksum_types` and named in `o_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumType {
    /// CRC-32 (IEEE) without the final inversion.
    Crc32,
    /// Adler-32 as in zlib.
    Adler,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// Guard tags: the internet checksum (RFC 1071) of each sector of 512 bytes.
    T10Ip512,
    /// Guard tags: the internet checksum of each sector of 4096 bytes.
    T10Ip4K,
    /// Guard tags: CRC-16/T10-DIF of each sector of 512 bytes.
    T10Crc512,
    /// Guard tags: CRC-16/T10-DIF of each sector of 4096 bytes.
    T10Crc4K,
}

use ChecksumType::{Adler, Crc32, Crc32c, T10Crc4K, T10Crc512, T10Ip4K, T10Ip512};

impl ChecksumType {
    /// All types in order of preference. CRC-32C is first because CPUs have an instruction for it.
    pub const ALL: [ChecksumType; 7] = [Crc32c, Adler, Crc32, T10Ip4K, T10Ip512, T10Crc4K, T10Crc512];

    /// All types as bits of `ocd_cksum_types`.
    pub fn supported() -> u32 {
        ChecksumType::ALL.iter().fold(0, |bits, ty| bits | ty.bit())
    }

    /// The preferred type among `types`, the bits of `ocd_cksum_types` that both peers offer; Adler
    /// if `types` has no known bit.
    pub fn preferred(types: u32) -> ChecksumType {
        let mut all = ChecksumType::ALL.into_iter();
        all.find(|ty| types & ty.bit() != 0).unwrap_or(Adler)
    }

    /// The type that `o_flags` names in the bits `OBD_FL_CKSUM_ALL`; Adler if these bits are zero.
    /// `None` for an unknown value.
    pub fn from_flags(o_flags: u32) -> Option<ChecksumType> {
        match o_flags & OBD_FL_CKSUM_ALL {
            0 => Some(Adler),
            named => ChecksumType::ALL.into_iter().find(|ty| ty.flags() == named),
        }
    }

    /// The bits in `o_flags`.
    pub fn flags(self) -> u32 {
        self.flags_bit_and_name().0
    }

    /// The bit in `ocd_cksum_types`.
    pub fn bit(self) -> u32 {
        self.flags_bit_and_name().1
    }

    /// The name in `osc.*.checksum_type`.
    pub fn name(self) -> &'static str {
        self.flags_bit_and_name().2
    }

    fn flags_bit_and_name(self) -> (u32, u32, &'static str) {
        match self {
            Crc32 => (OBD_FL_CKSUM_CRC32, OBD_CKSUM_CRC32, "crc32"),
            Adler => (OBD_FL_CKSUM_ADLER, OBD_CKSUM_ADLER, "adler"),
            Crc32c => (OBD_FL_CKSUM_CRC32C, OBD_CKSUM_CRC32C, "crc32c"),
            T10Ip512 => (OBD_FL_CKSUM_T10IP512, OBD_CKSUM_T10IP512, "t10ip512"),
            T10Ip4K => (OBD_FL_CKSUM_T10IP4K, OBD_CKSUM_T10IP4K, "t10ip4K"),
            T10Crc512 => (OBD_FL_CKSUM_T10CRC512, OBD_CKSUM_T10CRC512, "t10crc512"),
            T10Crc4K => (OBD_FL_CKSUM_T10CRC4K, OBD_CKSUM_T10CRC4K, "t10crc4K"),
        }
    }

    /// The checksum of `data`: the bytes of the file ranges `ranges`, in order. `data` may be
    /// shorter than the ranges: a read ends at the end of the file. Only the T10 types use the
    /// ranges.
    pub fn of<'a>(
        self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        data: impl IntoIterator<Item = &'a Bytes>,
    ) -> u32 {
        let (ranges, data) = (ranges.into_iter(), data.into_iter());
        match self {
            Adler => {
                let mut adler = Adler32::new();
                data.for_each(|d| adler.write(d));
                adler.finish()
            }
            Crc32 => !crc(CrcAlgorithm::Crc32IsoHdlc, data) as u32,
            Crc32c => crc(CrcAlgorithm::Crc32Iscsi, data) as u32,
            T10Ip512 => adler_of_guards::<InternetSum>(512, ranges, data),
            T10Ip4K => adler_of_guards::<InternetSum>(4096, ranges, data),
            T10Crc512 => adler_of_guards::<T10Dif>(512, ranges, data),
            T10Crc4K => adler_of_guards::<T10Dif>(4096, ranges, data),
        }
    }
}

fn crc<'a>(algorithm: CrcAlgorithm, data: impl Iterator<Item = &'a Bytes>) -> u64 {
    let mut digest = Digest::new(algorithm);
    data.for_each(|d| digest.update(d));
    digest.finalize()
}

/// The guard tag of a sector, computed incrementally.
trait Guard: Default {
    fn update(&mut self, bytes: &[u8]);
    /// The tag's bytes in the order in which Adler-32 takes them.
    fn finish(self) -> [u8; 2];
}

/// Adler-32 of the guard tags of all sectors; `sector` is the sector size in bytes.
fn adler_of_guards<'a, G: Guard>(
    sector: u64,
    ranges: impl Iterator<Item = Range<u64>>,
    mut data: impl Iterator<Item = &'a Bytes>,
) -> u32 {
    let mut adler = Adler32::new();
    let mut rest: &[u8] = &[];
    for range in ranges {
        let mut offset = range.start;
        while offset < range.end {
            let mut left = (sector - offset % sector).min(range.end - offset) as usize;
            offset += left as u64;
            let (mut guard, expected) = (G::default(), left);
            while left > 0 {
                if rest.is_empty() {
                    let Some(next) = data.next() else { break };
                    rest = next;
                }
                let (head, tail) = rest.split_at(left.min(rest.len()));
                guard.update(head);
                (rest, left) = (tail, left - head.len());
            }
            if left < expected {
                adler.write(&guard.finish());
            }
            if left > 0 {
                return adler.finish();
            }
        }
    }
    adler.finish()
}

/// CRC-16/T10-DIF; the tag is big-endian.
struct T10Dif(Digest);

impl Default for T10Dif {
    fn default() -> T10Dif {
        T10Dif(Digest::new(CrcAlgorithm::Crc16T10Dif))
    }
}

impl Guard for T10Dif {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> [u8; 2] {
        (self.0.finalize() as u16).to_be_bytes()
    }
}

/// The internet checksum (RFC 1071): the complement of the ones' complement sum of all 16-bit
/// words.
#[derive(Default)]
struct InternetSum {
    sum: u64,
    /// The first byte of an incomplete word.
    half: Option<u8>,
}

impl Guard for InternetSum {
    fn update(&mut self, mut bytes: &[u8]) {
        if let (Some(first), [second, rest @ ..]) = (self.half, bytes) {
            self.sum += u64::from(u16::from_le_bytes([first, *second]));
            (self.half, bytes) = (None, rest);
        }
        let pairs = bytes.chunks_exact(2);
        if let [last] = pairs.remainder() {
            self.half = Some(*last);
        }
        let sum: u64 = pairs
            .map(|pair| u64::from(u16::from_le_bytes([pair[0], pair[1]])))
            .sum();
        self.sum += sum;
    }

    fn finish(self) -> [u8; 2] {
        let mut sum = self.sum + u64::from(self.half.unwrap_or(0));
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksum_from_offset_0(ty: ChecksumType, data: &[Bytes]) -> u32 {
        let len: usize = data.iter().map(Bytes::len).sum();
        ty.of(Some(0..len as u64), data)
    }

    #[test]
    fn checksums_have_the_published_values() {
        let check = [Bytes::from_static(b"1234"), Bytes::from_static(b"56789")];
        assert_eq!(checksum_from_offset_0(Crc32c, &check), 0xe306_9283);
        assert_eq!(checksum_from_offset_0(Crc32, &check), !0xcbf4_3926);
        assert_eq!(checksum_from_offset_0(Adler, &check), 0x091e_01de);
        let mut crc = T10Dif::default();
        crc.update(b"123456789");
        assert_eq!(crc.finish(), [0xd0, 0xdb]);
        // The example of RFC 1071, section 3.
        let mut ip = InternetSum::default();
        ip.update(&[0x00, 0x01, 0xf2]);
        ip.update(&[0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(ip.finish(), [!0xdd, !0xf2]);
    }

    #[test]
    fn checksums_equal_the_captured_ones() {
        // 64 KiB of 'C': `o_cksum` of the OST_WRITEs in the captures `l3_cksum_*` and `z2_cksum_*`,
        // and of OST_READs of the second half.
        let data = vec![Bytes::from(vec![b'C'; 4096]); 16];
        for (ty, written) in [
            (Crc32c, 0x2487_a339),
            (Crc32, 0xe4e2_b214),
            (Adler, 0x1f77_03ee),
            (T10Ip512, 0x6482_bc01),
            (T10Ip4K, 0xd87f_1ca1),
            (T10Crc512, 0x532c_2881),
            (T10Crc4K, 0x2c4f_1271),
        ] {
            assert_eq!(checksum_from_offset_0(ty, &data), written, "{ty:?}");
        }
        for (ty, read) in [
            (T10Ip512, 0xb0d9_5e01),
            (T10Ip4K, 0x79b8_0e51),
            (T10Crc512, 0x194b_1441),
            (T10Crc4K, 0x4c60_0939),
        ] {
            assert_eq!(ty.of(Some(32768..65536), &data[..8]), read, "{ty:?}");
        }
    }

    #[test]
    fn flags_and_bits_map_to_their_types() {
        for ty in ChecksumType::ALL {
            assert_eq!(ChecksumType::from_flags(ty.flags() | 1), Some(ty));
            assert_eq!(ChecksumType::preferred(ty.bit()), ty);
        }
        assert_eq!(ChecksumType::supported(), crate::OBD_CKSUM_ALL);
        assert_eq!(ChecksumType::preferred(0), Adler);
        assert_eq!(ChecksumType::from_flags(0), Some(Adler));
        assert_eq!(ChecksumType::from_flags(0x9000), None);
    }

    proptest! {
        /// Splits a range in the middle of a file at random places, and lets the data end early.
        #[test]
        fn checksum_does_not_depend_on_the_split_into_pieces(
            start in 0u64..9000, data in prop::collection::vec(any::<u8>(), 0..9000),
            cuts in prop::collection::vec(0usize..9000, 0..5), missing in 0u64..9000,
        ) {
            let data = Bytes::from(data);
            let end = start + data.len() as u64;
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(data.len())).collect();
            cuts.extend([0, data.len()]);
            cuts.sort_unstable();
            let pieces: Vec<Bytes> = cuts.windows(2).map(|w| data.slice(w[0]..w[1])).collect();
            for ty in ChecksumType::ALL {
                let unsplit = ty.of(Some(start..end), [&data]);
                prop_assert_eq!(ty.of(Some(start..end + missing), &pieces), unsplit);
            }
        }
    }
}
