//! Starts the targets of a node.

use std::sync::Arc;
use std::time::Duration;

use cpt::JoinSet;
use mdt::{Mdt, MdtConfig};
use mgc::{CapaKeyring, FsConfig, Mgc, Nodemaps};
use mgs::{Mgs, MgsConfig};
use osd::target::TargetKind;
use ost::{Ost, OstConfig};
use rpc::services;
use tokio::sync::watch;
use wire::OstIndex;

use crate::mgs_connections::{PARAMS_LOG, apply_params};
use crate::registration::Registration;
use crate::saved_config::{self, SavedConfig};
use crate::target::{RunningTarget, SERVER_NIDS_PARAM, Service, TargetSpec, TargetStart};
use crate::{Node, NodeError};

impl Node {
    /// Starts the MGS and registers the MDTs and OSTs, so that the configuration logs have their
    /// current NIDs. Then starts the OSTs, and last the MDTs, which use the OSTs. In `targets`,
    /// MDT0 must precede the OSTs.
    ///
    /// The portals are open from the beginning: a peer that connects too early gets an error at
    /// once and retries much sooner than after a timeout.
    ///
    /// A target that cannot start without the MGS waits for it at most `wait`.
    ///
    /// # Errors
    ///
    /// [`NodeError::Target`] with the name of the first target that does not start. Targets that
    /// started before it run until [`Node::stop`].
    pub async fn serve(&self, targets: Vec<TargetSpec>, wait: Duration) -> Result<(), NodeError> {
        for target in &targets {
            self.open_portals(target.label.kind)?;
        }
        let (mgs, others): (Vec<_>, Vec<_>) = targets
            .into_iter()
            .partition(|target| target.label.kind == TargetKind::Mgs);
        for target in mgs {
            let service = self.start_mgs(&target).await;
            self.keep_target(&target, service.map(|mgs| (mgs, JoinSet::new())))
                .await?;
        }
        // MDT0 registers before the OSTs: the caller passes the targets in this order.
        let mut target_starts = Vec::new();
        for target in others {
            let target_start = self.prepare_start(&target, wait).await;
            target_starts.push((target_start.map_err(target.name_error())?, target));
        }
        target_starts.sort_by_key(|(_, target)| target.label.kind == TargetKind::Mdt);
        for (target_start, target) in target_starts {
            let started = self.start_target(&target, target_start).await;
            self.keep_target(&target, started).await?;
        }
        Ok(())
    }

    /// Opens the portals of targets of this kind: until a target starts, its clients get an error
    /// at once instead of no answer.
    ///
    /// # Errors
    ///
    /// A service cannot start.
    pub fn open_portals(&self, kind: TargetKind) -> Result<(), NodeError> {
        self.rpc.serve(match kind {
            TargetKind::Mgs => services::MGS,
            TargetKind::Mdt => services::MDS,
            TargetKind::Ost => services::OSS,
        })?;
        Ok(())
    }

    /// Stops one target; its node goes on. A target with the same name can start afterwards.
    ///
    /// # Errors
    ///
    /// [`NodeError::NoTarget`], or the error of stopping an MGS or OST.
    pub async fn stop_target(&self, svname: &str) -> Result<(), NodeError> {
        let target = {
            let mut state = self.state.lock();
            let index = state.targets.iter().position(|target| target.svname == svname);
            index.map(|index| state.targets.remove(index))
        };
        let target = target.ok_or_else(|| NodeError::NoTarget {
            svname: svname.to_owned(),
        })?;
        target.service.stop().await
    }

    /// Adds a target to the node if it has started.
    async fn keep_target(
        &self,
        target: &TargetSpec,
        started: Result<(Service, JoinSet<()>), NodeError>,
    ) -> Result<(), NodeError> {
        let (service, tasks) = started.map_err(target.name_error())?;
        self.state.lock().targets.push(RunningTarget {
            svname: target.label.svname(),
            service,
            _tasks: tasks,
        });
        let recorded = target.stores.set_has_run().await;
        recorded.map_err(target.name_error())
    }

