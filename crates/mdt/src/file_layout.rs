//! The layouts of files: the layout of a new file, and the objects of a component before a client
//! first writes there.

use std::{ops::Range, sync::atomic::Ordering::Relaxed};

use bytes::Bytes;
use rpc::ServerRequest;
use wire::{
    Errno, Fid, LOV_MIN_STRIPE_SIZE,
    striping::{CompositeLayout, LovLayout},
};

use crate::{
    layout::{self, LayoutRequest, StripeObject, composite},
    locks,
    namespace::{self, ChangeResult},
    store::{Inode, RequestStore},
    target::Mdt,
};

/// The first byte of a file. The component that has it gets its objects when the file is created.
const FIRST_BYTE: Range<u64> = 0..1;
/// Ends of components are multiples of this, bytes.
const STRIPE_UNIT: u64 = LOV_MIN_STRIPE_SIZE as u64;

impl Mdt {
    /// The layout of a new file of `size` bytes: a foreign one, or one with newly allocated
    /// objects. Values that the user does not specify come from the parent's default layout, then
    /// the root's, then the file system's. Of several components, the ones with the first and the
    /// last byte get objects.
    ///
    /// # Errors
    ///
    /// `EFBIG` if the last component ends before `size`; an error of the allocation.
    pub(crate) async fn new_layout(
        &self,
        file: Fid,
        size: u64,
        layout: LayoutRequest,
        parent: &Inode,
    ) -> Result<Bytes, Errno> {
        let default_of = |dir: &Inode| match dir.is_dir() && !dir.lov.is_empty() {
            true => LayoutRequest::parse(&dir.lov).ok().flatten().unwrap_or_default(),
            false => LayoutRequest::default(),
        };
        // Other MDTs than MDT0000 have no root directory.
        let root = self.store.find(Fid::ROOT).await?.unwrap_or_default();
        let layout = layout
            .with_defaults(default_of(parent))
            .with_defaults(default_of(&root));
        let components = match layout {
            LayoutRequest::Foreign(layout) => return Ok(layout),
            LayoutRequest::Striped(striping) => return self.osts.allocate(file, &striping).await,
            LayoutRequest::Composite(components) => components,
        };
        let defaults = self.osts.default_striping().request();
        let components: Vec<_> = components
            .into_iter()
            .map(|component| component.with_defaults(&defaults))
            .collect();
        let on_mdt_max = self.on_mdt_max.load(Relaxed) / STRIPE_UNIT * STRIPE_UNIT;
        let components = composite::limit_on_mdt(components, on_mdt_max)?;
        let mut layout = composite::new_layout(file, &components, self.index as u16);
        let last_byte = size.saturating_sub(1)..size;
        let mut used = composite::missing(&layout, &last_byte).map_err(|_| Errno::EFBIG)?;
        used.extend(composite::missing(&layout, &FIRST_BYTE)?);
        used.sort_unstable();
        used.dedup();
        self.add_objects(file, &mut layout, &used).await?;
        Ok(LovLayout::Composite(layout).build())
    }

    /// Allocates the objects of components; returns them.
    async fn add_objects(
        &self,
        file: Fid,
        layout: &mut CompositeLayout,
        components: &[usize],
    ) -> Result<Vec<StripeObject>, Errno> {
        let mut allocated = Vec::new();
        for &component in components {
            let request = composite::request_of(layout, component, self.osts.len()).ok_or(Errno::EINVAL)?;
            match self.osts.allocate_objects(file, &request).await {
                Ok(objects) => {
                    composite::add_objects(layout, component, &objects);
                    allocated.extend(objects);
                }
                Err(e) => {
                    self.osts.put_back(&allocated);
                    return Err(e);
                }
            }
        }
        Ok(allocated)
    }

    /// Sets the layout of a file that has none, and revokes the LAYOUT bit from clients. Does
    /// nothing if the file has a layout. Extends the objects to the file's size; the UPDATE lock
    /// prevents a change of the size.
    pub(crate) async fn set_layout(
        &self,
        req: &ServerRequest,
        store: RequestStore<'_>,
        fid: Fid,
        layout: LayoutRequest,
    ) -> Result<Inode, Errno> {
        req.export.wait_until_recovered().await?;
        let mut held = self.request_locks(req);
        held.lock_layout(fid, locks::UPDATE).await?;
        let inode = self.store.inode(fid).await?;
        if !inode.lov.is_empty() {
            return Ok(inode);
        }
        let parents = crate::store::links::parse(&inode.links).links;
        let parent = match parents.first() {
            Some((parent, _)) => self.store.find(*parent).await?,
            None => None,
        };
        let parent = parent.unwrap_or_default();
        let lov = self.new_layout(fid, inode.size, layout, &parent).await?;
        self.osts.extend(&lov, inode.size).await?;
        match namespace::set_layout(store, fid, lov).await? {
            Some(change) => Ok(change.inode),
            None => self.store.inode(fid).await,
        }
    }

    /// Gives objects to the components of a file that have bytes of a range, before a client writes
    /// there. First revokes the LAYOUT bit from all clients. Returns when the change is on disk:
    /// the client does not know the objects, so it could not repeat the change after a crash.
    /// `None` if no object is missing.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range reaches beyond the last component; `EROFS` if the client may not
    /// change the file system; an error of the allocation.
    pub(crate) async fn create_missing_objects(
        &self,
        req: &ServerRequest,
        file: Fid,
        range: &Range<u64>,
    ) -> Result<Option<ChangeResult>, Errno> {
        if missing(&self.store.inode(file).await?, range)?.is_none() {
            return Ok(None);
        }
        self.check_writable(req)?;
        self.throttle().await;
        req.export.wait_until_recovered().await?;
        let mut held = self.request_locks(req);
        held.lock_layout(file, 0).await?;
        let inode = self.store.inode(file).await?;
        let Some((mut layout, components)) = missing(&inode, range)? else {
            return Ok(None);
        };
        let allocated = self.add_objects(file, &mut layout, &components).await?;
        composite::raise_generation(&mut layout);
        let lov = LovLayout::Composite(layout).build();
        let change = namespace::replace_layout(self.request_store(req), file, (&inode.lov, lov)).await;
        if change.is_err() {
            self.osts.put_back(&allocated);
        }
        let change = change?;
        self.store.index().sync().await?;
        Ok(Some(change))
    }
}

/// A file's layout, and its components without objects that have bytes of a range. `None` if there
/// are none.
fn missing(inode: &Inode, range: &Range<u64>) -> Result<Option<(CompositeLayout, Vec<usize>)>, Errno> {
    if !inode.is_file() {
        return Ok(None);
    }
    let Some(layout) = layout::components(&inode.lov)? else {
        return Ok(None);
    };
    let missing = composite::missing(&layout, range)?;
    Ok((!missing.is_empty()).then_some((layout, missing)))
}
