//! One process as a node of a file system: its network, targets and mounts, and the order in which
//! they start and stop.
//!
//! Start order: network, MGS, OSTs, MDTs, mounts. They stop in reverse order. Each stop step has a
//! time limit. If a step exceeds the limit, the node logs a warning and goes on, so a dead peer
//! cannot keep the process from exiting.

mod metrics;
mod mount;
mod stop;

pub(crate) use mount::MountRequest;
pub(crate) use stop::STOP_MAX;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use client::JobIds;
use cpt::CptTable;
use ldlm::LockLimits;
use lnet::{Lnet, LnetConfig};
use lst_console::{Console, SessionConfig};
use mdt::{Mdt, MdtConfig};
use mgc::{CapaKeyring, FsConfig, JoinToken, Mgc, Nodemaps};
use mgs::{Mgs, MgsConfig};
use osd::target::{TargetDir, TargetKind, TargetLabel};
use osd::{LocalStores, MemoryStores, Stores};
use ost::{Ost, OstConfig};
use params::{Group, ParamGuard, Registry};
use rpc::{Ptlrpc, RpcConfig, services};
use tokio::sync::watch;
use wire::{Nid, OstIndex};

use crate::cmd::mkfs;
use crate::fd_limit;
use crate::instance;
use crate::metrics::MetricsServer;
use crate::net::LocalEndpoint;
use crate::node_requests::NodeHandles;
use crate::process::MountRecord;
use crate::process_params::register_process_params;
use crate::registration::Registration;
use crate::saved_config::{self, SavedConfig};
use crate::start::StartConfig;
use crate::token;
use mount::{LocalMount, Mounts};
use stop::{STEP_MAX, await_all, limit_step};

/// Time for the answer to the command that ended a selftest session to leave this process.
const REPLY_TIME: Duration = Duration::from_millis(100);
/// The configuration log with the parameters that the MGS keeps for every node.
const PARAMS_LOG: &str = "params";

/// A target to run in this process.
pub(crate) enum LocalTarget {
    /// Stored in a directory, which this process has locked.
    Dir(TargetDir),
    /// Stored in memory, with at most this many bytes.
    Memory(TargetLabel, u64),
}

/// Capacity in bytes of a target that is stored in memory. As with tmpfs, all OSTs together get
/// half of the memory that the process may use; the MDT gets an eighth, the MGS a 64th.
pub(crate) fn memory_store_bytes(kind: TargetKind, osts: u32) -> u64 {
    let memory = cpt::memory_bytes();
    match kind {
        TargetKind::Ost => memory / 2 / u64::from(osts.max(1)),
        TargetKind::Mdt => memory / 8,
        TargetKind::Mgs => memory / 64,
    }
}

impl LocalTarget {
    pub(crate) fn label(&self) -> &TargetLabel {
        match self {
            LocalTarget::Dir(dir) => dir.label(),
            LocalTarget::Memory(label, _) => label,
        }
    }

    /// The directory of the target's store; `None` for a store in memory.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            LocalTarget::Dir(dir) => Some(dir.path()),
            LocalTarget::Memory(..) => None,
        }
    }

    fn stores(&self) -> Box<dyn Stores> {
        match self {
            LocalTarget::Dir(dir) => Box::new(LocalStores(dir.path().to_owned())),
            LocalTarget::Memory(_, bytes) => Box::new(MemoryStores(*bytes)),
        }
    }

    /// The join token in the target's directory: the MGS's own, or the copy that authorizes the
    /// target to register.
    pub(crate) fn token(&self) -> Result<Option<JoinToken>> {
        match self {
            LocalTarget::Dir(dir) if dir.label().kind == TargetKind::Mgs => {
                token::mgs_token(dir.path()).map(Some)
            }
            LocalTarget::Dir(dir) => token::read(dir.path()),
            LocalTarget::Memory(..) => Ok(None),
        }
    }

    /// Name and place, for error messages.
    fn describe(&self) -> String {
        match self {
            LocalTarget::Dir(dir) => format!("{} in {}", dir.label().svname(), dir.path().display()),
            LocalTarget::Memory(label, _) => label.svname(),
        }
    }
}

