//! The limit of open files of this process, and the descriptors that it needs.
//!
//! Files that programs open in a mount cost no descriptors. Each target needs [`FDS_PER_TARGET`],
//! each connection one.

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything besides targets and connections.
const BASE_FDS: u64 = 128;
/// Descriptors for a target: files of its index, and open objects.
const FDS_PER_TARGET: u64 = 128;

/// Raises the soft limit to the hard limit. The soft limit is lower only for old programs that use
/// `select`.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(e) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(
            "cannot raise the limit of open files, which stays at {:?}: {e}",
            limit.current
        );
    }
}

/// Fails if the limit of open files is too low for this many targets.
pub(crate) fn check(targets: usize) -> Result<()> {
    let needed = BASE_FDS + FDS_PER_TARGET * targets as u64;
    match getrlimit(Resource::Nofile).current {
        Some(available) if available < needed => bail!(
            "this process may have {available} files open and needs {needed} for {targets} targets: raise the hard \
             limit (ulimit -Hn {needed}, LimitNOFILE={needed})"
        ),
        _ => Ok(()),
    }
}

/// Maximum numbers of incoming connections.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// From one host.
    pub(crate) host_max: usize,
    /// From all hosts together.
    pub(crate) total_max: usize,
}

/// Limits from the descriptors of this process: half are for incoming connections; one host gets an
/// eighth of all, but at least 64 and at most 1024.
pub(crate) fn connection_limits() -> ConnectionLimits {
    limits_for(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn limits_for(descriptors: u64) -> ConnectionLimits {
    let fraction = |n| usize::try_from(descriptors / n).unwrap_or(usize::MAX);
    ConnectionLimits {
        host_max: fraction(8).clamp(64, 1024),
        total_max: fraction(2),
    }
}

#[cfg(test)]
mod tests {
    use super::limits_for;

    #[test]
    fn one_host_cannot_use_all_descriptors() {
        for descriptors in [256, 1024, 4096, 20_000, 1 << 20] {
            let limits = limits_for(descriptors);
            assert!(2 * limits.host_max <= limits.total_max && 2 * limits.total_max as u64 <= descriptors);
        }
    }
}
