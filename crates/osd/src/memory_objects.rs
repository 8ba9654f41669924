//! Objects in memory: each a sparse set of chunks of up to 64 KiB, which are as long as what is in them.

use foldhash::HashMap;
use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use cpt::BoxFuture;
use parking_lot::{Mutex, RwLock};
use wire::Fid;

use crate::{ObjAttr, Objects, OsdError, READ_PIECE, Seek, SetAttr, Space};

const CHUNK: u64 = 64 << 10;
/// A chunk's length is a multiple of this.
const PAGE: u64 = 4 << 10;
const SHARDS: usize = 64;

#[derive(Default)]
struct Object {
    attr: ObjAttr,
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Of all chunks.
    bytes: u64,
    /// It was removed: nothing is put into it any more.
    gone: bool,
}

type Shard = RwLock<HashMap<Fid, Arc<Mutex<Object>>>>;

/// Objects in memory.
pub struct MemoryObjects {
    shards: Vec<Shard>,
    space: Arc<Space>,
}

impl MemoryObjects {
    /// None yet.
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

    fn make(&self, fid: &Fid) -> Arc<Mutex<Object>> {
        if let Some(object) = self.object(fid) {
            return object;
        }
        let mut shard = self.shard(fid).write();
        let make = || {
            self.space.count_files(true);
            Arc::default()
        };
        shard.entry(*fid).or_insert_with(make).clone()
    }

    /// Changes an object, whose chunks in `grows` may have to be longer for it; takes the space first, and counts what
    /// it has after.
    fn change(&self, fid: &Fid, grows: Range<u64>, f: impl FnOnce(&mut Object)) -> Result<(), OsdError> {
        loop {
            let object = self.make(fid);
            let mut o = object.lock();
            if o.gone {
                continue;
            }
            // A range that cannot fit is not looked at chunk by chunk.
            if (grows.end - grows.start).saturating_sub(o.bytes) > self.space.avail_bytes() {
                return Err(OsdError::NoSpace);
            }
            let taken = o.missing(&grows);
            self.space.take(taken)?;
            let before = o.bytes;
            f(&mut o);
            self.space.give_back((before + taken).saturating_sub(o.bytes));
            return Ok(());
        }
    }
}

impl Default for MemoryObjects {
    /// With as much space as there is.
    fn default() -> MemoryObjects {
        MemoryObjects::new(Space::of_memory(cpt::memory_bytes()))
    }
}

/// The chunks that a range touches, each with the part of it, relative to the chunk.
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
    /// What chunks lack for a range to be in them.
    fn missing(&self, range: &Range<u64>) -> u64 {
        chunks_of(range)
            .map(|(i, part)| {
                let has = self.chunks.get(&i).map_or(0, |c| c.len() as u64);
                (part.end as u64).next_multiple_of(PAGE).saturating_sub(has)
            })
            .sum()
    }

    /// The chunk, long enough for its bytes up to `end`.
    fn chunk(&mut self, i: u64, end: usize) -> &mut Vec<u8> {
        let chunk = self.chunks.entry(i).or_default();
        if chunk.len() < end {
            let len = end.next_multiple_of(PAGE as usize);
            self.bytes += (len - chunk.len()) as u64;
            chunk.reserve_exact(len - chunk.len());
            chunk.resize(len, 0);
        }
        chunk
    }

    fn reserve(&mut self, range: &Range<u64>) {
        for (i, part) in chunks_of(range) {
            self.chunk(i, part.end);
        }
    }

    fn write(&mut self, mut at: u64, data: &[Bytes]) {
        for piece in data {
            let mut rest = &piece[..];
            for (i, part) in chunks_of(&(at..at + piece.len() as u64)) {
                let (now, later) = rest.split_at(part.len());
                self.chunk(i, part.end)[part].copy_from_slice(now);
                rest = later;
            }
            at += piece.len() as u64;
        }
        self.attr.size = self.attr.size.max(at);
    }

    fn read(&self, offset: u64, len: u32) -> Vec<Bytes> {
        let end = self.attr.size.min(offset.saturating_add(len.into()));
        let mut at = offset;
        let mut out = Vec::new();
        while at < end {
            let mut piece = BytesMut::zeroed((end - at).min(READ_PIECE) as usize);
            let mut rest = &mut piece[..];
            let len = rest.len() as u64;
            for (i, part) in chunks_of(&(at..at + len)) {
                let (now, later) = rest.split_at_mut(part.len());
                let has = self.chunks.get(&i).and_then(|c| c.get(part.start..));
                if let Some(has) = has {
                    let n = has.len().min(now.len());
                    now[..n].copy_from_slice(&has[..n]);
                }
                rest = later;
            }
            at += len;
            out.push(piece.freeze());
        }
        out
    }

    /// Zeroes a range and drops the chunks wholly in it, and the end of one whose rest is in it.
    fn free(&mut self, range: Range<u64>) {
        let last = self.chunks.keys().next_back().map_or(0, |i| (i + 1) * CHUNK);
        for (i, part) in chunks_of(&(range.start..range.end.min(last))) {
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

    fn seek(&self, offset: u64, what: Seek) -> Result<u64, OsdError> {
        if offset >= self.attr.size {
            return Err(OsdError::NotFound);
        }
        let found = match what {
            Seek::Data => self
                .chunks
                .range(offset / CHUNK..)
                .next()
                .map(|(&i, _)| offset.max(i * CHUNK)),
            Seek::Hole => {
                let mut at = offset / CHUNK;
                while self.chunks.contains_key(&at) {
                    at += 1;
                }
                Some(offset.max(at * CHUNK).min(self.attr.size))
            }
        };
        found
            .filter(|&f| f < self.attr.size || what == Seek::Hole)
            .ok_or(OsdError::NotFound)
    }

    fn attr(&self) -> ObjAttr {
        ObjAttr {
            blocks: self.bytes / 512,
            ..self.attr
        }
    }
}

fn done<'a, T: Send + 'a>(done: Result<T, OsdError>) -> BoxFuture<'a, Result<T, OsdError>> {
    Box::pin(std::future::ready(done))
}

fn ready<'a, T: Send + 'a>(t: T) -> BoxFuture<'a, Result<T, OsdError>> {
    done(Ok(t))
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
        done(self.change(&fid, offset..offset + len, |o| {
            o.write(offset, &data);
            attr.apply_to(&mut o.attr);
        }))
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        done(self.change(&fid, 0..0, |o| {
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
        done(self.change(&fid, start..end, |o| {
            o.reserve(&(start..end));
            if !keep_size {
                o.attr.size = o.attr.size.max(end);
            }
        }))
    }

    fn seek(&self, fid: Fid, offset: u64, what: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        let found = self
            .object(&fid)
            .ok_or(OsdError::NotFound)
            .and_then(|o| o.lock().seek(offset, what));
        Box::pin(std::future::ready(found))
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        ready(self.object(&fid).map(|o| o.lock().attr()))
    }

    fn attr_now(&self, fid: Fid, _new: bool) -> Option<Option<ObjAttr>> {
        Some(self.object(&fid).map(|o| o.lock().attr()))
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        done(self.change(&fid, 0..0, |o| attr.apply_to(&mut o.attr)))
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        let gone = self.shard(&fid).write().remove(&fid);
        if let Some(o) = &gone {
            let mut o = o.lock();
            self.space.give_back(o.bytes);
            self.space.count_files(false);
            *o = Object {
                gone: true,
                ..Object::default()
            };
        }
        ready(gone.is_some())
    }

    fn sync(&self, _fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        ready(())
    }

    fn sync_left(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        ready(())
    }
}
