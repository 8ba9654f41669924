//! The targets of this node by UUID, the exports of each, and all exports by handle.

use super::active::Active;
use super::{ConnectRequest, Export, Target};
use foldhash::HashMap;
use params::Param;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use wire::Nid;

/// Clients that one peer may have at a target: a node has one for each of its mounts.
const PER_PEER_MAX: usize = 1024;
/// How long the end of a target waits for the requests that it is working on.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// A target and its clients.
pub struct TargetExports {
    target: Arc<dyn Target>,
    by_client: Mutex<HashMap<String, Arc<Export>>>,
    /// How many clients came from each peer.
    by_origin: Mutex<HashMap<Nid, usize>>,
    stopping: AtomicBool,
    active: Arc<Active>,
}

impl fmt::Debug for TargetExports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetExports")
            .field("target", &self.target.uuid())
            .finish_non_exhaustive()
    }
}

impl TargetExports {
    /// The target.
    pub fn target(&self) -> &dyn Target {
        &*self.target
    }

    /// All clients that are connected.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.by_client.lock().values().cloned().collect()
    }

    /// How many clients are connected.
    pub fn len(&self) -> usize {
        self.by_client.lock().len()
    }

    /// Whether nobody is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client with this UUID, if it is connected.
    pub fn client(&self, uuid: &str) -> Option<Arc<Export>> {
        self.by_client.lock().get(uuid).cloned()
    }

    /// Evicts the clients that the target does not admit any more.
    pub fn review(&self) {
        for export in self.all() {
            let req = ConnectRequest {
                client_uuid: export.client_uuid.clone(),
                peer: export.peer(),
                reconnects: false,
                data: export.data(),
            };
            if self.target.admit(&req).is_err() {
                export.evict_soon("the target does not admit it any more");
            }
        }
    }

    /// `evict_client`, a parameter as Lustre has it: to be rid of a client, by its UUID or by `nid:` and its NID. When setting
    /// it returns, the client's requests are refused; the target drops the client's state after that.
    pub fn param_evict_client(self: &Arc<Self>) -> Param {
        let exports = Arc::downgrade(self);
        let set = move |who: &str| exports.upgrade().map_or(Ok(()), |e| e.evict_client(who.trim()));
        Param::read_write(String::new, set)
            .about("set to the UUID of a client, or `nid:` and its NID, to evict it")
    }

    fn evict_client(&self, who: &str) -> Result<(), String> {
        let found: Vec<Arc<Export>> = match who.strip_prefix("nid:") {
            None => self.client(who).into_iter().collect(),
            Some(nid) => {
                let nid: Nid = nid.parse().map_err(|e| format!("{e}"))?;
                self.all().into_iter().filter(|e| e.peer() == nid).collect()
            }
        };
        if found.is_empty() {
            return Err(format!("no client '{who}' is connected"));
        }
        found
            .iter()
            .for_each(|export| export.evict_soon("somebody asked for it"));
        Ok(())
    }

    pub(crate) fn by_client(&self) -> &Mutex<HashMap<String, Arc<Export>>> {
        &self.by_client
    }

    pub(crate) fn forget(&self, export: &Export) {
        let mut by_client = self.by_client.lock();
        if by_client
            .get(&export.client_uuid)
            .is_some_and(|e| e.handle == export.handle)
        {
            by_client.remove(&export.client_uuid);
            drop(by_client);
            let mut by_origin = self.by_origin.lock();
            if let Some(count) = by_origin.get_mut(&export.origin) {
                *count -= 1;
                if *count == 0 {
                    by_origin.remove(&export.origin);
                }
            }
        }
    }

    /// Counts one more client of a peer, until it is forgotten; `false` when the peer has as many as it may.
    pub(crate) fn one_more_of(&self, peer: Nid) -> bool {
        let mut by_origin = self.by_origin.lock();
        let count = by_origin.entry(peer).or_default();
        // Of this node itself there are as many as it has targets and mounts.
        let more = peer == Nid::LO || *count < PER_PEER_MAX;
        *count += usize::from(more);
        more
    }

    /// Whether the peer has as many clients as it may.
    pub(crate) fn is_full_of(&self, peer: Nid) -> bool {
        let by_origin = self.by_origin.lock();
        peer != Nid::LO && by_origin.get(&peer).is_some_and(|count| *count >= PER_PEER_MAX)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The requests that the target is working on.
    pub(crate) fn active(&self) -> &Arc<Active> {
        &self.active
    }

    /// Refuses new connections, ends those there are, and waits for what is being worked on.
    pub(crate) async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for export in self.all() {
            export.end(false).await;
        }
        if timeout(STOP_WAIT, self.active.idle()).await.is_err() {
            let active = self.active.count();
            tracing::warn!(
                target_uuid = self.target.uuid(),
                active,
                "stopped while requests were being handled"
            );
        }
    }
}

/// The targets by UUID.
#[derive(Default)]
pub(crate) struct TargetTable(RwLock<HashMap<String, Arc<TargetExports>>>);

impl TargetTable {
    pub(crate) fn add(&self, target: Arc<dyn Target>) -> Arc<TargetExports> {
        let uuid = target.uuid().to_owned();
        let exports = Arc::new(TargetExports {
            target,
            by_client: Mutex::default(),
            by_origin: Mutex::default(),
            stopping: AtomicBool::new(false),
            active: Arc::default(),
        });
        self.0.write().insert(uuid, exports.clone());
        exports
    }

    pub(crate) fn get(&self, uuid: &str) -> Option<Arc<TargetExports>> {
        self.0.read().get(uuid).cloned()
    }

    pub(crate) fn remove(&self, uuid: &str) -> Option<Arc<TargetExports>> {
        self.0.write().remove(uuid)
    }

    pub(crate) fn all(&self) -> Vec<Arc<TargetExports>> {
        self.0.read().values().cloned().collect()
    }

    pub(crate) fn take_all(&self) -> Vec<Arc<TargetExports>> {
        std::mem::take(&mut *self.0.write()).into_values().collect()
    }
}

const SHARDS: usize = 64;

/// All exports by handle, sharded: every request looks here.
pub(crate) struct ExportTable(Vec<RwLock<HashMap<u64, Arc<Export>>>>);

impl Default for ExportTable {
    fn default() -> Self {
        ExportTable((0..SHARDS).map(|_| RwLock::default()).collect())
    }
}

impl ExportTable {
    /// Handles are random in all their bits.
    fn shard(&self, handle: u64) -> &RwLock<HashMap<u64, Arc<Export>>> {
        &self.0[(handle >> 58) as usize % SHARDS]
    }

    pub(crate) fn add(&self, export: &Arc<Export>) {
        self.shard(export.handle)
            .write()
            .insert(export.handle, export.clone());
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Export>> {
        self.shard(handle).read().get(&handle).cloned()
    }

    /// Where the clients are connected from.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Nid> {
        let of = |shard: &RwLock<HashMap<u64, Arc<Export>>>| {
            let exports: Vec<_> = shard.read().values().cloned().collect();
            exports.into_iter().map(|export| export.peer())
        };
        self.0.iter().flat_map(of)
    }

    pub(crate) fn remove(&self, handle: u64) {
        self.shard(handle).write().remove(&handle);
    }
}
