//! The node of a process, with the parts that only a process has: locked target directories, kernel
//! mounts, metrics over HTTP, and the console of an LNet selftest session. The crate `node` does
//! the rest.

mod metrics;
mod mount;

pub(crate) use mount::{LocalMount, MountRequest, check_saved};

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use lst_console::{Console, SessionConfig};
use mgc::JoinToken;
use node::{Node, NodeConfig, RandomSource, STEP_MAX, TargetSpec, await_all, limit_step};
use osd::target::{Fence, TargetDir, TargetKind, TargetLabel};
use osd::{LocalFiles, LocalStores};
use params::ParamGuard;
use wire::{Nid, OstIndex};

use crate::instance::Instance;
use crate::metrics::MetricsServer;
use crate::net::LocalEndpoint;
use crate::node_requests::NodeHandles;
use crate::output::shell_word;
use crate::process::MountRecord;
use crate::process_params::register_process_params;
use crate::start::StartConfig;
use crate::{daemon, fd_limit, instance, standby, token};
use mount::Mounts;

/// Time for the last answer to leave this process after a command has ended the selftest session.
const ANSWER_DRAIN_TIME: Duration = Duration::from_millis(100);
/// Time limit of stopping a process: longer than its nine stop steps together, of which one is the
/// end of the mounts.
pub(crate) const STOP_MAX: Duration = STEP_MAX.saturating_mul(12).saturating_add(client::SAVE_MAX);

/// A target to run in this process.
pub(crate) enum LocalTarget {
    /// Stored in a directory, which this process has locked.
    Dir(TargetDir),
    /// Stored in memory, with at most this many bytes.
    Memory(TargetLabel, u64),
}

/// Capacity in bytes of a target that is stored in memory. As with tmpfs, all OSTs together get
/// half of the memory that the process may use; all MDTs together get an eighth, the MGS a 64th.
pub(crate) fn memory_store_bytes(kind: TargetKind, (mdts, osts): (u32, u32)) -> u64 {
    let memory = cpt::memory_bytes();
    match kind {
        TargetKind::Ost => memory / 2 / u64::from(osts.max(1)),
        TargetKind::Mdt => memory / 8 / u64::from(mdts.max(1)),
        TargetKind::Mgs => memory / 64,
    }
}

/// Prepares the directory of a target that starts: checks its stores, restricts its permissions,
/// upgrades its format. Returns the target.
fn target_in(dir: &mut TargetDir) -> Result<TargetSpec> {
    dir.check_stores()?;
    instance::warn_restricted(dir.path(), dir.restrict()?);
    dir.raise_format()?;
    Ok(TargetSpec {
        label: dir.label().clone(),
        stores: Box::new(LocalStores::of(dir)),
        files: Some(Arc::new(LocalFiles(dir.path().to_owned()))),
        token: token_in(dir)?,
    })
}

/// The join token in a target's directory: the MGS's own, or the copy that authorizes the target to
/// register.
fn token_in(dir: &TargetDir) -> Result<Option<JoinToken>> {
    match dir.label().kind {
        TargetKind::Mgs => token::mgs_token(dir.path()).map(Some),
        _ => token::read(dir.path()),
    }
}

/// Targets of a node that are ready to start.
pub(crate) struct StartingTargets {
    node: Arc<Node>,
    specs: Vec<TargetSpec>,
    /// Those of targets that another server can take over by force.
    fences: Vec<Fence>,
}

impl StartingTargets {
    /// Starts the targets, as [`Node::serve`] does.
    pub(crate) async fn finish(self, wait: Duration) -> Result<()> {
        self.node.serve(self.specs, wait).await?;
        match self.fences.is_empty() {
            true => Ok(()),
            false => standby::remove_earlier_generations(self.fences),
        }
    }
}

/// The running node of this process.
pub(crate) struct ProcessNode {
    /// The address at which the node started; a node on several networks has more NIDs.
    endpoint: LocalEndpoint,
    node: Arc<Node>,
    mounts: Mounts,
    /// Locks on the targets' directories.
    dirs: Vec<TargetDir>,
    /// The console of an LNet selftest session, with the session's key.
    console: Option<(u32, Arc<Console>)>,
    /// The HTTP server of the metrics, if enabled.
    metrics: Option<MetricsServer>,
    /// Registered parameters of the process itself.
    _params: Vec<ParamGuard>,
}

impl ProcessNode {
    /// Starts a node with a network and without targets or mounts, at the address that `choose`
    /// returns. If `retry_if_taken`, calls `choose` again when another process takes the address
    /// first.
    pub(crate) async fn start(
        cpts: Arc<CptTable>,
        start: &StartConfig,
        retry_if_taken: bool,
        choose: impl Fn() -> Result<LocalEndpoint>,
    ) -> Result<ProcessNode> {
        start.rpc.services.check(cpts.len())?;
        let connections = fd_limit::connection_limits();
        let config = LnetConfig {
            accept_host_max: connections.host_max,
            accept_max: connections.total_max,
            ..start.lnet.clone()
        };
        let (endpoint, lnet) = Lnet::start(&cpts, &config, retry_if_taken, choose).await?;
        let node = Node::start(
            lnet,
            NodeConfig {
                rpc: start.rpc.clone(),
                selftest: start.lst.clone(),
                report_waiting: Arc::new(daemon::report_waiting),
                ..NodeConfig::new(RandomSource::system())
            },
        )?;
        let mut params = register_process_params(node.registry());
        params.extend(start.register_params(node.registry()));
        Ok(ProcessNode {
            endpoint,
            node,
            mounts: Mounts::default(),
            dirs: Vec::new(),
            console: None,
            metrics: None,
            _params: params,
        })
    }

