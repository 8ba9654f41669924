//! The parameters of a target's recovery, as in Lustre: `recovery_status`, `recovery_time_soft`
//! and `recovery_time_hard`; and `abort_recovery`, which is a command in Lustre.

use super::machine::Window;
use crate::TargetExports;
use params::{Group, Param};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bound of the times, seconds.
const TIME_MAX: u64 = 24 * 3600;

/// The limits of a recovery's duration, seconds.
#[derive(Debug, Clone)]
pub(in crate::server) struct SharedWindow {
    soft: Arc<AtomicU64>,
    hard: Arc<AtomicU64>,
}

impl Default for SharedWindow {
    fn default() -> SharedWindow {
        let Window { soft, hard } = Window::default();
        SharedWindow {
            soft: Arc::new(soft.as_secs().into()),
            hard: Arc::new(hard.as_secs().into()),
        }
    }
}

impl SharedWindow {
    pub(super) fn get(&self) -> Window {
        let secs = |time: &AtomicU64| Duration::from_secs(time.load(Ordering::Relaxed));
        Window {
            soft: secs(&self.soft),
            hard: secs(&self.hard),
        }
    }
}

impl TargetExports {
    /// Adds the parameters of the recovery to the target's group.
    pub fn add_recovery_params(self: &Arc<Self>, group: &mut Group) {
        let window = self.window();
        let (shown, aborted) = (Arc::downgrade(self), Arc::downgrade(self));
        let show = move || shown.upgrade().map_or(String::new(), |e| e.recovery_status());
        let abort = move |_: &str| {
            if let Some(exports) = aborted.upgrade() {
                exports.abort_recovery();
            }
            Ok(())
        };
        let time = |time: &Arc<AtomicU64>, about| {
            let exports = Arc::downgrade(self);
            let note_change = move || {
                if let Some(exports) = exports.upgrade()
                    && let Some(recovery) = exports.recovery()
                {
                    recovery.wake.notify_one();
                }
            };
            Param::atomic(time.clone(), 1..=TIME_MAX)
                .when_set(note_change)
                .about(about)
        };
        group
            .add(
                "recovery_status",
                Param::read_only(show).about("the recovery of clients after the last start"),
            )
            .add(
                "recovery_time_soft",
                time(
                    &window.soft,
                    "how long the target waits for Lustre's clients, or for all clients after a move to another node, seconds",
                ),
            )
            .add(
                "recovery_time_hard",
                time(&window.hard, "how long a recovery may take, seconds"),
            )
            .add(
                "abort_recovery",
                Param::read_write(String::new, abort)
                    .about("any write ends the recovery: the clients that have not recovered are evicted"),
            );
    }
}
