//! A client's locks of one import: asked for, cached, given back.
//!
//! A lock that was granted stays cached after its last user let go, until the server asks for it, the cache is full,
//! or it grows old. The server's callbacks are answered at once and acted on later: a lock that must go is matched by
//! no new user, and when the last one lets go, its owner writes back and drops what the lock protected, and only then
//! does the server hear that it is free.
//!
//! Two tables: `names` leads from a cookie, which callbacks carry, to a request under way or to a resource; `cache`
//! has each resource's locks. Both are sharded. Where both are held, `names` was taken first.

mod batch;
mod cache;
mod callback;
mod cancel;
mod enqueue;
mod lru;
mod room;

pub use cache::LockRef;
pub use enqueue::{Enqueue, Enqueued, Intent};
pub use room::LockRoom;

use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::spawn::Spawner;
use cache::{Cached, Shard};
use cancel::Canceller;
use enqueue::Pending;
use foldhash::HashMap;
use parking_lot::Mutex;
use rpc::{BoxFuture, Import};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use wire::{LdlmResId, OstLvb};

/// A client's handle of a lock. The server names the lock by it in callbacks; the server's own handle is another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockHandle(pub u64);

/// A lock as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Of what.
    pub res: LdlmResId,
    /// How.
    pub mode: LockMode,
    /// What it covers.
    pub policy: Policy,
    /// This client's name for it.
    pub cookie: LockHandle,
    /// The server's handle.
    pub handle: u64,
    /// What has not been written back under it is to be thrown away: the object is being destroyed.
    pub discard: bool,
}

impl LockInfo {
    /// The type of its resource.
    pub fn ty(&self) -> LockType {
        self.policy.ty()
    }
}

/// Whoever caches something under the locks of an import.
pub trait LockOwner: Send + Sync + 'static {
    /// The lock is granted, with this value block; nobody can find it in the cache before this returns, so what is known
    /// under it is known to everybody who has it. Must not ask this client for anything.
    fn granted(&self, lock: LockInfo, lvb: &[u8]) {
        let _ = (lock, lvb);
    }

    /// The lock must go, or, of inode bits, part of it: write back and drop what it protects, of inode bits what
    /// `cancel_bits` do (those that no other lock covers). Nobody uses the lock any more; the server hears of it when this
    /// is done.
    fn blocking<'a>(&'a self, lock: LockInfo, cancel_bits: u64) -> BoxFuture<'a, ()>;

    /// What the object's size and times are as seen under this lock; `None` when there is nothing to say that the
    /// server does not know.
    fn glimpse(&self, lock: LockInfo) -> Option<OstLvb>;

    /// The lock is gone already (evicted, or cancelled together with another request): drop what it protected, of inode
    /// bits what these do (those that no other lock covers), without writing back.
    fn dropped(&self, lock: LockInfo, bits: u64);
}

/// The limits of a client's lock cache.
#[derive(Clone, Debug)]
pub struct LockClientConfig {
    /// Where cookies start: of each client another number.
    pub seed: u64,
    /// Locks that nobody uses and that are kept nevertheless (`lru_size`).
    pub lru_size: usize,
    /// How long (`lru_max_age`).
    pub lru_max_age: Duration,
    /// How many together with the other imports of the mount.
    pub room: Arc<LockRoom>,
}

/// So many unused locks are kept where there is memory for them: the files of a source tree.
const LRU_SIZE: usize = 32 << 10;
/// Memory that there has to be for each.
const LRU_SHARE: u64 = 32 << 10;

impl Default for LockClientConfig {
    fn default() -> LockClientConfig {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        LockClientConfig {
            seed: 0,
            lru_size: (100 * cpus).max(LRU_SIZE.min((cpt::memory_bytes() / LRU_SHARE) as usize)),
            lru_max_age: Duration::from_secs(3900),
            room: Arc::default(),
        }
    }
}

/// Shards of each of the two tables.
const SHARDS: usize = 16;

