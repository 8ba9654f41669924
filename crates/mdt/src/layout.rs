//! Layouts of files: the client's request and a directory's default layout (`lov_user_md`), and a
//! file's layout (`lov_mds_md`); always little-endian, in messages and in attributes.
//!
//! This module is pure; [`crate::lod`] selects the OSTs. It implements RAID0, optionally with
//! several stripes on an OST (overstriping), a pool name, or OSTs listed by the user. The MDT stores
//! foreign layouts, whose data is in another system, without interpreting them. Composite and
//! data-on-MDT layouts are errors.

use std::collections::BTreeSet;

use crate::namespace::xattr::VALUE_MAX;
use bytes::Bytes;
use wire::{
    Errno, Fid, LOV_ALL_STRIPES_WIDE, LOV_MAGIC_FOREIGN, LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE,
    LOV_PATTERN_DEFAULT, LOV_PATTERN_F_MASK, LOV_PATTERN_NONE, LOV_PATTERN_OVERSTRIPING, LOV_PATTERN_RAID0,
    LOV_USER_MAGIC_SPECIFIC, LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LovForeignMd, LovMdsMdV3, LovOstDataV1,
    OstId, OstIndex, Text, WireStruct,
    striping::{LovLayout, PlainLayout},
};

/// The value of the first OST that means "any OST".
const ANY_OST: u16 = u16::MAX;
/// The stripe count that means "one stripe on every OST". With overstriping, `ALL_OSTS - n` means
/// "`n + 1` stripes on every OST", down to [`ALL_OSTS_LEAST`].
const ALL_OSTS: u16 = u16::MAX;
/// The stripe count that means "32 stripes on every OST", with overstriping.
const ALL_OSTS_LEAST: u16 = LOV_ALL_STRIPES_WIDE as u16;
/// The pattern of files with several stripes on an OST.
const OVERSTRIPED: u32 = LOV_PATTERN_RAID0 | LOV_PATTERN_OVERSTRIPING;
/// The default stripe size, bytes. The parameter `stripesize` and the layouts of directories
/// override it.
pub const DEFAULT_STRIPE_SIZE: u32 = 4 << 20;
/// The default number of stripes. The parameter `stripecount` and the layouts of directories
/// override it.
pub const DEFAULT_STRIPE_COUNT: u16 = 1;

/// The requested layout of a new file; zero or `None` is "not specified".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StripeRequest {
    /// Stripe size, bytes.
    pub stripe_size: u32,
    /// Number of stripes; `u16::MAX`: one on every OST.
    pub stripe_count: u16,
    /// Whether an OST may have several stripes.
    pub overstriping: bool,
    /// The OST of the first stripe.
    pub first: Option<OstIndex>,
    /// The pool's name.
    pub pool: Text<16>,
    /// The OSTs in order, if the user lists them; otherwise empty.
    pub osts: Vec<OstIndex>,
}

/// The requested layout of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutRequest {
    /// Stripes on OSTs.
    Striped(StripeRequest),
    /// A foreign layout (`lov_foreign_md`), which the file gets as it is.
    Foreign(Bytes),
}

impl LayoutRequest {
    /// Parses a user's request for the layout of a file; `None` if it specifies nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a foreign layout without a value, or whose value is longer than an extended
    /// attribute or than `ea`; otherwise as [`StripeRequest::parse`].
    pub fn parse(ea: &[u8]) -> Result<Option<LayoutRequest>, Errno> {
        if !is_foreign(ea) {
            return Ok(StripeRequest::parse(ea)?.map(LayoutRequest::Striped));
        }
        let layout = LovLayout::parse(ea).map_err(|_| Errno::EINVAL)?;
        let stored = layout.build();
        let has_value = stored.len() > LovForeignMd::SIZE;
        match has_value && stored.len() <= VALUE_MAX {
            true => Ok(Some(LayoutRequest::Foreign(stored))),
            false => Err(Errno::EINVAL),
        }
    }
}

impl Default for LayoutRequest {
    fn default() -> LayoutRequest {
        LayoutRequest::Striped(StripeRequest::default())
    }
}

/// One object of a file's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeObject {
    /// The index of the OST.
    pub ost: OstIndex,
    /// The FID of the object.
    pub fid: Fid,
}

