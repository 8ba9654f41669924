//! The lock client: requests, caches and cancels the locks of one import.
//!
//! A granted lock stays cached after its last use, until the server revokes it, the cache is full,
//! or the lock expires. A revoked lock gets no new users, except for work that must finish before
//! the cancel ([`LockClient::find_even_revoked`]). After its last user has finished, the
//! [`LockOwner`] writes back and drops the data that the lock protected. If such work began in the
//! meantime, the owner does so again afterwards. Only then the client sends the cancel.
//!
//! There are two tables: `cookies` maps a cookie, which callbacks carry, to a request in flight or
//! to a resource; `cache` has the locks of each resource. Both are sharded. Code that needs mutexes
//! of both tables takes that of `cookies` first.

mod batch;
mod budget;
mod cache;
mod callback;
mod cancel;
mod enqueue;
mod lru;
mod replay;

pub use budget::UnusedLockBudget;
pub use cache::LockRef;
pub use enqueue::{Enqueue, EnqueueReply, Intent};

use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::spawn::Spawner;
use cache::{CachedLock, Shard};
use cancel::Canceller;
use cpt::{HashMap, HashSeed};
use enqueue::EarlyCallbacks;
use parking_lot::Mutex;
use rpc::{BoxFuture, Import};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use wire::{LdlmResId, OstLvb};

/// A client's cookie of a lock. Callbacks name the lock by this number; the server's own handle is
/// another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockCookie(pub u64);

/// A client's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// The resource.
    pub res: LdlmResId,
    /// The mode.
    pub mode: LockMode,
    /// The locked part of the resource.
    pub policy: Policy,
    /// This client's cookie.
    pub cookie: LockCookie,
    /// The server's handle.
    pub handle: u64,
    /// Dirty data under the lock is discarded, because the object is being destroyed.
    pub discard: bool,
}

impl LockInfo {
    /// The type of the lock.
    pub fn ty(&self) -> LockType {
        self.policy.ty()
    }
}

/// The cache that the locks of an import protect.
pub trait LockOwner: Send + Sync + 'static {
    /// The lock is granted, with this value block. Called before the lock can be found in the
    /// cache, so that every user of the lock sees the value block. Not called if a cached lock
    /// includes the granted one. Must not call the lock client.
    fn granted(&self, lock: LockInfo, lvb: &[u8]) {
        let _ = (lock, lvb);
    }

    /// The client is about to cancel or convert the lock: write back and drop the data that the
    /// lock protects; with inode bits, only the data of `cancel_bits`, which no other lock covers.
    /// The lock has no users, except those of [`LockClient::find_even_revoked`]. The client sends
    /// the cancel or conversion afterwards.
    fn blocking<'a>(&'a self, lock: LockInfo, cancel_bits: u64) -> BoxFuture<'a, ()>;

    /// The object's size and times under this lock; `None` if the server has all data.
    fn glimpse(&self, lock: LockInfo) -> Option<OstLvb>;

    /// The lock is gone (after an eviction, an early cancel, or [`LockClient::cancel_unused_of`]):
    /// drop the data that it protected without writing back; with inode bits, the data of `bits`.
    fn dropped(&self, lock: LockInfo, bits: u64);
}

/// The configuration of a lock client.
#[derive(Clone, Debug)]
pub struct LockClientConfig {
    /// First cookie, made odd; a different number for each mount.
    pub seed: u64,
    /// Limit of unused locks (`lru_size`).
    pub lru_size: usize,
    /// How long unused locks stay cached (`lru_max_age`).
    pub lru_max_age: Duration,
    /// Limit of unused locks of all imports of the mount.
    pub budget: Arc<UnusedLockBudget>,
}

/// Default of `lru_size` with enough memory, in locks: about the number of files of a large source
/// tree.
const LRU_SIZE_DEFAULT: usize = 32 << 10;
/// Memory required per lock for that default, bytes.
const BYTES_PER_LRU_LOCK: u64 = 32 << 10;

impl Default for LockClientConfig {
    fn default() -> LockClientConfig {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        LockClientConfig {
            seed: 0,
            lru_size: (100 * cpus)
                .max(LRU_SIZE_DEFAULT.min((cpt::memory_bytes() / BYTES_PER_LRU_LOCK) as usize)),
            lru_max_age: Duration::from_secs(3900),
            budget: Arc::default(),
        }
    }
}

/// Number of shards of each table.
const SHARDS: usize = 16;

