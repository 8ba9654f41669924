//! A target's lock server: sharded namespaces, and the callbacks that they request.
//!
//! The server grants, queues and cancels locks under the mutex of their shard, which it never holds
//! across an await. Under that mutex it also wakes the tasks of this process that wait for a lock.
//! Afterwards it sends callbacks and evicts clients, in separate tasks. It evicts a client that
//! does not reply to a callback or does not cancel a lock in time. I/O under the lock restarts that
//! time.

mod asts;
mod claim;
mod enqueue;
mod glimpse;
mod local;
mod lvb;
mod reclaim;
mod replay;
mod timeouts;

pub use local::{GrantedLock, LocalLock};
pub use lvb::{LvbOps, NoLvb};

use crate::action::Action;
use crate::limits::LockLimits;
use crate::lock::{Holder, Lock, LockId};
use crate::namespace::Namespace;
use crate::policy::LockType;
use crate::request;
use crate::spawn::Spawner;
use cpt::{HashMap, HashSeed, now};
use params::Sums;
use parking_lot::{Mutex, RwLock};
use rpc::{Export, Reply, ServerRequest};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, Semaphore, oneshot};
use wire::format::bufs;
use wire::{Errno, LdlmReply, LdlmResId, WireStruct};

/// The configuration of a lock server.
#[derive(Clone, Debug)]
pub struct LdlmConfig {
    /// Start of the serial numbers in lock handles: a random number for each start of the server,
    /// so that handles of earlier starts hardly ever name a lock.
    pub seed: u64,
    /// Minimum time that a client has to cancel a revoked lock (`ldlm_enqueue_min`).
    pub enqueue_min: Duration,
    /// The limits that all lock servers of the process share.
    pub limits: Arc<LockLimits>,
    /// The types of locks that clients can take. A resource has locks of one type only, so a lock
    /// of a type that the target does not use would block all other clients from the resource.
    pub types: &'static [LockType],
}

impl Default for LdlmConfig {
    fn default() -> LdlmConfig {
        LdlmConfig {
            seed: 0,
            enqueue_min: Duration::from_secs(100),
            limits: Arc::default(),
            types: &[
                LockType::Plain,
                LockType::Extent,
                LockType::Flock,
                LockType::Ibits,
            ],
        }
    }
}

/// Number of shards of resources; the first is for flocks only.
const SHARDS: usize = 64;
/// The flocks of all files are in one shard, because deadlock detection follows owners across
/// files.
const FLOCK_SHARD: usize = 0;
/// Maximum number of concurrent callbacks to one client.
const ASTS_PER_EXPORT: usize = 32;

/// A target's locks.
pub struct LockServer {
    name: String,
    shards: Box<[Mutex<Shard>]>,
    /// Selects the shard of a resource.
    shard_hash: HashSeed,
    lvb: Arc<dyn LvbOps>,
    exports: RwLock<HashMap<Holder, Arc<Export>>>,
    /// Notified when a lock may have been revoked, to start the watch of deadlines.
    revoking: Arc<Notify>,
    /// Clients replay their locks ([`LockServer::begin_replay`]).
    replaying: AtomicBool,
    counters: Counters,
    /// When the server started, and its counters with it.
    started_at: SystemTime,
    limits: Arc<LockLimits>,
    types: &'static [LockType],
    me: Weak<LockServer>,
    tasks: Spawner,
}

/// A shard of a target's locks.
struct Shard {
    ns: Namespace,
    /// The senders that wake waiters of this process: true for a granted lock, false for a dropped
    /// one.
    waiters: HashMap<LockId, oneshot::Sender<bool>>,
}

/// The lock server's state of a client's export.
struct ExportState {
    /// The export is in [`LockServer`]'s `exports`.
    registered: AtomicBool,
    /// Limits the concurrent callbacks.
    slots: Semaphore,
}

