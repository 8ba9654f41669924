//! Follows the configuration of a mounted file system: object targets that join it, and targets that move.
//!
//! The MGS revokes the mount's lock when the configuration changes, so the mount knows within a second. The metadata target
//! may be faster, and put an object on a target that the mount does not know. Then the mount reads the configuration at
//! once, and what needs the target waits for that.

use crate::client::Client;
use crate::data::DataFile;
use crate::layout::LovLayout;
use mgc::FsConfig;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use wire::Fid;

/// How long a file waits until the mount has read the configuration because of a target that it does not know.
const UNKNOWN_MAX: Duration = Duration::from_secs(20);

/// Applies each change. Ends with the mount.
pub(crate) async fn follow(client: Weak<Client>, mut log: watch::Receiver<Arc<FsConfig>>) {
    while log.changed().await.is_ok() {
        let Some(client) = client.upgrade() else { return };
        client.apply(log.borrow_and_update().clone());
    }
}

impl Client {
    fn apply(&self, config: Arc<FsConfig>) {
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        self.lov.update(&config);
        for mdc in self.lmv.all() {
            if let Some(target) = config.mdts.iter().find(|t| t.index == mdc.index) {
                mdc.import.set_nids(&target.nids);
            }
        }
        *self.config.write() = config;
    }

    /// The data of a file. If the mount does not know a target of its layout, it reads the configuration first; a target that
    /// the configuration does not name either is missing in the data.
    pub(crate) async fn data(&self, fid: Fid, layout: Arc<LovLayout>) -> Arc<DataFile> {
        if !self.lov.knows(&layout) {
            let learned = tokio::time::timeout(UNKNOWN_MAX, self.learn_targets(&layout)).await;
            if learned.is_err() || !self.lov.knows(&layout) {
                lnet::warn_seldom!(%fid, "the file has an object on a target that the configuration does not name");
            }
        }
        self.lov.file(fid, layout)
    }

    /// Reads the configuration for the targets of a layout. Only adds targets: moves are for [`follow`], which sees all
    /// changes in their order.
    async fn learn_targets(&self, layout: &LovLayout) {
        let _one_at_a_time = self.unknown_targets.lock().await;
        if self.lov.knows(layout) {
            return;
        }
        match self.mgc.read_config(&format!("{}-client", self.fsname)).await {
            Ok(config) if !self.gone.load(Ordering::Acquire) => self.lov.add_new(&config),
            Ok(_) => {}
            Err(e) => lnet::warn_seldom!("{e}"),
        }
    }
}
