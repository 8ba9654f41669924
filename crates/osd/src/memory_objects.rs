//! Objects in memory.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use cpt::{BoxFuture, HashMap};
use parking_lot::{Mutex, RwLock};
use wire::Fid;

use crate::{CachedAttr, Extent, ExtentData, ObjAttr, Objects, OsdError, Seek, SetAttr, Space, SparseData};

const SHARDS: usize = 64;

#[derive(Default)]
struct Object {
    /// The attributes without size and blocks.
    attr: ObjAttr,
    data: SparseData,
    /// The object was destroyed and is no longer in the table: look the FID up again.
    destroyed: bool,
}

type Shard = RwLock<HashMap<Fid, Arc<Mutex<Object>>>>;

/// Objects in memory.
pub struct MemoryObjects {
    shards: Vec<Shard>,
    space: Arc<Space>,
}

impl MemoryObjects {
    /// Creates a store without objects.
    pub fn new(space: Arc<Space>) -> MemoryObjects {
        MemoryObjects {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            space,
        }
    }

    fn shard(&self, fid: &Fid) -> &Shard {
        &self.shards[(fid.f_seq as usize ^ fid.f_oid as usize) % SHARDS]
    }

    fn object(&self, fid: &Fid) -> Option<Arc<Mutex<Object>>> {
        self.shard(fid).read().get(fid).cloned()
    }

    fn get_or_create(&self, fid: &Fid) -> Arc<Mutex<Object>> {
        if let Some(object) = self.object(fid) {
            return object;
        }
        let mut shard = self.shard(fid).write();
        let create = || {
            self.space.count_created_file();
            Arc::default()
        };
        shard.entry(*fid).or_insert_with(create).clone()
    }

    /// Changes an object. The change may add chunks only in `growth`: their space is reserved
    /// before the change, and the unused part is released after it.
    fn change(&self, fid: &Fid, growth: Range<u64>, f: impl FnOnce(&mut Object)) -> Result<(), OsdError> {
        loop {
            let object = self.get_or_create(fid);
            let mut o = object.lock();
            if o.destroyed {
                continue;
            }
            // A range that cannot fit is rejected before its chunks are visited.
            if (growth.end - growth.start).saturating_sub(o.data.allocated()) > self.space.avail_bytes() {
                return Err(OsdError::NoSpace);
            }
            let reserved = o.data.missing(&growth);
            self.space.reserve(reserved)?;
            let before = o.data.allocated();
            f(&mut o);
            let unused = (before + reserved).saturating_sub(o.data.allocated());
            self.space.release(unused);
            return Ok(());
        }
    }
}

impl Default for MemoryObjects {
    /// A store limited by the memory available to the process.
    fn default() -> MemoryObjects {
        MemoryObjects::new(Space::of_memory(cpt::memory_bytes()))
    }
}

impl Object {
    fn attr(&self) -> ObjAttr {
        ObjAttr {
            size: self.data.size(),
            blocks: self.data.allocated() / 512,
            ..self.attr
        }
    }
}

fn ready_result<'a, T: Send + 'a>(result: Result<T, OsdError>) -> BoxFuture<'a, Result<T, OsdError>> {
    Box::pin(std::future::ready(result))
}

fn ready<'a, T: Send + 'a>(t: T) -> BoxFuture<'a, Result<T, OsdError>> {
    ready_result(Ok(t))
}

impl Objects for MemoryObjects {
    fn read_extents(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> BoxFuture<'_, Result<Vec<Vec<Bytes>>, OsdError>> {
        let object = self.object(&fid);
        let object = object.as_ref().map(|object| object.lock());
        let read = |extent: &Extent| match &object {
            Some(object) => object.data.read(extent.offset, extent.len.into()),
            None => Vec::new(),
        };
        ready(extents.iter().map(read).collect())
    }

    fn write_extents(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<Vec<Result<(), OsdError>>, OsdError>> {
        let write = |extent: &ExtentData| {
            self.change(&fid, extent.offset..extent.offset + extent.len(), |o| {
                let mut position = extent.offset;
                for piece in &extent.data {
                    o.data.write(position, piece);
                    position += piece.len() as u64;
                }
                attr.apply_to(&mut o.attr);
            })
        };
        ready(extents.iter().map(write).collect())
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        ready_result(self.change(&fid, 0..0, |o| {
            o.data.free(start..end);
            if end == u64::MAX {
                o.data.set_size(start);
            }
            attr.apply_to(&mut o.attr);
        }))
    }

    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        ready_result(self.change(&fid, start..end, |o| {
            o.data.allocate(&(start..end));
            if !keep_size && end > o.data.size() {
                o.data.set_size(end);
            }
        }))
    }

    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        let found = self
            .object(&fid)
            .ok_or(OsdError::NotFound)
            .and_then(|o| o.lock().data.seek(offset, kind));
        Box::pin(std::future::ready(found))
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        ready(self.object(&fid).map(|o| o.lock().attr()))
    }

    fn cached_attr(&self, fid: Fid, _new: bool) -> CachedAttr {
        match self.object(&fid) {
            Some(object) => CachedAttr::Present(object.lock().attr()),
            None => CachedAttr::Absent,
        }
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        ready_result(self.change(&fid, 0..0, |o| attr.apply_to(&mut o.attr)))
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        let removed = self.shard(&fid).write().remove(&fid);
        if let Some(o) = &removed {
            let mut o = o.lock();
            self.space.release(o.data.allocated());
            self.space.count_destroyed_file();
            *o = Object {
                destroyed: true,
                ..Object::default()
            };
        }
        ready(removed.is_some())
    }

    fn sync(&self, _fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        ready(())
    }

    fn sync_file_system(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        ready(())
    }
}
