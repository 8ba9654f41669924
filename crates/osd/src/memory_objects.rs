//! Objects in memory: each a sparse set of 64 KiB chunks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use cpt::BoxFuture;
use parking_lot::{Mutex, RwLock};
use wire::Fid;

use crate::{ObjAttr, Objects, OsdError, READ_PIECE, Seek, SetAttr, StatFs, memory_index::memory_statfs};

const CHUNK: u64 = 64 << 10;
const SHARDS: usize = 64;

#[derive(Default)]
struct Object {
    attr: ObjAttr,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

type Shard = RwLock<HashMap<Fid, Arc<Mutex<Object>>>>;

/// Objects in memory.
pub struct MemoryObjects {
    shards: Vec<Shard>,
    chunks: AtomicU64,
}

impl MemoryObjects {
    /// None yet.
    pub fn new() -> MemoryObjects {
        MemoryObjects {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            chunks: AtomicU64::new(0),
        }
    }

    fn shard(&self, fid: &Fid) -> &Shard {
        &self.shards[(fid.f_seq as usize ^ fid.f_oid as usize) % SHARDS]
    }

    fn object(&self, fid: &Fid) -> Option<Arc<Mutex<Object>>> {
        self.shard(fid).read().get(fid).cloned()
    }

    fn make(&self, fid: &Fid) -> Arc<Mutex<Object>> {
        self.object(fid)
            .unwrap_or_else(|| self.shard(fid).write().entry(*fid).or_default().clone())
    }

    /// Changes an object and keeps count of the chunks in use.
    fn change<T>(&self, fid: &Fid, f: impl FnOnce(&mut Object) -> T) -> T {
        let object = self.make(fid);
        let mut o = object.lock();
        let before = o.chunks.len() as u64;
        let out = f(&mut o);
        self.chunks
            .fetch_add((o.chunks.len() as u64).wrapping_sub(before), Ordering::Relaxed);
        out
    }
}

impl Default for MemoryObjects {
    fn default() -> MemoryObjects {
        MemoryObjects::new()
    }
}

impl Object {
    fn write(&mut self, mut at: u64, data: &[Bytes]) {
        for piece in data {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let within = (at % CHUNK) as usize;
                let n = rest.len().min(CHUNK as usize - within);
                let chunk = self
                    .chunks
                    .entry(at / CHUNK)
                    .or_insert_with(|| vec![0; CHUNK as usize].into());
                chunk[within..within + n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                at += n as u64;
            }
        }
        self.attr.size = self.attr.size.max(at);
    }

    fn read(&self, offset: u64, len: u32) -> Vec<Bytes> {
        let end = self.attr.size.min(offset.saturating_add(len.into()));
        let mut at = offset;
        let mut out = Vec::new();
        while at < end {
            let mut piece = BytesMut::zeroed((end - at).min(READ_PIECE) as usize);
            let mut done = 0;
            while done < piece.len() {
                let within = (at % CHUNK) as usize;
                let n = (piece.len() - done).min(CHUNK as usize - within);
                if let Some(chunk) = self.chunks.get(&(at / CHUNK)) {
                    piece[done..done + n].copy_from_slice(&chunk[within..within + n]);
                }
                done += n;
                at += n as u64;
            }
            out.push(piece.freeze());
        }
        out
    }

    /// Zeroes `start..end` and drops the chunks wholly in it.
    fn free(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let touched: Vec<u64> = self
            .chunks
            .range(start / CHUNK..=end / CHUNK)
            .map(|(&i, _)| i)
            .collect();
        for i in touched {
            let (first, last) = (i * CHUNK, (i + 1) * CHUNK);
            let (from, to) = (start.max(first), end.min(last));
            if from == first && to == last {
                self.chunks.remove(&i);
            } else if let (Some(chunk), true) = (self.chunks.get_mut(&i), from < to) {
                chunk[(from - first) as usize..(to - first) as usize].fill(0);
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
            blocks: self.chunks.len() as u64 * (CHUNK / 512),
            ..self.attr
        }
    }
}

fn ready<'a, T: Send + 'a>(t: T) -> BoxFuture<'a, Result<T, OsdError>> {
    Box::pin(std::future::ready(Ok(t)))
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
        self.change(&fid, |o| {
            o.write(offset, &data);
            attr.apply_to(&mut o.attr);
        });
        ready(())
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.change(&fid, |o| {
            o.free(start, end.min(o.attr.size));
            if end == u64::MAX {
                o.attr.size = start;
            }
            attr.apply_to(&mut o.attr);
        });
        ready(())
    }

    fn fallocate(
        &self,
        fid: Fid,
        _start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        // Memory is not reserved: a later write takes what it needs.
        self.change(&fid, |o| {
            if !keep_size {
                o.attr.size = o.attr.size.max(end);
            }
        });
        ready(())
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

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        self.change(&fid, |o| attr.apply_to(&mut o.attr));
        ready(())
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        let gone = self.shard(&fid).write().remove(&fid);
        if let Some(o) = &gone {
            self.chunks
                .fetch_sub(o.lock().chunks.len() as u64, Ordering::Relaxed);
        }
        ready(gone.is_some())
    }

    fn sync(&self, _fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        ready(())
    }

    fn statfs(&self) -> BoxFuture<'_, Result<StatFs, OsdError>> {
        ready(memory_statfs(
            self.chunks.load(Ordering::Relaxed) * (CHUNK / 4096),
        ))
    }
}