impl Default for ExportState {
    fn default() -> ExportState {
        ExportState {
            registered: AtomicBool::new(false),
            slots: Semaphore::new(ASTS_PER_EXPORT),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    blocking: AtomicU64,
    completion: AtomicU64,
    glimpse: AtomicU64,
    evicted: AtomicU64,
}

/// Statistics of a lock server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Locks, granted and waiting.
    pub locks: usize,
    /// Waiting locks.
    pub waiting: usize,
    /// The lengths of waits for locks that ended with a grant or a deadlock, in microseconds.
    pub waits: Sums,
    /// Resources with locks.
    pub resources: usize,
    /// Blocking callbacks sent.
    pub blocking_asts: u64,
    /// Completion callbacks sent.
    pub completion_asts: u64,
    /// Glimpse callbacks sent.
    pub glimpse_asts: u64,
    /// Clients evicted because they did not cancel a lock in time, or because a callback failed.
    pub evictions: u64,
}

impl LockServer {
    /// A lock server without locks. `name` is for messages and parameters, for example
    /// `mdt-testfs-MDT0000_UUID`. Must be called within a runtime: methods that are called outside
    /// of any runtime start their tasks on this one.
    pub fn new(name: &str, lvb: Arc<dyn LvbOps>, cfg: LdlmConfig) -> Arc<LockServer> {
        let shard = |i: usize| Shard {
            ns: Namespace::new(
                i as u8,
                cfg.seed.wrapping_add(i as u64),
                HashSeed::random(),
                cfg.enqueue_min,
            ),
            waiters: HashMap::default(),
        };
        let server = Arc::new_cyclic(|me| LockServer {
            name: name.to_owned(),
            shards: (0..SHARDS).map(|i| Mutex::new(shard(i))).collect(),
            shard_hash: HashSeed::random(),
            lvb,
            exports: RwLock::new(HashMap::default()),
            revoking: Arc::new(Notify::new()),
            replaying: AtomicBool::new(false),
            counters: Counters::default(),
            started_at: SystemTime::now(),
            limits: cfg.limits.clone(),
            types: cfg.types,
            me: me.clone(),
            tasks: Spawner::current(),
        });
        timeouts::watch(&server);
        reclaim::watch(&server);
        server
    }

    /// Handles `LDLM_CANCEL`, `LDLM_CONVERT`, and `LDLM_ENQUEUE` with an empty intent buffer.
    /// `None` for other requests.
    pub async fn handle(&self, req: &mut ServerRequest) -> Option<Result<Reply, Errno>> {
        match req.opc {
            wire::LDLM_ENQUEUE if req.buf(bufs::INTENT).is_empty() => Some(self.enqueue(req).await),
            wire::LDLM_CANCEL => {
                let found = self.cancel(
                    &req.export,
                    &request::handles_to_cancel(req.buf(bufs::DLM_REQ), 0),
                );
                Some(Ok(Reply::status(if found == 0 { Errno::ESTALE.0 } else { 0 })))
            }
            wire::LDLM_CONVERT => Some(self.convert(req)),
            _ => None,
        }
    }

    /// Cancels a client's locks by handle, for `LDLM_CANCEL` and for the cancels that other
    /// requests carry. Returns the number of cancelled locks.
    pub fn cancel(&self, export: &Arc<Export>, handles: &[u64]) -> usize {
        let is_own = |lock: &Lock| lock.holder == holder(export);
        handles
            .iter()
            .filter(|h| self.cancel_if(LockId(**h), is_own).is_some())
            .count()
    }

    /// Whether a client still holds a lock on a resource.
    pub fn holds(&self, export: &Arc<Export>, handle: u64, res: &LdlmResId) -> bool {
        let lock = self.lock_of(LockId(handle));
        lock.is_some_and(|lock| lock.granted && lock.holder == holder(export) && lock.res == *res)
    }

    /// Drops the locks of a client that disconnected or was evicted, and grants the waiting locks
    /// that they blocked.
    pub async fn drop_export(&self, export: &Arc<Export>) {
        if cpt::Bug::EvictionLeavesLock.is_planted() {
            return;
        }
        let holder = holder(export);
        self.exports.write().remove(&holder);
        export
            .ext::<ExportState>()
            .registered
            .store(false, Ordering::Release);
        for shard in 0..self.shards.len() {
            let dropped = self.with_shard(shard, |ns, now, out| ns.drop_holder(now, holder, out));
            if dropped > 0 {
                tracing::debug!(
                    ns = self.name,
                    client = export.client_uuid,
                    dropped,
                    "dropped locks of a disconnected or evicted client"
                );
            }
            // A client may hold very many locks: let other tasks run in between.
            tokio::task::consume_budget().await;
        }
    }

    /// Restarts the timers of a client's revoked locks of a resource, because the client does I/O
    /// under them. Ignores flocks.
    pub fn prolong(&self, export: &Arc<Export>, res: LdlmResId) {
        let shard = self.shard_of(&res, LockType::Extent);
        self.shards[shard].lock().ns.prolong(now(), holder(export), &res);
    }

    /// Whether a resource has granted or waiting locks; always false for flocks.
    pub fn is_locked(&self, res: &LdlmResId) -> bool {
        let shard = self.shards[self.shard_of(res, LockType::Extent)].lock();
        shard.ns.granted(res).next().is_some() || shard.ns.waiting(res).next().is_some()
    }