/// A target that is ready to start: registered with the MGS, or with a saved configuration.
struct TargetStart {
    registration: Registration,
    /// The connection to the target's MGS.
    mgc: Arc<Mgc>,
    /// The saved configuration, if the target is not registered.
    saved_config: Option<SavedConfig>,
}

/// A running node.
pub(crate) struct Node {
    /// The address at which the node started; a node on several networks has more NIDs.
    endpoint: LocalEndpoint,
    lnet: Arc<Lnet>,
    rpc: Arc<Ptlrpc>,
    registry: Registry,
    /// The names of jobs that the mounts' requests carry.
    jobs: Arc<JobIds>,
    mgs: Option<Arc<Mgs>>,
    /// The connection to each MGS used here, with the NIDs of the MGS.
    mgcs: Vec<(Vec<Nid>, Arc<Mgc>)>,
    mdts: Vec<Arc<Mdt>>,
    osts: Vec<Arc<Ost>>,
    mounts: Mounts,
    /// Names of the targets that run here, in start order.
    targets: Vec<String>,
    /// Locks on the targets' directories.
    dirs: Vec<TargetDir>,
    /// LNet selftest, if enabled.
    selftest: Option<Arc<lst::Node>>,
    /// The console of an LNet selftest session, with the session's key.
    console: Option<(u32, Arc<Console>)>,
    /// The HTTP server of the metrics, if enabled.
    metrics: Option<MetricsServer>,
    /// Registered parameters of the process itself.
    _params: Vec<ParamGuard>,
    /// Limit on the LDLM locks of all targets here.
    locks: Arc<LockLimits>,
    /// Registered parameters of that limit.
    _lock_params: Group,
}

impl Node {
    /// Starts a node with a network and without targets or mounts, at the address that `choose`
    /// returns. If `may_choose_again`, calls `choose` again when another process takes the address
    /// first.
    pub(crate) async fn start(
        cpts: Arc<CptTable>,
        start: &StartConfig,
        may_choose_again: bool,
        choose: impl Fn() -> Result<LocalEndpoint>,
    ) -> Result<Node> {
        start.rpc.services.check(cpts.len())?;
        let connections = fd_limit::connection_limits();
        let config = LnetConfig {
            accept_host_max: connections.host_max,
            accept_max: connections.total_max,
            ..start.lnet.clone()
        };
        let (endpoint, lnet) = Lnet::start(&cpts, &config, may_choose_again, choose).await?;
        let registry = Registry::default();
        let config = RpcConfig {
            seed: random_u64()?,
            params: registry.clone(),
            ..start.rpc.clone()
        };
        let rpc = Ptlrpc::start(lnet.clone(), cpts.clone(), config);
        let mut params = register_process_params(&registry, &cpts, &rpc);
        params.extend(lnet.register_params(&registry));
        params.extend(start.register_params(&registry));
        let jobs = Arc::<JobIds>::default();
        params.extend(jobs.register_params(&registry));
        let locks = Arc::<LockLimits>::default();
        let selftest = start
            .lst
            .enabled
            .then(|| Arc::new(lst::Node::start(&lnet, &start.lst)));
        let node = Node {
            selftest,
            console: None,
            _lock_params: locks.register_params(&registry),
            locks,
            endpoint,
            lnet,
            rpc,
            registry,
            jobs,
            mgs: None,
            mgcs: Vec::new(),
            mdts: Vec::new(),
            osts: Vec::new(),
            mounts: Mounts::default(),
            targets: Vec::new(),
            dirs: Vec::new(),
            metrics: None,
            _params: params,
        };
        Ok(node)
    }

