//! The checksums of the blocks of a region of an object's file, and their record in the index.
//!
//! ```text
//! key    f2 | sequence u64 BE | object id u32 BE | region u64 BE
//! value  version u8 = 1 | for each block up to the last one with a checksum: CRC-32C u32 LE,
//!        0 without a checksum
//! ```

use std::num::NonZeroU32;

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use wire::Fid;

use crate::KEY_RESERVED;

/// Size of a block, bytes.
pub(crate) const BLOCK: u64 = 4096;
/// Blocks per region.
pub(crate) const REGION_BLOCKS: u64 = 256;
/// Prefix of the keys of regions.
pub(crate) const PREFIX: [u8; 1] = [KEY_RESERVED + 2];

const VERSION: u8 = 1;
const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The checksum of a block: CRC-32C, with `u32::MAX` in the place of 0.
pub(crate) type Sum = NonZeroU32;

fn sum(crc: u32) -> Sum {
    NonZeroU32::new(crc).unwrap_or(NonZeroU32::MAX)
}

/// The checksums of the blocks in `pieces`; the first byte begins a block. Zeros complete the
/// last block.
pub(crate) fn sums_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Sum> {
    let mut sums = Vec::new();
    // The checksum and the number of bytes of an incomplete block.
    let (mut part, mut filled) = (0, 0);
    for mut piece in pieces {
        while !piece.is_empty() {
            let (head, rest) = piece.split_at(piece.len().min(ZEROS.len() - filled));
            piece = rest;
            if head.len() == ZEROS.len() {
                sums.push(sum(crc32c(head)));
                continue;
            }
            part = crc32c_append(part, head);
            filled += head.len();
            if filled == ZEROS.len() {
                sums.push(sum(part));
                (part, filled) = (0, 0);
            }
        }
    }
    if filled > 0 {
        sums.push(sum(crc32c_append(part, &ZEROS[filled..])));
    }
    sums
}

/// The checksums of a region's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    sums: Vec<Option<Sum>>,
}

impl Region {
    /// The checksum of a block, by its position in the region.
    pub(crate) fn sum(&self, block: usize) -> Option<Sum> {
        self.sums.get(block).copied().flatten()
    }

    /// Sets or removes the checksum of a block.
    pub(crate) fn set(&mut self, block: usize, sum: Option<Sum>) {
        if self.sums.len() <= block {
            if sum.is_none() {
                return;
            }
            self.sums.resize(block + 1, None);
        }
        self.sums[block] = sum;
        while self.sums.last() == Some(&None) {
            self.sums.pop();
        }
    }

    /// Whether no block has a checksum.
    pub(crate) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The value of the record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(1 + 4 * self.sums.len());
        value.push(VERSION);
        for sum in &self.sums {
            value.extend(sum.map_or(0, Sum::get).to_le_bytes());
        }
        value
    }

    /// Decodes a record. The error says why the record is malformed.
    pub(crate) fn decode(value: &[u8]) -> Result<Region, String> {
        let Some((&VERSION, sums)) = value.split_first() else {
            return Err(format!("expected version {VERSION}, found {:?}", value.first()));
        };
        let (sums, rest) = sums.as_chunks::<4>();
        if !rest.is_empty() || sums.len() as u64 > REGION_BLOCKS {
            return Err(format!(
                "expected up to {REGION_BLOCKS} checksums, found {} bytes",
                value.len()
            ));
        }
        let sums = sums.iter().map(|s| Sum::new(u32::from_le_bytes(*s))).collect();
        Ok(Region { sums })
    }
}

/// The key of an object's regions and marks: the prefix, and the number of the region or window.
pub(super) fn key_of(prefix: [u8; 1], fid: &Fid, number: u64) -> Vec<u8> {
    let mut key = prefix.to_vec();
    key.extend(fid.f_seq.to_be_bytes());
    key.extend(fid.f_oid.to_be_bytes());
    key.extend(number.to_be_bytes());
    key
}

