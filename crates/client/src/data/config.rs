//! The inputs of a mount's object targets.

use crate::client::Clock;
use crate::kernel::Kernel;
use crate::lmv::Lmv;
use crate::stats::MountStats;
use ldlm::UnusedLockBudget;
use params::Registry;
use std::sync::Arc;

/// The inputs of a mount's [`Lov`](super::Lov).
pub struct DataConfig {
    /// The UUID of the mount, the same for all its imports.
    pub client_uuid: String,
    /// Suffix of parameter and import names (`testfs-OST0000-osc-<instance>`).
    pub instance: String,
    /// The registry for the parameters.
    pub params: Registry,
    /// The kernel's caches, invalidated when the mount loses an extent lock or data.
    pub kernel: Kernel,
    /// The clock for mtime and ctime of data changes.
    pub clock: Clock,
    /// Whether to request times with nanoseconds from the targets.
    pub nanoseconds: bool,
    /// The limit of unused locks, shared by all targets.
    pub lock_budget: Arc<UnusedLockBudget>,
    /// The mount's statistics.
    pub(crate) stats: Arc<MountStats>,
    /// The metadata targets, which issue capabilities for objects.
    pub(crate) lmv: Arc<Lmv>,
}