    /// Starts the MGS and registers the MDTs and OSTs, so that the configuration logs have their
    /// current NIDs. Then starts the OSTs, and last the MDTs, which use the OSTs. In `targets`,
    /// MDT0 must precede the OSTs.
    ///
    /// The portals are open from the beginning: a peer that connects too early gets an error at
    /// once and retries much sooner than after a timeout.
    ///
    /// A target that cannot start without the MGS waits for it at most `wait`.
    pub(crate) async fn serve_all(&mut self, mut targets: Vec<LocalTarget>, wait: Duration) -> Result<()> {
        fd_limit::check(targets.len())?;
        for target in &mut targets {
            if let LocalTarget::Dir(dir) = target {
                dir.check_stores()?;
                instance::warn_restricted(dir.path(), dir.restrict()?);
                dir.raise_format()?;
            }
            self.rpc.serve(match target.label().kind {
                TargetKind::Mgs => services::MGS,
                TargetKind::Mdt => services::MDS,
                TargetKind::Ost => services::OSS,
            })?;
        }
        let (mgs, others): (Vec<LocalTarget>, Vec<LocalTarget>) = targets
            .into_iter()
            .partition(|t| t.label().kind == TargetKind::Mgs);
        for target in mgs {
            let result = self.start_mgs(&target, target.token()?).await;
            self.keep_target(target, result)?;
        }
        // MDT0 registers before the OSTs: the caller passes the targets in this order.
        let mut target_starts = Vec::new();
        for target in others {
            let target_start = self.prepare_start(&target, wait).await;
            target_starts.push((target_start.with_context(|| target.describe())?, target));
        }
        target_starts.sort_by_key(|(_, target)| target.label().kind == TargetKind::Mdt);
        for (target_start, target) in target_starts {
            let result = self.start_target(&target, target_start).await;
            self.keep_target(target, result)?;
        }
        Ok(())
    }

    /// Adds a started target to the node. Keeps the lock on the target's directory even if the
    /// start failed: the store may be open.
    fn keep_target(&mut self, target: LocalTarget, result: Result<()>) -> Result<()> {
        let svname = target.label().svname();
        let mut result = result.with_context(|| target.describe());
        if let LocalTarget::Dir(mut dir) = target {
            result = result.and_then(|()| Ok(dir.set_initialised()?));
            self.dirs.push(dir);
        }
        result?;
        self.targets.push(svname);
        Ok(())
    }

    async fn start_mgs(&mut self, target: &LocalTarget, token: Option<JoinToken>) -> Result<()> {
        let param = target
            .label()
            .params
            .iter()
            .find(|(name, _)| name == mkfs::SERVER_NIDS_PARAM);
        let server_nids = param.map(|(_, list)| list.parse()).transpose()?;
        let config = MgsConfig {
            seed: random_u64()?,
            params: self.registry.clone(),
            server_nids: server_nids.unwrap_or_default(),
            token,
            capa_keys: target.dir().map(|dir| dir.join(mgs::CAPA_KEYS_FILE)),
        };
        self.mgs = Some(Mgs::start_with(&self.rpc, &*target.stores(), config).await?);
        Ok(())
    }

    /// Registers a target with the MGS. If the MGS does not answer, a saved configuration takes the
    /// place of the registration.
    async fn prepare_start(&mut self, target: &LocalTarget, wait: Duration) -> Result<TargetStart> {
        let mgc = self.mgc_of(target.label())?;
        let saved_config = target
            .dir()
            .and_then(|dir| saved_config::read(dir, &target.label().fsname));
        let registration = Registration::new(target, &self.nids())?;
        let registered = registration
            .register_at_start(&mgc, saved_config.is_some(), wait)
            .await?;
        if registered {
            // Apply the permanent parameters before the target starts.
            apply_params(&self.registry, &mgc.follow(PARAMS_LOG).await?.borrow());
        }
        Ok(TargetStart {
            saved_config: saved_config.filter(|_| !registered),
            registration,
            mgc,
        })
    }

    async fn start_target(&mut self, target: &LocalTarget, target_start: TargetStart) -> Result<()> {
        let (label, stores) = (target.label(), target.stores());
        let (fsname, index) = (label.fsname.clone(), label.index);
        let TargetStart {
            registration,
            mgc,
            saved_config,
        } = target_start;
        let registered = saved_config.is_none();
        let MgsData {
            log,
            nodemaps,
            capa_keys,
        } = load_mgs_data(&mgc, &fsname, saved_config).await?;
        nodemaps.register_params(&self.registry);
        match label.kind {
            TargetKind::Mgs => {}
            TargetKind::Mdt => {
                let config = MdtConfig {
                    clock: Default::default(),
                    fsname,
                    index,
                    seed: random_u64()?,
                    params: self.registry.clone(),
                    locks: self.locks.clone(),
                    nodemaps: nodemaps.clone(),
                    capa_keys,
                };
                let mdt = Mdt::start(self.rpc.clone(), log.clone(), &*stores, config);
                self.mdts.push(mdt.await?);
            }
            TargetKind::Ost => {
                let config = OstConfig {
                    params: self.registry.clone(),
                    locks: self.locks.clone(),
                    nodemaps: nodemaps.clone(),
                    capa_keys,
                    ..OstConfig::new(&fsname, OstIndex(index))
                };
                let ost = Ost::start(&self.rpc, log.clone(), &*stores, config);
                self.osts.push(ost.await?);
            }
        }
        if let Some(dir) = target.dir() {
            tokio::spawn(saved_config::save_changes(dir.to_owned(), log.clone(), nodemaps));
        }
        tokio::spawn(registration.keep_registered(registered, self.rpc.clone(), mgc, log));
        Ok(())
    }

