//! Space and file counts of the file system.

use crate::client::{Client, STATFS_TIMEOUT};
use crate::mdc::Mdc;
use crate::stats::Operation;
use cpt::JoinSet;
use rpc::Request;
use std::time::Duration;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{Errno, MDS_STATFS, MdtBody, OBD_CONNECT2_SUM_STATFS, ObdStatfs, OstIndex, WireStruct};

/// How long a statfs result is cached.
const STATFS_AGE: Duration = Duration::from_secs(1);

/// Space and file counts of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub bsize: u32,
    /// Total blocks of `bsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks available to ordinary users.
    pub bavail: u64,
    /// Number of used and free inodes.
    pub files: u64,
    /// Number of free inodes.
    pub ffree: u64,
    /// Largest length of a name, in bytes.
    pub namelen: u32,
}

/// Sums up the space of the object targets. The free inodes are the smaller of two numbers: the
/// free inodes of the metadata targets (`mdt`: their sum) and the free objects.
fn aggregate<'a>(mdt: &ObdStatfs, osts: impl Iterator<Item = &'a ObdStatfs> + Clone) -> StatFs {
    let bsize = osts
        .clone()
        .map(|o| o.os_bsize)
        .filter(|b| *b > 0)
        .max()
        .unwrap_or(mdt.os_bsize.max(512));
    let blocks = |field: fn(&ObdStatfs) -> u64| {
        osts.clone()
            .map(|o| field(o).saturating_mul(u64::from(o.os_bsize)) / u64::from(bsize))
            .sum()
    };
    // A file needs an inode of an MDT, and usually one object.
    let objects: Option<u64> = osts
        .clone()
        .filter(|o| o.os_files > 0)
        .map(|o| o.os_ffree)
        .reduce(u64::saturating_add);
    let ffree = mdt.os_ffree.min(objects.unwrap_or(u64::MAX));
    StatFs {
        bsize,
        blocks: blocks(|o| o.os_blocks),
        bfree: blocks(|o| o.os_bfree),
        bavail: blocks(|o| o.os_bavail),
        files: mdt.os_files - mdt.os_ffree.min(mdt.os_files) + ffree,
        ffree,
        namelen: if mdt.os_namelen == 0 { 255 } else { mdt.os_namelen },
    }
}

/// A request for the space of one metadata target. With a `timeout`, the request also fails at once
/// if the import is not connected.
pub(super) fn statfs_request(mdc: &Mdc, timeout: Option<Duration>) -> Request {
    // A target that can return the sum over all targets returns its own numbers if the request has
    // a body.
    let can_sum = mdc.import.has2(OBD_CONNECT2_SUM_STATFS);
    let bufs = if can_sum {
        vec![MdtBody::default().to_bytes()]
    } else {
        Vec::new()
    };
    Request {
        timeout,
        no_delay: timeout.is_some(),
        ..Request::new(MDS_STATFS, bufs)
    }
}

impl Client {
    /// The file system's space and file counts, at most a second old.
    ///
    /// # Errors
    ///
    /// The error of MDT0000 if no metadata target answers. Targets that do not answer are left out.
    pub async fn statfs(&self) -> Result<StatFs, Errno> {
        let _timer = self.stats.time(Operation::Statfs);
        let mut cached = self.statfs.lock().await;
        if let Some((received_at, sum)) = &*cached
            && received_at.elapsed() < STATFS_AGE
        {
            return Ok(*sum);
        }
        // MDT0000 has the root, so its answer is worth the wait, unless another target answers.
        let first_timeout = match self.lmv.first().is_connected() {
            false if self.lmv.all().skip(1).any(|mdc| mdc.is_connected()) => Some(STATFS_TIMEOUT),
            _ => None,
        };
        let ((mut mdt, mut others), osts) = tokio::join!(self.mdts_statfs(first_timeout), self.lov.statfs());
        if mdt.is_err() && !others.is_empty() {
            mdt = Ok(others.swap_remove(0).1);
        }
        if let Ok(first) = &mut mdt {
            for (_, other) in others {
                first.os_files = first.os_files.saturating_add(other.os_files);
                first.os_ffree = first.os_ffree.saturating_add(other.os_ffree);
            }
        }
        let sum = aggregate(&mdt?, osts.iter().map(|(_, space)| space));
        *cached = Some((Instant::now(), sum));
        Ok(sum)
    }

