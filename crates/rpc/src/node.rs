//! The RPC layer of one node: the state that its imports, exports and services share.

use crate::import::Import;
use crate::server::{Blockers, ExportTable, Service, TargetExports, TargetTable, evictor};
use crate::services::CALLBACKS;
use crate::xids::Xids;
use crate::{FailPoints, RpcConfig, RpcError, ServiceConfig, ServiceStats, Target, callbacks};
use cpt::{Cpt, CptId, CptTable};
use lnet::Lnet;
use params::ParamGuard;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::Nid;

/// The RPC layer of one [`Lnet`].
pub struct Ptlrpc {
    lnet: Arc<Lnet>,
    cpts: Arc<CptTable>,
    cfg: RpcConfig,
    xids: Xids,
    /// Number of handles created.
    handle_count: AtomicU64,
    /// Imports by handle.
    imports: RwLock<HashMap<u64, Weak<Import>>>,
    exports: ExportTable,
    targets: TargetTable,
    blockers: Blockers,
    /// Services by portal.
    services: Mutex<HashMap<u32, Arc<Service>>>,
    fail: Arc<FailPoints>,
    /// The parameters of `fail`.
    _fail_params: [ParamGuard; 3],
    #[cfg(feature = "faults")]
    faults: crate::Faults,
    me: Weak<Ptlrpc>,
}

impl fmt::Debug for Ptlrpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ptlrpc")
            .field("nid", &self.lnet.nid())
            .finish_non_exhaustive()
    }
}

