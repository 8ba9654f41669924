//! Layouts as extended attributes: plain (v1, v3), composite or foreign layouts of files, and
//! layouts of directories.
//!
//! This module parses and builds the format. The client maps file offsets to objects.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::lmv::{LMV_MAGIC_STRIPE, LMV_MAGIC_V1};
use crate::consts::lov::{
    LOV_MAGIC_COMP_V1, LOV_MAGIC_FOREIGN, LOV_MAGIC_MAGIC, LOV_MAGIC_MASK, LOV_MAGIC_V1, LOV_MAGIC_V3,
    LOV_PATTERN_F_MASK, LOV_PATTERN_F_RELEASED, LOV_PATTERN_MDT, LOV_PATTERN_OVERSTRIPING, LOV_PATTERN_RAID0,
    LOV_USER_MAGIC_SPECIFIC,
};
use crate::fid::OstId;
use crate::ids::Fid;
use crate::layout::WireStruct;
use crate::lmv::LmvMdsMdV1;
use crate::lov::{LovCompMdEntryV1, LovCompMdV1, LovForeignMd, LovMdsMdV1, LovMdsMdV3, LovOstDataV1};
use crate::text::Text;
use bytes::Bytes;

/// Maximum number of components of a composite layout.
const COMPONENTS_MAX: usize = 2000;

/// A plain layout: one set of stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainLayout {
    /// `LOV_MAGIC_V1` without a pool, `LOV_MAGIC_V3` with one, `LOV_USER_MAGIC_SPECIFIC` if a
    /// user's request lists OSTs.
    pub magic: u32,
    /// Bits `LOV_PATTERN_*`.
    pub pattern: u32,
    /// The FID of the file: `oi_id` is the object id, `oi_seq` the sequence.
    pub oi: OstId,
    /// Stripe size in bytes.
    pub stripe_size: u32,
    /// Number of stripes. A layout without objects may request `0xffff`: one on each OST.
    pub stripe_count: u16,
    /// The generation of the layout; in a user's request, the index of the first OST.
    pub layout_gen: u16,
    /// The name of the OST pool; empty without one.
    pub pool: Text<16>,
    /// The objects, one for each stripe; fewer or none if the attribute lists fewer.
    pub objects: Vec<LovOstDataV1>,
}

impl PlainLayout {
    /// The layout of the file `fid` with one stripe in each of `objects`; `stripe_size` is in
    /// bytes.
    pub fn raid0(fid: Fid, stripe_size: u32, objects: Vec<LovOstDataV1>) -> PlainLayout {
        PlainLayout {
            magic: LOV_MAGIC_V1,
            pattern: LOV_PATTERN_RAID0,
            oi: OstId {
                oi_id: fid.f_oid.into(),
                oi_seq: fid.f_seq,
            },
            stripe_size,
            stripe_count: objects.len() as u16,
            layout_gen: 0,
            pool: Text::default(),
            objects,
        }
    }

    /// A user's request for a layout: stripe size in bytes, number of stripes (0: the default,
    /// `0xffff`: one on each OST), and the index of the first OST (`None`: any).
    pub fn request(stripe_size: u32, stripe_count: u16, first: Option<u16>) -> PlainLayout {
        PlainLayout {
            magic: LOV_MAGIC_V1,
            pattern: LOV_PATTERN_RAID0,
            oi: OstId::default(),
            stripe_size,
            stripe_count,
            layout_gen: first.unwrap_or(u16::MAX),
            pool: Text::default(),
            objects: Vec::new(),
        }
    }

    /// A request for a part of a file on the MDT, which has `size` bytes.
    pub fn request_on_mdt(size: u32) -> PlainLayout {
        PlainLayout {
            pattern: LOV_PATTERN_MDT,
            ..PlainLayout::request(size, 0, Some(0))
        }
    }

    /// This request or layout, with several stripes on an OST.
    pub fn overstriped(mut self) -> PlainLayout {
        self.pattern |= LOV_PATTERN_OVERSTRIPING;
        self
    }

    /// Whether the stripes are RAID0. With overstriping, an OST may have several of them.
    pub fn is_raid0(&self) -> bool {
        self.pattern & !(LOV_PATTERN_F_MASK | LOV_PATTERN_OVERSTRIPING) == LOV_PATTERN_RAID0
    }

    /// Whether the data is on the MDT.
    pub fn is_on_mdt(&self) -> bool {
        self.pattern & !LOV_PATTERN_F_MASK == LOV_PATTERN_MDT
    }