/// A client's locks of one import.
pub struct LockClient {
    import: OnceLock<Arc<Import>>,
    owner: Arc<dyn LockOwner>,
    names: [Mutex<HashMap<LockHandle, Name>>; SHARDS],
    cache: [Mutex<Shard>; SHARDS],
    next_cookie: AtomicU64,
    /// Orders the unused locks by age.
    next_use: AtomicU64,
    unused: AtomicUsize,
    room: Arc<LockRoom>,
    lru_size: AtomicUsize,
    lru_max_age_ms: AtomicU64,
    canceller: Canceller,
    /// A lock left the cache.
    left: Notify,
    me: Weak<LockClient>,
    tasks: Spawner,
}

/// What a cookie stands for.
enum Name {
    /// A request under way.
    Pending(Box<Pending>),
    /// A lock of this resource.
    Cached(LdlmResId),
}

impl LockClient {
    /// A client without locks; must be called from a runtime. The import comes later, since it wants somebody to
    /// bring callbacks to.
    pub fn new(owner: Arc<dyn LockOwner>, cfg: LockClientConfig) -> Arc<LockClient> {
        cfg.room.join();
        Arc::new_cyclic(|me| LockClient {
            import: OnceLock::new(),
            owner,
            names: std::array::from_fn(|_| Mutex::default()),
            cache: std::array::from_fn(|_| Mutex::default()),
            // Cookies of a former mount must not be taken for this one's.
            next_cookie: AtomicU64::new(cfg.seed | 1),
            next_use: AtomicU64::new(1),
            unused: AtomicUsize::new(0),
            room: cfg.room,
            lru_size: AtomicUsize::new(cfg.lru_size),
            lru_max_age_ms: AtomicU64::new(cfg.lru_max_age.as_millis() as u64),
            canceller: Canceller::default(),
            left: Notify::new(),
            me: me.clone(),
            tasks: Spawner::current(),
        })
    }

    /// The import whose locks these are. Set once, before anything is asked for.
    pub fn set_import(&self, import: Arc<Import>) {
        if self.import.set(import).is_ok() {
            self.watch_age();
        }
    }

    /// How many locks are cached or in use.
    pub fn lock_count(&self) -> usize {
        self.cache.iter().map(|s| s.lock().len()).sum()
    }

    /// Whether a request for a lock is under way, perhaps answered: the server has still to say that the lock is granted.
    pub fn has_pending(&self) -> bool {
        let pending = |name: &Name| matches!(name, Name::Pending(_));
        self.names.iter().any(|names| names.lock().values().any(pending))
    }

    /// How many resources they are of.
    pub fn resource_count(&self) -> usize {
        self.cache.iter().map(|s| s.lock().by_res.len()).sum()
    }

    /// How many cached locks nobody uses.
    pub fn unused_count(&self) -> usize {
        self.unused.load(Ordering::Relaxed)
    }

    fn name_shard(&self, cookie: LockHandle) -> &Mutex<HashMap<LockHandle, Name>> {
        // Cookies count up by a few: their low bits spread them.
        &self.names[(cookie.0 as usize >> COOKIE_STEP.trailing_zeros()) % SHARDS]
    }

    fn cache_shard(&self, res: &LdlmResId) -> &Mutex<Shard> {
        let mix = |h: u64, word: &u64| (h.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.cache[(res.name.iter().fold(0, mix) >> 32) as usize % SHARDS]
    }

    fn new_cookie(&self) -> LockHandle {
        LockHandle(self.next_cookie.fetch_add(COOKIE_STEP, Ordering::Relaxed))
    }

    /// The lock of a resource and a cookie, with the shard held.
    fn with_lock<T>(
        &self,
        res: &LdlmResId,
        cookie: LockHandle,
        f: impl FnOnce(&mut Cached) -> T,
    ) -> Option<T> {
        self.cache_shard(res).lock().find(res, cookie).map(f)
    }
}

impl Drop for LockClient {
    fn drop(&mut self) {
        self.room.leave(self.unused_count());
    }
}

/// Cookies stay odd, so that none is zero.
const COOKIE_STEP: u64 = 2;

impl std::fmt::Debug for LockClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LockClient({})",
            self.import.get().map_or("not connected", |i| i.name())
        )
    }
}
