//! One object of a file as this client sees it: its cache, what is known of its size and times, the
//! extent locks that make them true, and the RPCs that carry its data.
//!
//! What is cached is valid as long as an extent lock covers it. When the server calls a lock back, the
//! dirty data below it is written, the cache below it dropped, and then the lock is given up. When the server evicts this
//! client the locks are gone at once: whoever was about to use one looks ([`LockRef::is_valid`]) with the state locked before
//! anything comes into the cache, and what was taken out of it is not sent any more ([`Object::tenure`]).
//!
//! The size here is what Lustre calls the known minimum size: the object is at least that big, as far as the locks
//! that are held prove it. It is exact while one lock covers everything from it to the end.

mod capa;
mod read;
mod space;
mod write;

pub(crate) use capa::User;

use super::brw::ObjectId;
use super::cache::{ObjectCache, PAGE_SIZE};
use super::cached::Swept;
use super::osc::Osc;
use crate::attr::DataAttr;
use capa::Capability;
use ldlm::{Enqueue, Enqueued, LockMode, LockRef, Policy};
use parking_lot::Mutex;
use rpc::{ReplyMsg, Request, RpcError};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::{
    Errno, Fid, LDLM_FL_HAS_INTENT, LdlmResId, OBD_OBJECT_EOF, OST_LVB_ERR_INIT, OST_LVB_ERR_MASK, OstLvb,
    Precision, Time, Timed, WireStruct,
};

/// How often a transfer whose checksum did not fit is repeated before it is an error.
const CHECKSUM_RETRIES: usize = 5;

/// Dirty data does not stay longer than this in the cache of its own accord. Short, because the kernel tells a FUSE server
/// nothing of sync(2): what a program wrote and did not close should not wait long.
pub(super) const DIRTY_AGE_MAX: Duration = Duration::from_millis(500);

/// The error that a server sends instead of size and times, because the object is damaged.
fn lvb_error(lvb: &OstLvb) -> Option<Errno> {
    let is_error = lvb.lvb_blocks & OST_LVB_ERR_MASK == OST_LVB_ERR_MASK;
    let errno = OST_LVB_ERR_INIT.wrapping_sub(lvb.lvb_blocks);
    let errno = i32::try_from(errno)
        .ok()
        .filter(|errno| (1..4096).contains(errno));
    is_error.then(|| errno.map_or(Errno::EIO, Errno))
}

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
    /// Size and times as far as they are known.
    attr: DataAttr,
    /// The error that the server sent instead of size and times with the last lock.
    error: Option<Errno>,
    /// The locks held, by cookie; without any, nothing is known.
    locks: Vec<(u64, Range<u64>)>,
    /// What is being read from the server.
    fetches: Vec<Fetch>,
    /// What of the cache is counted.
    accounted: u64,
    /// Since when the oldest dirty data waits; none: nothing queued.
    dirty_since: Option<Instant>,
    /// How often the kernel is being told to drop pages that are of before an eviction.
    old_pages: usize,
}

/// A range that is being read from the server.
#[derive(Debug)]
struct Fetch {
    range: Range<u64>,
    /// The server's bytes were changed meanwhile: what comes may be older.
    stale: bool,
}

impl Fetch {
    fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

impl State {
    /// How many bytes were counted as cached, and how many are from now on.
    fn account(&mut self) -> (u64, u64) {
        let now = self.cache.bytes();
        (std::mem::replace(&mut self.accounted, now), now)
    }

    /// Whether any of a range is being read.
    fn is_fetching(&self, range: &Range<u64>) -> bool {
        self.fetches.iter().any(|f| f.meets(range))
    }

    fn fetch(&mut self, range: Range<u64>) {
        self.fetches.push(Fetch { range, stale: false });
    }

    /// The server's bytes of a range have changed: what is being read of it is not kept.
    fn changed_at_server(&mut self, range: &Range<u64>) {
        for fetch in &mut self.fetches {
            fetch.stale |= fetch.meets(range);
        }
    }

    /// The same, and what is cached of it is not true any more. Returns the room that is free again.
    fn replaced_at_server(&mut self, range: Range<u64>) -> u64 {
        self.changed_at_server(&range);
        self.cache.discard(range)
    }

    /// What the server says of the times; while locks are held, what this client has done since is newer.
    fn with_own(&self, told: DataAttr) -> DataAttr {
        if self.locks.is_empty() {
            return told;
        }
        DataAttr {
            times: told.times.latest(self.attr.times),
            ..told
        }
    }

    /// Size, blocks and times. Data that the server does not have yet counts as blocks, as in Lustre's client: `tar -S` takes a file
    /// without blocks for a hole. Which of it overwrites blocks that the object has is not known, so that a dense object's size
    /// is the limit.
    fn attr(&self) -> DataAttr {
        let blocks_of = |bytes: u64| bytes.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE / 512);
        let DataAttr { size, blocks, .. } = self.attr;
        let with_unwritten = blocks.saturating_add(blocks_of(self.cache.unwritten_bytes()));
        DataAttr {
            blocks: with_unwritten.min(blocks_of(size).max(blocks)),
            ..self.attr
        }
    }