/// The object and the number of a key of [`key_of`]; `None` if the key is malformed.
pub(crate) fn parse_key(prefix: [u8; 1], key: &[u8]) -> Option<(Fid, u64)> {
    let (seq, rest) = key.strip_prefix(&prefix)?.split_first_chunk()?;
    let (oid, number) = rest.split_first_chunk()?;
    let fid = Fid::new(u64::from_be_bytes(*seq), u32::from_be_bytes(*oid), 0);
    Some((fid, u64::from_be_bytes(number.try_into().ok()?)))
}

/// Cuts the buffers of a block-aligned read: drops the first `skip` bytes, and keeps the `len`
/// bytes after them.
pub(crate) fn trim(pieces: Vec<Bytes>, skip: u64, len: u64) -> Vec<Bytes> {
    let (mut skip, mut len) = (skip as usize, len as usize);
    let mut out = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        piece = piece.slice(skipped..);
        piece.truncate(len);
        len -= piece.len();
        if !piece.is_empty() {
            out.push(piece);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_flipped_bit_changes_the_checksum() {
        let block: Vec<u8> = (0..BLOCK).map(|n| (n * 7) as u8).collect();
        let before = sums_of([&block[..]]);
        for bit in 0..BLOCK as usize * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sums_of([&flipped[..]]), before);
        }
    }

    #[test]
    fn malformed_records_are_errors() {
        assert!(Region::decode(&[]).is_err());
        assert!(Region::decode(&[2]).is_err());
        assert!(Region::decode(&[VERSION, 0, 0]).is_err());
        assert!(Region::decode(&[VERSION; 2 + 4 * REGION_BLOCKS as usize]).is_err());
        assert_eq!(
            parse_key(PREFIX, &key_of(PREFIX, &Fid::new(7, 8, 0), 9)).unwrap(),
            (Fid::new(7, 8, 0), 9)
        );
        assert_eq!(parse_key(PREFIX, &[PREFIX[0]; 12]), None);
    }

    proptest! {
        #[test]
        fn sums_do_not_depend_on_the_pieces(
            data in proptest::collection::vec(any::<u8>(), 0..20_000),
            cuts in proptest::collection::vec(0usize..5000, 0..8),
        ) {
            let whole = sums_of([&data[..]]);
            prop_assert_eq!(whole.len(), data.len().div_ceil(BLOCK as usize));
            let (mut rest, mut pieces) = (&data[..], Vec::new());
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(head);
                rest = tail;
            }
            pieces.push(rest);
            prop_assert_eq!(&sums_of(pieces), &whole);
            let mut padded = data.clone();
            padded.resize(data.len().next_multiple_of(BLOCK as usize), 0);
            prop_assert_eq!(&sums_of([&padded[..]]), &whole);
        }

        #[test]
        fn records_round_trip(blocks in proptest::collection::btree_map(0usize..256, any::<u32>(), 0..20)) {
            let mut region = Region::default();
            for (block, sum) in &blocks {
                region.set(*block, Sum::new(*sum));
            }
            prop_assert_eq!(&Region::decode(&region.encode()).unwrap(), &region);
            for block in 0..256 {
                let expected = blocks.get(&block).and_then(|s| Sum::new(*s));
                prop_assert_eq!(region.sum(block), expected);
                region.set(block, None);
            }
            prop_assert!(region.is_empty());
        }

        #[test]
        fn trimmed_pieces_hold_the_range(lens in proptest::collection::vec(0usize..50, 0..6), skip in 0usize..100, len in 0usize..200) {
            let data: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|n| n as u8).collect();
            let mut at = 0;
            let pieces = lens.iter().map(|l| { at += l; Bytes::copy_from_slice(&data[at - l..at]) }).collect();
            let end = (skip + len).min(data.len());
            let trimmed = trim(pieces, skip as u64, len as u64).concat();
            prop_assert_eq!(trimmed, &data[skip.min(end)..end]);
        }
    }
}