    /// The connection to a target's MGS; a target without `mgsnode` uses the MGS of this node. The
    /// MGS need not run yet.
    fn mgc_of(&mut self, label: &TargetLabel) -> Result<Arc<Mgc>> {
        let nids = if label.mgsnode.is_empty() {
            self.nids()
        } else {
            label.mgsnode.clone()
        };
        if let Some((_, mgc)) = self.mgcs.iter().find(|(mgs_nids, _)| *mgs_nids == nids) {
            return Ok(mgc.clone());
        }
        let mgc = Mgc::start_connecting(&self.rpc, nids.clone(), &mkfs::new_uuid()?);
        follow_params(mgc.follow_in_background(PARAMS_LOG), &self.registry);
        self.mgcs.push((nids, mgc.clone()));
        Ok(mgc)
    }

    /// Waits until the MDTs here can create objects on all OSTs here.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let ready = async {
            for mdt in &self.mdts {
                mdt.osts_ready(self.osts.len()).await;
            }
        };
        tokio::time::timeout(STEP_MAX, ready).await.with_context(|| {
            format!(
                "the MDT could not create objects on the OSTs within {} s",
                STEP_MAX.as_secs()
            )
        })
    }

    /// Stops everything in reverse start order. Detaches the mounts.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.mounts.close();
        if let Some(Err(e)) = limit_step("the mounts", self.unmount_all(true)).await {
            tracing::warn!("{e:#}");
        }
        if let Some((_, console)) = self.console.take() {
            limit_step("the session of LNet selftest", console.end()).await;
        }
        self.selftest = None;
        await_all(self.mounts.active.drain(..).map(LocalMount::end)).await;
        await_all(self.mdts.drain(..).map(|mdt| async move {
            limit_step("the MDT", mdt.stop()).await;
        }))
        .await;
        await_all(self.osts.drain(..).map(|ost| async move {
            limit_step("an OST", ost.stop()).await;
        }))
        .await;
        await_all(self.mgcs.drain(..).map(|(_, mgc)| async move {
            limit_step("the connection to the MGS", mgc.disconnect()).await;
        }))
        .await;
        let mut result = Ok(());
        if let Some(mgs) = self.mgs.take()
            && let Some(Err(e)) = limit_step("the MGS", mgs.stop()).await
        {
            result = Err(e).context("cannot stop the MGS");
        }
        limit_step("the RPC layer", self.rpc.shutdown()).await;
        limit_step("the network", self.lnet.shutdown()).await;
        self.dirs.clear();
        result
    }

    /// The address at which this node started.
    pub(crate) fn endpoint(&self) -> LocalEndpoint {
        self.endpoint
    }

    /// The NIDs of this node.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.lnet.nids()
    }

    /// The TCP port of this node.
    pub(crate) fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// Names of the targets of this node.
    pub(crate) fn target_names(&self) -> Vec<String> {
        self.targets.clone()
    }

    /// The mounts of this node.
    pub(crate) fn mount_records(&self) -> Vec<MountRecord> {
        self.mounts.active.iter().map(|m| m.record.clone()).collect()
    }

    /// Begins an LNet selftest session with its console in this process. Returns the console's
    /// first output.
    pub(crate) fn begin_session(&mut self, config: SessionConfig) -> Result<String> {
        let selftest = self
            .selftest
            .clone()
            .context("LNet selftest is not enabled: start with lnet_selftest=1")?;
        let key = config.key;
        let console = Console::start(selftest, config)
            .map_err(|e| anyhow::anyhow!("cannot begin an LNet selftest session: {e}"))?;
        let session_line = console.session_line();
        self.console = Some((key, Arc::new(console)));
        Ok(session_line)
    }

    /// Key of the LNet selftest session, if its console runs here.
    pub(crate) fn session_key(&self) -> Option<u32> {
        self.console.as_ref().map(|(key, _)| *key)
    }

    /// Resolves when the session of the console here has ended; never resolves without a console.
    pub(crate) fn wait_for_session_end(&self) -> impl Future<Output = ()> + use<> {
        let session = self.console.as_ref().map(|(_, console)| console.ended());
        async move {
            match session {
                Some(session) => {
                    session.await;
                    // Let the command that ended the session receive its answer.
                    tokio::time::sleep(REPLY_TIME).await;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// The parts of the node that answer control requests.
    pub(crate) fn handles(&self) -> NodeHandles {
        let mgcs = self.mgcs.iter().map(|(_, m)| m.clone()).collect();
        let clients = self
            .mounts
            .active
            .iter()
            .map(|m| (m.record.mountpoint.clone(), m.client.clone()))
            .collect();
        NodeHandles {
            clients,
            registry: self.registry.clone(),
            lnet: self.lnet.clone(),
            mgs: self.mgs.clone(),
            mgcs,
            targets: self.targets.clone(),
            console: self.console.as_ref().map(|(_, console)| console.clone()),
        }
    }
}

/// Connects to an MGS and applies the parameters that it keeps for every node
/// (`lctl set_param -P`), now and after each change.
async fn connect_mgc(rpc: &Arc<Ptlrpc>, registry: &Registry, nids: &[Nid]) -> Result<Arc<Mgc>> {
    let mgc = Mgc::connect(rpc, nids.to_vec(), &mkfs::new_uuid()?).await?;
    let mut changes = mgc.follow(PARAMS_LOG).await?;
    apply_params(registry, &changes.borrow_and_update());
    follow_params(changes, registry);
    Ok(mgc)
}

/// Applies the parameters that the MGS keeps for every node.
fn apply_params(registry: &Registry, config: &FsConfig) {
    let params = config.params.iter();
    let values: Vec<_> = params.map(|p| (p.name.clone(), p.value.clone())).collect();
    for error in registry.keep(&values) {
        tracing::warn!("cannot set a parameter that the MGS keeps: {error}");
    }
}

/// After each change of the parameters that the MGS keeps, applies them.
fn follow_params(mut changes: watch::Receiver<Arc<FsConfig>>, registry: &Registry) {
    let registry = registry.clone();
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            apply_params(&registry, &changes.borrow_and_update().clone());
        }
    });
}

