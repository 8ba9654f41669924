//! Objects that can keep later changes in memory.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use cpt::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use wire::Fid;

use super::IN_PROGRESS_MAX;
use crate::{
    CachedAttr, Extent, ExtentData, MemoryObjects, ObjAttr, Objects, OsdError, Scrubbed, Seek, SetAttr, Space,
};

/// Maximum size of the changed objects in memory, bytes. A change copies its whole object.
const CHANGES_MAX: u64 = 256 << 20;
/// Number of bytes that a copy reads at once.
const COPY_BYTES: u32 = 4 << 20;

/// Objects that pass everything to other ones until [`Objects::discard_changes`]. After that, a
/// change first copies its object into memory, up to [`CHANGES_MAX`] for all objects.
pub(crate) struct OverlayObjects {
    below: Arc<dyn Objects>,
    /// Number of changes of `below` in progress, and of callers that find out that there is an
    /// overlay.
    changes: AtomicUsize,
    overlay: OnceLock<Overlay>,
}

struct Overlay {
    memory: MemoryObjects,
    /// A cell for each changed object. It is full once `memory` has the object's copy; `memory` has
    /// no object if it did not exist.
    copies: Mutex<BTreeMap<Fid, Arc<OnceCell<()>>>>,
    /// Whether all changes of `below` have ended.
    drained: watch::Sender<bool>,
}

/// A change of `below` in progress.
struct ChangeGuard<'a>(&'a OverlayObjects);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.changes.fetch_sub(1, SeqCst);
        self.0.note_drained();
    }
}

impl Overlay {
    fn cell(&self, fid: Fid) -> Arc<OnceCell<()>> {
        self.copies.lock().entry(fid).or_default().clone()
    }

    /// Whether the object was changed, so that `memory` has it.
    fn has(&self, fid: &Fid) -> bool {
        self.copies.lock().get(fid).is_some_and(|cell| cell.initialized())
    }

    /// Copies the object into memory, unless it is there.
    async fn copy(&self, below: &dyn Objects, fid: Fid) -> Result<(), OsdError> {
        self.wait_until_drained().await;
        self.cell(fid)
            .get_or_try_init(|| self.copy_from(below, fid))
            .await
            .copied()
    }

    async fn wait_until_drained(&self) {
        // This struct owns the sender, so the wait does not fail.
        let _ = self.drained.subscribe().wait_for(|drained| *drained).await;
    }

    async fn copy_from(&self, below: &dyn Objects, fid: Fid) -> Result<(), OsdError> {
        let Some(attr) = below.attr(fid).await? else {
            return Ok(());
        };
        let mut offset = 0;
        while offset < attr.size {
            offset = match below.seek(fid, offset, Seek::Data).await {
                Ok(data) => data,
                Err(OsdError::NotFound) => break,
                Err(e) => return Err(e),
            };
            let data = below.read(fid, offset, COPY_BYTES).await?;
            let read: usize = data.iter().map(Bytes::len).sum();
            if read == 0 {
                break;
            }
            self.memory.write(fid, offset, data, SetAttr::default()).await?;
            offset += read as u64;
        }
        self.memory.punch(fid, attr.size, u64::MAX, all_of(&attr)).await
    }
}

/// The change that gives an object these attributes.
fn all_of(attr: &ObjAttr) -> SetAttr {
    SetAttr {
        atime: Some(attr.atime),
        mtime: Some(attr.mtime),
        ctime: Some(attr.ctime),
        changed: None,
        uid: Some(attr.uid),
        gid: Some(attr.gid),
        projid: Some(attr.projid),
        parent: Some(attr.parent),
        layout_version: Some(attr.layout_version),
        data_version: Some(attr.data_version),
    }
}

impl OverlayObjects {
    /// Passes everything to `below`.
    pub(crate) fn new(below: Arc<dyn Objects>) -> OverlayObjects {
        OverlayObjects {
            below,
            changes: AtomicUsize::new(0),
            overlay: OnceLock::new(),
        }
    }

