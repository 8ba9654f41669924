//! One object of a file as this client sees it: its cache, what is known of its size and times, the
//! extent locks that make them true, and the RPCs that carry its data.
//!
//! What is cached is valid as long as an extent lock covers it. When the server calls a lock back, the
//! dirty data below it is written, the cache below it dropped, and then the lock is given up. The size
//! (Lustre calls it the known minimum size) is exact while a lock covers everything from it to the end.

use super::brw::{self, ObjectId, WriteArgs};
use super::cache::{ObjectCache, PAGE_SIZE, Run, Writeback};
use super::osc::Osc;
use crate::attr::DataAttr;
use bytes::Bytes;
use ldlm::{Enqueue, LockMode, LockRef, Policy};
use parking_lot::Mutex;
use rpc::Request;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::{
    Errno, Fid, LDLM_FL_HAS_INTENT, LdlmResId, OBD_MD_FLATIME, OBD_MD_FLBLOCKS, OBD_MD_FLCTIME,
    OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_FALLOCATE, OST_PUNCH, OST_SEEK, OST_SETATTR, OST_SYNC,
    OstBody, OstLvb, WireStruct,
};

/// Ranges in one write RPC at most (the request has to fit the server's buffer).
const RANGES_MAX: usize = 256;

/// How often a transfer whose checksum did not fit is repeated before it is an error.
const CHECKSUM_RETRIES: usize = 5;

/// lseek(2)'s whence, as OST_SEEK carries it.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Dirty data does not stay longer than this in the cache of its own accord. Short, because the kernel tells a FUSE server
/// nothing of sync(2): what a program wrote and did not close should not wait long.
pub(super) const DIRTY_AGE_MAX: Duration = Duration::from_millis(500);

/// The time of day, in seconds.
pub(super) fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64)
}

fn from_lvb(lvb: &OstLvb) -> DataAttr {
    DataAttr {
        size: lvb.lvb_size,
        blocks: lvb.lvb_blocks,
        mtime: lvb.lvb_mtime,
        atime: lvb.lvb_atime,
        ctime: lvb.lvb_ctime,
    }
}

fn to_lvb(attr: &DataAttr) -> OstLvb {
    OstLvb {
        lvb_size: attr.size,
        lvb_mtime: attr.mtime,
        lvb_atime: attr.atime,
        lvb_ctime: attr.ctime,
        lvb_blocks: attr.blocks,
        ..OstLvb::default()
    }
}

#[derive(Debug, Default)]
struct State {
    cache: ObjectCache,
    attr: DataAttr,
    /// An error of a write that nobody waited for; told once, at the next flush or fsync.
    error: Option<Errno>,
    /// Written since the last OST_SYNC.
    unsynced: bool,
    /// Ranges that are being read from the server.
    reading: Vec<Range<u64>>,
    /// What of the cache the OSC knows of.
    accounted: u64,
    /// Since when the oldest dirty data waits; none: nothing queued.
    dirty_since: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Object {
    osc: Arc<Osc>,
    id: ObjectId,
    res: LdlmResId,
    state: Mutex<State>,
    /// Woken when a read or a write of it ends.
    changed: Notify,
    /// One enqueue at a time: the next one then finds the lock of the first.
    enqueueing: tokio::sync::Mutex<()>,
    /// Locks held on it; without any, nothing is known for certain.
    locks: AtomicUsize,
}

impl Object {
    pub(super) fn new(osc: Arc<Osc>, id: ObjectId) -> Object {
        Object {
            osc,
            id,
            res: resource(&id),
            state: Mutex::default(),
            changed: Notify::new(),
            enqueueing: tokio::sync::Mutex::new(()),
            locks: AtomicUsize::new(0),
        }
    }

    /// The object's OST.
    pub(super) fn osc(&self) -> &Arc<Osc> {
        &self.osc
    }

    pub(super) fn resource(&self) -> &LdlmResId {
        &self.res
    }

    /// The file that it belongs to.
    pub(super) fn file(&self) -> Fid {
        self.id.parent
    }

    /// Whether a write of `bytes` has just filled an RPC.
    pub(super) fn has_whole_rpc(&self, bytes: u64) -> bool {
        let max = self.osc.terms().brw_bytes_max;
        let dirty = self.state.lock().cache.dirty_bytes();
        dirty >= max && (dirty - bytes.min(dirty)) / max < dirty / max
    }

