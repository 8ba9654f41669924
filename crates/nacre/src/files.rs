//! How many files this process may have open: as many as the system allows, and what that must be at least.
//!
//! Files that are open in a mount cost no descriptors. Targets need some for their stores, connections one each.

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process needs besides its targets.
const BASE: u64 = 128;
/// What a target needs: files of its index, and of objects in use.
const PER_TARGET: u64 = 128;

/// Takes as many as are allowed: programs start with fewer only because old ones could not handle more.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(e) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!("the limit of open files stays at {:?}: {e}", limit.current);
    }
}

/// Refuses to serve what there would be too few descriptors for.
pub(crate) fn enough_for(targets: usize) -> Result<()> {
    let needed = BASE + PER_TARGET * targets as u64;
    match getrlimit(Resource::Nofile).current {
        Some(has) if has < needed => bail!(
            "this process may have {has} files open and needs {needed} for {targets} targets: raise the hard limit \
             (ulimit -Hn {needed}, LimitNOFILE={needed})"
        ),
        _ => Ok(()),
    }
}

/// How many connections this process may be asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Connections {
    /// By one host.
    pub(crate) host_max: usize,
    /// By all hosts together.
    pub(crate) max: usize,
}

/// Shares of the descriptors: half are for connections that other hosts open, and no host takes more than a part of those.
pub(crate) fn connections() -> Connections {
    connections_of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn connections_of(descriptors: u64) -> Connections {
    let part = |n| usize::try_from(descriptors / n).unwrap_or(usize::MAX);
    Connections {
        host_max: part(8).clamp(64, 1024),
        max: part(2),
    }
}

#[cfg(test)]
mod tests {
    use super::connections_of;

    #[test]
    fn one_host_takes_only_a_part_of_the_descriptors() {
        for descriptors in [256, 1024, 4096, 20_000, 1 << 20] {
            let share = connections_of(descriptors);
            assert!(2 * share.host_max <= share.max && 2 * share.max as u64 <= descriptors);
        }
    }
}