impl Ptlrpc {
    /// Starts the layer: it serves lock callbacks to imports, evicts silent clients, and
    /// disconnects unused peers.
    pub fn start(lnet: Arc<Lnet>, cpts: Arc<CptTable>, cfg: RpcConfig) -> Arc<Ptlrpc> {
        let unix_seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_secs());
        let fail = FailPoints::new(&cfg);
        let rpc = Arc::new_cyclic(|me| Ptlrpc {
            lnet,
            cpts,
            _fail_params: fail.register(&cfg.params),
            fail,
            cfg,
            xids: Xids::starting_at(unix_seconds),
            handle_count: AtomicU64::new(0),
            imports: RwLock::default(),
            exports: ExportTable::default(),
            targets: TargetTable::default(),
            blockers: Blockers::default(),
            services: Mutex::default(),
            #[cfg(feature = "faults")]
            faults: crate::Faults::default(),
            me: me.clone(),
        });
        let weak_rpc = rpc.me.clone();
        rpc.lnet
            .close_unused_peers(move || Some(weak_rpc.upgrade()?.peers_in_use()));
        rpc.serve_with(&CALLBACKS, callbacks::handle);
        evictor::start(&rpc);
        rpc
    }

    /// The LNet instance below.
    pub fn lnet(&self) -> &Arc<Lnet> {
        &self.lnet
    }

    /// The CPU partitions.
    pub fn cpts(&self) -> &Arc<CptTable> {
        &self.cpts
    }

    /// The configuration.
    pub fn config(&self) -> &RpcConfig {
        &self.cfg
    }

    /// Starts services, each on its portal, with the threads and partitions of this node's
    /// configuration. If a portal already has a service, that service stays and no other starts.
    ///
    /// # Errors
    ///
    /// [`RpcError::NoPartition`] if the configuration names a partition that does not exist.
    pub fn serve(&self, services: &[ServiceConfig]) -> Result<(), RpcError> {
        self.cfg.services.check(self.cpts.len())?;
        for service in services {
            self.serve_with(service, crate::server::handle);
        }
        Ok(())
    }

    fn serve_with(&self, cfg: &ServiceConfig, handler: crate::server::Handler) {
        let cfg = self.cfg.services.apply(cfg);
        let mut services = self.services.lock();
        services
            .entry(cfg.portal)
            .or_insert_with(|| Service::start(&self.me, &self.lnet, &self.cpts, &self.cfg, &cfg, handler));
    }

    /// The number of CPU partitions.
    pub fn partitions(&self) -> usize {
        self.cpts.len()
    }

    /// Adds a target, to which clients can connect from now on.
    pub fn add_target(&self, target: Arc<dyn Target>) -> Arc<TargetExports> {
        let exports = self.targets.add(target, self.cpts.len());
        exports.start_recovery(self.cpts.get(CptId(0)), &self.lnet);
        exports
    }

    /// Removes a target: refuses new connects, drops its exports, and waits at most 10 s for
    /// requests in progress.
    pub async fn remove_target(&self, uuid: &str) {
        if let Some(target) = self.targets.remove(uuid) {
            target.stop().await;
        }
    }

    /// Counters of each partition of each service, sorted by name and partition.
    pub fn stats(&self) -> Vec<ServiceStats> {
        let mut all: Vec<_> = self.services.lock().values().flat_map(|s| s.stats()).collect();
        all.sort_by_key(|s| (s.name, s.cpt));
        all
    }

    /// Number of requests of all imports that the servers have not committed.
    #[cfg(feature = "sim")]
    pub fn uncommitted_requests(&self) -> usize {
        let imports: Vec<_> = self.imports.read().values().cloned().collect();
        imports
            .iter()
            .filter_map(Weak::upgrade)
            .map(|import| import.uncommitted())
            .sum()
    }

    /// The clients of all targets: the target's UUID and the client's, and the number of requests
    /// in execution for the client.
    #[cfg(feature = "sim")]
    pub fn clients(&self) -> Vec<(String, String, usize)> {
        let of_target = |target: Arc<TargetExports>| target.all();
        let exports = self.targets.all().into_iter().flat_map(of_target);
        let show = |export: Arc<crate::Export>| {
            let (target, client) = (export.target_uuid().to_owned(), export.client_uuid.clone());
            (target, client, export.active_requests())
        };
        exports.map(show).collect()
    }

    /// Stops all targets and services. The owners of imports must disconnect them first.
    pub async fn shutdown(&self) {
        for target in self.targets.take_all() {
            target.stop().await;
        }
        for service in std::mem::take(&mut *self.services.lock()).into_values() {
            service.stop();
        }
    }

    /// The faults that the administrator injects.
    pub fn fail(&self) -> &Arc<FailPoints> {
        &self.fail
    }

    /// The faults to inject, for tests.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> &crate::Faults {
        &self.faults
    }

    /// A new unique handle, derived from the seed; never 0.
    pub(crate) fn new_handle(&self) -> u64 {
        loop {
            let n = self.handle_count.fetch_add(1, Ordering::Relaxed);
            let handle = mix(self.cfg.seed.wrapping_add(mix(n)));
            if handle != 0 {
                return handle;
            }
        }
    }

    pub(crate) fn xids(&self) -> &Xids {
        &self.xids
    }

    pub(crate) fn exports(&self) -> &ExportTable {
        &self.exports
    }

    pub(crate) fn targets(&self) -> &TargetTable {
        &self.targets
    }

    pub(crate) fn blockers(&self) -> &Blockers {
        &self.blockers
    }

    /// The partition that handles a peer's messages.
    pub(crate) fn cpt_of(&self, peer: Nid) -> &Cpt {
        self.cpts.get(self.lnet.cpt_of(peer))
    }

    pub(crate) fn add_import(&self, cookie: u64, import: &Arc<Import>) {
        self.imports.write().insert(cookie, Arc::downgrade(import));
    }

    pub(crate) fn forget_import(&self, cookie: u64) {
        self.imports.write().remove(&cookie);
    }

    /// The peers that are clients of a target of this node, or servers of an import.
    fn peers_in_use(&self) -> HashSet<Nid> {
        let mut peers: HashSet<Nid> = self.exports.peers().collect();
        // The lock must not be held below: dropping the last reference to an import takes it.
        let imports: Vec<_> = self.imports.read().values().cloned().collect();
        peers.extend(imports.iter().filter_map(|i| Some(i.upgrade()?.peer())));
        peers
    }

    /// The import with this handle.
    pub(crate) fn import(&self, cookie: u64) -> Option<Arc<Import>> {
        self.imports.read().get(&cookie)?.upgrade()
    }
}

impl Drop for Ptlrpc {
    /// Stops the services and drops all exports, without notifying peers, if [`Ptlrpc::shutdown`]
    /// has not done so.
    fn drop(&mut self) {
        for service in self.services.get_mut().values() {
            service.stop();
        }
        for target in self.targets.take_all() {
            target.by_client().lock().clear();
        }
    }
}

/// Mixes the bits of a number (splitmix64); a bijection.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