    /// Begins a change of `below`, or returns the overlay in which the change takes place.
    fn begin(&self) -> Result<ChangeGuard<'_>, &Overlay> {
        self.changes.fetch_add(1, SeqCst);
        let guard = ChangeGuard(self);
        match self.overlay.get() {
            Some(overlay) => Err(overlay),
            None => Ok(guard),
        }
    }

    /// Records that all changes of `below` have ended, if they have and there is an overlay: then
    /// no further one begins.
    fn note_drained(&self) {
        if let Some(overlay) = self.overlay.get()
            && self.changes.load(SeqCst) == 0
        {
            overlay.drained.send_replace(true);
        }
    }

    /// The objects that have the present state of an object.
    fn present(&self, fid: &Fid) -> &dyn Objects {
        match self.overlay.get().filter(|overlay| overlay.has(fid)) {
            Some(overlay) => &overlay.memory,
            None => &*self.below,
        }
    }

    /// Runs a change on `below` or, after a barrier, on the copy of the object.
    fn change<'a, T: Send + 'a>(
        &'a self,
        fid: Fid,
        change: impl FnOnce(&'a dyn Objects) -> BoxFuture<'a, Result<T, OsdError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, OsdError>> {
        Box::pin(async move {
            match self.begin() {
                Ok(_guard) => change(&*self.below).await,
                Err(overlay) => {
                    overlay.copy(&*self.below, fid).await?;
                    change(&overlay.memory).await
                }
            }
        })
    }
}

impl Objects for OverlayObjects {
    fn read_extents(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> BoxFuture<'_, Result<Vec<Vec<Bytes>>, OsdError>> {
        self.present(&fid).read_extents(fid, extents)
    }

    fn write_extents(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<Vec<Result<(), OsdError>>, OsdError>> {
        self.change(fid, move |objects| objects.write_extents(fid, extents, attr))
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.change(fid, move |objects| objects.punch(fid, start, end, attr))
    }

    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        self.change(fid, move |objects| objects.fallocate(fid, start, end, keep_size))
    }

    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        self.present(&fid).seek(fid, offset, kind)
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        self.present(&fid).attr(fid)
    }

    fn cached_attr(&self, fid: Fid, new: bool) -> CachedAttr {
        self.present(&fid).cached_attr(fid, new)
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.change(fid, move |objects| objects.setattr(fid, attr))
    }

    fn settle(&self, all: bool) -> BoxFuture<'_, Result<bool, OsdError>> {
        self.below.settle(all)
    }

    fn scrub(&self, fid: Fid, offset: u64, fill: bool) -> BoxFuture<'_, Result<Scrubbed, OsdError>> {
        self.present(&fid).scrub(fid, offset, fill)
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        Box::pin(async move {
            let overlay = match self.begin() {
                Ok(_guard) => return self.below.destroy(fid).await,
                Err(overlay) => overlay,
            };
            overlay.wait_until_drained().await;
            let mut existed = None;
            let found = async {
                existed = Some(self.below.attr(fid).await?.is_some());
                Ok::<(), OsdError>(())
            };
            // An object that nobody has changed needs no copy.
            overlay.cell(fid).get_or_try_init(|| found).await?;
            match existed {
                Some(existed) => Ok(existed),
                None => overlay.memory.destroy(fid).await,
            }
        })
    }

    fn sync(&self, fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        self.below.sync(fid)
    }

    fn sync_file_system(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.below.sync_file_system()
    }

    fn discard_changes(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let overlay = self.overlay.get_or_init(|| Overlay {
                memory: MemoryObjects::new(Space::of_memory(CHANGES_MAX)),
                copies: Mutex::default(),
                drained: watch::Sender::new(false),
            });
            self.note_drained();
            let drained = tokio::time::timeout(IN_PROGRESS_MAX, overlay.wait_until_drained());
            drained.await.map_err(|_| OsdError::Busy)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FID: Fid = Fid::new(0x2_4000_0400, 7, 0);

    async fn read(objects: &dyn Objects, fid: Fid) -> Vec<u8> {
        objects.read(fid, 0, 1 << 20).await.unwrap().concat()
    }

    async fn write(objects: &dyn Objects, fid: Fid, offset: u64, data: &'static [u8]) {
        let uid = SetAttr {
            uid: Some(data.len() as u32),
            ..SetAttr::default()
        };
        objects
            .write(fid, offset, vec![Bytes::from_static(data)], uid)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn changes_after_the_barrier_are_visible_but_not_below() {
        let below: Arc<dyn Objects> = Arc::new(MemoryObjects::default());
        let objects = OverlayObjects::new(below.clone());
        let other = Fid::new(FID.f_seq, 8, 0);
        write(&objects, FID, 0, b"before").await;
        write(&objects, FID, 10_000_000, b"end").await;
        write(&objects, other, 0, b"kept").await;
        objects.discard_changes().await.unwrap();
        assert_eq!(read(&objects, other).await, b"kept");
        write(&objects, FID, 2, b"XX").await;
        let attr = objects.attr(FID).await.unwrap().unwrap();
        assert_eq!((attr.size, attr.uid), (10_000_003, 2));
        assert_eq!(&read(&objects, FID).await[..8], b"beXXre\0\0");
        let end = objects.read(FID, 10_000_000, 100).await.unwrap().concat();
        assert_eq!(end, b"end");
        assert!(objects.destroy(other).await.unwrap());
        assert!(!objects.destroy(other).await.unwrap());
        assert_eq!(objects.attr(other).await.unwrap(), None);
        let new = Fid::new(FID.f_seq, 9, 0);
        write(&objects, new, 0, b"new").await;
        assert_eq!(read(&objects, new).await, b"new");

        assert_eq!(&read(&*below, FID).await[..6], b"before");
        assert_eq!(read(&*below, other).await, b"kept");
        assert_eq!(below.attr(new).await.unwrap(), None);
    }

    #[tokio::test]
    async fn too_many_changes_are_refused() {
        let objects = OverlayObjects::new(Arc::new(MemoryObjects::default()));
        objects.discard_changes().await.unwrap();
        let refused = objects.fallocate(FID, 0, CHANGES_MAX + 1, false).await;
        assert!(matches!(refused, Err(OsdError::NoSpace)), "{refused:?}");
    }
}
