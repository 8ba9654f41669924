//! A file's layout: components, each a part of the file with its pattern and objects; and the
//! arithmetic that maps a range of the file to ranges of objects.
//!
//! A metadata target sends the layout as an extended attribute (EA). `lov_mds_md` v1 or v3 is one
//! component for the whole file. In `lov_comp_md_v1` (PFL) the components follow each other, and
//! the target allocates the objects of a component when a client is about to write there. The
//! patterns that this client uses are RAID0, and data on the metadata target, which is one object
//! there. Other layouts are rejected for I/O; tools read them from the extended attribute. Pure.

mod raid0;

use bytes::Bytes;
use raid0::Raid0;
use std::ops::Range;
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, Fid, LCME_FL_INIT, LCME_FL_PARITY, OstId, OstIndex, StripeIndex};

/// Largest stripe count of a component.
const STRIPES_MAX: usize = 2000;
/// Stripe sizes are multiples of this many bytes.
const STRIPE_SIZE_MIN: u32 = 64 << 10;

/// One object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The object's ID, as RPCs carry it.
    pub oi: OstId,
    /// The target that has it.
    pub target: StripeTarget,
}

/// The target of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeTarget {
    /// An OST.
    Ost(OstIndex),
    /// The metadata target of the file: the object is the file itself.
    Mdt,
}

/// The number of an object among all objects of a file, in the order of components and stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectIndex(pub u32);

/// A contiguous part of a file within one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectExtent {
    /// The object.
    pub object: ObjectIndex,
    /// Offset in the object, in bytes.
    pub object_offset: u64,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl ObjectExtent {
    /// The extent's bytes in the object.
    pub fn object_range(&self) -> Range<u64> {
        self.object_offset..self.object_offset + self.len
    }
}

/// A part of a file with its pattern and objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The bytes of the file in this component; the end `u64::MAX` means the end of the file.
    pub extent: Range<u64>,
    /// The mapping of bytes to objects.
    pattern: Raid0,
    /// The objects in stripe order; none until the target allocates them.
    pub stripes: Vec<Stripe>,
    /// The index of the first object.
    first: ObjectIndex,
}

impl Component {
    /// `EOPNOTSUPP`: an unknown pattern; `EPROTO`: an invalid stripe count or size.
    fn new(
        extent: Range<u64>,
        plain: &PlainLayout,
        has_objects: bool,
        first: ObjectIndex,
    ) -> Result<Component, Errno> {
        if plain.is_on_mdt() {
            return Component::on_mdt(extent, plain, first);
        }
        if !plain.is_raid0() {
            return Err(Errno::EOPNOTSUPP);
        }
        let objects = if has_objects { &plain.objects[..] } else { &[] };
        let size_valid = plain.stripe_size != 0 && plain.stripe_size.is_multiple_of(STRIPE_SIZE_MIN);
        let count_valid = objects.len() <= STRIPES_MAX && objects.len() == usize::from(plain.stripe_count);
        let is_valid = size_valid && count_valid;
        if !objects.is_empty() && !is_valid {
            return Err(Errno::EPROTO);
        }
        let stripe = |o: &wire::LovOstDataV1| Stripe {
            oi: o.l_ost_oi,
            target: StripeTarget::Ost(OstIndex(o.l_ost_idx)),
        };
        Ok(Component {
            extent,
            pattern: Raid0 {
                stripe_size: plain.stripe_size.max(STRIPE_SIZE_MIN).into(),
                count: objects.len().max(1) as u64,
            },
            stripes: objects.iter().map(stripe).collect(),
            first,
        })
    }

    /// The component on the metadata target: one object, with the offsets of the file. `EPROTO`: it
    /// does not begin the file, or has no end.
    fn on_mdt(extent: Range<u64>, plain: &PlainLayout, first: ObjectIndex) -> Result<Component, Errno> {
        if extent.start != 0 || extent.end == u64::MAX {
            return Err(Errno::EPROTO);
        }
        let owner = Fid::new(plain.oi.oi_seq, plain.oi.oi_id as u32, 0);
        Ok(Component {
            pattern: Raid0 {
                stripe_size: extent.end,
                count: 1,
            },
            extent,
            stripes: vec![Stripe {
                oi: owner.into(),
                target: StripeTarget::Mdt,
            }],
            first,
        })
    }

    fn object(&self, stripe: StripeIndex) -> ObjectIndex {
        ObjectIndex(self.first.0 + stripe.0)
    }

    fn stripe(&self, object: ObjectIndex) -> StripeIndex {
        StripeIndex(object.0 - self.first.0)
    }

