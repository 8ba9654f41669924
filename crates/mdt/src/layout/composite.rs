//! Composite layouts (Lustre's progressive file layouts): components that follow each other from
//! the beginning of a file, each with its own striping. A component gets its objects before a
//! client first writes there. Until then its record keeps what the user requested. The first
//! component may be on the MDT; it has no objects. Pure.

use std::ops::Range;

use bytes::Bytes;
use wire::{
    Errno, Fid, LCME_FL_INIT, LOV_MAGIC_V1, LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE,
    LOV_USER_MAGIC_SPECIFIC, LOV_USER_MAGIC_V3, LovCompMdEntryV1, LovCompMdV1, LovMdsMdV3, LovOstDataV1,
    LuExtent, OstId, OstIndex, WireStruct,
    striping::{CompositeLayout, LovLayout, PlainLayout},
};

use super::{
    DEFAULT_STRIPE_COUNT, DEFAULT_STRIPE_SIZE, StripeObject, StripeRequest, object_record, set_objects,
};
use crate::namespace::xattr::VALUE_MAX;

/// The end of a component that has no end.
pub const EOF: u64 = CompositeLayout::EOF;
/// Largest end of a component on the MDT, bytes. A removal of the file removes its blocks in one
/// transaction.
pub const ON_MDT_MAX: u64 = 16 << 20;
/// Most bytes that a component without objects takes in a layout: its entry, a header with a pool,
/// and one record in place of the objects.
const COMPONENT_BYTES: usize = LovCompMdEntryV1::SIZE + LovMdsMdV3::SIZE + LovOstDataV1::SIZE;

/// The requested layout of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentRequest {
    /// The bytes of the file; the end [`EOF`] means no end.
    pub extent: Range<u64>,
    /// Whether the bytes are on the MDT. Then `striping` has no values.
    pub on_mdt: bool,
    /// The striping of these bytes.
    pub striping: StripeRequest,
}

impl ComponentRequest {
    /// Takes unspecified values from `defaults`. As in Lustre, the end of a component is a multiple
    /// of its stripe size: if the default size does not divide the end, the size is the largest
    /// power of two that does.
    pub fn with_defaults(self, defaults: &StripeRequest) -> ComponentRequest {
        if self.on_mdt {
            return self;
        }
        let is_given = self.striping.stripe_size != 0;
        let mut striping = self.striping.with_defaults(defaults);
        if striping.stripe_size == 0 {
            striping.stripe_size = DEFAULT_STRIPE_SIZE;
        }
        if striping.stripe_count == 0 {
            striping.stripe_count = DEFAULT_STRIPE_COUNT;
        }
        let end = self.extent.end;
        if !is_given && end != EOF && !end.is_multiple_of(striping.stripe_size.into()) {
            // The end is not 0, and smaller than the default size or no multiple of it.
            striping.stripe_size = 1 << end.trailing_zeros().min(31);
        }
        ComponentRequest { striping, ..self }
    }

    /// The component without objects, in the format of a directory's default.
    fn to_default(&self) -> (LovCompMdEntryV1, PlainLayout) {
        let plain = match self.on_mdt {
            true => PlainLayout::request_on_mdt(self.extent.end as u32),
            false => self.striping.to_plain(),
        };
        (entry(&self.extent, 0), plain)
    }

    /// The component of a new file, without objects.
    fn to_new(&self, file: Fid, id: u32, mdt: u16) -> (LovCompMdEntryV1, PlainLayout) {
        let mut entry = entry(&self.extent, id);
        if !self.on_mdt {
            return (entry, without_objects(file, &self.striping));
        }
        entry.lcme_flags = LCME_FL_INIT;
        let on_mdt = PlainLayout {
            oi: owner(file),
            // As in Lustre, tools show this field as the MDT's index.
            layout_gen: mdt,
            ..PlainLayout::request_on_mdt(self.extent.end as u32)
        };
        (entry, on_mdt)
    }
}

fn entry(extent: &Range<u64>, lcme_id: u32) -> LovCompMdEntryV1 {
    LovCompMdEntryV1 {
        lcme_id,
        lcme_extent: LuExtent {
            e_start: extent.start,
            e_end: extent.end,
        },
        ..Default::default()
    }
}