    // --- locks

    /// A lock of at least `mode` on `range`: a cached one, or one from the server.
    pub(super) async fn lock(&self, mode: LockMode, range: Range<u64>) -> Result<LockRef, Errno> {
        let policy = extent(&range);
        let find = || self.osc.locks().find(&self.res, mode, policy);
        if let Some(lock) = find() {
            return Ok(lock);
        }
        let _one = self.enqueueing.lock().await;
        if let Some(lock) = find() {
            return Ok(lock);
        }
        let enqueue = Enqueue::new(self.res, mode, policy);
        let granted = self.osc.locks().enqueue(enqueue).await?;
        self.take_lvb(&granted.lvb);
        let lock = granted.lock.ok_or(Errno::EIO)?;
        self.locks.fetch_add(1, Ordering::Relaxed);
        Ok(lock)
    }

    /// Takes in what the server said of the object; our own unwritten data is newer.
    fn take_lvb(&self, lvb: &[u8]) -> Option<DataAttr> {
        let lvb = OstLvb::from_bytes(lvb).ok()?;
        let mut s = self.state.lock();
        let known = from_lvb(&lvb);
        let unwritten = s.cache.unwritten_end();
        let (mtime, ctime) = match unwritten {
            0 => (known.mtime, known.ctime),
            _ => (known.mtime.max(s.attr.mtime), known.ctime.max(s.attr.ctime)),
        };
        s.attr = DataAttr {
            size: known.size.max(unwritten),
            mtime,
            ctime,
            ..known
        };
        Some(s.attr)
    }

    /// What this client knows, for the server that asks (a glimpse).
    pub(super) fn lvb(&self) -> OstLvb {
        to_lvb(&self.state.lock().attr)
    }

    /// A lock on `range` is about to be given up: write and forget what it protected.
    pub(super) async fn release(self: &Arc<Self>, range: Range<u64>) {
        self.flush(range.clone()).await;
        self.forget(range);
    }

    /// Drops what is cached of `range`, dirty or not.
    pub(super) fn forget(&self, range: Range<u64>) {
        let freed = self.state.lock().cache.discard(range);
        self.osc.budget().unreserve(freed);
        self.account();
    }

    /// A lock is gone.
    pub(super) fn lock_gone(&self) -> bool {
        self.locks.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Whether any lock is held.
    pub(super) fn is_locked(&self) -> bool {
        self.locks.load(Ordering::Relaxed) > 0
    }

    /// The server has evicted us: nothing that is cached is true any more, and dirty data is lost.
    pub(super) fn evicted(&self) {
        let mut s = self.state.lock();
        if s.cache.is_dirty(0..u64::MAX) || s.cache.is_writing(0..u64::MAX) {
            s.error = Some(Errno::EIO);
        }
        let freed = s.cache.discard(0..u64::MAX);
        s.dirty_since = None;
        drop(s);
        self.locks.store(0, Ordering::Relaxed);
        self.osc.budget().unreserve(freed);
        self.account();
        self.changed.notify_waiters();
    }

    /// Size and times, for a caller who holds a lock on everything.
    pub(super) fn locked_attr(&self) -> DataAttr {
        self.state.lock().attr
    }

    /// Size and times, when a lock makes them certain.
    pub(super) fn known_attr(&self) -> Option<DataAttr> {
        let known = self.state.lock().attr;
        let tail = extent(&(known.size..OBD_OBJECT_EOF));
        let _lock = self.osc.locks().find(&self.res, LockMode::Pr, tail)?;
        Some(self.state.lock().attr)
    }

    /// Size and times: from the cache where a lock makes them certain, otherwise from the server.
    pub(super) async fn attr(&self) -> Result<DataAttr, Errno> {
        if let Some(known) = self.known_attr() {
            return Ok(known);
        }
        let _one = self.enqueueing.lock().await;
        let mut glimpse = Enqueue::new(self.res, LockMode::Pr, extent(&(0..OBD_OBJECT_EOF)));
        glimpse.flags |= LDLM_FL_HAS_INTENT;
        let answer = self.osc.locks().enqueue(glimpse).await?;
        if answer.lock.is_some() {
            self.locks.fetch_add(1, Ordering::Relaxed);
        }
        self.take_lvb(&answer.lvb).ok_or(Errno::EPROTO)
    }

    // --- reading

    /// The bytes of `range` as far as the object reaches. Call with a lock on the range.
    pub(super) async fn read(self: &Arc<Self>, range: Range<u64>) -> Result<Vec<Bytes>, Errno> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let gap = {
                let mut s = self.state.lock();
                let end = range.end.min(s.attr.size.max(range.start));
                let runs = s.cache.read(range.start..end);
                let gap = runs.iter().find_map(|run| match run {
                    Run::Gap(gap) => Some(gap.clone()),
                    Run::Data(_) => None,
                });
                let Some(gap) = gap else {
                    return Ok(runs.into_iter().filter_map(data).collect());
                };
                let busy = s.reading.iter().any(|r| r.start < gap.end && gap.start < r.end);
                if busy {
                    None
                } else {
                    // Whole pages, so that neighbours of small reads are there when they are wanted.
                    let start = gap.start / PAGE_SIZE * PAGE_SIZE;
                    let end = gap.end.div_ceil(PAGE_SIZE) * PAGE_SIZE;
                    let gap = start..end.min(start + self.osc.terms().brw_bytes_max);
                    s.reading.push(gap.clone());
                    Some(gap)
                }
            };
            match gap {
                Some(gap) => self.fetch(gap).await?,
                None => changed.await,
            }
        }
    }

