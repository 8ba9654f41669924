//! Registration of a target with the MGS, at every start, since its NIDs may have changed.
//!
//! Servers may start in any order. If the MGS does not answer soon, a target with a saved
//! configuration starts with it and registers later. A target without a saved configuration waits
//! for the MGS and for the registration of the first MDT.

use std::sync::Arc;
use std::time::Duration;

use mgc::{FsConfig, JoinToken, Mgc, MgcError};
use osd::TargetFiles;
use osd::target::TargetKind;
use rpc::{ImportState, Ptlrpc};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wire::{
    LDD_F_OPC_READY, LDD_F_OPC_REG, LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_WRITECONF,
    LUSTRE_VERSION_CODE, MTI_NIDS_MAX, MgsTargetInfo, Nid, Text,
};

use crate::{NodeError, TargetSpec};

/// Default time that a target without a saved configuration waits for the MGS.
pub const MGS_WAIT: Duration = Duration::from_secs(300);
/// Time that a target with a saved configuration waits for the MGS.
const MGS_WAIT_WITH_SAVED_CONFIG: Duration = Duration::from_secs(3);
/// A target that waits longer than this for the MGS logs a warning.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// Delay before retrying a registration that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Name of the empty file that marks a target that replaces a lost one with the same index. The
/// file is written by `nacre mkfs --replace`; the node removes it when the MGS has registered the
/// target.
pub const REPLACE_MARK: &str = "replace";

