//! What is agreed with the kernel when a session begins.

use crate::state::State;
use fuser::{InitFlags, KernelConfig};
use std::time::Duration;

/// Bytes of one write request.
const MAX_WRITE: u32 = 1 << 20;
/// Requests that the kernel may have under way in the background (pages of mappings, asynchronous direct I/O, closes): more
/// than those that can be expected to wait for a target that does not answer.
const MAX_BACKGROUND: u16 = 4096;

/// Asks the kernel for what makes the mount what it is; an old kernel does not have all of it.
pub(crate) fn negotiate(state: &State, config: &mut KernelConfig) {
    let wanted = [
        InitFlags::FUSE_POSIX_LOCKS,
        InitFlags::FUSE_FLOCK_LOCKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        InitFlags::FUSE_DONT_MASK,
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // The kernel would keep the set-group-ID bit at a write of a user outside the group.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_EXPORT_SUPPORT,
    ];
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!("this kernel has no {flag:?}");
        }
    }
    let mapped = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    if state.past_pages() && config.add_capabilities(mapped).is_err() {
        tracing::info!(
            "this kernel is older than 6.6 and maps only files that it keeps pages of: \
             what other clients append may be seen late by who has a file open"
        );
        state.keep_pages();
    }
    let _ = config.set_max_write(MAX_WRITE);
    let _ = config.set_max_background(MAX_BACKGROUND);
    let finest = if state.client.has_nanoseconds() {
        Duration::from_nanos(1)
    } else {
        Duration::from_secs(1)
    };
    let _ = config.set_time_granularity(finest);
}
