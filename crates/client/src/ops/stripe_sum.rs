//! The attributes of a striped directory: those of its stripes, summed up.

use super::lookup::GetattrBy;
use crate::attr::Attr;
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::ATTR_BITS;
use ldlm::{LockMode, LockRef};
use wire::striping::LmvLayout;
use wire::{Errno, Fid, Times};

/// The entries `.` and `..` of a directory, which each stripe's link count includes.
const OWN_LINKS: u32 = 2;

/// The sum of a directory's stripes.
#[derive(Default)]
pub(super) struct StripeSum {
    /// Number of subdirectories; `None`: a stripe's server does not count them.
    subdirs: Option<u32>,
    size: u64,
    blocks: u64,
    times: Times,
    /// Number of stripes without a lock on their attributes.
    uncovered: usize,
    /// The locks on the attributes of the stripes.
    pub(super) locks: Vec<LockRef>,
}

impl StripeSum {
    fn add(&mut self, stripe: &Attr, lock: Option<LockRef>) {
        // A link count of 1 means that the server has stopped to count.
        let subdirs = stripe.nlink.checked_sub(OWN_LINKS);
        self.subdirs = self.subdirs.zip(subdirs).map(|(sum, n)| sum.saturating_add(n));
        self.size = self.size.saturating_add(stripe.size);
        self.blocks = self.blocks.saturating_add(stripe.blocks);
        self.times = Times {
            atime: self.times.atime.max(stripe.atime),
            mtime: self.times.mtime.max(stripe.mtime),
            ctime: self.times.ctime.max(stripe.ctime),
        };
        self.uncovered += usize::from(lock.is_none());
        self.locks.extend(lock);
    }

    /// Whether locks cover the attributes of all stripes.
    pub(super) fn is_covered(&self) -> bool {
        self.uncovered == 0
    }

    /// The directory's attributes: permissions and owner of the whole, the rest of the stripes.
    pub(super) fn merge(&self, whole: &Attr) -> Attr {
        Attr {
            nlink: self.subdirs.map_or(1, |n| n.saturating_add(OWN_LINKS)),
            size: self.size,
            blocks: self.blocks,
            atime: self.times.atime,
            mtime: self.times.mtime,
            // A change of permissions may be newer on the whole.
            ctime: self.times.ctime.max(whole.ctime),
            ..whole.clone()
        }
    }
}

impl Client {
    /// Sums up the stripes of a directory, each cached or requested. Leaves out lost stripes.
    pub(super) async fn stripe_sum(
        &self,
        cred: &Cred,
        dir: Fid,
        layout: &LmvLayout,
    ) -> Result<StripeSum, Errno> {
        let mut sum = StripeSum {
            subdirs: Some(0),
            ..StripeSum::default()
        };
        let mut found = false;
        for stripe in layout.stripes.iter().copied().filter(|fid| !fid.is_zero()) {
            self.inodes.note_stripe(stripe, dir);
            let md = match self.md_by(cred, stripe, GetattrBy::Stripe).await {
                Err(Errno::ENOENT | Errno::ESTALE | Errno::ESHUTDOWN) => continue,
                md => md?,
            };
            found = true;
            let lock = self
                .lmv
                .mdc_of(stripe)
                .await?
                .find(stripe, LockMode::Pr, ATTR_BITS);
            let current = lock.as_ref().and_then(|_| {
                let inode = self.inodes.get(stripe)?;
                let mut state = inode.state.lock();
                if self.kernel.get().is_some() {
                    state.kernel_viewers.add(cred.pid);
                }
                state.md.clone()
            });
            let lock = lock.filter(|_| current.is_some());
            sum.add(&current.unwrap_or(md).attr, lock);
        }
        match found {
            true => Ok(sum),
            false => Err(Errno::ENOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StripeSum;
    use crate::attr::{Attr, S_IFDIR};
    use wire::Time;

    fn stripe(nlink: u32, size: u64, mtime: i64) -> Attr {
        Attr {
            mode: S_IFDIR,
            nlink,
            size,
            blocks: size / 512,
            mtime: Time::secs(mtime),
            ..Attr::default()
        }
    }

    fn sum(stripes: &[Attr]) -> Attr {
        let mut sum = StripeSum {
            subdirs: Some(0),
            ..StripeSum::default()
        };
        stripes.iter().for_each(|stripe| sum.add(stripe, None));
        assert!(!sum.is_covered());
        sum.merge(&Attr {
            mode: S_IFDIR | 0o750,
            nlink: 9,
            size: 7,
            ..Attr::default()
        })
    }

    #[test]
    fn sizes_and_subdirectories_add_up_and_the_latest_time_counts() {
        let attr = sum(&[stripe(2, 4096, 5), stripe(4, 8192, 3)]);
        assert_eq!((attr.nlink, attr.size, attr.blocks), (4, 12_288, 24));
        assert_eq!((attr.mtime, attr.mode), (Time::secs(5), S_IFDIR | 0o750));
    }

    #[test]
    fn a_stripe_without_a_link_count_leaves_the_directory_without_one() {
        assert_eq!(sum(&[stripe(1, 0, 0), stripe(4, 0, 0)]).nlink, 1);
    }
}