    /// Has `range` read ahead, if a lock covers it and it is not cached or under way.
    pub(super) fn prefetch(self: &Arc<Self>, range: Range<u64>) {
        let Some(lock) = self.osc.locks().find(&self.res, LockMode::Pr, extent(&range)) else {
            return;
        };
        let wanted = {
            let mut s = self.state.lock();
            let end = range.end.min(s.attr.size);
            if range.start >= end {
                return;
            }
            let mut wanted = Vec::new();
            for run in s.cache.read(range.start..end) {
                if let Run::Gap(gap) = run
                    && !s.reading.iter().any(|r| r.start < gap.end && gap.start < r.end)
                {
                    let max = self.osc.terms().brw_bytes_max;
                    let mut at = gap.start;
                    while at < gap.end {
                        let part = at..gap.end.min(at + max);
                        at = part.end;
                        s.reading.push(part.clone());
                        wanted.push(part);
                    }
                }
            }
            wanted
        };
        for gap in wanted {
            let object = self.clone();
            let lock = lock.clone();
            self.osc.spawn(async move {
                let _lock = lock;
                // An error is met again, and told, by the read that wants the bytes.
                let _ = object.fetch(gap).await;
            });
        }
    }

    /// Reads `range` from the server into the cache; it stands in `reading`.
    async fn fetch(self: &Arc<Self>, range: Range<u64>) -> Result<(), Errno> {
        let _reading = Reading {
            object: self,
            range: range.clone(),
        };
        let data = self.read_rpc(&range).await?;
        let mut s = self.state.lock();
        let mut at = range.start;
        for piece in data {
            let next = at + piece.len() as u64;
            s.cache.fill(at, piece);
            at = next;
        }
        // Short: there is nothing more, though our own size says so: a hole up to it.
        let end = range.end.min(s.attr.size);
        if at < end {
            s.cache.fill(at, Bytes::from(vec![0; (end - at) as usize]));
        }
        drop(s);
        self.account();
        Ok(())
    }

    async fn read_rpc(&self, range: &Range<u64>) -> Result<Vec<Bytes>, Errno> {
        let terms = self.osc.terms();
        for _ in 0..CHECKSUM_RETRIES {
            let request = brw::read_request(self.id, range, &terms, self.osc.budget().report());
            let reply = self.osc.call(request).await?;
            let read = brw::read_reply(&reply)?;
            self.osc.budget().written(0, read.granted);
            if !read.corrupted {
                return Ok(read.data);
            }
            tracing::warn!(ost = self.osc.name(), object = ?self.id.oi, ?range, "checksum of a read is wrong, reading again");
        }
        Err(Errno::EIO)
    }

    /// Bytes of `range` straight from the server, past the cache (O_DIRECT).
    pub(super) async fn read_direct(self: &Arc<Self>, range: Range<u64>) -> Result<Vec<Bytes>, Errno> {
        let _lock = self.lock(LockMode::Pr, range.clone()).await?;
        self.flush(range.clone()).await;
        let end = range.end.min(self.state.lock().attr.size);
        let mut data = Vec::new();
        let mut at = range.start;
        while at < end {
            let part = at..end.min(at + self.osc.terms().brw_bytes_max);
            let got = self.read_rpc(&part).await?;
            let bytes: u64 = got.iter().map(|d| d.len() as u64).sum();
            data.extend(got);
            at += bytes;
            if at < part.end {
                break;
            }
        }
        Ok(data)
    }

