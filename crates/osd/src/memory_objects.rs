//! Objects in memory: each a sparse set of chunks of up to 64 KiB. A chunk ends with the last page
//! (4 KiB) that was written or allocated.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use cpt::{BoxFuture, HashMap};
use parking_lot::{Mutex, RwLock};
use wire::Fid;

use crate::{CachedAttr, ObjAttr, Objects, OsdError, READ_PIECE, Seek, SetAttr, Space};

/// Bytes of an object that a chunk covers.
const CHUNK: u64 = 64 << 10;
/// A chunk's length is a multiple of this, bytes.
const PAGE: u64 = 4 << 10;
const SHARDS: usize = 64;

#[derive(Default)]
struct Object {
    attr: ObjAttr,
    /// The chunks by offset divided by [`CHUNK`].
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Sum of all chunks' lengths, bytes.
    bytes: u64,
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
            if (growth.end - growth.start).saturating_sub(o.bytes) > self.space.avail_bytes() {
                return Err(OsdError::NoSpace);
            }
            let reserved = o.missing_bytes(&growth);
            self.space.reserve(reserved)?;
            let before = o.bytes;
            f(&mut o);
            self.space.release((before + reserved).saturating_sub(o.bytes));
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

/// The chunks that a range touches, each with its part of the range, relative to the chunk.
fn chunks_of(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
    let Range { start, end } = *range;
    let chunks = if start < end {
        start / CHUNK..end.div_ceil(CHUNK)
    } else {
        0..0
    };
    chunks.map(move |i| {
        let first = i * CHUNK;
        let (from, to) = (start.max(first) - first, (end - first).min(CHUNK));
        (i, from as usize..to as usize)
    })
}

impl Object {
    /// Bytes by which the chunks of a range must grow to hold it.
    fn missing_bytes(&self, range: &Range<u64>) -> u64 {
        chunks_of(range)
            .map(|(i, part)| {
                let chunk_len = self.chunks.get(&i).map_or(0, |c| c.len() as u64);
                (part.end as u64).next_multiple_of(PAGE).saturating_sub(chunk_len)
            })
            .sum()
    }

    /// Grows a chunk to at least `end` bytes; creates it if it is missing.
    fn grow_chunk(&mut self, i: u64, end: usize) -> &mut Vec<u8> {
        let chunk = self.chunks.entry(i).or_default();
        if chunk.len() < end {
            let len = end.next_multiple_of(PAGE as usize);
            self.bytes += (len - chunk.len()) as u64;
            chunk.reserve_exact(len - chunk.len());
            chunk.resize(len, 0);
        }
        chunk
    }

    /// Creates and grows the chunks of a range.
    fn reserve(&mut self, range: &Range<u64>) {
        for (i, part) in chunks_of(range) {
            self.grow_chunk(i, part.end);
        }
    }

    fn write(&mut self, mut offset: u64, data: &[Bytes]) {
        for piece in data {
            let mut rest = &piece[..];
            for (i, part) in chunks_of(&(offset..offset + piece.len() as u64)) {
                let (head, tail) = rest.split_at(part.len());
                self.grow_chunk(i, part.end)[part].copy_from_slice(head);
                rest = tail;
            }
            offset += piece.len() as u64;
        }
        self.attr.size = self.attr.size.max(offset);
    }

    fn read(&self, offset: u64, len: u32) -> Vec<Bytes> {
        let end = self.attr.size.min(offset.saturating_add(len.into()));
        let mut position = offset;
        let mut out = Vec::new();
        while position < end {
            let mut piece = BytesMut::zeroed((end - position).min(READ_PIECE) as usize);
            let mut rest = &mut piece[..];
            let len = rest.len() as u64;
            for (i, part) in chunks_of(&(position..position + len)) {
                let (head, tail) = rest.split_at_mut(part.len());
                let stored = self.chunks.get(&i).and_then(|c| c.get(part.start..));
                if let Some(stored) = stored {
                    let n = stored.len().min(head.len());
                    head[..n].copy_from_slice(&stored[..n]);
                }
                rest = tail;
            }
            position += len;
            out.push(piece.freeze());
        }
        out
    }

    /// Frees a range: drops chunks inside it, shortens a chunk that ends inside it, and zeroes the
    /// rest.
    fn free(&mut self, range: Range<u64>) {
        let chunks_end = self.chunks.keys().next_back().map_or(0, |i| (i + 1) * CHUNK);
        for (i, part) in chunks_of(&(range.start..range.end.min(chunks_end))) {
            let Some(chunk) = self.chunks.get_mut(&i) else {
                continue;
            };
            if part.end < chunk.len() {
                chunk[part].fill(0);
                continue;
            }
            let keep = part.start.next_multiple_of(PAGE as usize).min(chunk.len());
            if let Some(rest) = chunk.get_mut(part.start..keep) {
                rest.fill(0);
            }
            self.bytes -= (chunk.len() - keep) as u64;
            chunk.truncate(keep);
            chunk.shrink_to_fit();
            if keep == 0 {
                self.chunks.remove(&i);
            }
        }
    }

    fn seek(&self, offset: u64, kind: Seek) -> Result<u64, OsdError> {
        if offset >= self.attr.size {
            return Err(OsdError::NotFound);
        }
        let found = match kind {
            Seek::Data => self
                .chunks
                .range(offset / CHUNK..)
                .next()
                .map(|(&i, _)| offset.max(i * CHUNK)),
            Seek::Hole => {
                let mut index = offset / CHUNK;
                while self.chunks.contains_key(&index) {
                    index += 1;
                }
                Some(offset.max(index * CHUNK).min(self.attr.size))
            }
        };
        found
            .filter(|&f| f < self.attr.size || kind == Seek::Hole)
            .ok_or(OsdError::NotFound)
    }

    fn attr(&self) -> ObjAttr {
        ObjAttr {
            blocks: self.bytes / 512,
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
    fn read(&self, fid: Fid, offset: u64, len: u32) -> BoxFuture<'_, Result<Vec<Bytes>, OsdError>> {
        ready(
            self.object(&fid)
                .map(|o| o.lock().read(offset, len))
                .unwrap_or_default(),
        )
    }

    fn write(
        &self,
        fid: Fid,
        offset: u64,
        data: Vec<Bytes>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        let len: u64 = data.iter().map(|d| d.len() as u64).sum();
        ready_result(self.change(&fid, offset..offset + len, |o| {
            o.write(offset, &data);
            attr.apply_to(&mut o.attr);
        }))
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        ready_result(self.change(&fid, 0..0, |o| {
            o.free(start..end);
            if end == u64::MAX {
                o.attr.size = start;
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
            o.reserve(&(start..end));
            if !keep_size {
                o.attr.size = o.attr.size.max(end);
            }
        }))
    }

    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        let found = self
            .object(&fid)
            .ok_or(OsdError::NotFound)
            .and_then(|o| o.lock().seek(offset, kind));
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
            self.space.release(o.bytes);
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
