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

/// How many connections one host may have opened: some of the descriptors are for the others, and for the targets.
pub(crate) fn connections_of_a_host() -> usize {
    let has = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(has / 8).unwrap_or(usize::MAX).clamp(64, 1024)
}