/// The registration of one target.
pub(crate) struct Registration {
    info: MgsTargetInfo,
    token: Option<JoinToken>,
    /// The files of the target, and the UUID of its store; `None` for a store that is new at each
    /// start.
    store: Option<(Arc<dyn TargetFiles>, String)>,
    report_waiting: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Registration {
    /// The registration of a target that runs at these NIDs.
    pub(crate) fn new(
        target: &TargetSpec,
        own_nids: &[Nid],
        report_waiting: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Registration, NodeError> {
        let label = &target.label;
        let kind = match label.kind {
            TargetKind::Mdt => LDD_F_SV_TYPE_MDT,
            _ => LDD_F_SV_TYPE_OST,
        };
        let nodes: Vec<String> = label.service_nodes.iter().map(Nid::to_string).collect();
        let params = match nodes.is_empty() {
            true => String::new(),
            false => format!("failover.node={}", nodes.join(":")),
        };
        let mut info = MgsTargetInfo {
            mti_lustre_ver: LUSTRE_VERSION_CODE,
            mti_stripe_index: label.index,
            mti_flags: kind | LDD_F_UPDATE | LDD_F_OPC_REG,
            mti_fsname: Text::truncated(&label.fsname),
            mti_svname: Text::truncated(&label.svname()),
            mti_uuid: Text::truncated(&format!("{}_UUID", label.svname())),
            mti_params: Text::truncated(&params),
            ..MgsTargetInfo::default()
        };
        let nids = own_nids.iter().take(MTI_NIDS_MAX as usize);
        info.mti_nid_count = nids.len() as u32;
        for (slot, nid) in info.mti_nids.iter_mut().zip(nids) {
            *slot = *nid;
        }
        let store = target.files.clone().map(|files| (files, label.uuid.clone()));
        if let Some((files, _)) = &store {
            let mark = files.read(REPLACE_MARK).map_err(|source| NodeError::File {
                name: REPLACE_MARK,
                source,
            })?;
            info.mti_flags |= mark.map_or(0, |_| LDD_F_WRITECONF);
        }
        Ok(Registration {
            info,
            token: target.token.clone(),
            store,
            report_waiting,
        })
    }

    /// Registers the target, waiting at most `wait` for the MGS. A target with a saved
    /// configuration waits at most [`MGS_WAIT_WITH_SAVED_CONFIG`]; then the result is `false`, and
    /// [`Registration::keep_registered`] registers the target later.
    pub(crate) async fn register_at_start(
        &self,
        mgc: &Mgc,
        has_saved_config: bool,
        wait: Duration,
    ) -> Result<bool, NodeError> {
        let limit = if has_saved_config {
            MGS_WAIT_WITH_SAVED_CONFIG.min(wait)
        } else {
            wait
        };
        if let Ok(registered) = timeout(limit, self.register_and_log(mgc, limit)).await {
            return Ok(registered.map(|()| true)?);
        }
        let name = self.name();
        if has_saved_config {
            tracing::warn!("{name}: the MGS does not answer: starting with the saved configuration");
            return Ok(false);
        }
        mgc.wait_connected().await?;
        Err(NodeError::NotRegistered {
            svname: name,
            fsname: self.info.mti_fsname.to_string(),
            waited: limit,
        })
    }

    /// The registration of a target that has started as this instance.
    pub(crate) fn of_instance(mut self, instance: u32) -> Registration {
        self.info.mti_instance = instance;
        self
    }

    /// Registers the target if [`Registration::register_at_start`] has not. Then reports that it is
    /// ready, so that the MGS tells the clients where it is. When the configuration
    /// lists this target at other NIDs, registers again to find out whether another target has
    /// taken its index. If so, the MGS refuses, and this target stops serving. Returns when the
    /// connection to the MGS ends.
    pub(crate) async fn keep_registered(
        mut self,
        registered: bool,
        rpc: Arc<Ptlrpc>,
        mgc: Arc<Mgc>,
        mut config: watch::Receiver<Arc<FsConfig>>,
    ) {
        if registered {
            self.mark_registered();
        }
        let mut must_register = true;
        loop {
            if must_register {
                match self.register(&mgc).await {
                    Ok(()) if self.info.mti_flags & LDD_F_OPC_READY != 0 => {}
                    Ok(()) => {
                        self.mark_registered();
                        continue;
                    }
                    Err(e @ (MgcError::Refused { .. } | MgcError::NotAdmitted { .. })) => {
                        let name = self.name();
                        tracing::error!("{name} stops serving: {e}");
                        rpc.remove_target(&format!("{name}_UUID")).await;
                        return;
                    }
                    // This process is stopping.
                    Err(_) if mgc.import().state() == ImportState::Closed => return,
                    Err(e) => {
                        lnet::warn_rate_limited!("{}: {e}", self.name());
                        sleep(RETRY_DELAY).await;
                        continue;
                    }
                }
            }
            if config.changed().await.is_err() {
                return;
            }
            must_register = self.is_listed_elsewhere(&config.borrow_and_update());
        }
    }

    fn name(&self) -> String {
        self.info.mti_svname.to_string()
    }

    /// Clears the flags of a first registration, and removes the mark of `nacre mkfs --replace`.
    /// Later registrations only check that the index still belongs to this target.
    fn mark_registered(&mut self) {
        self.info.mti_flags &= !(LDD_F_UPDATE | LDD_F_WRITECONF | LDD_F_OPC_REG);
        self.info.mti_flags |= LDD_F_OPC_READY;
        if let Some((files, _)) = &self.store
            && let Err(e) = files.remove(REPLACE_MARK)
        {
            tracing::warn!("cannot remove {REPLACE_MARK} in {}: {e}", files.place());
        }
    }

    /// Whether the configuration lists this target only at NIDs of other nodes.
    fn is_listed_elsewhere(&self, config: &FsConfig) -> bool {
        let name = self.name();
        let own_nids = self.info.mti_nids.iter().take(self.info.mti_nid_count as usize);
        let known = config.mdts.iter().chain(&config.osts).find(|t| t.name == name);
        known.is_some_and(|known| !own_nids.clone().any(|nid| known.nids.contains(nid)))
    }

    async fn register(&self, mgc: &Mgc) -> Result<(), MgcError> {
        let store = self.store.as_ref().map(|(_, uuid)| uuid.as_str());
        let registered = mgc.register_with(self.info.clone(), store, self.token.as_ref());
        registered.await.map(drop)
    }

    /// Registers the target; logs a warning if the MGS does not register it soon. The caller waits
    /// at most `limit`.
    async fn register_and_log(&self, mgc: &Mgc, limit: Duration) -> Result<(), MgcError> {
        let mut registration = std::pin::pin!(self.register(mgc));
        if let Ok(registered) = timeout(WARN_AFTER, &mut registration).await {
            return registered;
        }
        let import = mgc.import();
        let reason = match (import.state(), import.connect_error()) {
            (ImportState::Full, _) => {
                format!("the MGS waits for the first MDT of {}", self.info.mti_fsname)
            }
            (_, Some(e)) => format!("cannot connect to {}: {e}", import.peer()),
            (_, None) => format!("no answer from {}", import.peer()),
        };
        let name = self.name();
        let text = format!(
            "{name}: waiting at most {} s (--wait) for the MGS to register it: {reason}",
            limit.as_secs()
        );
        tracing::warn!("{text}");
        (self.report_waiting)(&text);
        registration.await?;
        tracing::info!("{name}: registered with the MGS");
        Ok(())
    }
}