    /// Splits a range within the component into extents, in file order.
    fn extents(&self, range: Range<u64>) -> impl Iterator<Item = ObjectExtent> + '_ {
        let mut position = range.start;
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            let size = self.pattern.stripe_size;
            let (stripe, object_offset) = self.pattern.locate(position);
            let len = (size - position % size).min(range.end - position);
            let extent = ObjectExtent {
                object: self.object(stripe),
                object_offset,
                file_offset: position,
                len,
            };
            position += len;
            Some(extent)
        })
    }

    /// The objects with bytes of a range within the component, in ascending order, and the part of
    /// each within the range.
    fn objects_in(&self, range: Range<u64>) -> impl Iterator<Item = (ObjectIndex, Range<u64>)> + '_ {
        self.pattern.stripes_in(&range).filter_map(move |stripe| {
            let from = self.pattern.object_size(stripe, range.start);
            let to = match range.end {
                u64::MAX => u64::MAX,
                end => self.pattern.object_size(stripe, end),
            };
            (from < to).then_some((self.object(stripe), from..to))
        })
    }
}

/// A file's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The layout EA as received; empty: the file has none.
    pub raw: Bytes,
    /// The components in file order; one for the whole file unless the layout is composite. None
    /// without a layout.
    components: Vec<Component>,
    /// Where the data is if the file has no components.
    elsewhere: Option<Elsewhere>,
}

/// The place of data that is not in this file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// In an archive (HSM): the file is released.
    Archive,
    /// In another system, which a foreign layout describes.
    Foreign,
}

impl FileLayout {
    /// Whether a part of the file is on its metadata target.
    pub(crate) fn is_on_mdt(&self) -> bool {
        self.objects()
            .any(|(_, stripe)| stripe.target == StripeTarget::Mdt)
    }

    /// The layout of a file that has no objects.
    pub fn empty() -> FileLayout {
        FileLayout {
            raw: Bytes::new(),
            components: Vec::new(),
            elsewhere: None,
        }
    }

    /// Parses a layout EA and keeps a copy: a slice would pin the whole reply. An empty EA, a
    /// released file and a foreign layout give a layout without objects.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: a layout with mirrors, parity, or an unknown pattern that is not released.
    /// `EPROTO`: malformed bytes, or invalid components, stripe counts or sizes.
    pub fn parse(raw: Bytes) -> Result<FileLayout, Errno> {
        if raw.is_empty() {
            return Ok(FileLayout::empty());
        }
        let layout = LovLayout::parse(&raw)?;
        let is_released = match &layout {
            LovLayout::Plain(plain) => plain.is_released(),
            LovLayout::Composite(composite) => composite.components.iter().any(|(_, p)| p.is_released()),
            LovLayout::Foreign(..) => false,
        };
        let (components, elsewhere) = match &layout {
            _ if is_released => (Vec::new(), Some(Elsewhere::Archive)),
            LovLayout::Plain(plain) => {
                let whole = Component::new(0..u64::MAX, plain, true, ObjectIndex(0))?;
                (vec![whole], None)
            }
            LovLayout::Composite(composite) => (components_of(composite)?, None),
            LovLayout::Foreign(..) => (Vec::new(), Some(Elsewhere::Foreign)),
        };
        Ok(FileLayout {
            raw: Bytes::copy_from_slice(&raw),
            components,
            elsewhere,
        })
    }

    /// Number of objects.
    pub fn count(&self) -> usize {
        self.components.iter().map(|c| c.stripes.len()).sum()
    }

