//! The targets of this node by UUID, the exports of each by client, and all exports by handle.

use super::active::ActiveCount;
use super::recovery::{self, SharedWindow, TargetRecovery};
use super::target_stats::{StatsPrefix, TargetStats};
use super::{ConnectRequest, EndReason, Export, Target};
use cpt::{Cpt, HashMap};
use lnet::Lnet;
use params::{Group, Param, StatsTable};
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use wire::Nid;

/// Maximum number of clients that one peer has at a target; a node has one client per mount.
pub(super) const CLIENTS_PER_PEER_MAX: usize = 1024;
/// Time for which a stopping target waits for requests in execution.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// A target and its clients.
pub struct TargetExports {
    target: Arc<dyn Target>,
    by_client: Mutex<HashMap<String, Arc<Export>>>,
    /// The peers. A client counts for the NID of its first connect.
    origins: Mutex<Origins>,
    stats: Arc<TargetStats>,
    stopping: AtomicBool,
    /// The recovery after the start; `None` if there were no clients before.
    recovery: Option<Arc<TargetRecovery>>,
    window: SharedWindow,
    /// Requests in execution.
    active: Arc<ActiveCount>,
}

/// The peers of a target.
#[derive(Default)]
struct Origins {
    by_nid: HashMap<Nid, Origin>,
    /// Where the peers' statistics are registered, if the target registers them.
    prefix: Option<StatsPrefix>,
}

/// A peer of a target.
struct Origin {
    /// Number of its clients.
    clients: usize,
    stats: Arc<StatsTable>,
    /// The registered parameters.
    params: Option<Group>,
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

    /// The exports of all clients, including those with state that is being dropped.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.by_client.lock().values().cloned().collect()
    }

    /// Number of clients, including those with state that is being dropped.
    pub fn len(&self) -> usize {
        self.by_client.lock().len()
    }

    /// Whether there are no clients.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The export of the client with this UUID.
    pub fn client(&self, uuid: &str) -> Option<Arc<Export>> {
        self.by_client.lock().get(uuid).cloned()
    }

    /// Evicts the clients that the target no longer admits; called after a change of its rules.
    pub fn evict_unadmitted(&self) {
        for export in self.all() {
            let req = ConnectRequest {
                client_uuid: export.client_uuid.clone(),
                peer: export.peer(),
                reconnects: false,
                recovers: false,
                data: export.data(),
            };
            if self.target.admit(&req).is_err() {
                export.evict_soon("the target no longer admits it");
            }
        }
    }

    /// The parameter `evict_client`, as in Lustre: evicts a client by its UUID, or all
    /// clients of a NID, with or without `nid:` before it. When a write returns, the client's
    /// requests are refused; the target drops the client's state later.
    pub fn param_evict_client(self: &Arc<Self>) -> Param {
        let exports = Arc::downgrade(self);
        let evict = move |client: &str| {
            exports
                .upgrade()
                .map_or(Ok(()), |e| e.evict_client(client.trim()))
        };
        Param::read_write(String::new, evict).about("write a client's UUID or NID to evict it")
    }

    fn evict_client(&self, client: &str) -> Result<(), String> {
        let of_nid = |nid: Nid| self.all().into_iter().filter(|e| e.peer() == nid).collect();
        let found: Vec<Arc<Export>> = match (client.strip_prefix("nid:"), client.parse()) {
            (Some(nid), _) => of_nid(nid.parse().map_err(|e| format!("{e}"))?),
            // Lustre needs `nid:` here, but no UUID is a NID.
            (None, Ok(nid)) => of_nid(nid),
            (None, Err(_)) => self.client(client).into_iter().collect(),
        };
        if found.is_empty() {
            return Err(format!("no client '{client}' is connected"));
        }
        found
            .iter()
            .for_each(|export| export.evict_soon("evict_client was set"));
        Ok(())
    }

    pub(crate) fn by_client(&self) -> &Mutex<HashMap<String, Arc<Export>>> {
        &self.by_client
    }

    /// Removes the export of a client, which no longer counts against the limit of its peer.
    pub(crate) fn forget(&self, export: &Export) {
        let mut by_client = self.by_client.lock();
        if by_client
            .get(&export.client_uuid)
            .is_some_and(|e| e.handle == export.handle)
        {
            by_client.remove(&export.client_uuid);
            drop(by_client);
            let by_nid = &mut self.origins.lock().by_nid;
            if let Some(origin) = by_nid.get_mut(&export.origin) {
                origin.clients -= 1;
                if origin.clients == 0 {
                    by_nid.remove(&export.origin);
                }
            }
        }
    }

    /// Counts another client of a peer and returns the peer's statistics; `None` if the peer has
    /// reached its limit.
    pub(crate) fn reserve_client(self: &Arc<Self>, peer: Nid) -> Option<Arc<StatsTable>> {
        let Origins { by_nid, prefix } = &mut *self.origins.lock();
        let origin = by_nid.entry(peer).or_insert_with(|| {
            let stats = self.stats.table();
            Origin {
                clients: 0,
                params: prefix.as_ref().map(|prefix| prefix.register(self, peer, &stats)),
                stats,
            }
        });
        // The clients of this node itself are its own targets and mounts, without a limit.
        let within_limit = peer == Nid::LO || origin.clients < CLIENTS_PER_PEER_MAX;
        origin.clients += usize::from(within_limit);
        within_limit.then(|| origin.stats.clone())
    }

    /// Whether the peer has reached its limit of clients.
    pub(crate) fn has_max_clients(&self, peer: Nid) -> bool {
        let origins = self.origins.lock();
        peer != Nid::LO
            && origins
                .by_nid
                .get(&peer)
                .is_some_and(|origin| origin.clients >= CLIENTS_PER_PEER_MAX)
    }

    /// Registers the statistics of the peers, present and future.
    pub(super) fn publish_origins(self: &Arc<Self>, prefix: StatsPrefix) {
        let origins = &mut *self.origins.lock();
        for (nid, origin) in &mut origins.by_nid {
            origin.params = Some(prefix.register(self, *nid, &origin.stats));
        }
        origins.prefix = Some(prefix);
    }

    /// The target's statistics.
    pub(crate) fn stats(&self) -> &Arc<TargetStats> {
        &self.stats
    }

    /// Starts the task of the recovery, if clients were connected before the start.
    pub(crate) fn start_recovery(&self, cpt: &Cpt, lnet: &Arc<Lnet>) {
        if let Some(recovery) = &self.recovery {
            cpt.spawn(recovery::run(recovery.clone(), lnet.clone()));
        }
    }

    /// The recovery, unless it is complete.
    pub(super) fn recovery(&self) -> Option<&Arc<TargetRecovery>> {
        self.recovery.as_ref().filter(|recovery| !recovery.is_complete())
    }

    /// Whether clients of an earlier start recover, so that the target serves new requests of new
    /// clients only.
    pub fn is_recovering(&self) -> bool {
        self.recovery().is_some()
    }

    /// The state of the recovery, in Lustre's format: `name: value` in each line.
    pub fn recovery_status(&self) -> String {
        match &self.recovery {
            Some(recovery) => recovery.status(),
            None => "status: INACTIVE".to_owned(),
        }
    }

    /// The limits of a recovery's duration.
    pub(super) fn window(&self) -> &SharedWindow {
        &self.window
    }

    /// Ends the recovery: evicts the clients that have not recovered (`lctl abort_recovery`).
    pub fn abort_recovery(&self) {
        self.target().recovery_aborted();
        if let Some(recovery) = self.recovery() {
            recovery.abort();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The count of requests in execution at the target.
    pub(crate) fn active(&self) -> &Arc<ActiveCount> {
        &self.active
    }

    /// Refuses new connects, ends all connections, and waits for requests in execution.
    pub(crate) async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(recovery) = &self.recovery {
            recovery.stop();
        }
        for export in self.all() {
            export.end(EndReason::TargetStops).await;
        }
        if timeout(STOP_WAIT, self.active.wait_idle()).await.is_err() {
            let active = self.active.count();
            tracing::warn!(
                target_uuid = self.target.uuid(),
                active,
                "target stopped with requests still in execution"
            );
        }
    }
}