    /// Whether an OST may have several stripes.
    pub fn is_overstriped(&self) -> bool {
        self.pattern & !LOV_PATTERN_F_MASK == LOV_PATTERN_RAID0 | LOV_PATTERN_OVERSTRIPING
    }

    /// Whether the data is only in an archive (HSM).
    pub fn is_released(&self) -> bool {
        self.pattern & LOV_PATTERN_F_RELEASED != 0
    }

    /// Parses a layout of version 1 or 3, or a user's request that lists OSTs. Leaves out objects
    /// that reach beyond the end of `bytes`, and ignores bytes behind the objects.
    ///
    /// # Errors
    ///
    /// A wrong magic, or a truncated header.
    pub fn parse(bytes: &[u8]) -> Result<PlainLayout> {
        let mut r = Reader::new("lov_mds_md", bytes);
        let magic = Reader::new("lmm_magic", bytes).u32()?;
        let (head, pool) = match magic {
            LOV_MAGIC_V1 => (LovMdsMdV1::read(&mut r)?, Text::default()),
            LOV_MAGIC_V3 | LOV_USER_MAGIC_SPECIFIC => {
                let h = LovMdsMdV3::read(&mut r)?;
                let v1 = LovMdsMdV1 {
                    lmm_magic: h.lmm_magic,
                    lmm_pattern: h.lmm_pattern,
                    lmm_oi: h.lmm_oi,
                    lmm_stripe_size: h.lmm_stripe_size,
                    lmm_stripe_count: h.lmm_stripe_count,
                    lmm_layout_gen: h.lmm_layout_gen,
                };
                (v1, h.lmm_pool_name)
            }
            other => return Err(bad_magic(other)),
        };
        // A layout whose objects do not exist yet lists none. A user's request may be longer than
        // its layout.
        let objects = r.rest().as_chunks::<{ LovOstDataV1::SIZE }>().0;
        let count = objects.len().min(head.lmm_stripe_count.into());
        Ok(PlainLayout {
            magic,
            pattern: head.lmm_pattern,
            oi: head.lmm_oi,
            stripe_size: head.lmm_stripe_size,
            stripe_count: head.lmm_stripe_count,
            layout_gen: head.lmm_layout_gen,
            pool,
            objects: objects[..count]
                .iter()
                .map(|o| LovOstDataV1::from_bytes(o))
                .collect::<Result<_>>()?,
        })
    }

    /// The layout in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::new();
        self.write(&mut w);
        w.finish()
    }

    fn write(&self, w: &mut Writer) {
        LovMdsMdV1 {
            lmm_magic: self.magic,
            lmm_pattern: self.pattern,
            lmm_oi: self.oi,
            lmm_stripe_size: self.stripe_size,
            lmm_stripe_count: self.stripe_count,
            lmm_layout_gen: self.layout_gen,
        }
        .write(w);
        if self.magic != LOV_MAGIC_V1 {
            w.put(&self.pool.0);
        }
        for object in &self.objects {
            object.write(w);
        }
    }
}

/// A composite layout: components, each for a part of the file in one of its mirrors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompositeLayout {
    /// The header; [`LovLayout::build`] computes `lcm_size` and `lcm_entry_count`.
    pub head: LovCompMdV1,
    /// The components; [`LovLayout::build`] computes `lcme_offset` and `lcme_size`.
    pub components: Vec<(LovCompMdEntryV1, PlainLayout)>,
}

impl CompositeLayout {
    /// `e_end` of a component that has no end.
    pub const EOF: u64 = u64::MAX;

    /// A layout with these components, without mirrors.
    pub fn new(components: Vec<(LovCompMdEntryV1, PlainLayout)>) -> CompositeLayout {
        let head = LovCompMdV1 {
            lcm_magic: LOV_MAGIC_COMP_V1,
            ..Default::default()
        };
        CompositeLayout { head, components }
    }
}

/// The layout of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LovLayout {
    /// A plain layout.
    Plain(PlainLayout),
    /// A composite layout.
    Composite(CompositeLayout),
    /// A foreign layout, for data in another system: the header and an opaque value.
    Foreign(LovForeignMd, Bytes),
}

impl LovLayout {
    /// Whether a part of the file has several stripes on one OST. Clients without
    /// `OBD_CONNECT2_OVERSTRIPING` cannot use such a file.
    pub fn is_overstriped(&self) -> bool {
        match self {
            LovLayout::Plain(plain) => plain.is_overstriped(),
            LovLayout::Composite(composite) => composite.components.iter().any(|(_, p)| p.is_overstriped()),
            LovLayout::Foreign(..) => false,
        }
    }