    // --- writing

    /// Takes `data` into the cache, or to the server when there is no room. Call with a PW lock on it.
    pub(super) async fn write(self: &Arc<Self>, offset: u64, data: Bytes) -> Result<(), Errno> {
        let range = offset..offset + data.len() as u64;
        loop {
            let need = self.state.lock().cache.reservation(range.clone());
            if need > 0 && !self.osc.budget().reserve(need, || self.osc.press()).await {
                return self.write_through(range, data).await;
            }
            let mut s = self.state.lock();
            let needed_now = s.cache.reservation(range.clone());
            if needed_now > need {
                drop(s);
                self.osc.budget().unreserve(need);
                continue;
            }
            s.cache.write(offset, data);
            let time = now();
            s.attr.size = s.attr.size.max(range.end);
            s.attr.mtime = time;
            s.attr.ctime = time;
            let newly_dirty = s.dirty_since.is_none();
            if newly_dirty {
                s.dirty_since = Some(Instant::now());
            }
            drop(s);
            self.osc.budget().unreserve(need - needed_now);
            self.osc.wrote(self, newly_dirty, range.end - range.start);
            return Ok(());
        }
    }

    /// Sends `data` at once and waits for it: no grant, or O_DIRECT.
    async fn write_through(self: &Arc<Self>, range: Range<u64>, data: Bytes) -> Result<(), Errno> {
        self.flush(range.clone()).await;
        let time = now();
        let mut at = range.start;
        let mut rest = data;
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(self.osc.terms().brw_bytes_max as usize));
            let end = at + part.len() as u64;
            self.write_rpc(&[(at..end, vec![part])], false, time).await?;
            at = end;
        }
        let mut s = self.state.lock();
        s.cache.discard(range.clone());
        s.attr.size = s.attr.size.max(range.end);
        s.attr.mtime = time;
        s.attr.ctime = time;
        s.unsynced = true;
        Ok(())
    }

    /// Writes past the cache (O_DIRECT).
    pub(super) async fn write_direct(self: &Arc<Self>, offset: u64, data: Bytes) -> Result<(), Errno> {
        let range = offset..offset + data.len() as u64;
        let _lock = self.lock(LockMode::Pw, range.clone()).await?;
        self.write_through(range, data).await
    }

    /// One OST_WRITE. Returns the grant that came with its reply.
    async fn write_rpc(
        &self,
        ranges: &[(Range<u64>, Vec<Bytes>)],
        granted: bool,
        mtime: i64,
    ) -> Result<u64, Errno> {
        let terms = self.osc.terms();
        for _ in 0..CHECKSUM_RETRIES {
            let grant = self.osc.budget().report();
            let args = WriteArgs {
                object: self.id,
                ranges,
                granted,
                mtime,
                grant,
            };
            let reply = self.osc.call(brw::write_request(&args, &terms)).await?;
            let written = brw::write_reply(&reply, &args, &terms)?;
            if !written.corrupted {
                if let Some(blocks) = written.blocks {
                    self.state.lock().attr.blocks = blocks;
                }
                return Ok(written.granted);
            }
            self.osc.budget().written(0, written.granted);
            tracing::warn!(ost = self.osc.name(), object = ?self.id.oi, "checksum of a write is wrong, sending again");
        }
        Err(Errno::EIO)
    }

    /// Sends what was taken from the cache, and tells the cache.
    async fn write_back(self: Arc<Self>, taken: Writeback) {
        let mtime = self.state.lock().attr.mtime;
        let result = self.write_rpc(&taken.ranges, taken.reserved > 0, mtime).await;
        let mut s = self.state.lock();
        s.cache
            .written(taken.ranges.iter().map(|(r, _)| r), result.is_err());
        s.unsynced = true;
        if let Err(error) = result {
            tracing::error!(ost = self.osc.name(), object = ?self.id.oi, file = %self.id.parent, %error,
                bytes = taken.bytes, "data could not be written and is lost; fsync or close tells the program");
            s.error = Some(error);
        }
        drop(s);
        self.osc.budget().written(taken.reserved, result.unwrap_or(0));
        self.changed.notify_waiters();
        self.account();
    }

    /// Starts to write what is dirty in `range` and not on its way yet; `full_only`: only whole RPCs.
    pub(super) async fn start_writing(self: &Arc<Self>, range: Range<u64>, full_only: bool) {
        loop {
            let slot = self.osc.write_slot().await;
            let bytes_max = self.osc.terms().brw_bytes_max;
            let taken = {
                let mut s = self.state.lock();
                if full_only && s.cache.dirty_bytes() < bytes_max {
                    return;
                }
                let taken = s.cache.take_dirty(range.clone(), bytes_max, RANGES_MAX);
                if !s.cache.is_dirty(0..u64::MAX) {
                    s.dirty_since = None;
                }
                taken
            };
            let Some(taken) = taken else { return };
            let object = self.clone();
            self.osc.spawn(async move {
                object.write_back(taken).await;
                drop(slot);
            });
        }
    }

    /// Writes what is dirty in `range`, and waits until it and what is on its way has arrived.
    pub(super) async fn flush(self: &Arc<Self>, range: Range<u64>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (dirty, writing) = {
                let s = self.state.lock();
                (s.cache.is_dirty(range.clone()), s.cache.is_writing(range.clone()))
            };
            if dirty {
                self.start_writing(range.clone(), false).await;
            }
            if !dirty && !writing {
                return;
            }
            if writing || self.state.lock().cache.is_writing(range.clone()) {
                changed.await;
            }
        }
    }

    /// The error of a write that nobody waited for, once.
    pub(super) fn take_error(&self) -> Result<(), Errno> {
        self.state.lock().error.take().map_or(Ok(()), Err)
    }

    /// Since when dirty data waits.
    pub(super) fn dirty_since(&self) -> Option<Instant> {
        self.state.lock().dirty_since
    }

    /// Tells the OSC how much is cached here now; it may have some of it dropped.
    fn account(&self) {
        let (before, now) = {
            let mut s = self.state.lock();
            let now = s.cache.bytes();
            (std::mem::replace(&mut s.accounted, now), now)
        };
        self.osc.cached(before, now);
    }

    /// Drops about `bytes` of clean data.
    pub(super) fn evict_clean(&self, bytes: u64) -> u64 {
        let mut s = self.state.lock();
        let freed = s.cache.evict_clean(bytes);
        s.accounted = s.accounted.saturating_sub(freed);
        freed
    }

    /// Everything written so far is on the server's disk when this returns.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), Errno> {
        self.flush(0..u64::MAX).await;
        self.take_error()?;
        if std::mem::take(&mut self.state.lock().unsynced) {
            let mut oa = brw::obdo(self.id);
            oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
            oa.o_size = 0;
            oa.o_blocks = OBD_OBJECT_EOF;
            if let Err(error) = self
                .osc
                .call(Request::new(
                    OST_SYNC,
                    vec![OstBody { oa }.to_bytes(), Bytes::new()],
                ))
                .await
            {
                self.state.lock().unsynced = true;
                return Err(error.errno());
            }
        }
        Ok(())
    }

    // --- attributes and space

    /// Cuts the object to `size`, or extends it with a hole.
    pub(super) async fn truncate(self: &Arc<Self>, size: u64) -> Result<(), Errno> {
        let _lock = self.lock(LockMode::Pw, size..OBD_OBJECT_EOF).await?;
        self.forget(size..u64::MAX);
        // What is on its way must arrive before it is cut.
        self.flush(size..u64::MAX).await;
        let mut oa = brw::obdo(self.id);
        let time = now();
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS | OBD_MD_FLMTIME | OBD_MD_FLCTIME;
        oa.o_size = size;
        oa.o_blocks = OBD_OBJECT_EOF;
        oa.o_mtime = time;
        oa.o_ctime = time;
        let reply = self
            .osc
            .call(Request::new(
                OST_PUNCH,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            ))
            .await;
        let oa = reply?.get::<OstBody>(1)?.oa;
        let mut s = self.state.lock();
        // Clean bytes that came back while the RPC ran are older than the cut.
        s.cache.discard(size..u64::MAX);
        s.attr.size = size;
        if oa.o_valid & OBD_MD_FLBLOCKS != 0 {
            s.attr.blocks = oa.o_blocks;
        }
        s.attr.mtime = time;
        s.attr.ctime = time;
        s.unsynced = true;
        Ok(())
    }

    /// Waits until nothing is on its way.
    async fn settle(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.state.lock().cache.is_writing(0..u64::MAX) {
                return;
            }
            changed.await;
        }
    }

    /// Sets times (those given). What is on its way would set others and is waited for; what is dirty will be written
    /// with the times that are set here. A time in the past is set under a lock on all of the object: other clients
    /// that have one have seen a later time, and would go on believing it.
    pub(super) async fn set_times(
        self: &Arc<Self>,
        mtime: Option<i64>,
        atime: Option<i64>,
        ctime: i64,
    ) -> Result<(), Errno> {
        let past = [mtime, atime].into_iter().flatten().any(|t| t < ctime);
        let _lock = if past {
            Some(self.lock(LockMode::Pw, 0..u64::MAX).await?)
        } else {
            None
        };
        {
            let mut s = self.state.lock();
            s.attr.ctime = ctime;
            s.attr.mtime = mtime.unwrap_or(s.attr.mtime);
            s.attr.atime = atime.unwrap_or(s.attr.atime);
        }
        self.settle().await;
        let mut oa = brw::obdo(self.id);
        oa.o_valid |= OBD_MD_FLCTIME;
        oa.o_ctime = ctime;
        if let Some(t) = mtime {
            oa.o_valid |= OBD_MD_FLMTIME;
            oa.o_mtime = t;
        }
        if let Some(t) = atime {
            oa.o_valid |= OBD_MD_FLATIME;
            oa.o_atime = t;
        }
        self.osc
            .call(Request::new(
                OST_SETATTR,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            ))
            .await?;
        Ok(())
    }

    /// fallocate(2) with the mode's bits, on a range of the object.
    pub(super) async fn fallocate(
        self: &Arc<Self>,
        mode: u32,
        range: Range<u64>,
        keeps_size: bool,
    ) -> Result<(), Errno> {
        let _lock = self.lock(LockMode::Pw, range.clone()).await?;
        self.release(range.clone()).await;
        let mut oa = brw::obdo(self.id);
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        oa.o_size = range.start;
        oa.o_blocks = range.end;
        oa.o_nlink = mode;
        let time = now();
        self.osc
            .call(Request::new(
                OST_FALLOCATE,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            ))
            .await?;
        let mut s = self.state.lock();
        if !keeps_size {
            s.attr.size = s.attr.size.max(range.end);
        }
        s.attr.mtime = time;
        s.attr.ctime = time;
        s.unsynced = true;
        Ok(())
    }

    /// The next data (or hole) at or after `offset` of the object. `None`: no data after it.
    pub(super) async fn seek(self: &Arc<Self>, offset: u64, hole: bool) -> Result<Option<u64>, Errno> {
        self.flush(0..u64::MAX).await;
        let mut oa = brw::obdo(self.id);
        oa.o_valid |= OBD_MD_FLSIZE;
        oa.o_size = offset;
        oa.o_mode = if hole { SEEK_HOLE } else { SEEK_DATA };
        match self
            .osc
            .call(Request::new(
                OST_SEEK,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            ))
            .await
        {
            Ok(reply) => {
                let found = reply.get::<OstBody>(1)?.oa.o_size;
                Ok((found != u64::MAX).then_some(found))
            }
            Err(error) if error.errno() == Errno::ENXIO => Ok(None),
            Err(error) => Err(error.errno()),
        }
    }
}

/// Takes a range out of `reading` when its fetch ends, however it ends.
struct Reading<'a> {
    object: &'a Object,
    range: Range<u64>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.object.state.lock().reading.retain(|r| *r != self.range);
        self.object.changed.notify_waiters();
    }
}

fn data(run: Run) -> Option<Bytes> {
    match run {
        Run::Data(bytes) => Some(bytes),
        Run::Gap(_) => None,
    }
}

/// The lock policy of a byte range; locks name their last byte.
fn extent(range: &Range<u64>) -> Policy {
    let last = if range.end == OBD_OBJECT_EOF {
        OBD_OBJECT_EOF
    } else {
        range.end - 1
    };
    Policy::extent(range.start, last)
}

/// The lock resource of an object: its id's 16 bytes, as they stand in the layout.
pub(super) fn resource(id: &ObjectId) -> LdlmResId {
    LdlmResId {
        name: [id.oi.oi_id, id.oi.oi_seq, 0, 0],
    }
}
