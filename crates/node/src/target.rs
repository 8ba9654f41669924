//! Targets to start, and targets that run.

use std::sync::Arc;

use cpt::JoinSet;
use mdt::Mdt;
use mgc::{JoinToken, Mgc};
use mgs::Mgs;
use osd::target::{TargetKind, TargetLabel};
use osd::{MemoryStores, Stores, TargetFiles};
use ost::Ost;

use crate::NodeError;
use crate::registration::Registration;
use crate::saved_config::SavedConfig;
use crate::steps::limit_step;

/// Name of the parameter in an MGS's label that lists the nodes, besides the MGS's own host, that
/// may register targets.
pub const SERVER_NIDS_PARAM: &str = "server_nids";

/// A target to start.
pub struct TargetSpec {
    /// The target's identity. A target without `mgsnode` uses the MGS of its own node.
    pub label: TargetLabel,
    /// The target's index and objects.
    pub stores: Box<dyn Stores>,
    /// The target's small files: a copy of its configuration, with which it can start before its
    /// MGS; the MGS's keys. `None`: the target has none, and is new at each start.
    pub files: Option<Arc<dyn TargetFiles>>,
    /// The join token: the MGS's own, or the copy that authorizes the target to register from a
    /// node that the MGS does not list.
    pub token: Option<JoinToken>,
}

impl TargetSpec {
    /// A target in memory, with at most `bytes` bytes.
    pub fn in_memory(label: TargetLabel, bytes: u64) -> TargetSpec {
        TargetSpec {
            label,
            stores: Box::new(MemoryStores(bytes)),
            files: None,
            token: None,
        }
    }

    /// Name and place, for error messages.
    fn describe(&self) -> String {
        let svname = self.label.svname();
        match &self.files {
            Some(files) => format!("{svname} in {}", files.place()),
            None => svname,
        }
    }

    /// Adds the target's name and place to an error.
    pub(crate) fn name_error<E: Into<NodeError>>(&self) -> impl FnOnce(E) -> NodeError {
        let target = self.describe();
        move |e| NodeError::Target {
            target,
            source: Box::new(e.into()),
        }
    }
}

/// A target that is ready to start: registered with the MGS, or with a saved configuration.
pub(crate) struct TargetStart {
    pub(crate) registration: Registration,
    /// The connection to the target's MGS.
    pub(crate) mgc: Arc<Mgc>,
    /// The saved configuration, if the target is not registered.
    pub(crate) saved_config: Option<SavedConfig>,
}

/// A target that runs.
pub(crate) struct RunningTarget {
    pub(crate) svname: String,
    pub(crate) service: Service,
    /// The tasks that keep the target registered and save its configuration.
    pub(crate) _tasks: JoinSet<()>,
}

/// The service of a target.
#[derive(Clone)]
pub(crate) enum Service {
    Mgs(Arc<Mgs>),
    Mdt(Arc<Mdt>),
    Ost(Arc<Ost>),
}

impl Service {
    pub(crate) fn kind(&self) -> TargetKind {
        match self {
            Service::Mgs(_) => TargetKind::Mgs,
            Service::Mdt(_) => TargetKind::Mdt,
            Service::Ost(_) => TargetKind::Ost,
        }
    }

    /// The number of the target's start, `ocd_instance`; an MGS has none.
    pub(crate) fn instance(&self) -> u32 {
        match self {
            Service::Mgs(_) => 0,
            Service::Mdt(mdt) => mdt.instance(),
            Service::Ost(ost) => ost.instance(),
        }
    }

    /// Stops the target within [`crate::STEP_MAX`]. Returns the error of an MGS or OST.
    pub(crate) async fn stop(self) -> Result<(), NodeError> {
        match self {
            Service::Mdt(mdt) => {
                limit_step("the MDT", mdt.stop()).await;
                Ok(())
            }
            Service::Ost(ost) => match limit_step("an OST", ost.stop()).await {
                Some(result) => result.map_err(NodeError::from),
                None => Ok(()),
            },
            Service::Mgs(mgs) => match limit_step("the MGS", mgs.stop()).await {
                Some(result) => result.map_err(NodeError::from),
                None => Ok(()),
            },
        }
    }
}