    /// Parses a layout. Ignores bytes after it.
    ///
    /// # Errors
    ///
    /// A wrong magic, a truncated header, component or foreign value, or too many components.
    pub fn parse(bytes: &[u8]) -> Result<LovLayout> {
        match Reader::new("lmm_magic", bytes).u32()? {
            LOV_MAGIC_COMP_V1 => CompositeLayout::parse(bytes).map(LovLayout::Composite),
            LOV_MAGIC_FOREIGN => {
                let mut r = Reader::new("lov_foreign_md", bytes);
                let head = LovForeignMd::read(&mut r)?;
                let value = r.take(head.lfm_length as usize)?;
                Ok(LovLayout::Foreign(head, Bytes::copy_from_slice(value)))
            }
            _ => PlainLayout::parse(bytes).map(LovLayout::Plain),
        }
    }

    /// The layout in wire format.
    pub fn build(&self) -> Bytes {
        match self {
            LovLayout::Plain(plain) => plain.build(),
            LovLayout::Composite(composite) => composite.build(),
            LovLayout::Foreign(head, value) => {
                let mut w = Writer::new();
                LovForeignMd {
                    lfm_length: value.len() as u32,
                    ..*head
                }
                .write(&mut w);
                w.put(value);
                w.finish()
            }
        }
    }

    /// Whether `bytes` start with the magic of a file layout, including kinds that
    /// [`LovLayout::parse`] refuses.
    pub fn is_layout(bytes: &[u8]) -> bool {
        Reader::new("lmm_magic", bytes)
            .u32()
            .is_ok_and(|m| m & LOV_MAGIC_MASK == LOV_MAGIC_MAGIC)
    }
}

impl CompositeLayout {
    fn parse(bytes: &[u8]) -> Result<CompositeLayout> {
        let mut r = Reader::new("lov_comp_md_v1", bytes);
        let head = LovCompMdV1::read(&mut r)?;
        let count = usize::from(head.lcm_entry_count);
        if count > COMPONENTS_MAX {
            return Err(WireError::TooLong {
                what: "lcm_entry_count",
                limit: COMPONENTS_MAX,
                found: count,
            });
        }
        let mut components = Vec::new();
        // Without this sum, components that share bytes would take much more memory than `bytes`.
        let mut size_sum = 0;
        for _ in 0..count {
            let entry = LovCompMdEntryV1::read(&mut r)?;
            let (from, size) = (entry.lcme_offset as usize, entry.lcme_size as usize);
            size_sum += size;
            if size_sum > bytes.len() {
                return Err(WireError::TooLong {
                    what: "lcme_size",
                    limit: bytes.len(),
                    found: size_sum,
                });
            }
            let blob = from
                .checked_add(size)
                .and_then(|to| bytes.get(from..to))
                .ok_or(WireError::Short {
                    what: "lov_comp_md_entry_v1",
                    expected: from.saturating_add(size),
                    found: bytes.len(),
                })?;
            components.push((entry, PlainLayout::parse(blob)?));
        }
        Ok(CompositeLayout { head, components })
    }

    fn build(&self) -> Bytes {
        let mut blobs = Writer::new();
        let mut entries = Writer::new();
        let entries_end = LovCompMdV1::SIZE + self.components.len() * LovCompMdEntryV1::SIZE;
        for (entry, plain) in &self.components {
            let from = blobs.len();
            plain.write(&mut blobs);
            let (lcme_offset, lcme_size) = ((entries_end + from) as u32, (blobs.len() - from) as u32);
            LovCompMdEntryV1 {
                lcme_offset,
                lcme_size,
                ..*entry
            }
            .write(&mut entries);
        }
        let mut w = Writer::with_capacity(entries_end + blobs.len());
        let lcm_entry_count = self.components.len() as u16;
        LovCompMdV1 {
            lcm_size: (entries_end + blobs.len()) as u32,
            lcm_entry_count,
            ..self.head
        }
        .write(&mut w);
        w.put(&entries.finish());
        w.put(&blobs.finish());
        w.finish()
    }
}

/// The layout of a directory that is striped over metadata targets: the header and the FIDs of the
/// stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LmvLayout {
    /// The header. `lmv_stripe_count` is the number of the directory's stripes, even if `stripes`
    /// is empty.
    pub head: LmvMdsMdV1,
    /// The FIDs of the stripes; empty in the attribute of a stripe.
    pub stripes: Vec<Fid>,
}