    /// The place of the data if it is not in this file system.
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        self.elsewhere
    }

    /// Whether the file has no objects.
    pub fn is_empty(&self) -> bool {
        self.components.iter().all(|c| c.stripes.is_empty())
    }

    /// The components in file order.
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// All objects by [`ObjectIndex`], each with its stripe number in its component.
    pub fn objects(&self) -> impl Iterator<Item = (StripeIndex, &Stripe)> {
        let stripes = |c: &'_ Component| StripeIndex::all(c.stripes.len());
        self.components
            .iter()
            .flat_map(move |c| stripes(c).zip(&c.stripes))
    }

    /// The components with objects that have bytes of a range, each with its part of the range.
    fn components_in(&self, range: Range<u64>) -> impl Iterator<Item = (&Component, Range<u64>)> {
        self.components.iter().filter_map(move |component| {
            let start = range.start.max(component.extent.start);
            let end = range.end.min(component.extent.end);
            (start < end && !component.stripes.is_empty()).then_some((component, start..end))
        })
    }

    /// Splits a range of the file into extents of objects, in file order. Parts without objects are
    /// missing.
    pub fn extents(&self, offset: u64, len: u64) -> impl Iterator<Item = ObjectExtent> + '_ {
        self.components_in(offset..offset.saturating_add(len))
            .flat_map(|(component, part)| component.extents(part))
    }

    /// The objects with bytes of a range of the file, in ascending order, and the part of each
    /// within the range. The end `u64::MAX` is the end of the file and of its objects.
    pub fn objects_in(&self, range: Range<u64>) -> impl Iterator<Item = (ObjectIndex, Range<u64>)> + '_ {
        self.components_in(range)
            .flat_map(|(component, part)| component.objects_in(part))
    }

    /// Whether all bytes of a range have objects.
    pub fn has_objects(&self, range: Range<u64>) -> bool {
        let parts = self.components_in(range.clone());
        let bytes: u64 = parts.map(|(_, part)| part.end - part.start).sum();
        bytes == range.end.saturating_sub(range.start)
    }

    /// The range that needs objects before the file can have this size: its last byte.
    pub fn range_of_size(size: u64) -> Range<u64> {
        size.saturating_sub(1)..size
    }

    /// The objects whose sizes a truncate of the file to `file_size` bytes sets, and these sizes.
    pub fn truncated(&self, file_size: u64) -> impl Iterator<Item = (ObjectIndex, u64)> + '_ {
        // A component that ends at the new size has the last byte.
        let affected = self.components.iter().filter(move |c| c.extent.end >= file_size);
        affected.flat_map(move |component| {
            let stripes = StripeIndex::all(component.stripes.len());
            stripes.map(move |stripe| {
                let size = match file_size > component.extent.start {
                    true => component.pattern.object_size(stripe, file_size),
                    false => 0,
                };
                (component.object(stripe), size)
            })
        })
    }

    /// The component of an object, which this layout has.
    fn component_of(&self, object: ObjectIndex) -> Option<&Component> {
        let next = self.components.partition_point(|c| c.first <= object);
        self.components.get(next.checked_sub(1)?)
    }

    /// The least file size that an object of `object_size` bytes implies; 0 for an unknown object.
    /// The file's size is the maximum over its objects.
    pub fn file_size(&self, object: ObjectIndex, object_size: u64) -> u64 {
        self.component_of(object)
            .map_or(0, |c| c.pattern.file_size(c.stripe(object), object_size))
    }

    /// The offset in the file of a byte of an object. `None` if the component of the object ends
    /// before it, or if it exceeds a `u64`.
    pub fn file_offset(&self, object: ObjectIndex, object_offset: u64) -> Option<u64> {
        let component = self.component_of(object)?;
        let offset = component
            .pattern
            .file_offset(component.stripe(object), object_offset);
        (offset < component.extent.end).then_some(offset)
    }

    /// The first byte without an object at or after `offset`.
    pub fn first_without_object(&self, offset: u64) -> Option<u64> {
        let mut without = self.components.iter().filter(|c| c.stripes.is_empty());
        without
            .find(|c| c.extent.end > offset)
            .map(|c| c.extent.start.max(offset))
    }

    /// The largest size of a file whose objects have at most `object_bytes_max` bytes.
    pub fn size_max(&self, object_bytes_max: u64) -> u64 {
        let Some(last) = self.components.last() else {
            return u64::MAX;
        };
        let size = match last.stripes.is_empty() {
            true => u64::MAX,
            false => last.pattern.file_size(StripeIndex(0), object_bytes_max),
        };
        size.min(last.extent.end)
    }
}

/// The components of a composite layout. `EOPNOTSUPP`: mirrors or parity; `EPROTO`: components
/// without bytes, or not in file order.
fn components_of(composite: &CompositeLayout) -> Result<Vec<Component>, Errno> {
    // The field has the number of mirrors minus 1.
    if composite.head.lcm_mirror_count != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut components: Vec<Component> = Vec::with_capacity(composite.components.len());
    let mut next = ObjectIndex(0);
    for (entry, plain) in &composite.components {
        if entry.lcme_flags & LCME_FL_PARITY != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let extent = entry.lcme_extent.e_start..entry.lcme_extent.e_end;
        let last_end = components.last().map_or(0, |c| c.extent.end);
        if extent.start >= extent.end || extent.start < last_end {
            return Err(Errno::EPROTO);
        }
        let has_objects = entry.lcme_flags & LCME_FL_INIT != 0;
        let component = Component::new(extent, plain, has_objects, next)?;
        next.0 += component.stripes.len() as u32;
        components.push(component);
    }
    Ok(components)
}

#[cfg(test)]
mod tests;