fn extent_of(entry: &LovCompMdEntryV1) -> Range<u64> {
    entry.lcme_extent.e_start..entry.lcme_extent.e_end
}

fn has_objects(entry: &LovCompMdEntryV1) -> bool {
    entry.lcme_flags & LCME_FL_INIT != 0
}

/// Parses a user's request (`lov_comp_md_v1`).
///
/// # Errors
///
/// `EOPNOTSUPP` for mirrors, or flags or a pattern that are not implemented. `EINVAL` for a
/// malformed layout: no components, extents that do not follow each other from 0, ends that are no
/// multiples of the stripe size, or more components than a layout has room for.
pub fn parse_request(ea: &[u8]) -> Result<Vec<ComponentRequest>, Errno> {
    let LovLayout::Composite(layout) = LovLayout::parse(ea).map_err(|_| Errno::EINVAL)? else {
        return Err(Errno::EINVAL);
    };
    check_extents(&layout).map_err(|_| Errno::EINVAL)?;
    if layout.head.lcm_mirror_count != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut components = Vec::with_capacity(layout.components.len());
    for (entry, plain) in &layout.components {
        if entry.lcme_flags & !LCME_FL_INIT != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let extent = extent_of(entry);
        if plain.is_on_mdt() {
            check_on_mdt(entry, plain).map_err(|_| Errno::EINVAL)?;
            components.push(ComponentRequest {
                extent,
                on_mdt: true,
                striping: StripeRequest::default(),
            });
            continue;
        }
        let mut striping = StripeRequest::from_plain(plain)?;
        if has_objects(entry) {
            // The layout of a file: the field of the first OST has a generation.
            striping.first = None;
        }
        let size = u64::from(striping.stripe_size);
        let end = entry.lcme_extent.e_end;
        if size != 0 && end != EOF && !end.is_multiple_of(size) {
            return Err(Errno::EINVAL);
        }
        components.push(ComponentRequest {
            extent,
            on_mdt: false,
            striping,
        });
    }
    let listed: usize = components.iter().map(|c| c.striping.osts.len()).sum();
    let bytes =
        LovCompMdV1::SIZE + components.len() * COMPONENT_BYTES + listed.saturating_mul(LovOstDataV1::SIZE);
    match bytes <= VALUE_MAX {
        true => Ok(components),
        false => Err(Errno::EINVAL),
    }
}

/// Checks a component on the MDT: it is the first, has an end and no stripes. The error is the
/// reason that it cannot exist.
fn check_on_mdt(entry: &LovCompMdEntryV1, plain: &PlainLayout) -> Result<(), String> {
    let Range { start, end } = extent_of(entry);
    let has_size = plain.stripe_size == 0 || u64::from(plain.stripe_size) == end;
    match start == 0 && end <= ON_MDT_MAX && has_size && plain.objects.is_empty() && plain.stripe_count == 0 {
        true => Ok(()),
        false => Err(format!("a component on the MDT of bytes {start} to {end}")),
    }
}

/// Limits the component on the MDT to `max` bytes, a multiple of the least stripe size. As in
/// Lustre, the next component then begins earlier. With 0, no component is on the MDT.
///
/// # Errors
///
/// `EINVAL` if no component remains.
pub fn limit_on_mdt(mut components: Vec<ComponentRequest>, max: u64) -> Result<Vec<ComponentRequest>, Errno> {
    let Some(first) = components.first_mut().filter(|c| c.on_mdt && c.extent.end > max) else {
        return Ok(components);
    };
    first.extent.end = max;
    if let Some(next) = components.get_mut(1) {
        next.extent.start = max;
    }
    if max == 0 {
        components.remove(0);
    }
    match components.is_empty() {
        true => Err(Errno::EINVAL),
        false => Ok(components),
    }
}

