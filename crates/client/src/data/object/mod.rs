//! One object of a file: its cache, its size and times, its extent locks, and the RPCs that carry
//! its data.
//!
//! Cached data is valid while an extent lock covers it. When the server revokes a lock, the client
//! writes back the dirty data under it, drops the cached data under it, and then cancels the lock.
//! An eviction invalidates all locks at once. So before a task fills the cache, with the state
//! locked, it makes sure that its lock is still valid ([`LockRef::is_valid`]), or that no eviction
//! has made its read stale ([`Fetch`]). Data taken from the cache before the eviction is no longer
//! sent ([`Object::eviction_epoch`]).
//!
//! The size here is Lustre's known minimum size (KMS): the held locks prove that the object is at
//! least this large. The size is exact while one lock covers everything from this offset to the
//! end.

mod capa;
mod dirty;
mod opened;
mod read;
mod space;
mod times;
mod write;

pub(crate) use capa::CapabilityUser;
pub(super) use dirty::DirtyObjects;
pub(crate) use opened::OpenedData;
pub(crate) use times::SetTimes;

use super::brw::ObjectId;
use super::cache::{ObjectCache, PAGE_SIZE, SweepResult};
use super::osc::Osc;
use crate::attr::DataAttr;
use capa::Capability;
use ldlm::LockCookie;
use ldlm::{Enqueue, EnqueueReply, LockMode, LockRef, Policy};
use parking_lot::Mutex;
use rpc::job::JobId;
use rpc::{ReplyMsg, Request, RpcError};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use times::UnsentTimes;
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::{
    Errno, Fid, HasTimes, LDLM_FL_HAS_INTENT, LdlmResId, MDS_INODELOCK_DOM, OBD_OBJECT_EOF, OST_LVB_ERR_INIT,
    OST_LVB_ERR_MASK, OstLvb, Precision, StripeIndex, Time, WireStruct,
};

/// Attempts at a transfer before it fails with `EIO`, if the checksum is wrong each time.
const CHECKSUM_ATTEMPTS: usize = 5;

/// Age at which the client writes dirty data back. Short, because a FUSE server does not receive
/// sync(2): data that a program wrote without closing the file should not wait long.
pub(super) const DIRTY_AGE_MAX: Duration = Duration::from_millis(500);

/// The error that a server returns instead of size and times for a damaged object.
fn lvb_error(lvb: &OstLvb) -> Option<Errno> {
    let is_error = lvb.lvb_blocks & OST_LVB_ERR_MASK == OST_LVB_ERR_MASK;
    let errno = OST_LVB_ERR_INIT.wrapping_sub(lvb.lvb_blocks);
    let errno = i32::try_from(errno)
        .ok()
        .filter(|errno| (1..4096).contains(errno));
    is_error.then(|| errno.map_or(Errno::EIO, Errno))
}

/// Size, blocks and times from a lock value block.
fn from_lvb(lvb: &OstLvb, precision: Precision) -> DataAttr {
    DataAttr {
        size: lvb.lvb_size,
        blocks: lvb.lvb_blocks,
        times: lvb.times().at(precision),
    }
}

fn to_lvb(attr: &DataAttr, precision: Precision) -> OstLvb {
    let mut lvb = OstLvb {
        lvb_size: attr.size,
        lvb_blocks: attr.blocks,
        ..OstLvb::default()
    };
    lvb.set_times(attr.times.at(precision));
    lvb
}

#[derive(Debug, Default)]
struct State {
    cache: ObjectCache,
    /// Size, blocks and times, as far as the held locks prove them.
    attr: DataAttr,
    /// The error that the server returned with the last lock instead of size and times.
    error: Option<Errno>,
    /// The held locks by cookie, each with its range. Without locks, the client knows nothing about
    /// the object.
    locks: Vec<(LockCookie, Range<u64>)>,
    /// Reads from the server in progress.
    fetches: Vec<Fetch>,
    /// Number of this client's changes at the server.
    changes: u64,
    /// The cached bytes that the mount's limit already counts.
    accounted: u64,
    /// When a program wrote the oldest queued dirty data; `None`: nothing is queued.
    dirty_since: Option<Instant>,
    /// The times that a program has set and that the target may lack.
    unsent_times: UnsentTimes,
    /// The job of the last writer, for the requests that write its data back.
    job: JobId,
    /// Number of kernel invalidations in progress for pages from before an eviction.
    pending_page_invalidations: usize,
}

