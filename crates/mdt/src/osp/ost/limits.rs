//! Decides whether new files may use an OST: by its free space, and by the administrator's limit.

use std::sync::atomic::Ordering;

use super::{super::pool::MAX_PRECREATE, Ost, Watermarks};

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
            _ => String::new(),
        }
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