/// The targets by UUID.
#[derive(Default)]
pub(crate) struct TargetTable(RwLock<HashMap<String, Arc<TargetExports>>>);

impl TargetTable {
    pub(crate) fn add(&self, target: Arc<dyn Target>, partitions: usize) -> Arc<TargetExports> {
        let uuid = target.uuid().to_owned();
        let stats = Arc::new(TargetStats::new(target.operations(), partitions));
        let (clients, committed) = (target.known_clients(), target.last_committed());
        let window = SharedWindow::default();
        let exports = Arc::new_cyclic(|me| TargetExports {
            recovery: TargetRecovery::new(me.clone(), clients, committed, window.clone()),
            window,
            target,
            by_client: Mutex::default(),
            origins: Mutex::default(),
            stats,
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

/// Number of shards of the export table.
const SHARDS: usize = 64;

/// All exports by handle, sharded because every request looks up its export.
pub(crate) struct ExportTable(Vec<RwLock<HashMap<u64, Arc<Export>>>>);

impl Default for ExportTable {
    fn default() -> Self {
        ExportTable((0..SHARDS).map(|_| RwLock::default()).collect())
    }
}

impl ExportTable {
    /// The shard of a handle, selected by its highest bits: all bits of a handle are random.
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

    /// The NIDs of all clients.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Nid> {
        let peers_of = |shard: &RwLock<HashMap<u64, Arc<Export>>>| {
            let exports: Vec<_> = shard.read().values().cloned().collect();
            exports.into_iter().map(|export| export.peer())
        };
        self.0.iter().flat_map(peers_of)
    }

    pub(crate) fn remove(&self, handle: u64) {
        self.shard(handle).write().remove(&handle);
    }
}
