//! Stores that may wait: each read takes 20 ms and each commit 200 ms on tokio's clock, which a
//! test can pause.

use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;
use osd::{
    BootId, CachedAttr, Extent, ExtentData, Index, ObjAttr, Objects, OsdError, Scrubbed, Seek, SetAttr,
    Stores,
};
use testbase::slow_index::{COMMIT_DELAY, READ_DELAY, SlowIndex, stores_are_slow};
use tokio::time::sleep;
use wire::Fid;

/// Stores with slow reads and commits. Each open of the index starts a new epoch, so these stores
/// are for targets that start once.
pub struct SlowStores<S>(pub S);

/// The stores for a test: `stores`, slowed down if the environment variable `NACRE_SLOW_STORES` is
/// set.
pub(crate) fn stores(stores: impl Stores + 'static) -> Box<dyn Stores> {
    match stores_are_slow() {
        true => Box::new(SlowStores(stores)),
        false => Box::new(stores),
    }
}

impl<S: Stores> Stores for SlowStores<S> {
    fn has_run(&self) -> bool {
        self.0.has_run()
    }

    fn boot_id(&self) -> BootId {
        self.0.boot_id()
    }

    fn set_has_run(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.0.set_has_run()
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async {
            let index = self.0.open_index().await?;
            Ok(Arc::new(SlowIndex::new(index)) as Arc<dyn Index>)
        })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async {
            let index = self.0.open_index_read_only().await?;
            Ok(Arc::new(SlowIndex::new(index)) as Arc<dyn Index>)
        })
    }

    fn open_objects<'a>(
        &'a self,
        index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        Box::pin(async {
            let objects = self.0.open_objects(index).await?;
            Ok(Arc::new(SlowObjects(objects)) as Arc<dyn Objects>)
        })
    }
}

struct SlowObjects(Arc<dyn Objects>);

impl Objects for SlowObjects {
    fn read_extents(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> BoxFuture<'_, Result<Vec<Vec<Bytes>>, OsdError>> {
        Box::pin(async move {
            let read = self.0.read_extents(fid, extents).await;
            sleep(READ_DELAY).await;
            read
        })
    }

    fn write_extents(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<Vec<Result<(), OsdError>>, OsdError>> {
        self.0.write_extents(fid, extents, attr)
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.0.punch(fid, start, end, attr)
    }

    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        self.0.fallocate(fid, start, end, keep_size)
    }

    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        self.0.seek(fid, offset, kind)
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        Box::pin(async move {
            let attr = self.0.attr(fid).await;
            sleep(READ_DELAY).await;
            attr
        })
    }

    fn cached_attr(&self, fid: Fid, new: bool) -> CachedAttr {
        self.0.cached_attr(fid, new)
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.0.setattr(fid, attr)
    }

    fn settle(&self, all: bool) -> BoxFuture<'_, Result<bool, OsdError>> {
        self.0.settle(all)
    }

    fn scrub(&self, fid: Fid, offset: u64, fill: bool) -> BoxFuture<'_, Result<Scrubbed, OsdError>> {
        self.0.scrub(fid, offset, fill)
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        self.0.destroy(fid)
    }

    fn sync(&self, fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let synced = self.0.sync(fid).await;
            sleep(COMMIT_DELAY).await;
            synced
        })
    }

    fn sync_file_system(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.0.sync_file_system()
    }
}
