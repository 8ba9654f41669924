//! Layouts of files: the client's request and a directory's default layout (`lov_user_md`), and a
//! file's layout (`lov_mds_md`); always little-endian, in messages and in attributes.
//!
//! This module is pure; [`crate::lod`] selects the OSTs. It implements RAID0, optionally with
//! several stripes on an OST (overstriping), a pool name, or OSTs listed by the user; and layouts
//! with several components ([`composite`]), of which the first may be on the MDT. The MDT stores
//! foreign layouts, whose data is in another system, without interpreting them. Mirrors are errors.

pub mod composite;

use std::{collections::BTreeSet, fmt};

use bytes::Bytes;
use wire::{
    Errno, Fid, LOV_ALL_STRIPES_WIDE, LOV_MAGIC_COMP_V1, LOV_MAGIC_FOREIGN, LOV_MAX_STRIPE_COUNT,
    LOV_MIN_STRIPE_SIZE, LOV_PATTERN_DEFAULT, LOV_PATTERN_F_MASK, LOV_PATTERN_NONE, LOV_PATTERN_OVERSTRIPING,
    LOV_PATTERN_RAID0, LOV_USER_MAGIC_SPECIFIC, LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LovForeignMd,
    LovMdsMdV3, LovOstDataV1, OstId, OstIndex, Text, WireStruct,
    striping::{CompositeLayout, LovLayout, PlainLayout},
};

use crate::namespace::xattr::VALUE_MAX;
use composite::ComponentRequest;

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
    /// Components, each with its own stripes.
    Composite(Vec<ComponentRequest>),
    /// A foreign layout (`lov_foreign_md`), which the file gets as it is.
    Foreign(Bytes),
}

impl LayoutRequest {
    /// Parses a user's request for the layout of a file; `None` if it specifies nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a foreign layout without a value, or whose value is longer than an extended
    /// attribute or than `ea`; otherwise as [`StripeRequest::parse`] and
    /// [`composite::parse_request`].
    pub fn parse(ea: &[u8]) -> Result<Option<LayoutRequest>, Errno> {
        match magic_of(ea) {
            LOV_MAGIC_FOREIGN => {}
            LOV_MAGIC_COMP_V1 => return Ok(Some(LayoutRequest::Composite(composite::parse_request(ea)?))),
            _ => return Ok(StripeRequest::parse(ea)?.map(LayoutRequest::Striped)),
        }
        let layout = LovLayout::parse(ea).map_err(|_| Errno::EINVAL)?;
        let stored = layout.build();
        let has_value = stored.len() > LovForeignMd::SIZE;
        match has_value && stored.len() <= VALUE_MAX {
            true => Ok(Some(LayoutRequest::Foreign(stored))),
            false => Err(Errno::EINVAL),
        }
    }