/// A read of a range from the server in progress.
#[derive(Debug)]
struct Fetch {
    range: Range<u64>,
    /// Whether the server's bytes may have changed since the request. The client then does not
    /// cache the result.
    stale: bool,
}

impl Fetch {
    fn overlaps_range(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

impl State {
    /// Whether the object has the value block of a lock with this cookie.
    fn knows(&self, cookie: LockCookie) -> bool {
        self.locks.iter().any(|(known, _)| *known == cookie)
    }

    /// Stores the size and times of a granted lock, as far as its range proves them.
    fn add_lock(&mut self, cookie: LockCookie, range: Range<u64>, lvb: &OstLvb, precision: Precision) {
        self.error = lvb_error(lvb);
        if self.error.is_none() {
            let mut server_attr = self.merge_own_times(from_lvb(lvb, precision));
            server_attr.size = self.attr.size.max(lvb.lvb_size.min(range.end));
            self.attr = server_attr;
        }
        self.locks.push((cookie, range));
    }

    /// Updates the counted bytes; returns the old and the new count.
    fn account(&mut self) -> (u64, u64) {
        let now = self.cache.bytes();
        (std::mem::replace(&mut self.accounted, now), now)
    }

    /// Whether a read of any part of a range is in progress.
    fn is_fetching(&self, range: &Range<u64>) -> bool {
        self.fetches.iter().any(|f| f.overlaps_range(range))
    }

    /// Records that a read of a range begins.
    fn begin_fetch(&mut self, range: Range<u64>) {
        self.fetches.push(Fetch { range, stale: false });
    }

    /// Records that the server's bytes of a range may have changed: reads in progress then do not
    /// cache their result.
    fn mark_changed_at_server(&mut self, range: &Range<u64>) {
        self.changes += 1;
        for fetch in &mut self.fetches {
            fetch.stale |= fetch.overlaps_range(range);
        }
    }

    /// As `mark_changed_at_server`; also drops the cached bytes of the range. Returns the freed
    /// reservation in bytes.
    fn discard_changed_at_server(&mut self, range: Range<u64>) -> u64 {
        self.mark_changed_at_server(&range);
        self.cache.discard(range)
    }

    /// While this client holds locks, merges the server's times with the times of this client's own
    /// later changes.
    fn merge_own_times(&self, server_attr: DataAttr) -> DataAttr {
        if self.locks.is_empty() {
            return server_attr;
        }
        DataAttr {
            times: server_attr.times.latest(self.attr.times),
            ..server_attr
        }
    }

    /// Size, blocks and times. Unwritten data counts as blocks, as in Lustre's client: `tar -S`
    /// treats a file without blocks as a hole. The client does not know whether unwritten data
    /// overwrites existing blocks. So the result is at most the blocks of a dense object of this
    /// size, or the blocks that the server reported if they are more.
    fn attr(&self) -> DataAttr {
        let blocks_of = |bytes: u64| bytes.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE / 512);
        let DataAttr { size, blocks, .. } = self.attr;
        let with_unwritten = blocks.saturating_add(blocks_of(self.cache.unwritten_bytes()));
        DataAttr {
            blocks: with_unwritten.min(blocks_of(size).max(blocks)),
            ..self.attr
        }
    }

    /// Sets the times of a content change to `now`, but not before the last change.
    fn set_change_times(&mut self, now: Time) {
        let times = &mut self.attr.times;
        times.ctime = times.ctime.max(now);
        times.mtime = times.ctime;
    }
}

/// The client's view of one object.
#[derive(Debug)]
pub(super) struct Object {
    osc: Arc<Osc>,
    /// The queue of the target's objects to write back.
    dirty: Arc<DirtyObjects>,
    /// The file and stripe in the ID change when a client swaps the layouts of two files.
    id: Mutex<ObjectId>,
    res: LdlmResId,
    state: Mutex<State>,
    /// Notified at the end of each fetch into the cache, of each write-back, and of each request
    /// with unsent times, and after an eviction.
    io_done: Notify,
    /// Allows one enqueue at a time: the next task then finds the lock of the first.
    enqueue_lock: tokio::sync::Mutex<()>,
    /// The capability for targets that require one.
    capability: Capability,
}

impl Object {
    pub(super) fn new(osc: Arc<Osc>, dirty: Arc<DirtyObjects>, id: ObjectId) -> Object {
        Object {
            osc,
            dirty,
            res: resource(&id),
            id: Mutex::new(id),
            state: Mutex::default(),
            io_done: Notify::new(),
            enqueue_lock: tokio::sync::Mutex::new(()),
            capability: Capability::default(),
        }
    }

