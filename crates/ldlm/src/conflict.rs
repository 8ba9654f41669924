//! Decides whether two locks of one resource conflict.

use crate::lock::Lock;
use crate::mode::LockMode;
use crate::policy::{Extent, Policy};

/// Whether the two locks, which are of the same resource, conflict. The holders matter only for
/// flocks, because ranges of one owner never conflict, and for locks that the server takes on
/// behalf of a client.
pub(crate) fn conflict(a: &Lock, b: &Lock) -> bool {
    match (&a.policy, &b.policy) {
        _ if a.is_on_behalf_of(b) || b.is_on_behalf_of(a) => false,
        (Policy::Extent(x), Policy::Extent(y)) => extents_conflict(a.mode, x, b.mode, y),
        _ if a.mode.compatible(b.mode) => false,
        (Policy::Ibits(x), Policy::Ibits(y)) => x.bits & y.bits != 0,
        (Policy::Flock(x), Policy::Flock(y)) => (a.holder, x.owner) != (b.holder, y.owner) && x.overlaps(y),
        _ => true,
    }
}

/// Two group locks are compatible if their group ids are equal; the other modes follow the
/// compatibility table. Extents without a common byte never conflict.
fn extents_conflict(a_mode: LockMode, a: &Extent, b_mode: LockMode, b: &Extent) -> bool {
    let compatible = a_mode.compatible(b_mode)
        && (a_mode != LockMode::Group || b_mode != LockMode::Group || a.gid == b.gid);
    !compatible && a.overlaps(b)
}
