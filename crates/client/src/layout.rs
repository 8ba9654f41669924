//! A file's layout: its objects, and the arithmetic of RAID0 striping.
//!
//! A metadata target sends the layout as an extended attribute (EA): `lov_mds_md` v1 or v3. Pure.
//! Composite layouts are rejected for I/O; tools read them from the extended attribute.

use bytes::Bytes;
use wire::striping::LovLayout;
use wire::{Errno, LOV_PATTERN_F_RELEASED, OstId, OstIndex, StripeIndex};

/// Largest stripe count of a file.
const STRIPES_MAX: usize = 2000;
/// Stripe sizes are multiples of this many bytes.
const STRIPE_SIZE_MIN: u32 = 64 << 10;

/// One object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The object's ID, as RPCs carry it.
    pub oi: OstId,
    /// Index of the OST that has it.
    pub ost: OstIndex,
}

/// A contiguous part of a file within one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeExtent {
    /// Stripe number, from 0.
    pub stripe: StripeIndex,
    /// Offset in the object, in bytes.
    pub object_offset: u64,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A file's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The layout EA as received; empty: the file has none.
    pub raw: Bytes,
    /// `LOV_MAGIC_V1` or `LOV_MAGIC_V3`; 0 without an EA.
    pub lmm_magic: u32,
    /// `LOV_PATTERN_*`.
    pub lmm_pattern: u32,
    /// Stripe size in bytes.
    pub lmm_stripe_size: u32,
    /// Layout generation: changes with every change of the layout.
    pub lmm_layout_gen: u16,
    /// Name of the OST pool; empty: none.
    pub lmm_pool_name: String,
    /// The objects in stripe order. Empty: no objects yet, or the file is released.
    pub stripes: Vec<Stripe>,
}

impl FileLayout {
    /// The layout of a file that has no objects.
    pub fn empty() -> FileLayout {
        FileLayout {
            raw: Bytes::new(),
            lmm_magic: 0,
            lmm_pattern: 0,
            lmm_stripe_size: STRIPE_SIZE_MIN,
            lmm_layout_gen: 0,
            lmm_pool_name: String::new(),
            stripes: Vec::new(),
        }
    }

    /// Parses a layout EA and keeps a copy: a slice would pin the whole reply. An empty EA and a
    /// released file give a layout without objects.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: a composite layout, or one that is neither RAID0 nor released. `EPROTO`:
    /// malformed bytes, or an invalid stripe count or size.
    pub fn parse(raw: Bytes) -> Result<FileLayout, Errno> {
        if raw.is_empty() {
            return Ok(FileLayout::empty());
        }
        let LovLayout::Plain(plain) = LovLayout::parse(&raw)? else {
            return Err(Errno::EOPNOTSUPP);
        };
        let released = plain.is_released();
        if !plain.is_raid0() && !released {
            return Err(Errno::EOPNOTSUPP);
        }
        let count = if released { 0 } else { plain.objects.len() };
        let size_valid = plain.stripe_size != 0 && plain.stripe_size % STRIPE_SIZE_MIN == 0;
        if count > STRIPES_MAX || (count > 0 && (!size_valid || count != usize::from(plain.stripe_count))) {
            return Err(Errno::EPROTO);
        }
        let stripe = |o: &wire::LovOstDataV1| Stripe {
            oi: o.l_ost_oi,
            ost: OstIndex(o.l_ost_idx),
        };
        Ok(FileLayout {
            lmm_magic: plain.magic,
            lmm_pattern: plain.pattern,
            lmm_stripe_size: plain.stripe_size.max(STRIPE_SIZE_MIN),
            lmm_layout_gen: plain.layout_gen,
            lmm_pool_name: plain.pool.as_str().to_owned(),
            stripes: plain.objects.iter().take(count).map(stripe).collect(),
            raw: Bytes::copy_from_slice(&raw),
        })
    }

    /// Number of stripes.
    pub fn count(&self) -> usize {
        self.stripes.len()
    }

    /// Whether the file's data is only in an archive (HSM).
    pub fn is_released(&self) -> bool {
        self.lmm_pattern & LOV_PATTERN_F_RELEASED != 0
    }

    /// Whether the file has no objects.
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// The stripe size times the number of objects (at least 1).
    fn full_stripe(&self) -> u64 {
        u64::from(self.lmm_stripe_size) * self.stripes.len().max(1) as u64
    }

    /// The stripe that has a byte of the file, and the byte's offset in that object.
    pub fn locate(&self, offset: u64) -> (StripeIndex, u64) {
        let size = u64::from(self.lmm_stripe_size);
        let in_full_stripe = offset % self.full_stripe();
        (
            StripeIndex((in_full_stripe / size) as u32),
            offset / self.full_stripe() * size + in_full_stripe % size,
        )
    }

    /// The offset in the file of a byte of an object; `u64::MAX` if it exceeds a `u64`.
    pub fn file_offset(&self, stripe: StripeIndex, object_offset: u64) -> u64 {
        let size = u64::from(self.lmm_stripe_size);
        (object_offset / size)
            .checked_mul(self.full_stripe())
            .and_then(|start| start.checked_add(u64::from(stripe.0) * size + object_offset % size))
            .unwrap_or(u64::MAX)
    }