    /// The client of the object's OST.
    pub(super) fn osc(&self) -> &Arc<Osc> {
        &self.osc
    }

    pub(super) fn resource(&self) -> &LdlmResId {
        &self.res
    }

    /// The object's ID with the file that uses the object.
    pub(super) fn id(&self) -> ObjectId {
        *self.id.lock()
    }

    /// The file that the object belongs to.
    pub(super) fn file(&self) -> Fid {
        self.id().parent
    }

    /// Records that the object belongs to this file: the file's current layout has the object. The
    /// caller makes sure that the file keeps this layout meanwhile. Drops the former file's
    /// capability, and the former file's pages in the kernel: from now on, a revocation of the
    /// object's locks drops only the pages of the new file.
    pub(super) fn set_file(&self, file: Fid, stripe: StripeIndex) {
        let former = {
            let mut id = self.id.lock();
            if (id.parent, id.stripe) == (file, stripe) {
                return;
            }
            id.stripe = stripe;
            std::mem::replace(&mut id.parent, file)
        };
        if former != file {
            self.capability.forget();
            let osc = self.osc.clone();
            self.osc
                .spawn(async move { osc.invalidate_in_kernel(former).await });
        }
    }

    /// Whether the last write, of `bytes` bytes, has completed another whole RPC of dirty data.
    pub(super) fn has_filled_rpc(&self, bytes: u64) -> bool {
        let max = self.osc.brw_params().brw_bytes_max;
        let dirty = self.state.lock().cache.dirty_bytes();
        dirty >= max && (dirty - bytes.min(dirty)) / max < dirty / max
    }

    /// A lock of at least `mode` on `range`: a cached one, or a new one from the server.
    pub(super) async fn lock(self: &Arc<Self>, mode: LockMode, range: Range<u64>) -> Result<LockRef, Errno> {
        let find = || self.find_lock(mode, &range);
        if let Some(lock) = find() {
            return self.check_damage(lock);
        }
        let _enqueue_lock = self.enqueue_lock.lock().await;
        if let Some(lock) = find() {
            return self.check_damage(lock);
        }
        let enqueue = Enqueue::new(self.res, mode, self.osc.lock_policy(&range));
        let reply = self.enqueue(enqueue).await?;
        let lock = reply.lock.ok_or(Errno::EIO)?;
        if !self.knows(&lock) {
            // A lock that came with an MDT's answer to another request has no value block.
            let lvb = OstLvb::from_bytes(&reply.lvb)?;
            self.add_lock(lock.info().cookie, lock_range(lock.policy()), &lvb);
        }
        // Reads and writes rely on this.
        let granted = lock_range(lock.policy());
        if range.start < granted.start || granted.end < range.end {
            tracing::warn!(ost = self.osc.name(), object = ?self.id().oi, ?range, ?granted, "the OST granted less than the requested range");
            return Err(Errno::EIO);
        }
        self.check_damage(lock)
    }