    /// The default layout that a directory stores for this request.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a foreign layout.
    pub fn to_default_layout(&self) -> Result<Bytes, Errno> {
        match self {
            LayoutRequest::Striped(striping) => Ok(striping.to_default_layout()),
            LayoutRequest::Composite(components) => Ok(composite::to_default_layout(components)),
            LayoutRequest::Foreign(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Takes unspecified values from a directory's default. As in Lustre, a request that specifies
    /// any value takes nothing from a default with components.
    pub fn with_defaults(self, default: LayoutRequest) -> LayoutRequest {
        match (self, default) {
            (LayoutRequest::Striped(striping), LayoutRequest::Striped(default)) => {
                LayoutRequest::Striped(striping.with_defaults(&default))
            }
            (LayoutRequest::Striped(striping), default) if striping == StripeRequest::default() => default,
            (request, _) => request,
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
        if ![LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LOV_USER_MAGIC_SPECIFIC].contains(&magic_of(ea)) {
            return Err(if LovLayout::is_layout(ea) {
                Errno::EOPNOTSUPP
            } else {
                Errno::EINVAL
            });
        }
        let striping = StripeRequest::from_plain(&PlainLayout::parse(ea).map_err(|_| Errno::EINVAL)?)?;
        let is_empty = striping == StripeRequest::default();
        Ok((!is_empty).then_some(striping))
    }

    /// The request of a `lov_user_md`, alone or in a component.
    fn from_plain(lum: &PlainLayout) -> Result<StripeRequest, Errno> {
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
        if lum.magic == LOV_USER_MAGIC_SPECIFIC {
            striping.osts = listed_osts(lum)?;
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
        Ok(striping)
    }

    /// The `lov_user_md` of a directory's default layout.
    pub fn to_default_layout(&self) -> Bytes {
        self.to_plain().build()
    }

    /// The request as a `lov_user_md`.
    fn to_plain(&self) -> PlainLayout {
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
    let mut layout = PlainLayout::raid0(file, size, Vec::new());
    set_objects(&mut layout, objects);
    if !pool.is_empty() {
        layout.magic = LOV_USER_MAGIC_V3;
        layout.pool = pool;
    }
    layout.build()
}

/// Sets the objects of a layout, and the pattern and stripe count that follow from them.
fn set_objects(layout: &mut PlainLayout, objects: &[StripeObject]) {
    let record = |o: &StripeObject| object_record(o.fid.into(), o.ost);
    layout.objects = objects.iter().map(record).collect();
    layout.stripe_count = objects.len() as u16;
    let osts: Vec<OstIndex> = objects.iter().map(|o| o.ost).collect();
    layout.pattern = match has_repeated(&osts) {
        true => OVERSTRIPED,
        false => LOV_PATTERN_RAID0,
    };
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
    // Each getattr of a file asks, so this does not parse the objects of a plain layout.
    if magic_of(ea) == LOV_MAGIC_COMP_V1 {
        return LovLayout::parse(ea).is_ok_and(|layout| layout.is_overstriped());
    }
    let pattern = ea.get(4..8).and_then(|p| p.first_chunk());
    let is_plain = [LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3].contains(&magic_of(ea));
    is_plain && pattern.is_some_and(|p| u32::from_le_bytes(*p) & !LOV_PATTERN_F_MASK == OVERSTRIPED)
}

/// The end of the file's part that is on the MDT; `None` if the whole file is on OSTs.
pub fn data_max(ea: &[u8]) -> Option<u64> {
    composite::data_max(&components(ea).ok()??)
}

/// The place of an object in a file's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StripePlace {
    /// The number of the component; 0 in a plain layout.
    pub component: u16,
    /// The number of the stripe in the component.
    pub stripe: u16,
}

impl fmt::Display for StripePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.component {
            0 => write!(f, "stripe {}", self.stripe),
            component => write!(f, "component {component} stripe {}", self.stripe),
        }
    }
}

/// A file's layout if it has components.
///
/// # Errors
///
/// `EPROTO` if the layout is malformed.
pub fn components(ea: &[u8]) -> Result<Option<CompositeLayout>, Errno> {
    match magic_of(ea) {
        LOV_MAGIC_COMP_V1 => match LovLayout::parse(ea)? {
            LovLayout::Composite(layout) => Ok(Some(layout)),
            _ => Err(Errno::EPROTO),
        },
        _ => Ok(None),
    }
}

/// The objects of a file's layout, with their places; none for an empty or foreign layout.
///
/// # Errors
///
/// `EPROTO` if the layout is malformed.
pub fn placed_objects(ea: &[u8]) -> Result<Vec<(StripePlace, StripeObject)>, Errno> {
    if ea.is_empty() || is_foreign(ea) {
        return Ok(Vec::new());
    }
    if let Some(layout) = components(ea)? {
        let of_all = composite::with_objects(&layout);
        return Ok(of_all.flat_map(|(number, plain)| placed(number, plain)).collect());
    }
    Ok(placed(0, &PlainLayout::parse(ea)?).collect())
}

/// The objects of a component.
fn placed(component: u16, plain: &PlainLayout) -> impl Iterator<Item = (StripePlace, StripeObject)> {
    (0..).zip(&plain.objects).map(move |(stripe, record)| {
        let object = StripeObject {
            ost: OstIndex(record.l_ost_idx),
            fid: record.l_ost_oi.fid(),
        };
        (StripePlace { component, stripe }, object)
    })
}

/// The objects of a file's layout; none for an empty or foreign layout.
///
/// # Errors
///
/// `EPROTO` if the layout is malformed.
pub fn objects(ea: &[u8]) -> Result<Vec<StripeObject>, Errno> {
    let placed = placed_objects(ea)?;
    Ok(placed.into_iter().map(|(_, object)| object).collect())
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
    if magic_of(ea) == LOV_MAGIC_COMP_V1 {
        let layout = components(ea).map_err(|_| Errno::EINVAL)?.ok_or(Errno::EINVAL)?;
        if !composite::is_of_file(&layout) {
            return Ok(None);
        }
        composite::check(&layout).map_err(|_| Errno::EINVAL)?;
        return Ok(Some(LovLayout::Composite(layout).build()));
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
/// `EOPNOTSUPP` if one is empty, foreign, or has a part on the MDT; `EPROTO` if one is malformed.
pub fn swap((a, layout_a): (Fid, &[u8]), (b, layout_b): (Fid, &[u8])) -> Result<(Bytes, Bytes), Errno> {
    if [layout_a, layout_b]
        .iter()
        .any(|ea| ea.is_empty() || is_foreign(ea) || data_max(ea).is_some())
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let (mut new_b, mut new_a) = (LovLayout::parse(layout_a)?, LovLayout::parse(layout_b)?);
    let (old_a, old_b) = (generation_of(&new_b), generation_of(&new_a));
    // A plain layout has only the lower 16 bits.
    let excluded = [0, old_a as u16, old_b as u16];
    let mut generation = old_a.max(old_b);
    while excluded.contains(&(generation as u16)) {
        generation = generation.wrapping_add(1);
    }
    set_file(&mut new_a, a, generation);
    set_file(&mut new_b, b, generation);
    Ok((new_a.build(), new_b.build()))
}

fn generation_of(layout: &LovLayout) -> u32 {
    match layout {
        LovLayout::Plain(plain) => plain.layout_gen.into(),
        LovLayout::Composite(composite) => composite.head.lcm_layout_gen,
        LovLayout::Foreign(..) => 0,
    }
}

/// Sets the file and the generation of a layout.
fn set_file(layout: &mut LovLayout, file: Fid, generation: u32) {
    let oi = composite::owner(file);
    match layout {
        LovLayout::Plain(plain) => (plain.oi, plain.layout_gen) = (oi, generation as u16),
        LovLayout::Composite(composite) => {
            composite.head.lcm_layout_gen = generation;
            composite
                .components
                .iter_mut()
                .for_each(|(_, plain)| plain.oi = oi);
        }
        LovLayout::Foreign(..) => {}
    }
}

/// The object with the last byte of a file of `size` bytes, and the size of that object. `None` for
/// an empty file, for an empty or foreign layout, and for a byte on the MDT.
///
/// # Errors
///
/// `EINVAL` or `EPROTO` if the layout is malformed; `EINVAL` if the component of the byte has no
/// objects.
pub fn last_object(ea: &[u8], size: u64) -> Result<Option<(StripeObject, u64)>, Errno> {
    if ea.is_empty() || is_foreign(ea) || size == 0 {
        return Ok(None);
    }
    let last = size - 1;
    let layout = match components(ea)? {
        Some(composite) => composite::component_at(&composite, last)
            .cloned()
            .ok_or(Errno::EINVAL)?,
        None => PlainLayout::parse(ea)?,
    };
    if layout.is_on_mdt() {
        return Ok(None);
    }
    let (stripe_size, count) = (u64::from(layout.stripe_size), layout.objects.len() as u64);
    if stripe_size == 0 || count == 0 {
        return Err(Errno::EINVAL);
    }
    // A row of stripes has one stripe-size piece of each object.
    let (row, in_row) = (last / (stripe_size * count), last % (stripe_size * count));
    let record = &layout.objects[(in_row / stripe_size) as usize];
    let object = StripeObject {
        ost: OstIndex(record.l_ost_idx),
        fid: record.l_ost_oi.fid(),
    };
    Ok(Some((object, row * stripe_size + in_row % stripe_size + 1)))
}

/// Size of the longest plain layout in a file system with `ost_count` OSTs, bytes.
pub fn max_size(ost_count: usize) -> usize {
    LovMdsMdV3::SIZE + ost_count.max(1) * LovOstDataV1::SIZE
}

#[cfg(test)]
mod tests;
