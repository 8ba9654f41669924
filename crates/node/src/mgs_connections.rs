//! The node's connections to MGSs, and the parameters that these MGSs keep for all nodes
//! (`lctl set_param -P`).

use std::sync::Arc;

use mgc::{FsConfig, Mgc};
use osd::target::TargetLabel;
use params::Registry;
use tokio::sync::watch;
use wire::Nid;

use crate::{Node, NodeError};

/// The configuration log with the parameters that the MGS keeps for every node.
pub(crate) const PARAMS_LOG: &str = "params";

impl Node {
    /// The connection to a target's MGS; a target without `mgsnode` uses the MGS of this node. The
    /// MGS need not run yet.
    pub(crate) fn mgc_of(&self, label: &TargetLabel) -> Result<Arc<Mgc>, NodeError> {
        let nids = if label.mgsnode.is_empty() {
            self.lnet.nids()
        } else {
            label.mgsnode.clone()
        };
        if let Some(mgc) = self.mgc_at(&nids) {
            return Ok(mgc);
        }
        let uuid = self.config.random.uuid()?;
        let mgc = Mgc::start_connecting(&self.rpc, nids.clone(), &uuid);
        follow_params(mgc.follow_in_background(PARAMS_LOG), self.registry());
        self.state.lock().mgcs.push((nids, mgc.clone()));
        Ok(mgc)
    }

    /// The node's connection to the MGS at these NIDs, if there is one.
    pub(crate) fn mgc_at(&self, nids: &[Nid]) -> Option<Arc<Mgc>> {
        let state = self.state.lock();
        let found = state.mgcs.iter().find(|(known, _)| known == nids);
        found.map(|(_, mgc)| mgc.clone())
    }

    /// Connects to an MGS and applies the parameters that it keeps, now and after each change.
    pub(crate) async fn connect_mgc(&self, nids: &[Nid]) -> Result<Arc<Mgc>, NodeError> {
        let uuid = self.config.random.uuid()?;
        let mgc = Mgc::connect(&self.rpc, nids.to_vec(), &uuid).await?;
        let mut changes = mgc.follow(PARAMS_LOG).await?;
        apply_params(self.registry(), &changes.borrow_and_update());
        follow_params(changes, self.registry());
        Ok(mgc)
    }
}

/// Applies the parameters that the MGS keeps for every node.
pub(crate) fn apply_params(registry: &Registry, config: &FsConfig) {
    let params = config.params.iter();
    let values: Vec<_> = params.map(|p| (p.name.clone(), p.value.clone())).collect();
    for error in registry.keep(&values) {
        tracing::warn!("cannot set a parameter that the MGS keeps: {error}");
    }
}

/// After each change of the parameters that the MGS keeps, applies them.
fn follow_params(mut changes: watch::Receiver<Arc<FsConfig>>, registry: &Registry) {
    let registry = registry.clone();
    cpt::spawn(async move {
        while changes.changed().await.is_ok() {
            apply_params(&registry, &changes.borrow_and_update().clone());
        }
    });
}