    /// A cached lock of at least `mode` on `range`, if this object has its value block.
    fn find_lock(&self, mode: LockMode, range: &Range<u64>) -> Option<LockRef> {
        let policy = self.osc.lock_policy(range);
        let lock = self.osc.locks().find(&self.res, mode, policy)?;
        self.knows(&lock).then_some(lock)
    }

    /// Whether the object has the value block of a lock.
    fn knows(&self, lock: &LockRef) -> bool {
        !self.osc.is_mdt() || self.state.lock().knows(lock.info().cookie)
    }

    /// Forgets locks of an object on an MDT that ended while other locks protected the data: the
    /// lock client does not tell the owner of their end.
    fn forget_covered_locks(&self, state: &mut State) {
        if self.osc.is_mdt() {
            let locks = self.osc.locks();
            let is_held = |cookie| locks.has_bits(&self.res, cookie, MDS_INODELOCK_DOM);
            state.locks.retain(|(cookie, _)| is_held(*cookie));
        }
    }

    /// Rejects a lock on a damaged object: the server does not know its size.
    fn check_damage(&self, lock: LockRef) -> Result<LockRef, Errno> {
        match self.state.lock().error {
            Some(error) => Err(error),
            None => Ok(lock),
        }
    }

    /// Requests a lock from the target. The file exists, so a missing object means lost data
    /// (`EIO`).
    async fn enqueue(self: &Arc<Self>, enqueue: Enqueue) -> Result<EnqueueReply, Errno> {
        // On the heap, as in [`LockClient::enqueue`](ldlm::LockClient::enqueue).
        let reply = Box::pin(self.enqueue_with_capability(enqueue)).await;
        let reply = reply.map_err(Errno::from);
        if reply.as_ref().is_err_and(|e| *e == Errno::ENOENT) {
            let file = self.file();
            lnet::warn_rate_limited!(ost = self.osc.name(), %file, "the OST lacks an object of the file: its data is lost");
            return Err(Errno::EIO);
        }
        reply
    }

    /// As [`Object::lock`], but also finds a lock that the client is about to cancel. For work that
    /// the cancellation may wait for ([`ldlm::LockClient::find_even_revoked`]).
    pub(super) async fn lock_including_revoked(
        self: &Arc<Self>,
        mode: LockMode,
        range: Range<u64>,
    ) -> Result<LockRef, Errno> {
        let (locks, policy) = (self.osc.locks(), self.osc.lock_policy(&range));
        match locks.find_even_revoked(&self.res, mode, policy) {
            // The cancellation forgets the value block of a revoked lock before the lock ends.
            Some(lock) if self.knows(&lock) || lock.is_revoked() => self.check_damage(lock),
            _ => self.lock(mode, range).await,
        }
    }

    /// Stores the size and times of a granted lock, as far as its range proves them.
    pub(super) fn add_lock(&self, cookie: LockCookie, range: Range<u64>, lvb: &OstLvb) {
        let precision = self.osc.precision();
        self.state.lock().add_lock(cookie, range, lvb, precision);
    }

    /// Size and times for a glimpse from the server; `None` if the object does not have the lock's
    /// value block, and so knows less than the server.
    pub(super) fn lvb_under(&self, cookie: LockCookie) -> Option<OstLvb> {
        let state = self.state.lock();
        let attr = state.knows(cookie).then(|| state.attr())?;
        Some(to_lvb(&attr, self.osc.precision()))
    }

    /// The eviction count under which this lock is valid. A request under the lock carries the
    /// count, and fails after a further eviction.
    fn eviction_epoch(&self, lock: &LockRef) -> Result<u64, Errno> {
        let evictions = self.osc.evictions();
        if lock.is_valid() {
            Ok(evictions)
        } else {
            Err(Errno::EIO)
        }
    }

