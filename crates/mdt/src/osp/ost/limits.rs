//! Decides whether new files may use an OST: by its free space, the state of its stores, and the
//! administrator's limit.

use std::sync::atomic::Ordering;

use wire::{OS_STATFS_DEGRADED, OS_STATFS_READONLY, ObdStatfs};

use super::{super::pool::MAX_PRECREATE, Ost, Watermarks};

/// The failure of an OST's stores, by its statfs; empty: none.
fn describe_failure(space: &ObdStatfs) -> &'static str {
    match space.os_state {
        state if state & OS_STATFS_READONLY != 0 => "its store failed and is read-only",
        state if state & OS_STATFS_DEGRADED != 0 => "its disk has errors",
        _ => "",
    }
}

/// Maximum and default of `max_create_count`, as in Lustre; the pool's own limit is lower.
pub(crate) const MAX_CREATE_COUNT: u64 = 20_000;

impl Ost {
    /// Maximum number of objects per precreation.
    pub(super) fn precreate_max(&self) -> u32 {
        self.max_create_count
            .load(Ordering::Relaxed)
            .min(MAX_PRECREATE.into()) as u32
    }

    /// Whether the administrator has set `max_create_count` to 0.
    pub(super) fn is_draining(&self) -> bool {
        self.max_create_count.load(Ordering::Relaxed) == 0
    }

    /// Why new files avoid the OST although it is connected; empty if they do not.
    pub(crate) fn exclusion(&self) -> String {
        if self.is_draining() {
            return "max_create_count=0".to_owned();
        }
        match self.space.load().as_deref() {
            Some((_, space)) if self.watermarks.is_full() => Watermarks::describe(space),
            Some((_, space)) => describe_failure(space).to_owned(),
            None => String::new(),
        }
    }

    /// Logs a change of the state of the OST's stores, and wakes creates that wait for an OST.
    pub(super) fn report_failure(&self, before: Option<&ObdStatfs>, space: &ObdStatfs) {
        let was = before.map_or("", describe_failure);
        match describe_failure(space) {
            failure if failure == was => return,
            "" => tracing::info!("{}: its stores work again", self.name),
            failure => tracing::warn!(
                "{}: {failure}; new files use other OSTs. The log of the OST has the cause",
                self.name
            ),
        }
        self.signals.wakeup.send_replace(());
    }

    /// Decides again whether new files may use the OST, after a change of a limit.
    pub(crate) fn reapply_limits(&self) {
        self.apply_watermarks();
        self.precreate_wakeup.notify_one();
        self.signals.wakeup.send_replace(());
    }

    /// Compares the last statfs with the watermarks.
    pub(super) fn apply_watermarks(&self) {
        let Some((_, space)) = self.space.load().as_deref().copied() else {
            return;
        };
        if self.watermarks.update(&space) {
            let state = if self.watermarks.is_full() {
                "full"
            } else {
                "has space again"
            };
            tracing::warn!("{}: {state}: {}", self.name, Watermarks::describe(&space));
            self.signals.wakeup.send_replace(());
        }
    }
}
