//! A target's lock server: namespaces, one for each shard of resources, and the callbacks that they ask for.
//!
//! Requests are decided under the mutex of one shard, which is never held across an await; what comes out, callbacks
//! to clients and wake-ups of waiting code, is carried out afterwards, callbacks in tasks of their own. A client that
//! does not answer a callback, or does not give a lock back in time, is evicted: nobody waits for a client longer
//! than that.

mod asts;
mod enqueue;
mod glimpse;
mod local;
mod lvb;
mod reclaim;
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
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};
use rpc::{Export, Reply, ServerRequest};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, oneshot};
use wire::format::bufs;
use wire::{Errno, LdlmReply, LdlmResId, WireStruct};

/// The limits and times of a lock server.
#[derive(Clone, Debug)]
pub struct LdlmConfig {
    /// Keeps lock handles apart from those of an earlier life of the server.
    pub seed: u64,
    /// What a client that must give a lock back has at least (`ldlm_enqueue_min`).
    pub enqueue_min: Duration,
    /// How many locks there may be.
    pub limits: Arc<LockLimits>,
    /// The types of locks that clients may ask for. A resource has locks of one type only, so a lock of a type that the
    /// target does not use would keep everybody else from the resource.
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

/// Shards of resources; the first is for flocks alone.
const SHARDS: usize = 64;
/// Flocks of all files live in one shard: owners wait across files, and a deadlock is seen only from above.
const FLOCK_SHARD: usize = 0;
/// Callbacks to one client that are under way at once.
const ASTS_PER_EXPORT: usize = 32;

/// A target's locks.
pub struct LockServer {
    name: String,
    shards: Box<[Mutex<Shard>]>,
    lvb: Arc<dyn LvbOps>,
    exports: RwLock<HashMap<Holder, Arc<Export>>>,
    /// Some client was asked for a lock: the watch over deadlines begins.
    asking: Arc<Notify>,
    counters: Counters,
    limits: Arc<LockLimits>,
    types: &'static [LockType],
    me: Weak<LockServer>,
    tasks: Spawner,
}

/// One shard: its locks, and the code of this process that waits for some of them.
struct Shard {
    ns: Namespace,
    waiters: HashMap<LockId, oneshot::Sender<bool>>,
}

/// What each client has of the lock server.
struct ExportAsts {
    known: AtomicBool,
    slots: Semaphore,
}

impl Default for ExportAsts {
    fn default() -> ExportAsts {
        ExportAsts {
            known: AtomicBool::new(false),
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

/// What a lock server has and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Locks, waiting ones included.
    pub locks: usize,
    /// Locks that wait.
    pub waiting: usize,
    /// Resources that have locks.
    pub resources: usize,
    /// Blocking callbacks sent.
    pub blocking_asts: u64,
    /// Completion callbacks sent.
    pub completion_asts: u64,
    /// Glimpse callbacks sent.
    pub glimpse_asts: u64,
    /// Clients evicted because of a lock.
    pub evictions: u64,
}

impl LockServer {
    /// A lock server without locks. `name` is for messages: `mdt-testfs-MDT0000_UUID`. Must be called
    /// from a runtime, which callbacks run on that come from no other.
    pub fn new(name: &str, lvb: Arc<dyn LvbOps>, cfg: LdlmConfig) -> Arc<LockServer> {
        let shard = |i: usize| Shard {
            ns: Namespace::new(i as u8, cfg.seed.wrapping_add(i as u64), cfg.enqueue_min),
            waiters: HashMap::default(),
        };
        let server = Arc::new_cyclic(|me| LockServer {
            name: name.to_owned(),
            shards: (0..SHARDS).map(|i| Mutex::new(shard(i))).collect(),
            lvb,
            exports: RwLock::new(HashMap::default()),
            asking: Arc::new(Notify::new()),
            counters: Counters::default(),
            limits: cfg.limits.clone(),
            types: cfg.types,
            me: me.clone(),
            tasks: Spawner::current(),
        });
        timeouts::watch(&server);
        reclaim::watch(&server);
        server
    }

    /// Handles the requests that are the lock manager's own: `LDLM_CANCEL`, `LDLM_CONVERT`, and `LDLM_ENQUEUE`
    /// without an intent. `None` for everything else.
    pub async fn handle(&self, req: &mut ServerRequest) -> Option<Result<Reply, Errno>> {
        match req.opc {
            wire::LDLM_ENQUEUE if req.buf(bufs::INTENT).is_empty() => Some(self.enqueue(req).await),
            wire::LDLM_CANCEL => {
                let found = self.cancel(&req.export, &request::handles(req.buf(bufs::DLM_REQ), 0));
                Some(Ok(Reply::status(if found == 0 { Errno::ESTALE.0 } else { 0 })))
            }
            wire::LDLM_CONVERT => Some(self.convert(req)),
            _ => None,
        }
    }

    /// Takes back locks of a client by their handles, as in `LDLM_CANCEL` and in the lists that other requests carry.
    /// How many there were.
    pub fn cancel(&self, export: &Arc<Export>, handles: &[u64]) -> usize {
        let mine = |lock: &Lock| lock.holder == holder(export);
        handles
            .iter()
            .filter(|h| self.cancel_if(LockId(**h), mine).is_some())
            .count()
    }

    /// A client is gone: its locks go, and whoever waited for them goes on.
    pub async fn drop_export(&self, export: &Arc<Export>) {
        let holder = holder(export);
        self.exports.write().remove(&holder);
        export.ext::<ExportAsts>().known.store(false, Ordering::Release);
        for shard in 0..self.shards.len() {
            let dropped = self.with(shard, |ns, now, out| ns.drop_holder(now, holder, out));
            if dropped > 0 {
                tracing::debug!(
                    ns = self.name,
                    client = export.client_uuid,
                    dropped,
                    "locks of a client that is gone"
                );
            }
            // A client may hold very many.
            tokio::task::consume_budget().await;
        }
    }

    /// The client reads or writes under its locks of this resource: what it was asked for may take longer.
    pub fn prolong(&self, export: &Arc<Export>, res: LdlmResId) {
        let shard = shard_of(&res, LockType::Extent);
        self.shards[shard].lock().ns.prolong(now(), holder(export), &res);
    }

    /// Whether any lock of the resource is granted or waits.
    pub fn is_locked(&self, res: &LdlmResId) -> bool {
        let shard = self.shards[shard_of(res, LockType::Extent)].lock();
        shard.ns.granted(res).next().is_some() || shard.ns.waiting(res).next().is_some()
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has and did.
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
            stats.resources += shard.ns.resource_count();
        }
        stats
    }

    /// What a client that must give a lock back has at least.
    pub fn enqueue_min(&self) -> Duration {
        self.shards
            .first()
            .map_or(Duration::ZERO, |s| s.lock().ns.timeout_min())
    }

    /// Changes what a client that must give a lock back has at least.
    pub fn set_enqueue_min(&self, min: Duration) {
        for shard in &self.shards {
            shard.lock().ns.set_timeout_min(min);
        }
    }

    fn convert(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let dlm = request::parse(req.buf(bufs::DLM_REQ))?;
        let id = LockId(dlm.lock_handle[0]);
        let keep = dlm.lock_desc.l_policy_data.bits();
        let gone = Ok(Reply::status(wire::ELDLM_NO_LOCK_DATA as i32));
        if id.shard() >= self.shards.len() {
            return gone;
        }
        let holder = holder(&req.export);
        let left = self.with(id.shard(), |ns, now, out| {
            ns.get(id).filter(|l| l.holder == holder)?;
            ns.convert(now, id, keep, out)?;
            Some(ns.get(id).cloned())
        });
        let Some(left) = left else { return gone };
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

    /// Takes a lock away if it is as `wanted`.
    fn cancel_if(&self, id: LockId, wanted: impl FnOnce(&Lock) -> bool) -> Option<Lock> {
        if id.shard() >= self.shards.len() {
            return None;
        }
        self.with(id.shard(), |ns, now, out| {
            ns.get(id).filter(|l| wanted(l))?;
            ns.cancel(now, id, out)
        })
    }

    fn lock_of(&self, id: LockId) -> Option<Lock> {
        self.shards.get(id.shard())?.lock().ns.get(id).cloned()
    }

    /// Does something to a shard's namespace, wakes the code that waits for what came out of it, and has the rest done.
    fn with<T>(&self, shard: usize, f: impl FnOnce(&mut Namespace, Instant, &mut Vec<Action>) -> T) -> T {
        let mut actions = Vec::new();
        let mut guard = self.shards[shard].lock();
        let before = guard.ns.lock_count();
        let result = f(&mut guard.ns, now(), &mut actions);
        self.limits.changed(before, guard.ns.lock_count());
        guard.wake(&mut actions);
        drop(guard);
        if !actions.is_empty() {
            self.perform(actions);
        }
        result
    }

    /// Remembers how to reach a client that has locks. Fails when the client is gone.
    fn know(&self, export: &Arc<Export>) -> Result<(), Errno> {
        let asts = export.ext::<ExportAsts>();
        if !asts.known.swap(true, Ordering::AcqRel) {
            self.exports.write().insert(holder(export), export.clone());
        }
        if export.is_gone() {
            Err(Errno::ENOTCONN)
        } else {
            Ok(())
        }
    }

    /// A lock that was made while its client was being dropped would stay for ever: takes it away again.
    fn still_there(&self, export: &Arc<Export>, id: LockId) -> Result<(), Errno> {
        if !export.is_gone() {
            return Ok(());
        }
        self.exports.write().remove(&holder(export));
        self.cancel_if(id, |_| true);
        Err(Errno::ENOTCONN)
    }
}

impl Shard {
    fn wake(&mut self, actions: &mut Vec<Action>) {
        actions.retain(|action| {
            let Action::Wake { id, granted } = action else {
                return true;
            };
            if let Some(waiter) = self.waiters.remove(id) {
                // Who does not wait any more takes the lock away itself.
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

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The shard that a resource lives in.
fn shard_of(res: &LdlmResId, ty: LockType) -> usize {
    if ty == LockType::Flock {
        return FLOCK_SHARD;
    }
    let mix = |h: u64, word: &u64| (h.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = res.name.iter().fold(0, mix);
    1 + (hash >> 32) as usize % (SHARDS - 1)
}