/// Checks that the components follow each other from 0, each with at least one byte and an end that
/// is a multiple of the least stripe size. The error is the reason that they do not.
fn check_extents(layout: &CompositeLayout) -> Result<(), String> {
    let mut expected = Some(0);
    for (entry, _) in &layout.components {
        let Range { start, end } = extent_of(entry);
        let is_aligned = end == EOF || end.is_multiple_of(LOV_MIN_STRIPE_SIZE.into());
        if Some(start) != expected || start >= end || !is_aligned {
            return Err(format!("a component of bytes {start} to {end}"));
        }
        expected = (end != EOF).then_some(end);
    }
    match layout.components.is_empty() {
        true => Err("no components".into()),
        false => Ok(()),
    }
}

/// The default layout of a directory (`lov_comp_md_v1`) that requests these components.
pub fn to_default_layout(components: &[ComponentRequest]) -> Bytes {
    let components = components.iter().map(ComponentRequest::to_default).collect();
    LovLayout::Composite(CompositeLayout::new(components)).build()
}

/// The layout of a new file with these components, which have all values and no objects yet. The
/// component on the MDT names the MDT, by its index `mdt`. As in
/// Lustre, each component raises the generation of the layout, which becomes the component's id.
pub fn new_layout(file: Fid, components: &[ComponentRequest], mdt: u16) -> CompositeLayout {
    let component = |(id, request): (u32, &ComponentRequest)| request.to_new(file, id, mdt);
    let mut layout = CompositeLayout::new((1..).zip(components).map(component).collect());
    layout.head.lcm_layout_gen = layout.components.len() as u32;
    layout
}

/// A component's record before the component has objects. As Lustre's, it keeps the OSTs that the
/// user requested in place of the objects.
fn without_objects(file: Fid, striping: &StripeRequest) -> PlainLayout {
    const ANY_OST: OstIndex = OstIndex(u32::MAX);
    let osts = match &striping.osts[..] {
        [] => vec![striping.first.unwrap_or(ANY_OST)],
        listed => listed.to_vec(),
    };
    let plain = striping.to_plain();
    PlainLayout {
        magic: match plain.pool.is_empty() {
            true => LOV_MAGIC_V1,
            false => LOV_USER_MAGIC_V3,
        },
        oi: owner(file),
        objects: osts
            .into_iter()
            .map(|ost| object_record(OstId::default(), ost))
            .collect(),
        ..plain
    }
}

/// The FID of a file as its layout records it.
pub(super) fn owner(file: Fid) -> OstId {
    OstId {
        oi_id: file.f_oid.into(),
        oi_seq: file.f_seq,
    }
}

/// The striping that a component without objects requests, for a file system with `ost_count` OSTs.
/// It has at most as many stripes as the layout has room for. `None` if the layout has no such
/// component.
pub fn request_of(layout: &CompositeLayout, component: usize, ost_count: usize) -> Option<StripeRequest> {
    let (_, plain) = layout.components.get(component)?;
    let ost = |object: &LovOstDataV1| OstIndex(object.l_ost_idx);
    let (first, osts) = match &plain.objects[..] {
        [any] if u16::try_from(any.l_ost_idx).is_err() => (None, Vec::new()),
        [first] => (Some(ost(first)), Vec::new()),
        listed => (None, listed.iter().map(ost).collect()),
    };
    let mut request = StripeRequest {
        stripe_size: plain.stripe_size,
        stripe_count: plain.stripe_count,
        overstriping: plain.is_overstriped(),
        first,
        pool: plain.pool,
        osts,
    };
    let room = VALUE_MAX.saturating_sub(size(layout)) / LovOstDataV1::SIZE + 1;
    if request.osts.is_empty() && request.stripe_count_on(ost_count) > room {
        request.stripe_count = room as u16;
    }
    Some(request)
}

/// Size of a layout in its format, if each component names a pool, bytes.
fn size(layout: &CompositeLayout) -> usize {
    let component = |(_, plain): &(LovCompMdEntryV1, PlainLayout)| {
        LovCompMdEntryV1::SIZE + LovMdsMdV3::SIZE + plain.objects.len() * LovOstDataV1::SIZE
    };
    LovCompMdV1::SIZE + layout.components.iter().map(component).sum::<usize>()
}