    async fn start_mgs(&self, target: &TargetSpec) -> Result<Service, NodeError> {
        let params = &target.label.params;
        let server_nids = match params.iter().find(|(name, _)| name == SERVER_NIDS_PARAM) {
            Some((_, list)) => list.parse().map_err(|e| NodeError::LabelParam {
                name: SERVER_NIDS_PARAM,
                value: list.clone(),
                why: format!("{e}"),
            })?,
            None => Default::default(),
        };
        let (random, clock) = (self.config.random.clone(), self.config.clock.clone());
        let config = MgsConfig {
            seed: random.number()?,
            params: self.registry().clone(),
            server_nids,
            token: target.token.clone(),
            files: target.files.clone(),
            new_key: Arc::new(move || random.bytes()),
            clock: Arc::new(move || clock.now()),
        };
        let mgs = Mgs::start(&self.rpc, &*target.stores, config).await?;
        Ok(Service::Mgs(mgs))
    }

    /// Registers a target with the MGS. If the MGS does not answer, a saved configuration takes the
    /// place of the registration.
    async fn prepare_start(&self, target: &TargetSpec, wait: Duration) -> Result<TargetStart, NodeError> {
        let mgc = self.mgc_of(&target.label)?;
        let saved_config = target
            .files
            .as_ref()
            .and_then(|files| saved_config::read(&**files, &target.label.fsname));
        let report_waiting = self.config.report_waiting.clone();
        let registration = Registration::new(target, &self.lnet.nids(), report_waiting)?;
        let registered = registration
            .register_at_start(&mgc, saved_config.is_some(), wait)
            .await?;
        if registered {
            // Apply the permanent parameters before the target starts.
            apply_params(self.registry(), &mgc.follow(PARAMS_LOG).await?.borrow());
        }
        Ok(TargetStart {
            saved_config: saved_config.filter(|_| !registered),
            registration,
            mgc,
        })
    }

    /// Starts an MDT or OST, and the tasks that keep it registered and save its configuration.
    async fn start_target(
        &self,
        target: &TargetSpec,
        target_start: TargetStart,
    ) -> Result<(Service, JoinSet<()>), NodeError> {
        let (label, stores) = (&target.label, &*target.stores);
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
        } = load_mgs_data(&mgc, &label.fsname, saved_config).await?;
        nodemaps.register_params(self.registry());
        let service = if label.kind == TargetKind::Mdt {
            let config = MdtConfig {
                clock: self.config.clock.clone(),
                fsname: label.fsname.clone(),
                index: label.index,
                seed: self.config.random.number()?,
                params: self.registry().clone(),
                locks: self.locks.clone(),
                nodemaps: nodemaps.clone(),
                capa_keys,
            };
            let mdt = Mdt::start(self.rpc.clone(), log.clone(), stores, config).await?;
            mdt.follow_nid_table(mgc.follow_nid_table(&label.fsname));
            Service::Mdt(mdt)
        } else {
            let config = OstConfig {
                params: self.registry().clone(),
                locks: self.locks.clone(),
                nodemaps: nodemaps.clone(),
                capa_keys,
                ..OstConfig::new(&label.fsname, OstIndex(label.index))
            };
            Service::Ost(Ost::start(&self.rpc, log.clone(), stores, config).await?)
        };
        let mut tasks = JoinSet::new();
        if let Some(files) = target.files.clone() {
            tasks.spawn(saved_config::save_changes(files, log.clone(), nodemaps));
        }
        let registration = registration.of_instance(service.instance());
        tasks.spawn(registration.keep_registered(registered, self.rpc.clone(), mgc, log));
        Ok((service, tasks))
    }
}

/// Configuration that a target receives from the MGS.
struct MgsData {
    log: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
    capa_keys: Arc<CapaKeyring>,
}

/// Loads the configuration that a target needs, and follows the changes that the MGS sends. Starts
/// with the saved configuration, if any; otherwise waits for the configuration from the MGS.
async fn load_mgs_data(
    mgc: &Mgc,
    fsname: &str,
    saved_config: Option<SavedConfig>,
) -> Result<MgsData, NodeError> {
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
