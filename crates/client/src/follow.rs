//! Follows the configuration of a mounted file system: new targets, and targets that move to other
//! NIDs.
//!
//! The MGS revokes the mount's lock on the configuration when it changes, so the mount learns of
//! the change within a second. Before that, the metadata target may allocate an object on a target
//! that the mount does not know. The mount then reads the configuration at once, and operations
//! that need the target wait.

use crate::client::Client;
use crate::data::DataFile;
use crate::layout::FileLayout;
use mgc::{FsConfig, NidTable, TargetConf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use wire::Fid;

/// The longest time that an operation waits for the configuration with an unknown target.
const LEARN_TARGETS_WAIT_MAX: Duration = Duration::from_secs(20);

/// Applies each change of the configuration until the client is unmounted or dropped.
pub(crate) async fn follow(client: Weak<Client>, mut log: watch::Receiver<Arc<FsConfig>>) {
    while log.changed().await.is_ok() {
        let Some(client) = client.upgrade() else { return };
        client.apply_config(log.borrow_and_update().clone());
    }
}

/// Reconnects to targets that have started again, until the client is unmounted or dropped.
pub(crate) async fn follow_locations(client: Weak<Client>, mut table: watch::Receiver<Arc<NidTable>>) {
    while table.changed().await.is_ok() {
        let Some(client) = client.upgrade() else { return };
        client.apply_locations(&table.borrow_and_update().clone());
    }
}

impl Client {
    fn apply_locations(&self, table: &NidTable) {
        if self.unmounted.load(Ordering::Acquire) {
            return;
        }
        self.lov.apply_locations(table);
        for mdc in self.lmv.all() {
            if let Some(location) = table.of_kind(true).find(|l| l.index == mdc.index) {
                mdc.import.target_started(&location.nids, location.instance);
            }
        }
    }

    fn apply_config(&self, config: Arc<FsConfig>) {
        if self.unmounted.load(Ordering::Acquire) {
            return;
        }
        self.lov.update(&config);
        for target in config.mdts.iter().filter(|t| t.active) {
            match self.lmv.by_index(target.index) {
                Ok(mdc) => mdc.import.set_nids(&target.nids),
                Err(_) => self.add_mdt(target),
            }
        }
        *self.config.write() = config;
    }

    /// Connects to a metadata target that the file system has got since the mount.
    fn add_mdt(&self, target: &TargetConf) {
        let groups = self.mdc_builder.add(&self.lmv, target);
        if self.unmounted.load(Ordering::Acquire) {
            return;
        }
        self.param_groups.lock().extend(groups);
        if let Ok(mdc) = self.lmv.by_index(target.index) {
            mdc.import.start_connecting();
        }
    }

    /// The data of a file. If the mount does not know a target of the layout, it reads the
    /// configuration first. If the target is still unknown then, its object is missing in the
    /// result.
    pub(crate) async fn data(&self, fid: Fid, layout: Arc<FileLayout>) -> Arc<DataFile> {
        if !self.lov.knows_targets(&layout) {
            // On the heap: every operation on a file moves its future, which contains this one.
            let learn_targets = Box::pin(self.learn_targets(&layout));
            let read_config = tokio::time::timeout(LEARN_TARGETS_WAIT_MAX, learn_targets).await;
            if read_config.is_err() || !self.lov.knows_targets(&layout) {
                lnet::warn_rate_limited!(%fid, "the file has an object on an OST that the mount does not know: its data there cannot be accessed");
            }
        }
        let data = self.lov.file(fid, layout);
        self.adopt_objects_if_current(fid, &data);
        data
    }

    /// Reads the configuration to learn the targets of a layout. Only adds targets; [`follow`]
    /// handles moves, because it sees all changes in order.
    async fn learn_targets(&self, layout: &FileLayout) {
        let _learn_lock = self.unknown_targets.lock().await;
        if self.lov.knows_targets(layout) {
            return;
        }
        match self.mgc.read_config(&format!("{}-client", self.fsname)).await {
            Ok(config) if !self.unmounted.load(Ordering::Acquire) => self.lov.add_new_targets(&config),
            Ok(_) => {}
            Err(e) => lnet::warn_rate_limited!("cannot read the configuration for an unknown OST: {e}"),
        }
    }
}