    /// Pairs of granted locks of different clients that conflict; there must be none.
    #[cfg(feature = "sim")]
    pub fn granted_conflicts(&self) -> Vec<String> {
        let of_shard = |shard: &Mutex<Shard>| shard.lock().ns.granted_conflicts();
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The name given to [`LockServer::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When the server started, and its counters with it.
    pub(crate) fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// The current statistics.
    pub fn stats(&self) -> LockStats {
        let count = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let mut stats = LockStats {
            blocking_asts: count(&self.counters.blocking),
            completion_asts: count(&self.counters.completion),
            glimpse_asts: count(&self.counters.glimpse),
            evictions: count(&self.counters.evicted),
            ..LockStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.locks += shard.ns.lock_count();
            stats.waiting += shard.ns.waiting_count();
            stats.waits = stats.waits.and(shard.ns.wait_sums());
            stats.resources += shard.ns.resource_count();
        }
        stats
    }

    /// Minimum time that a client has to cancel a revoked lock.
    pub fn enqueue_min(&self) -> Duration {
        self.shards
            .first()
            .map_or(Duration::ZERO, |s| s.lock().ns.timeout_min())
    }

    /// Sets the minimum time that a client has to cancel a revoked lock.
    pub fn set_enqueue_min(&self, min: Duration) {
        for shard in &self.shards {
            shard.lock().ns.set_timeout_min(min);
        }
    }

    fn convert(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let dlm = request::parse(req.buf(bufs::DLM_REQ))?;
        let id = LockId(dlm.lock_handle[0]);
        let keep = dlm.lock_desc.l_policy_data.bits();
        let no_lock = Ok(Reply::status(wire::ELDLM_NO_LOCK_DATA as i32));
        if id.shard() >= self.shards.len() {
            return no_lock;
        }
        let holder = holder(&req.export);
        let left = self.with_shard(id.shard(), |ns, now, out| {
            ns.get(id).filter(|l| l.holder == holder)?;
            ns.convert(now, id, keep, out)?;
            Some(ns.get(id).cloned())
        });
        let Some(left) = left else { return no_lock };
        let mut rep = LdlmReply {
            lock_flags: dlm.lock_flags,
            ..LdlmReply::default()
        };
        rep.lock_handle.cookie = id.0;
        match left {
            Some(lock) => rep.lock_desc = lock.desc(),
            None => rep.lock_desc.l_resource = dlm.lock_desc.l_resource,
        }
        Ok(Reply::new(vec![rep.to_bytes()]))
    }

    /// Cancels a lock if `condition` returns true for the lock.
    fn cancel_if(&self, id: LockId, condition: impl FnOnce(&Lock) -> bool) -> Option<Lock> {
        if id.shard() >= self.shards.len() {
            return None;
        }
        self.with_shard(id.shard(), |ns, now, out| {
            ns.get(id).filter(|l| condition(l))?;
            ns.cancel(now, id, out)
        })
    }

    fn lock_of(&self, id: LockId) -> Option<Lock> {
        self.shards.get(id.shard())?.lock().ns.get(id).cloned()
    }

    /// The shard of a resource.
    fn shard_of(&self, res: &LdlmResId, ty: LockType) -> usize {
        match ty {
            LockType::Flock => FLOCK_SHARD,
            _ => 1 + self.shard_hash.hash_one(res) as usize % (SHARDS - 1),
        }
    }

    /// Changes a shard's namespace, wakes waiters, and starts the other resulting actions.
    fn with_shard<T>(
        &self,
        shard: usize,
        f: impl FnOnce(&mut Namespace, Instant, &mut Vec<Action>) -> T,
    ) -> T {
        let mut actions = Vec::new();
        let mut guard = self.shards[shard].lock();
        let before = guard.ns.lock_count();
        let result = f(&mut guard.ns, now(), &mut actions);
        self.limits.update_count(before, guard.ns.lock_count());
        guard.wake(&mut actions);
        drop(guard);
        if !actions.is_empty() {
            self.perform(actions);
        }
        result
    }

    /// Registers a client for callbacks. Fails with `ENOTCONN` if the client has disconnected.
    fn register_export(&self, export: &Arc<Export>) -> Result<(), Errno> {
        let state = export.ext::<ExportState>();
        if !state.registered.swap(true, Ordering::AcqRel) {
            self.exports.write().insert(holder(export), export.clone());
        }
        if export.is_gone() {
            // [`LockServer::drop_export`] may have run before.
            self.exports.write().remove(&holder(export));
            return Err(Errno::ENOTCONN);
        }
        Ok(())
    }

    /// Cancels a new lock if its client has disconnected in the meantime, because
    /// [`LockServer::drop_export`] may have run before the grant.
    fn check_connected(&self, export: &Arc<Export>, id: LockId) -> Result<(), Errno> {
        if !export.is_gone() {
            return Ok(());
        }
        self.exports.write().remove(&holder(export));
        self.cancel_if(id, |_| true);
        Err(Errno::ENOTCONN)
    }
}

impl Shard {
    /// Carries out and removes the wake-ups among the actions.
    fn wake(&mut self, actions: &mut Vec<Action>) {
        actions.retain(|action| {
            let Action::Wake { id, granted } = action else {
                return true;
            };
            if let Some(waiter) = self.waiters.remove(id) {
                // A waiter that has stopped waiting cancels the lock itself.
                waiter.send(*granted).ok();
            }
            false
        });
    }
}

impl std::fmt::Debug for LockServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LockServer({})", self.name)
    }
}

fn holder(export: &Export) -> Holder {
    Holder(export.handle)
}