    /// The space of each metadata target, by index. Targets that do not answer are missing.
    pub async fn mdt_space(&self) -> Vec<(u32, ObdStatfs)> {
        let (first, others) = self.mdts_statfs(Some(STATFS_TIMEOUT)).await;
        let first = first.ok().map(|space| (self.lmv.first().index, space));
        first.into_iter().chain(others).collect()
    }

    /// The space of MDT0000, and of the other metadata targets that answer within
    /// [`STATFS_TIMEOUT`]. `first_timeout` is the limit for MDT0000; `None` waits as long as
    /// necessary, because MDT0000 has the file system's root.
    async fn mdts_statfs(
        &self,
        first_timeout: Option<Duration>,
    ) -> (Result<ObdStatfs, Errno>, Vec<(u32, ObdStatfs)>) {
        let mut tasks = JoinSet::new();
        for mdc in self.lmv.all().skip(1).cloned() {
            let request = statfs_request(&mdc, Some(STATFS_TIMEOUT));
            tasks.spawn(async move {
                Some((
                    mdc.index,
                    mdc.import.call(request).await.ok()?.get(bufs::OBD_STATFS).ok()?,
                ))
            });
        }
        let first = self.lmv.first();
        let (first, others) = tokio::join!(
            first.import.call(statfs_request(first, first_timeout)),
            tasks.join_all()
        );
        let mut others: Vec<(u32, ObdStatfs)> = others.into_iter().flatten().collect();
        others.sort_by_key(|(index, _)| *index);
        (
            first
                .map_err(Errno::from)
                .and_then(|reply| reply.get(bufs::OBD_STATFS)),
            others,
        )
    }

    /// The space of each object target, by index. Targets that do not answer are missing.
    pub async fn ost_space(&self) -> Vec<(OstIndex, ObdStatfs)> {
        self.lov.statfs().await
    }
}

#[cfg(test)]
mod tests {
    use super::aggregate;
    use wire::ObdStatfs;

    #[test]
    fn space_is_the_sum_of_the_object_targets() {
        let mdt = ObdStatfs {
            os_files: 100,
            os_ffree: 60,
            os_bsize: 4096,
            os_namelen: 255,
            ..ObdStatfs::default()
        };
        let ost = |blocks, bsize| ObdStatfs {
            os_blocks: blocks,
            os_bfree: 5,
            os_bsize: bsize,
            ..ObdStatfs::default()
        };
        let sum = aggregate(&mdt, [ost(10, 4096), ost(40, 1024)].iter());
        assert_eq!((sum.bsize, sum.blocks, sum.files, sum.ffree), (4096, 20, 100, 60));
    }

    #[test]
    fn free_inodes_are_limited_by_free_objects() {
        let inodes = |os_files, os_ffree| ObdStatfs {
            os_files,
            os_ffree,
            os_bsize: 4096,
            ..ObdStatfs::default()
        };
        let (mdt, osts) = (inodes(100, 60), [inodes(50, 10), inodes(50, 20)]);
        let sum = aggregate(&mdt, osts.iter());
        assert_eq!((sum.files, sum.ffree), (70, 30));
        // An OST that reports no object counts sets no limit.
        assert_eq!(aggregate(&mdt, [inodes(0, 0)].iter()).ffree, 60);
    }

    #[test]
    fn a_file_system_without_object_targets_has_no_space() {
        assert_eq!(aggregate(&ObdStatfs::default(), [].iter()).blocks, 0);
    }
}
