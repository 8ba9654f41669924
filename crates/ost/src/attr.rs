//! The attributes of objects, as far as possible from memory.

use osd::{CachedAttr, ObjAttr, Objects, OsdError};
use wire::Fid;

use crate::sequence::Sequences;

/// An object's attributes, if they are known without reading the disk.
pub(crate) fn cached(objects: &dyn Objects, sequences: &Sequences, fid: Fid) -> CachedAttr {
    objects.cached_attr(fid, sequences.is_new(&fid))
}

/// An object's attributes; `None` if it was never changed.
pub(crate) async fn load(
    objects: &dyn Objects,
    sequences: &Sequences,
    fid: Fid,
) -> Result<Option<ObjAttr>, OsdError> {
    match cached(objects, sequences, fid) {
        CachedAttr::Present(attr) => Ok(Some(attr)),
        CachedAttr::Absent => Ok(None),
        CachedAttr::Unknown => objects.attr(fid).await,
    }
}