/// The components without objects that have bytes of a range. The end [`EOF`] of the range means
/// the end of the layout.
///
/// # Errors
///
/// `EINVAL` if the range reaches beyond the last component.
pub fn missing(layout: &CompositeLayout, range: &Range<u64>) -> Result<Vec<usize>, Errno> {
    let end = layout.components.last().map_or(0, |(e, _)| e.lcme_extent.e_end);
    if range.end != EOF && range.end > end {
        return Err(Errno::EINVAL);
    }
    let touches = |extent: Range<u64>| extent.start < range.end && range.start < extent.end;
    let components = layout.components.iter().enumerate();
    let missing = components.filter(|(_, (e, _))| !has_objects(e) && touches(extent_of(e)));
    Ok(missing.map(|(index, _)| index).collect())
}

/// Gives a component its objects.
pub fn add_objects(layout: &mut CompositeLayout, component: usize, objects: &[StripeObject]) {
    if let Some((entry, plain)) = layout.components.get_mut(component) {
        entry.lcme_flags |= LCME_FL_INIT;
        // Until now the field had the first OST.
        plain.layout_gen = 0;
        set_objects(plain, objects);
    }
}

/// Raises the generation of a layout, by which clients notice a change.
pub fn raise_generation(layout: &mut CompositeLayout) {
    layout.head.lcm_layout_gen = layout.head.lcm_layout_gen.wrapping_add(1);
}

/// The components that have objects, with their numbers.
pub(super) fn with_objects(layout: &CompositeLayout) -> impl Iterator<Item = (u16, &PlainLayout)> {
    let components = (0..).zip(&layout.components);
    components.filter_map(|(number, (entry, plain))| has_objects(entry).then_some((number, plain)))
}

/// The component with a byte of the file, if the component has objects.
pub(super) fn component_at(layout: &CompositeLayout, offset: u64) -> Option<&PlainLayout> {
    let mut components = layout.components.iter();
    let found = components.find(|(entry, _)| extent_of(entry).contains(&offset));
    found.and_then(|(entry, plain)| has_objects(entry).then_some(plain))
}

/// The end of the component on the MDT.
pub(super) fn data_max(layout: &CompositeLayout) -> Option<u64> {
    let (entry, plain) = layout.components.first()?;
    plain.is_on_mdt().then_some(entry.lcme_extent.e_end)
}

/// Whether a user's layout has objects: then it is the layout of a file.
pub(super) fn is_of_file(layout: &CompositeLayout) -> bool {
    with_objects(layout).next().is_some()
}

/// Checks that a file can have this layout. The error is the reason that it cannot.
///
/// # Errors
///
/// The first rule that the layout violates.
pub fn check(layout: &CompositeLayout) -> Result<(), String> {
    check_extents(layout)?;
    if layout.head.lcm_mirror_count != 0 {
        return Err("mirrors".into());
    }
    for (entry, plain) in &layout.components {
        let flags = entry.lcme_flags & !LCME_FL_INIT;
        if flags != 0 {
            return Err(format!("a component with unknown flags {flags:#x}"));
        }
        check_component(entry, plain)?;
    }
    match size(layout) {
        bytes if bytes > VALUE_MAX => Err(format!("a layout of {bytes} bytes")),
        _ => Ok(()),
    }
}

fn check_component(entry: &LovCompMdEntryV1, plain: &PlainLayout) -> Result<(), String> {
    if plain.is_on_mdt() && has_objects(entry) {
        return check_on_mdt(entry, plain);
    }
    let (count, objects) = (plain.stripe_count, plain.objects.len());
    if !plain.is_raid0() || plain.is_released() || plain.magic == LOV_USER_MAGIC_SPECIFIC {
        return Err(format!("a component of pattern {:#x}", plain.pattern));
    }
    if plain.stripe_size == 0 || !plain.stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
        return Err(format!("a component of stripe size {}", plain.stripe_size));
    }
    let is_complete = (1..=LOV_MAX_STRIPE_COUNT as usize).contains(&objects) && objects == usize::from(count);
    let is_reserved = |object: &LovOstDataV1| object.l_ost_oi == OstId::default();
    match has_objects(entry) {
        true if !is_complete => Err(format!("a component of {count} stripes with {objects} objects")),
        false if !plain.objects.iter().all(is_reserved) => {
            Err("a component with objects but without the flag for them".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