/// Configuration that a target receives from the MGS.
struct MgsData {
    log: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
    capa_keys: Arc<CapaKeyring>,
}

/// Loads the configuration that a target needs, and follows the changes that the MGS sends. Starts
/// with the saved configuration, if any; otherwise waits for the configuration from the MGS.
async fn load_mgs_data(mgc: &Mgc, fsname: &str, saved_config: Option<SavedConfig>) -> Result<MgsData> {
    let logname = format!("{fsname}-client");
    Ok(match saved_config {
        Some(SavedConfig { config, nodemaps }) => MgsData {
            log: mgc.follow_in_background_from(&logname, config),
            nodemaps: mgc.nodemaps_in_background(nodemaps).await,
            // Keys are never saved: clients that need capabilities wait for the MGS.
            capa_keys: mgc.capa_keys_in_background().await,
        },
        None => MgsData {
            log: mgc.follow(&logname).await?,
            nodemaps: mgc.nodemaps().await?,
            capa_keys: mgc.capa_keys().await?,
        },
    })
}

/// Opens and locks the directories of all targets. Fails if one cannot be opened. Returns the
/// targets in the order of registration: MGS, MDTs, OSTs.
pub(crate) fn open_dirs(dirs: &[PathBuf]) -> Result<Vec<TargetDir>> {
    let open = |dir: &PathBuf| TargetDir::open(Path::new(dir));
    let mut targets = dirs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // All targets need the MGS, and the OSTs need the first MDT.
    targets.sort_by_key(|d| (d.label().kind as u8, d.label().index));
    Ok(targets)
}

/// A random number.
pub(crate) fn random_u64() -> Result<u64> {
    Ok(u64::from_le_bytes(mkfs::random_bytes()?))
}