    /// Contents change now; not before the last change.
    fn changed(&mut self, now: Time) {
        let times = &mut self.attr.times;
        times.ctime = times.ctime.max(now);
        times.mtime = times.ctime;
    }
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
    /// What it shows to a target that requires capabilities.
    capability: Capability,
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
            capability: Capability::default(),
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

    /// A lock of at least `mode` on `range`: a cached one, or one from the server.
    pub(super) async fn lock(self: &Arc<Self>, mode: LockMode, range: Range<u64>) -> Result<LockRef, Errno> {
        let policy = extent(&range);
        let find = || self.osc.locks().find(&self.res, mode, policy);
        if let Some(lock) = find() {
            return self.unless_damaged(lock);
        }
        let _one = self.enqueueing.lock().await;
        if let Some(lock) = find() {
            return self.unless_damaged(lock);
        }
        let enqueue = Enqueue::new(self.res, mode, policy);
        let granted = self.enqueue(enqueue).await?;
        self.unless_damaged(granted.lock.ok_or(Errno::EIO)?)
    }

    /// A lock on an object whose size the server does not know is of no use.
    fn unless_damaged(&self, lock: LockRef) -> Result<LockRef, Errno> {
        match self.state.lock().error {
            Some(error) => Err(error),
            None => Ok(lock),
        }
    }

    /// Asks the target for a lock. The file is there, so an object that the target does not have is lost data (`EIO`).
    async fn enqueue(self: &Arc<Self>, enqueue: Enqueue) -> Result<Enqueued, Errno> {
        let answer = self.enqueue_with_capability(enqueue).await.map_err(Errno::from);
        if answer.as_ref().is_err_and(|e| *e == Errno::ENOENT) {
            let file = self.id.parent;
            lnet::warn_seldom!(ost = self.osc.name(), %file, "the OST does not have an object of the file: its data is lost");
            return Err(Errno::EIO);
        }
        answer
    }

    /// A lock to write back a page of a mapping: also one that is being given back, since that waits for the kernel, which
    /// waits for this write.
    pub(super) async fn lock_page(self: &Arc<Self>, range: Range<u64>) -> Result<LockRef, Errno> {
        let locks = self.osc.locks();
        match locks.find_leaving(&self.res, LockMode::Pw, extent(&range)) {
            Some(lock) => Ok(lock),
            None => self.lock(LockMode::Pw, range).await,
        }
    }

    /// A lock is granted: what the server said with it is true as far as the lock reaches.
    pub(super) fn granted(&self, cookie: u64, range: Range<u64>, lvb: &OstLvb) {
        let mut s = self.state.lock();
        s.error = lvb_error(lvb);
        if s.error.is_none() {
            let mut told = s.with_own(from_lvb(lvb, self.osc.precision()));
            told.size = s.attr.size.max(lvb.lvb_size.min(range.end));
            s.attr = told;
        }
        s.locks.push((cookie, range));
    }

    /// What this client knows, for the server that asks (a glimpse).
    pub(super) fn lvb(&self) -> OstLvb {
        to_lvb(&self.state.lock().attr(), self.osc.precision())
    }

    /// How often the server has evicted this client, which still has this lock: what is sent on the strength of the lock
    /// names the number, and fails once there has been another eviction.
    fn tenure(&self, lock: &LockRef) -> Result<u64, Errno> {
        let evictions = self.osc.evictions();
        if lock.is_valid() {
            Ok(evictions)
        } else {
            Err(Errno::EIO)
        }
    }