    /// Starts targets, as [`Node::serve`] does.
    pub(crate) async fn serve(&mut self, targets: Vec<LocalTarget>, wait: Duration) -> Result<()> {
        self.begin_serve(targets)?.finish(wait).await
    }

    /// Prepares the start of targets. Keeps the locks on their directories even if the start fails:
    /// the stores may be open.
    pub(crate) fn begin_serve(&mut self, targets: Vec<LocalTarget>) -> Result<StartingTargets> {
        fd_limit::check(targets.len())?;
        let mut specs = Vec::new();
        let mut fences = Vec::new();
        for target in targets {
            match target {
                LocalTarget::Dir(mut dir) => {
                    let svname = dir.label().svname();
                    let spec = target_in(&mut dir);
                    let place = || format!("{svname} in {}", dir.path().display());
                    specs.push(spec.with_context(place)?);
                    if dir.fence().is_shared() {
                        dir.record_nids(&self.nids())?;
                        fences.push(dir.fence().clone());
                    }
                    self.dirs.push(dir);
                }
                LocalTarget::Memory(label, bytes) => specs.push(TargetSpec::in_memory(label, bytes)),
            }
        }
        if !fences.is_empty() {
            standby::end_when_taken_over(fences.clone())?;
        }
        Ok(StartingTargets {
            node: self.node.clone(),
            specs,
            fences,
        })
    }

    /// Opens the portals of targets that start later ([`Node::open_portals`]).
    pub(crate) fn open_portals(&self, kinds: impl Iterator<Item = TargetKind>) -> Result<()> {
        for kind in kinds {
            self.node.open_portals(kind)?;
        }
        Ok(())
    }

    /// Waits as [`Node::wait_until_ready`] does; returns the OSTs that are too full for new files.
    pub(crate) async fn wait_until_ready(&self) -> Result<Vec<OstIndex>> {
        Ok(self.node.wait_until_ready().await?)
    }

    /// Stops everything in reverse start order. Detaches the mounts.
    ///
    /// # Errors
    ///
    /// Names the changes of mounts and of the MGS that may be lost. Everything has stopped even
    /// then.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.mounts.close();
        if let Some(Err(e)) = limit_step("the mounts", self.unmount_all(true)).await {
            tracing::warn!("{e:#}");
        }
        if let Some((_, console)) = self.console.take() {
            limit_step("the session of LNet selftest", console.end()).await;
        }
        let ending = self.mounts.take_all().into_iter();
        let unsaved = await_all(ending.map(|mount| async move { mount.end().await.to_vec() })).await;
        let stopped = self.node.stop().await.context("cannot stop the MGS");
        self.dirs.clear();
        stopped?;
        check_saved(&unsaved.concat())
    }

    /// The address at which this node started.
    pub(crate) fn endpoint(&self) -> LocalEndpoint {
        self.endpoint
    }

    /// The NIDs of this node.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.node.lnet().nids()
    }

    /// The TCP port of this node.
    pub(crate) fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// Names of the targets of this node.
    pub(crate) fn target_names(&self) -> Vec<String> {
        self.node.target_names()
    }

    /// The mounts of this node.
    pub(crate) fn mount_records(&self) -> Vec<MountRecord> {
        self.mounts.active.iter().map(|m| m.record.clone()).collect()
    }

    /// Begins an LNet selftest session with its console in this process. Returns the console's
    /// first output.
    pub(crate) fn begin_session(&mut self, config: SessionConfig) -> Result<String> {
        let selftest = self
            .node
            .selftest()
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
                    tokio::time::sleep(ANSWER_DRAIN_TIME).await;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// The node's part in LNet.
    pub(crate) fn lnet(&self) -> Arc<Lnet> {
        self.node.lnet().clone()
    }

    /// The parts of the node that answer control requests.
    pub(crate) fn handles(&self) -> NodeHandles {
        let clients = self
            .mounts
            .active
            .iter()
            .map(|m| (m.record.mountpoint.clone(), m.client.clone()))
            .collect();
        NodeHandles {
            clients,
            registry: self.node.registry().clone(),
            lnet: self.node.lnet().clone(),
            mgs: self.node.mgs(),
            mgcs: self.node.mgcs(),
            targets: self.node.target_names(),
            mdts: self.node.mdts(),
            console: self.console.as_ref().map(|(_, console)| console.clone()),
        }
    }
}

/// Opens and locks the directories of all targets. Fails if one cannot be opened. Returns the
/// targets in the order of registration: MGS, MDTs, OSTs.
pub(crate) fn open_dirs(dirs: &[PathBuf]) -> Result<Vec<TargetDir>> {
    let open = |dir: &PathBuf| {
        if Instance::exists_in(dir) {
            bail!(
                "{} is a file system of `nacre up`: start it with `nacre up --dir {}`",
                dir.display(),
                shell_word(dir)
            );
        }
        Ok(TargetDir::open(dir)?)
    };
    let mut targets = dirs.iter().map(open).collect::<Result<Vec<_>>>()?;
    sort_for_start(&mut targets);
    Ok(targets)
}

/// Sorts targets in the order of registration: all targets need the MGS, and the OSTs need the
/// first MDT.
pub(crate) fn sort_for_start(targets: &mut [TargetDir]) {
    targets.sort_by_key(|d| (d.label().kind as u8, d.label().index));
}
