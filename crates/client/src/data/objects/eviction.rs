//! Handles an eviction: drops locks and caches, and reports lost data.

use super::OstObjects;
use crate::data::brw;
use crate::data::object::Object;
use cpt::JoinSet;
use std::collections::HashSet;
use std::sync::Arc;
use wire::{Errno, Fid};

/// Largest number of concurrent invalidations in the kernel after an eviction.
const INVALIDATIONS_MAX: usize = 8;

impl OstObjects {
    /// Drops locks and caches after the target evicted this client.
    pub(super) fn handle_eviction(&self) {
        self.report_lost_changes();
        let objects = self.all_objects();
        self.osc.locks().clear();
        objects.iter().for_each(|object| object.handle_eviction());
        self.dirty.take();
        if let Some(ost) = self.weak_self.upgrade() {
            self.osc
                .spawn(async move { ost.invalidate_evicted(objects).await });
        }
    }

    /// Records the loss of changes that the target had confirmed but not committed when its machine
    /// stopped, and that it could not execute again. The files' descriptors then fail.
    pub(super) fn report_lost_changes(&self) {
        let lost = self.osc.import().take_lost();
        let files: HashSet<Fid> = lost
            .iter()
            .filter_map(|request| brw::changed_file(request))
            .collect();
        if !files.is_empty() {
            let (ost, files) = (self.osc.name(), files.len());
            tracing::error!(
                ost,
                files,
                "written data that was not synced is lost: the OST's machine stopped. The open descriptors of the files fail with EIO"
            );
        }
        for file in files {
            self.osc.record_loss(file, Errno::EIO);
        }
    }

    /// Invalidates these objects' files in the kernel: first all attributes, for which the kernel
    /// never waits, then the pages.
    async fn invalidate_evicted(self: Arc<OstObjects>, objects: Vec<Arc<Object>>) {
        if let Some(kernel) = self.osc.kernel().get() {
            for object in &objects {
                kernel.inval_inode(object.file(), -1, 0).await;
            }
        }
        let mut tasks = JoinSet::new();
        for object in objects {
            if tasks.len() >= INVALIDATIONS_MAX {
                tasks.join_next().await;
            }
            let ost = self.clone();
            tasks.spawn(async move {
                if let Some(kernel) = ost.osc.kernel().get() {
                    kernel.inval_inode(object.file(), 0, 0).await;
                }
                object.finish_page_invalidation();
                ost.drop_if_unused(&object);
            });
        }
        while tasks.join_next().await.is_some() {}
    }
}