    /// Sends a request under a lock; see [`Object::eviction_epoch`].
    async fn call_under(self: &Arc<Self>, epoch: u64, request: Request) -> Result<ReplyMsg, RpcError> {
        let evictions = Some(epoch);
        self.call(Request { evictions, ..request }).await
    }

    /// Writes the dirty data of `range` to the server, then drops the cached data.
    pub(super) async fn flush_and_forget(self: &Arc<Self>, range: Range<u64>) {
        if !cpt::Bug::DirtyPageDropped.is_planted() {
            self.flush(range.clone()).await;
        }
        self.forget(range);
    }

    /// Drops the cached data of `range`, dirty or not.
    pub(super) fn forget(&self, range: Range<u64>) {
        let freed = self.state.lock().cache.discard(range);
        self.osc.budget().unreserve(freed);
        self.account();
    }

    /// Drops all cached data of an object that the target destroys.
    pub(super) fn forget_destroyed(&self) {
        self.state.lock().forget_unsent_times();
        self.forget(0..u64::MAX);
    }

    /// Whether a write to the target is in flight.
    pub(super) fn is_writing(&self) -> bool {
        self.state.lock().cache.is_writing(0..u64::MAX)
    }

    /// Whether data, or times that a program has set, have not been written to the target.
    pub(super) fn has_unwritten_data(&self) -> bool {
        let state = self.state.lock();
        state.cache.unwritten_bytes() > 0 || state.has_unsent_times()
    }

    /// Drops the cached data of `range` after its locks were lost. Records the loss of unwritten
    /// data.
    pub(super) fn drop_after_lock_loss(&self, range: Range<u64>) {
        let (lost, freed) = {
            let mut state = self.state.lock();
            state.mark_changed_at_server(&range);
            let lost = state.cache.dirty_in(range.clone());
            if lost > 0 {
                // Recorded before another task can see that the data is no longer dirty.
                self.osc.record_loss(self.file(), Errno::EIO);
            }
            if times::includes_times(&range) {
                state.forget_unsent_times();
            }
            (lost, state.cache.discard(range))
        };
        if lost > 0 {
            self.log_loss(self.file(), lost, Errno::EIO);
        }
        self.osc.budget().unreserve(freed);
        self.account();
    }

    fn log_loss(&self, file: Fid, bytes: u64, error: Errno) {
        tracing::error!(ost = self.osc.name(), object = ?self.id().oi, %file, %error, bytes,
            "data could not be written and is lost; the open descriptors of the file fail with EIO, or if there was no space, report the error at fsync and close");
    }

    /// Removes a lock, and the size that only this lock proved.
    pub(super) fn remove_lock(&self, cookie: LockCookie) {
        let mut state = self.state.lock();
        state.locks.retain(|(held, _)| *held != cookie);
        self.forget_covered_locks(&mut state);
        // Another client's truncate locks everything from its new size on. So while this client
        // holds a lock, no truncate cuts the object below the lock's end.
        let proven_max = state.locks.iter().map(|(_, range)| range.end).max();
        state.attr.size = state.attr.size.min(proven_max.unwrap_or(0));
    }

    /// Whether any lock is held.
    pub(super) fn is_locked(&self) -> bool {
        let mut state = self.state.lock();
        self.forget_covered_locks(&mut state);
        !state.locks.is_empty()
    }

    /// Drops all locks and cached data after the server evicted this client; dirty data is lost.
    pub(super) fn handle_eviction(&self) {
        self.drop_after_lock_loss(0..u64::MAX);
        let mut state = self.state.lock();
        state.dirty_since = None;
        state.locks.clear();
        state.attr.size = 0;
        state.pending_page_invalidations += 1;
        drop(state);
        self.io_done.notify_waiters();
    }

    /// Records that the kernel has dropped its pages from before [`Object::handle_eviction`].
    pub(super) fn finish_page_invalidation(&self) {
        self.state.lock().pending_page_invalidations -= 1;
    }

