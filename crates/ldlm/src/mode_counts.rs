//! Counts of a resource's granted locks by mode and inode bit. If the counts of all incompatible
//! modes are 0, no granted lock conflicts, and a scan is not needed.

use crate::lock::Lock;
use crate::mode::LockMode;
use crate::policy::Policy;
use wire::MDS_INODELOCK_FULL;

/// One column per known inode bit, and one for all others.
const COLUMNS: usize = MDS_INODELOCK_FULL.trailing_ones() as usize + 1;
/// The bit of the last column.
const OTHERS: u64 = MDS_INODELOCK_FULL + 1;

/// Number of locks by mode ([`LockMode::index`]) and column. Locks without inode bits (plain,
/// extent, flock) are in the first column.
#[derive(Debug, Default)]
pub(crate) struct ModeCounts([[u32; COLUMNS]; LockMode::COUNT]);

/// The columns of a policy.
fn columns(policy: &Policy) -> impl Iterator<Item = usize> + use<> {
    let mask = match policy {
        Policy::Ibits(i) if i.bits >= OTHERS => i.bits | OTHERS,
        Policy::Ibits(i) => i.bits,
        _ => 1,
    };
    (0..COLUMNS).filter(move |column| mask & 1 << column != 0)
}

impl ModeCounts {
    pub(crate) fn add(&mut self, mode: LockMode, policy: &Policy) {
        columns(policy).for_each(|column| self.0[mode.index()][column] += 1);
    }

    pub(crate) fn remove(&mut self, mode: LockMode, policy: &Policy) {
        columns(policy).for_each(|column| self.0[mode.index()][column] -= 1);
    }

    /// Whether any counted lock can conflict with `want`. Always true if `want` is a group lock,
    /// because its conflicts depend on the group id.
    pub(crate) fn may_block(&self, want: &Lock) -> bool {
        let excludes = |mode: &usize| want.mode.compat_mask() & 1 << mode == 0;
        want.mode == LockMode::Group
            || columns(&want.policy).any(|column| {
                (0..LockMode::COUNT)
                    .filter(excludes)
                    .any(|mode| self.0[mode][column] > 0)
            })
    }
}
