//! Layouts of files: the client's request and a directory's default layout (`lov_user_md`), and a
//! file's layout (`lov_mds_md`); always little-endian, in messages and in attributes.
//!
//! This module is pure; [`crate::lod`] selects the OSTs. It implements RAID0, optionally with
//! several stripes on an OST (overstriping), a pool name, or OSTs listed by the user. The MDT
//! stores foreign layouts, whose data is in another system, without interpreting them. Composite
//! and data-on-MDT layouts are errors.

use std::collections::BTreeSet;

use bytes::Bytes;
use wire::{
    Errno, Fid, LOV_ALL_STRIPES_WIDE, LOV_MAGIC_FOREIGN, LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE,
    LOV_PATTERN_DEFAULT, LOV_PATTERN_F_MASK, LOV_PATTERN_NONE, LOV_PATTERN_OVERSTRIPING, LOV_PATTERN_RAID0,
    LOV_USER_MAGIC_SPECIFIC, LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LovForeignMd, LovMdsMdV3, LovOstDataV1,
    OstId, OstIndex, Text, WireStruct,
    striping::{LovLayout, PlainLayout},
};

use crate::namespace::xattr::VALUE_MAX;

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

/// The layout in a replayed open: that of the file when it was first opened. `None` if `ea` is a
/// user's request, without objects.
///
/// # Errors
///
/// `EINVAL` if a client cannot have got the layout from an MDT.
pub fn replayed(ea: &[u8]) -> Result<Option<Bytes>, Errno> {
    if is_foreign(ea) {
        return match LayoutRequest::parse(ea)? {
            Some(LayoutRequest::Foreign(layout)) => Ok(Some(layout)),
            _ => Err(Errno::EINVAL),
        };
    }
    if ![LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3].contains(&magic_of(ea)) {
        return Ok(None);
    }
    let layout = PlainLayout::parse(ea).map_err(|_| Errno::EINVAL)?;
    if layout.objects.is_empty() {
        return Ok(None);
    }
    let stored = layout.build();
    let is_valid = layout.is_raid0()
        && !layout.is_released()
        && layout.objects.len() == usize::from(layout.stripe_count)
        && layout.objects.len() <= LOV_MAX_STRIPE_COUNT as usize
        && layout.stripe_size != 0
        && layout.stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE)
        && ea.starts_with(&stored);
    match is_valid {
        true => Ok(Some(stored)),
        false => Err(Errno::EINVAL),
    }
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
mod tests;