/// A client's locks of one import.
pub struct LockClient {
    import: OnceLock<Arc<Import>>,
    owner: Arc<dyn LockOwner>,
    cookies: [Mutex<HashMap<LockCookie, CookieState>>; SHARDS],
    /// Cached locks; `shard_hash` selects the shard of a resource.
    cache: [Mutex<Shard>; SHARDS],
    shard_hash: HashSeed,
    next_cookie: AtomicU64,
    /// The next use number: the unused locks are in the order of these numbers.
    next_use: AtomicU64,
    /// Number of unused cached locks.
    unused: AtomicUsize,
    budget: Arc<UnusedLockBudget>,
    lru_size: AtomicUsize,
    lru_max_age_ms: AtomicU64,
    canceller: Canceller,
    /// Notified when a lock leaves the cache.
    removed: Notify,
    /// Notified when the last user of a lock that is being cancelled has finished, and after an
    /// eviction.
    unreferenced: Notify,
    me: Weak<LockClient>,
    tasks: Spawner,
}

/// The state of a cookie.
enum CookieState {
    /// A request in flight, or a queued lock.
    Pending(Box<EarlyCallbacks>),
    /// A cached lock of this resource.
    Cached(LdlmResId),
}

impl LockClient {
    /// A client without locks; must be called within a runtime. The caller sets the import later,
    /// because the import is created with an owner that passes callbacks to this client.
    pub fn new(owner: Arc<dyn LockOwner>, cfg: LockClientConfig) -> Arc<LockClient> {
        cfg.budget.join();
        Arc::new_cyclic(|me| LockClient {
            import: OnceLock::new(),
            owner,
            cookies: std::array::from_fn(|_| Mutex::default()),
            cache: std::array::from_fn(|_| Mutex::default()),
            shard_hash: HashSeed::random(),
            // Cookies of an earlier mount must not match those of this one.
            next_cookie: AtomicU64::new(cfg.seed | 1),
            next_use: AtomicU64::new(1),
            unused: AtomicUsize::new(0),
            budget: cfg.budget,
            lru_size: AtomicUsize::new(cfg.lru_size),
            lru_max_age_ms: AtomicU64::new(cfg.lru_max_age.as_millis() as u64),
            canceller: Canceller::default(),
            removed: Notify::new(),
            unreferenced: Notify::new(),
            me: me.clone(),
            tasks: Spawner::current(),
        })
    }

    /// Sets the import of the locks, once, before the first request.
    pub fn set_import(&self, import: Arc<Import>) {
        if self.import.set(import).is_ok() {
            self.spawn_age_sweep();
        }
    }

    /// Number of cached locks, used or not.
    pub fn lock_count(&self) -> usize {
        self.cache.iter().map(|s| s.lock().len()).sum()
    }

    /// Whether a lock request is in flight, or has a reply and waits for its completion AST.
    pub fn has_pending(&self) -> bool {
        let pending = |state: &CookieState| matches!(state, CookieState::Pending(_));
        self.cookies
            .iter()
            .any(|cookies| cookies.lock().values().any(pending))
    }

    /// Number of resources with cached locks.
    pub fn resource_count(&self) -> usize {
        self.cache.iter().map(|s| s.lock().by_res.len()).sum()
    }

    /// Number of unused cached locks.
    pub fn unused_count(&self) -> usize {
        self.unused.load(Ordering::Relaxed)
    }

    fn cookie_shard(&self, cookie: LockCookie) -> &Mutex<HashMap<LockCookie, CookieState>> {
        // Cookies increase by `COOKIE_STEP`, so the bits above it spread them over the shards.
        &self.cookies[(cookie.0 as usize >> COOKIE_STEP.trailing_zeros()) % SHARDS]
    }

    fn cache_shard(&self, res: &LdlmResId) -> &Mutex<Shard> {
        &self.cache[self.shard_hash.hash_one(res) as usize % SHARDS]
    }

    fn new_cookie(&self) -> LockCookie {
        LockCookie(self.next_cookie.fetch_add(COOKIE_STEP, Ordering::Relaxed))
    }

    /// Runs `f` on a cached lock under the mutex of its shard.
    fn with_lock<T>(
        &self,
        res: &LdlmResId,
        cookie: LockCookie,
        f: impl FnOnce(&mut CachedLock) -> T,
    ) -> Option<T> {
        self.cache_shard(res).lock().find(res, cookie).map(f)
    }
}

impl Drop for LockClient {
    fn drop(&mut self) {
        self.budget.leave(self.unused_count());
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