impl LmvLayout {
    /// Parses a layout.
    ///
    /// # Errors
    ///
    /// A wrong magic, or a truncated header.
    pub fn parse(bytes: &[u8]) -> Result<LmvLayout> {
        let mut r = Reader::new("lmv_mds_md_v1", bytes);
        let head = LmvMdsMdV1::read(&mut r)?;
        if head.lmv_magic != LMV_MAGIC_V1 && head.lmv_magic != LMV_MAGIC_STRIPE {
            let (expected, found) = (LMV_MAGIC_V1.into(), head.lmv_magic.into());
            return Err(WireError::Magic {
                what: "lmv_mds_md_v1",
                expected,
                found,
            });
        }
        let fids = r.rest().as_chunks::<{ Fid::SIZE }>().0;
        Ok(LmvLayout {
            head,
            stripes: fids.iter().map(|f| Fid::from_bytes(f)).collect::<Result<_>>()?,
        })
    }

    /// The layout in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::new();
        self.head.write(&mut w);
        for fid in &self.stripes {
            fid.write(&mut w);
        }
        w.finish()
    }
}

fn bad_magic(found: u32) -> WireError {
    WireError::Magic {
        what: "lov_mds_md",
        expected: LOV_MAGIC_V1.into(),
        found: found.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CompositeLayout, LovLayout, PlainLayout};
    use crate::WireStruct;
    use crate::{
        Fid, LOV_MAGIC_COMP_V1, LOV_MAGIC_V3, LovCompMdEntryV1, LovCompMdV1, LovForeignMd, LovOstDataV1, Text,
    };
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    fn plain(stripes: usize) -> PlainLayout {
        let object = LovOstDataV1 {
            l_ost_oi: Fid::new(0x2_4000_0400, 3, 0).into(),
            l_ost_gen: 0,
            l_ost_idx: 1,
        };
        PlainLayout::raid0(Fid::new(0x2_0000_0400, 7, 0), 1 << 20, vec![object; stripes])
    }

    #[test]
    fn layouts_of_each_kind_survive_a_round_trip() {
        let pooled = PlainLayout {
            magic: LOV_MAGIC_V3,
            pool: Text::truncated("fast"),
            ..plain(1)
        };
        let head = LovCompMdV1 {
            lcm_magic: LOV_MAGIC_COMP_V1,
            ..Default::default()
        };
        let entry = LovCompMdEntryV1 {
            lcme_id: 1,
            ..Default::default()
        };
        let composite = CompositeLayout {
            head,
            components: vec![(entry, plain(1)), (entry, plain(0))],
        };
        let foreign = LovForeignMd {
            lfm_magic: crate::LOV_MAGIC_FOREIGN,
            ..Default::default()
        };
        for layout in [
            LovLayout::Plain(plain(4)),
            LovLayout::Plain(pooled),
            LovLayout::Composite(composite),
            LovLayout::Foreign(foreign, Bytes::from_static(b"s3://bucket")),
        ] {
            let bytes = layout.build();
            assert_eq!(LovLayout::parse(&bytes).unwrap().build(), bytes);
            for end in 0..bytes.len() {
                let _ = LovLayout::parse(&bytes[..end]);
            }
        }
        assert_eq!(plain(4).build().len(), 32 + 4 * 24);
    }

    #[test]
    fn components_that_share_bytes_are_errors() {
        let head = LovCompMdV1 {
            lcm_magic: LOV_MAGIC_COMP_V1,
            lcm_entry_count: 2,
            ..Default::default()
        };
        let blob = plain(100).build();
        let layout = |offsets: [u32; 2], blobs: usize| {
            let entry = |lcme_offset| LovCompMdEntryV1 {
                lcme_offset,
                lcme_size: blob.len() as u32,
                ..Default::default()
            };
            let mut bytes = head.to_bytes().to_vec();
            for offset in offsets {
                bytes.extend_from_slice(&entry(offset).to_bytes());
            }
            bytes.extend(blob.repeat(blobs));
            LovLayout::parse(&bytes)
        };
        let first = (LovCompMdV1::SIZE + 2 * LovCompMdEntryV1::SIZE) as u32;
        let second = first + blob.len() as u32;
        assert!(layout([first, second], 2).is_ok());
        assert!(layout([first, first], 1).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 4..400), kind in 0usize..4) {
            let mut bytes = bytes;
            let magic = [LOV_MAGIC_COMP_V1, LOV_MAGIC_V3, crate::LOV_MAGIC_FOREIGN, crate::LOV_MAGIC_V1][kind];
            bytes[..4].copy_from_slice(&magic.to_le_bytes());
            let _ = LovLayout::parse(&bytes);
        }
    }
}