    /// Splits a range of the file into extents, in file order; into none if the file has no
    /// objects.
    pub fn extents(&self, offset: u64, len: u64) -> impl Iterator<Item = StripeExtent> + '_ {
        let end = offset.saturating_add(len);
        let mut position = offset;
        std::iter::from_fn(move || {
            if position >= end || self.stripes.is_empty() {
                return None;
            }
            let size = u64::from(self.lmm_stripe_size);
            let (stripe, object_offset) = self.locate(position);
            let len = (size - position % size).min(end - position);
            let piece = StripeExtent {
                stripe,
                object_offset,
                file_offset: position,
                len,
            };
            position += len;
            Some(piece)
        })
    }

    /// The size of object `stripe` after a truncate of the file to `file_size` bytes.
    pub fn object_size(&self, stripe: StripeIndex, file_size: u64) -> u64 {
        let size = u64::from(self.lmm_stripe_size);
        let start = u64::from(stripe.0) * size;
        let in_full_stripe = file_size % self.full_stripe();
        file_size / self.full_stripe() * size + in_full_stripe.saturating_sub(start).min(size)
    }

    /// The least file size that an object of `object_size` bytes implies. The file's size is the
    /// maximum over its objects.
    pub fn file_size(&self, stripe: StripeIndex, object_size: u64) -> u64 {
        match object_size.checked_sub(1) {
            Some(last) => self.file_offset(stripe, last).saturating_add(1),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{FileLayout, Stripe, StripeExtent};
    use bytes::Bytes;
    use wire::{
        Errno, LOV_MAGIC_V1, LOV_PATTERN_F_RELEASED, LOV_PATTERN_RAID0, LovMdsMdV1, LovOstDataV1, OstId,
        OstIndex, StripeIndex, WireStruct,
    };

    fn ea(count: u16, stripe_size: u32) -> Bytes {
        let md = LovMdsMdV1 {
            lmm_magic: LOV_MAGIC_V1,
            lmm_pattern: LOV_PATTERN_RAID0,
            lmm_stripe_size: stripe_size,
            lmm_stripe_count: count,
            lmm_layout_gen: 3,
            ..LovMdsMdV1::default()
        };
        let mut out = md.to_bytes().to_vec();
        for i in 0..count {
            let oi = OstId {
                oi_id: 0x1000,
                oi_seq: u64::from(i),
            };
            out.extend_from_slice(
                &LovOstDataV1 {
                    l_ost_oi: oi,
                    l_ost_gen: 0,
                    l_ost_idx: u32::from(i),
                }
                .to_bytes(),
            );
        }
        out.into()
    }

    #[test]
    fn a_released_file_has_no_objects() {
        let mut bytes = ea(2, 1 << 20).to_vec();
        assert!(!FileLayout::parse(bytes.clone().into()).unwrap().is_released());
        bytes[4..8].copy_from_slice(&(LOV_PATTERN_RAID0 | LOV_PATTERN_F_RELEASED).to_le_bytes());
        let layout = FileLayout::parse(bytes.into()).unwrap();
        assert!(layout.is_released() && layout.is_empty());
    }

    #[test]
    fn a_parsed_layout_has_its_objects() {
        let layout = FileLayout::parse(ea(2, 1 << 20)).unwrap();
        assert_eq!((layout.lmm_stripe_size, layout.lmm_layout_gen), (1 << 20, 3));
        assert_eq!(
            layout.stripes[1],
            Stripe {
                oi: OstId {
                    oi_id: 0x1000,
                    oi_seq: 1
                },
                ost: OstIndex(1)
            }
        );
    }

    #[test]
    fn a_short_or_invalid_layout_is_an_error() {
        let whole = ea(2, 1 << 20);
        // The header alone is valid: the MDT allocates the objects later.
        for cut in (1..32).chain(56..whole.len()) {
            assert!(FileLayout::parse(whole.slice(..cut)).is_err(), "cut at {cut}");
        }
        assert_eq!(FileLayout::parse(ea(2, 0)), Err(Errno::EPROTO));
        assert_eq!(
            FileLayout::parse(Bytes::from_static(&[1; 64])),
            Err(Errno::EPROTO)
        );
        assert!(FileLayout::parse(Bytes::new()).unwrap().is_empty());
    }

    #[test]
    fn file_offset_inverts_locate() {
        let layout = FileLayout::parse(ea(3, 65536)).unwrap();
        for off in [0, 1, 65535, 65536, 3 * 65536, 3 * 65536 + 7, 12345678, 1 << 40] {
            let (stripe, obj) = layout.locate(off);
            assert_eq!(layout.file_offset(stripe, obj), off);
        }
        assert_eq!(layout.locate(3 * 65536 + 7), (StripeIndex(0), 65536 + 7));
    }

    #[test]
    fn a_range_is_split_at_stripe_boundaries() {
        let layout = FileLayout::parse(ea(2, 65536)).unwrap();
        let pieces: Vec<_> = layout.extents(65530, 65546).collect();
        assert_eq!(
            pieces,
            [
                StripeExtent {
                    stripe: StripeIndex(0),
                    object_offset: 65530,
                    file_offset: 65530,
                    len: 6
                },
                StripeExtent {
                    stripe: StripeIndex(1),
                    object_offset: 0,
                    file_offset: 65536,
                    len: 65536
                },
                StripeExtent {
                    stripe: StripeIndex(0),
                    object_offset: 65536,
                    file_offset: 131072,
                    len: 4
                },
            ]
        );
    }

    #[test]
    fn sizes_of_objects_and_file_agree() {
        let layout = FileLayout::parse(ea(3, 65536)).unwrap();
        for size in [0, 1, 65536, 65537, 200_000, 10_000_000] {
            let file_size = StripeIndex::all(3)
                .map(|i| layout.file_size(i, layout.object_size(i, size)))
                .max()
                .unwrap();
            assert_eq!(file_size, size);
            let total: u64 = StripeIndex::all(3).map(|i| layout.object_size(i, size)).sum();
            assert_eq!(total, size);
        }
    }
}