impl StripeRequest {
    /// Parses a `lov_user_md`; `None` if it specifies nothing, which deletes a default
    /// (`lfs setstripe -d`).
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a layout that is not implemented, `EINVAL` for a malformed one.
    pub fn parse(ea: &[u8]) -> Result<Option<StripeRequest>, Errno> {
        let magic = magic_of(ea);
        if ![LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LOV_USER_MAGIC_SPECIFIC].contains(&magic) {
            return Err(if LovLayout::is_layout(ea) {
                Errno::EOPNOTSUPP
            } else {
                Errno::EINVAL
            });
        }
        let lum = PlainLayout::parse(ea).map_err(|_| Errno::EINVAL)?;
        let overstriping = match lum.pattern {
            LOV_PATTERN_NONE | LOV_PATTERN_RAID0 | LOV_PATTERN_DEFAULT => false,
            OVERSTRIPED => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let mut striping = StripeRequest {
            stripe_size: lum.stripe_size,
            stripe_count: lum.stripe_count,
            overstriping,
            first: (lum.layout_gen != ANY_OST).then_some(OstIndex(lum.layout_gen.into())),
            pool: lum.pool,
            osts: Vec::new(),
        };
        if magic == LOV_USER_MAGIC_SPECIFIC {
            striping.osts = listed_osts(&lum)?;
        }
        if !striping.stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let all_osts = match overstriping {
            true => ALL_OSTS_LEAST..=ALL_OSTS,
            false => ALL_OSTS..=ALL_OSTS,
        };
        let count = striping.stripe_count;
        if u32::from(count) > LOV_MAX_STRIPE_COUNT && !all_osts.contains(&count) {
            return Err(Errno::EINVAL);
        }
        let is_empty = striping == StripeRequest::default();
        Ok((!is_empty).then_some(striping))
    }

    /// The `lov_user_md` of a directory's default layout.
    pub fn to_default_layout(&self) -> Bytes {
        PlainLayout {
            magic: match (self.osts.is_empty(), self.pool.is_empty()) {
                (false, _) => LOV_USER_MAGIC_SPECIFIC,
                (true, false) => LOV_USER_MAGIC_V3,
                (true, true) => LOV_USER_MAGIC_V1,
            },
            pattern: match self.overstriping {
                true => OVERSTRIPED,
                false => LOV_PATTERN_RAID0,
            },
            oi: OstId::default(),
            stripe_size: self.stripe_size,
            stripe_count: self.stripe_count,
            layout_gen: self.first.map_or(ANY_OST, |first| first.0 as u16),
            pool: self.pool,
            objects: self
                .osts
                .iter()
                .map(|ost| object_record(OstId::default(), *ost))
                .collect(),
        }
        .build()
    }

    /// Takes unspecified values from `defaults`; its list of OSTs and overstriping only if this
    /// request has neither a stripe count nor a list.
    pub fn with_defaults(self, defaults: &StripeRequest) -> StripeRequest {
        let sets_stripes = self.stripe_count != 0 || !self.osts.is_empty();
        StripeRequest {
            overstriping: self.overstriping || (!sets_stripes && defaults.overstriping),
            stripe_size: if self.stripe_size == 0 {
                defaults.stripe_size
            } else {
                self.stripe_size
            },
            stripe_count: if self.stripe_count == 0 {
                defaults.stripe_count
            } else {
                self.stripe_count
            },
            first: self.first.or(defaults.first),
            pool: if self.pool.is_empty() {
                defaults.pool
            } else {
                self.pool
            },
            osts: if sets_stripes {
                self.osts
            } else {
                defaults.osts.clone()
            },
        }
    }

    /// The number of stripes in a file system with `ost_count` OSTs.
    pub fn stripe_count_on(&self, ost_count: usize) -> usize {
        let max = LOV_MAX_STRIPE_COUNT as usize;
        match self.stripe_count {
            _ if !self.osts.is_empty() => self.osts.len(),
            0 => usize::from(DEFAULT_STRIPE_COUNT).min(ost_count),
            count @ ALL_OSTS_LEAST.. if self.overstriping => {
                (ost_count * usize::from(ALL_OSTS - count + 1)).min(max)
            }
            ALL_OSTS => ost_count.min(max),
            count if self.overstriping && ost_count > 0 => usize::from(count).min(max),
            count => usize::from(count).min(ost_count),
        }
    }
}

/// The OSTs that a request lists. `EINVAL` if an OST is listed twice without overstriping, or if
/// the number of OSTs is not the stripe count.
fn listed_osts(lum: &PlainLayout) -> Result<Vec<OstIndex>, Errno> {
    let osts: Vec<OstIndex> = lum.objects.iter().map(|o| OstIndex(o.l_ost_idx)).collect();
    let repeats = has_repeated(&osts) && !lum.is_overstriped();
    if repeats || osts.len() != usize::from(lum.stripe_count) {
        return Err(Errno::EINVAL);
    }
    Ok(osts)
}

/// Whether an OST is listed twice.
fn has_repeated(osts: &[OstIndex]) -> bool {
    // Sorting takes less time than comparing all pairs of up to 2000 OSTs.
    osts.len() > 1 && osts.iter().collect::<BTreeSet<_>>().len() < osts.len()
}

fn object_record(oi: OstId, ost: OstIndex) -> LovOstDataV1 {
    LovOstDataV1 {
        l_ost_oi: oi,
        l_ost_gen: 0,
        l_ost_idx: ost.0,
    }
}

/// Builds a file's layout (`lov_mds_md`) of these objects; stripe size 0: the default. As in
/// Lustre, the pattern states overstriping only if an OST has several objects.
pub fn build(file: Fid, stripe_size: u32, pool: Text<16>, objects: &[StripeObject]) -> Bytes {
    let size = if stripe_size == 0 {
        DEFAULT_STRIPE_SIZE
    } else {
        stripe_size
    };
    let records = objects
        .iter()
        .map(|o| object_record(o.fid.into(), o.ost))
        .collect();
    let mut layout = PlainLayout::raid0(file, size, records);
    let osts: Vec<OstIndex> = objects.iter().map(|o| o.ost).collect();
    if has_repeated(&osts) {
        layout.pattern = OVERSTRIPED;
    }
    if !pool.is_empty() {
        layout.magic = LOV_USER_MAGIC_V3;
        layout.pool = pool;
    }
    layout.build()
}

/// The magic of a layout; 0 if it is too short.
fn magic_of(ea: &[u8]) -> u32 {
    ea.first_chunk::<4>().map_or(0, |m| u32::from_le_bytes(*m))
}

/// Whether a layout is foreign: its file has no objects.
pub fn is_foreign(ea: &[u8]) -> bool {
    magic_of(ea) == LOV_MAGIC_FOREIGN
}

/// Whether a file's layout has several stripes on an OST.
pub fn is_overstriped(ea: &[u8]) -> bool {
    // Each getattr of a file asks, so this does not parse the objects.
    let pattern = ea.get(4..8).and_then(|p| p.first_chunk());
    let is_plain = [LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3].contains(&magic_of(ea));
    is_plain && pattern.is_some_and(|p| u32::from_le_bytes(*p) & !LOV_PATTERN_F_MASK == OVERSTRIPED)
}

/// The objects of a file's layout; none for an empty or foreign layout.
///
/// # Errors
///
/// `EPROTO` if the layout is malformed.
pub fn objects(ea: &[u8]) -> Result<Vec<StripeObject>, Errno> {
    if ea.is_empty() || is_foreign(ea) {
        return Ok(Vec::new());
    }
    let layout = PlainLayout::parse(ea)?;
    Ok(layout
        .objects
        .iter()
        .map(|o| StripeObject {
            ost: OstIndex(o.l_ost_idx),
            fid: o.l_ost_oi.fid(),
        })
        .collect())
}

/// Swaps the layouts of two files. Returns the new layout of file `a`, which has the objects of
/// `layout_b`, and the new layout of file `b`. Both get a new generation, by which clients notice
/// the change.
///
/// # Errors
///
/// `EOPNOTSUPP` if one is empty or foreign; `EPROTO` if one is malformed.
pub fn swap((a, layout_a): (Fid, &[u8]), (b, layout_b): (Fid, &[u8])) -> Result<(Bytes, Bytes), Errno> {
    if [layout_a, layout_b]
        .iter()
        .any(|ea| ea.is_empty() || is_foreign(ea))
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let (mut new_b, mut new_a) = (PlainLayout::parse(layout_a)?, PlainLayout::parse(layout_b)?);
    let excluded = [0, new_a.layout_gen, new_b.layout_gen];
    let mut generation = new_a.layout_gen.max(new_b.layout_gen);
    while excluded.contains(&generation) {
        generation = generation.wrapping_add(1);
    }
    for (layout, file) in [(&mut new_a, a), (&mut new_b, b)] {
        layout.layout_gen = generation;
        layout.oi = OstId {
            oi_id: file.f_oid.into(),
            oi_seq: file.f_seq,
        };
    }
    Ok((new_a.build(), new_b.build()))
}

/// The object with the last byte of a file of `size` bytes, and the size of that object. `None` for
/// an empty file, and for an empty or foreign layout.
///
/// # Errors
///
/// `EINVAL` or `EPROTO` if the layout is malformed.
pub fn last_object(ea: &[u8], size: u64) -> Result<Option<(StripeObject, u64)>, Errno> {
    if ea.is_empty() || is_foreign(ea) || size == 0 {
        return Ok(None);
    }
    let layout = PlainLayout::parse(ea)?;
    let (stripe_size, count) = (u64::from(layout.stripe_size), layout.objects.len() as u64);
    if stripe_size == 0 || count == 0 {
        return Err(Errno::EINVAL);
    }
    let last = size - 1;
    // A row of stripes has one stripe-size piece of each object.
    let (row, in_row) = (last / (stripe_size * count), last % (stripe_size * count));
    let record = &layout.objects[(in_row / stripe_size) as usize];
    let object = StripeObject {
        ost: OstIndex(record.l_ost_idx),
        fid: record.l_ost_oi.fid(),
    };
    Ok(Some((object, row * stripe_size + in_row % stripe_size + 1)))
}

/// Size of the longest layout in a file system with `ost_count` OSTs, bytes.
pub fn max_size(ost_count: usize) -> usize {
    LovMdsMdV3::SIZE + ost_count.max(1) * LovOstDataV1::SIZE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{LayoutRequest, StripeObject, StripeRequest, build, last_object, objects, swap};
    use wire::{Errno, Fid, LOV_MAGIC_FOREIGN, LovForeignMd, OstIndex, Text, WireStruct};

    fn hex(s: &str) -> Vec<u8> {
        (0..s.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn layout_matches_a_capture_of_a_lustre_server() {
        // From the capture d2_create_write_close: /dir1/file1, one stripe on OST 1.
        let captured = hex(concat!(
            "d00bd10b01000000020000000000000002040000020000000000400001000000",
            "010400c00200000002000000000000000000000001000000"
        ));
        let object = StripeObject {
            ost: OstIndex(1),
            fid: Fid::new(0x2_c000_0401, 2, 0),
        };
        let file = Fid::new(0x2_0000_0402, 2, 0);
        assert_eq!(build(file, 4 << 20, Text::default(), &[object]), captured);
        assert_eq!(objects(&captured).unwrap(), [object]);
    }

    #[test]
    fn swapped_layouts_name_their_files_and_have_new_generations() {
        let files = [1, 2].map(|oid| Fid::new(0x2_0000_0402, oid, 0));
        let object = |oid| StripeObject {
            ost: OstIndex(oid),
            fid: Fid::new(0x2_c000_0401, oid, 0),
        };
        let of = |i: usize| build(files[i], 1 << 20, Text::default(), &[object(i as u32)]);
        // `lmm_layout_gen`.
        let generation = |ea: &[u8]| u16::from_le_bytes([ea[30], ea[31]]);
        let with = |ea: &[u8], generation: u16| {
            let mut ea = ea.to_vec();
            ea[30..32].copy_from_slice(&generation.to_le_bytes());
            ea
        };
        for (old, new) in [([0, 0], 1), ([3, 5], 6), ([u16::MAX, 1], 2)] {
            let (a, b) = (with(&of(0), old[0]), with(&of(1), old[1]));
            let (for_a, for_b) = swap((files[0], &a), (files[1], &b)).unwrap();
            assert_eq!((generation(&for_a), generation(&for_b)), (new, new), "{old:?}");
            assert_eq!(objects(&for_a).unwrap(), [object(1)]);
            assert_eq!(for_a[8..24], of(0)[8..24], "the FID of the file");
            assert_eq!(for_b[8..24], of(1)[8..24]);
        }
        assert_eq!(swap((files[0], &of(0)), (files[1], &[])), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn default_layout_round_trips() {
        // From the capture t8_setstripe_dir: lfs setstripe -c 2 -S 4M.
        let request = hex("d00bd10b0100000000000000000000000000000000000000000040000200ffff");
        let striping = StripeRequest::parse(&request).unwrap().unwrap();
        assert_eq!(
            (striping.stripe_count, striping.stripe_size, striping.first),
            (2, 4 << 20, None)
        );
        assert_eq!(striping.to_default_layout(), request);
        assert_eq!(striping.stripe_count_on(1), 1);
        assert_eq!(striping.stripe_count_on(4), 2);
    }

    #[test]
    fn overstriped_requests_may_repeat_osts_and_multiply_the_osts() {
        let overstriped = |stripe_count, osts: &[u32]| {
            let request = StripeRequest {
                stripe_count,
                overstriping: true,
                osts: osts.iter().map(|i| OstIndex(*i)).collect(),
                ..StripeRequest::default()
            };
            let parsed = StripeRequest::parse(&request.to_default_layout())?;
            assert_eq!(parsed.as_ref(), Some(&request));
            Ok(parsed.unwrap())
        };
        let counts = |count| overstriped(count, &[]).unwrap().stripe_count_on(3);
        assert_eq!(
            [0, 2, 7, 2000, 0xffff, 0xfffe, 0xffe0].map(counts),
            [1, 2, 7, 2000, 3, 6, 96]
        );
        assert_eq!(overstriped(3, &[1, 1, 0]).unwrap().stripe_count_on(3), 3);
        for count in [2001, 0xffdf] {
            assert_eq!(overstriped(count, &[]), Err(Errno::EINVAL), "{count}");
        }
        let many = overstriped(0xffe0, &[]).unwrap();
        assert_eq!((many.stripe_count_on(0), many.stripe_count_on(1000)), (0, 2000));
    }

    #[test]
    fn request_for_a_stripe_count_does_not_inherit_overstriping() {
        let default = StripeRequest {
            stripe_count: 4,
            overstriping: true,
            ..StripeRequest::default()
        };
        let requested = |stripe_count| StripeRequest {
            stripe_count,
            ..StripeRequest::default()
        };
        assert!(requested(0).with_defaults(&default).overstriping);
        assert!(!requested(4).with_defaults(&default).overstriping);
    }

    #[test]
    fn foreign_layouts_are_stored_as_they_are_and_have_no_objects() {
        let head = |lfm_length| LovForeignMd {
            lfm_magic: LOV_MAGIC_FOREIGN,
            lfm_length,
            lfm_type: 0xda05,
            lfm_flags: 0xda08,
        };
        let foreign = |lfm_length, value: &[u8]| [&head(lfm_length).to_bytes()[..], value].concat();
        // A length that equals the pattern of overstriped files is no pattern.
        let value = [b'v'; 0x201];
        let ea = foreign(0x201, &value);
        let stored = Some(LayoutRequest::Foreign(ea.clone().into()));
        assert_eq!(LayoutRequest::parse(&ea).unwrap(), stored);
        let longer = [&ea[..], b"rest"].concat();
        assert_eq!(
            LayoutRequest::parse(&longer).unwrap(),
            stored,
            "bytes behind the value are dropped"
        );
        assert_eq!(objects(&ea).unwrap(), []);
        assert!(!super::is_overstriped(&ea) && super::is_foreign(&ea));
        assert_eq!(last_object(&ea, 5), Ok(None));
        let file = Fid::new(0x2_0000_0402, 2, 0);
        assert_eq!(swap((file, &ea), (file, &ea)), Err(Errno::EOPNOTSUPP));
        for bad in [
            foreign(0, b""),
            foreign(9, b"short"),
            foreign(u32::MAX, b"x"),
            foreign(65536, &[0; 65536]),
        ] {
            assert_eq!(LayoutRequest::parse(&bad), Err(Errno::EINVAL));
        }
        assert_eq!(
            StripeRequest::parse(&ea),
            Err(Errno::EOPNOTSUPP),
            "no default of a directory"
        );
    }

    #[test]
    fn pattern_states_overstriping_if_an_ost_has_several_objects() {
        let is_overstriped_on = |osts: &[u32]| {
            let object = |(oid, ost): (u32, &u32)| StripeObject {
                ost: OstIndex(*ost),
                fid: Fid::new(0x2_c000_0401, oid, 0),
            };
            let objects: Vec<_> = (1..).zip(osts).map(object).collect();
            let ea = build(Fid::new(0x2_0000_0402, 2, 0), 0, Text::default(), &objects);
            assert_eq!(super::objects(&ea).unwrap(), objects);
            super::is_overstriped(&ea)
        };
        assert!(is_overstriped_on(&[0, 1, 0]) && is_overstriped_on(&[1, 1]));
        assert!(!is_overstriped_on(&[0, 1, 2]) && !is_overstriped_on(&[0]));
        assert!(!super::is_overstriped(&[]));
    }

    #[test]
    fn last_object_has_the_last_byte() {
        const MIB: u64 = 1 << 20;
        let file = Fid::new(0x2_0000_0400, 1, 0);
        let objects = [1, 2, 3].map(|ost| StripeObject {
            ost: OstIndex(ost),
            fid: Fid::new(0x1_0000_0000, ost, 0),
        });
        let ea = build(file, 1 << 20, Text::default(), &objects);
        let cases = [
            (1, Some((0, 1))),
            (MIB, Some((0, MIB))),
            (MIB + 1, Some((1, 1))),
            (3 * MIB, Some((2, MIB))),
            (3 * MIB + 1, Some((0, MIB + 1))),
            (8 * MIB, Some((1, 3 * MIB))),
            (0, None),
        ];
        for (size, expected) in cases {
            let expected = expected.map(|(i, size)| (objects[i], size));
            assert_eq!(last_object(&ea, size), Ok(expected), "{size}");
        }
        assert_eq!(last_object(&[], 1), Ok(None));
    }

    #[test]
    fn listed_osts_keep_their_order_and_may_not_repeat() {
        let striping = StripeRequest {
            stripe_count: 2,
            osts: vec![OstIndex(3), OstIndex(1)],
            ..StripeRequest::default()
        };
        let ea = striping.to_default_layout();
        assert_eq!(StripeRequest::parse(&ea).unwrap().unwrap().osts, striping.osts);
        let twice = StripeRequest {
            stripe_count: 2,
            osts: vec![OstIndex(1); 2],
            ..StripeRequest::default()
        }
        .to_default_layout();
        assert_eq!(StripeRequest::parse(&twice), Err(Errno::EINVAL));
        assert_eq!(StripeRequest::parse(&ea[..ea.len() - 1]), Err(Errno::EINVAL));
    }

    #[test]
    fn unimplemented_layouts_are_errors() {
        let mut lum = StripeRequest {
            stripe_count: 1,
            ..StripeRequest::default()
        }
        .to_default_layout()
        .to_vec();
        // Byte 2 is in the magic number, byte 4 in the pattern, byte 24 in the stripe size.
        lum[4] = 0x40;
        assert_eq!(StripeRequest::parse(&lum), Err(Errno::EOPNOTSUPP));
        lum[4] = 1;
        lum[24] = 1;
        assert_eq!(StripeRequest::parse(&lum), Err(Errno::EINVAL));
        lum[2] = 0xd6;
        assert_eq!(StripeRequest::parse(&lum), Err(Errno::EOPNOTSUPP));
        assert_eq!(StripeRequest::parse(&[0; 8]), Err(Errno::EINVAL));
    }

    #[test]
    fn empty_request_is_none_and_defaults_fill_unspecified_values() {
        let nothing = hex("d00bd10b0100000000000000000000000000000000000000000000000000ffff");
        assert_eq!(StripeRequest::parse(&nothing), Ok(None));
        let dir = StripeRequest {
            stripe_size: 1 << 20,
            stripe_count: 2,
            ..StripeRequest::default()
        };
        let file = StripeRequest {
            stripe_count: 3,
            ..StripeRequest::default()
        };
        assert_eq!(
            file.with_defaults(&dir),
            StripeRequest {
                stripe_size: 1 << 20,
                stripe_count: 3,
                ..StripeRequest::default()
            }
        );
    }
}