    /// A request on the strength of a lock, see [`Object::tenure`].
    async fn call_under(self: &Arc<Self>, tenure: u64, request: Request) -> Result<ReplyMsg, RpcError> {
        let evictions = Some(tenure);
        self.call(Request { evictions, ..request }).await
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

    /// Whether a write is on its way to the target.
    pub(super) fn is_writing(&self) -> bool {
        self.state.lock().cache.is_writing(0..u64::MAX)
    }

    /// The locks on `range` are lost: so is what was not written yet.
    pub(super) fn lose(&self, range: Range<u64>) {
        let (lost, freed) = {
            let mut s = self.state.lock();
            s.changed_at_server(&range);
            let lost = s.cache.dirty_in(range.clone());
            if lost > 0 {
                // Before anybody can see that nothing is dirty any more.
                self.osc.lost(self.id.parent, Errno::EIO);
            }
            (lost, s.cache.discard(range))
        };
        if lost > 0 {
            self.say_lost(lost, Errno::EIO);
        }
        self.osc.budget().unreserve(freed);
        self.account();
    }

    fn say_lost(&self, bytes: u64, error: Errno) {
        tracing::error!(ost = self.osc.name(), object = ?self.id.oi, file = %self.id.parent, %error, bytes,
            "data could not be written and is lost; the descriptors that have the file open fail with EIO, or tell of it at fsync and close if there was no space");
    }

    /// A lock is gone, and with it what only it proved of the size.
    pub(super) fn lock_gone(&self, cookie: u64) {
        let mut s = self.state.lock();
        s.locks.retain(|(held, _)| *held != cookie);
        // Who cuts the object asks for everything from there on: it is not cut below the end of any lock that is held.
        let proven = s.locks.iter().map(|(_, range)| range.end).max();
        s.attr.size = s.attr.size.min(proven.unwrap_or(0));
    }

    /// Whether any lock is held.
    pub(super) fn is_locked(&self) -> bool {
        !self.state.lock().locks.is_empty()
    }

    /// The server has evicted us: nothing that is cached is true any more, and dirty data is lost.
    pub(super) fn evicted(&self) {
        self.lose(0..u64::MAX);
        let mut s = self.state.lock();
        s.dirty_since = None;
        s.locks.clear();
        s.attr.size = 0;
        s.old_pages += 1;
        drop(s);
        self.changed.notify_waiters();
    }

    /// The kernel has dropped the pages that it had when [`Object::evicted`] was called.
    pub(super) fn old_pages_gone(&self) {
        self.state.lock().old_pages -= 1;
    }

    /// How often the server has evicted this client, for who writes back a page of a mapping: fails while the page may be
    /// of before an eviction, with other clients' bytes as they were then.
    pub(super) fn page_tenure(&self) -> Result<u64, Errno> {
        let evictions = self.osc.evictions();
        match self.state.lock().old_pages {
            0 => Ok(evictions),
            _ => Err(Errno::EIO),
        }
    }

    /// Size and times, for a caller who holds a lock on everything.
    pub(super) fn locked_attr(&self) -> DataAttr {
        self.state.lock().attr()
    }

    /// Size and times, when a lock makes them certain.
    pub(super) fn known_attr(&self) -> Option<DataAttr> {
        let known = self.state.lock().attr;
        let tail = extent(&(known.size..OBD_OBJECT_EOF));
        let _lock = self.osc.locks().find(&self.res, LockMode::Pr, tail)?;
        let state = self.state.lock();
        state.error.is_none().then(|| state.attr())
    }

    /// Size and times: from the cache where a lock makes them certain, otherwise from the server, which asks those who
    /// write (a glimpse) and takes no lock from anybody: this may be called with locks held.
    pub(super) async fn attr(self: &Arc<Self>) -> Result<DataAttr, Errno> {
        if let Some(known) = self.known_attr() {
            return Ok(known);
        }
        let mut glimpse = Enqueue::new(self.res, LockMode::Pr, extent(&(0..OBD_OBJECT_EOF)));
        glimpse.flags |= LDLM_FL_HAS_INTENT;
        let answer = self.enqueue(glimpse).await?;
        let lvb = OstLvb::from_bytes(&answer.lvb)?;
        if let Some(error) = lvb_error(&lvb) {
            return Err(error);
        }
        let told = from_lvb(&lvb, self.osc.precision());
        let s = self.state.lock();
        let mut known = s.with_own(told);
        known.size = s.attr.size.max(told.size);
        Ok(known)
    }

    /// Since when dirty data waits.
    pub(super) fn dirty_since(&self) -> Option<Instant> {
        self.state.lock().dirty_since
    }

    /// Tells how much is cached here now; some of it may have to go for that, or of another object's.
    fn account(&self) {
        let (before, now) = self.state.lock().account();
        self.osc.cached().changed(before, now);
    }

    /// Drops what nobody has used lately ([`ObjectCache::sweep`]).
    pub(super) fn sweep(&self, from: u64, bytes: u64, steps_max: usize) -> Swept {
        let (swept, (before, now)) = {
            let s = &mut *self.state.lock();
            let fetches = &s.fetches;
            // Who has it fetched has not seen it yet.
            let keep = |range: &Range<u64>| fetches.iter().any(|f| f.meets(range));
            let swept = s.cache.sweep(from, bytes, steps_max, keep);
            (swept, s.account())
        };
        self.osc.cached().changed(before, now);
        swept
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

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn what_is_being_read_while_the_server_changes_is_not_kept() {
        let mut s = State::default();
        s.fetch(0..4096);
        s.fetch(4096..8192);
        s.changed_at_server(&(4000..4096));
        let stale: Vec<bool> = s.fetches.iter().map(|f| f.stale).collect();
        assert_eq!(stale, [true, false]);
        assert!(s.is_fetching(&(8191..9000)) && !s.is_fetching(&(8192..9000)));
    }
}