    /// The eviction count for the write-back of a mapping's page. Fails while the page may be from
    /// before an eviction: it may then have outdated bytes of other clients.
    pub(super) fn page_epoch(&self) -> Result<u64, Errno> {
        let evictions = self.osc.evictions();
        match self.state.lock().pending_page_invalidations {
            0 => Ok(evictions),
            _ => Err(Errno::EIO),
        }
    }

    /// Size and times, for a caller that holds a lock on the whole object.
    pub(super) fn locked_attr(&self) -> DataAttr {
        self.state.lock().attr()
    }

    /// Size and times, if a lock proves them.
    pub(super) fn known_attr(&self) -> Option<DataAttr> {
        let size = self.state.lock().attr.size;
        let _lock = self.find_lock(LockMode::Pr, &(size..OBD_OBJECT_EOF))?;
        let state = self.state.lock();
        state.error.is_none().then(|| state.attr())
    }

    /// Size and times: from the cache if a lock proves them, else by a glimpse. For a glimpse, the
    /// server queries the lock holders and revokes no lock, so the caller may hold locks.
    pub(super) async fn attr(self: &Arc<Self>) -> Result<DataAttr, Errno> {
        if let Some(known) = self.known_attr() {
            return Ok(known);
        }
        let mut glimpse = Enqueue::new(self.res, LockMode::Pr, self.osc.lock_policy(&(0..OBD_OBJECT_EOF)));
        glimpse.flags |= LDLM_FL_HAS_INTENT;
        let reply = self.enqueue(glimpse).await?;
        let lvb = OstLvb::from_bytes(&reply.lvb)?;
        if let Some(error) = lvb_error(&lvb) {
            return Err(error);
        }
        let server_attr = from_lvb(&lvb, self.osc.precision());
        let state = self.state.lock();
        let mut merged = state.merge_own_times(server_attr);
        merged.size = state.attr.size.max(server_attr.size);
        Ok(merged)
    }

    /// When a program wrote the oldest queued dirty data; `None`: nothing is queued.
    pub(super) fn dirty_since(&self) -> Option<Instant> {
        self.state.lock().dirty_since
    }

    /// Updates the mount's count of cached bytes, which may evict data of this or another object.
    fn account(&self) {
        let (before, now) = self.state.lock().account();
        self.osc.cache_limit().update(before, now);
    }

    /// Drops data that no task has used lately ([`ObjectCache::sweep`]).
    pub(super) fn sweep(&self, from: u64, bytes: u64, steps_max: usize) -> SweepResult {
        let (swept, (before, now)) = {
            let state = &mut *self.state.lock();
            let fetches = &state.fetches;
            // A reader that waits for a fetch has not read the fetched extent yet.
            let keep = |range: &Range<u64>| fetches.iter().any(|f| f.overlaps_range(range));
            let swept = state.cache.sweep(from, bytes, steps_max, keep);
            (swept, state.account())
        };
        self.osc.cache_limit().update(before, now);
        swept
    }
}

/// The byte range of an extent lock; everything for a lock of another type.
pub(super) fn lock_range(policy: &Policy) -> Range<u64> {
    match policy {
        Policy::Extent(e) => e.start..e.end.saturating_add(1),
        _ => 0..OBD_OBJECT_EOF,
    }
}

/// The lock resource of an object: the 16 bytes of its ID in the layout.
pub(super) fn resource(id: &ObjectId) -> LdlmResId {
    LdlmResId {
        name: [id.oi.oi_id, id.oi.oi_seq, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_read_that_overlaps_a_change_at_the_server_is_stale() {
        let mut state = State::default();
        state.begin_fetch(0..4096);
        state.begin_fetch(4096..8192);
        state.mark_changed_at_server(&(4000..4096));
        let stale: Vec<bool> = state.fetches.iter().map(|f| f.stale).collect();
        assert_eq!(stale, [true, false]);
        assert!(state.is_fetching(&(8191..9000)) && !state.is_fetching(&(8192..9000)));
    }
}
