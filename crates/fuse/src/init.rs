//! FUSE_INIT: the features and limits negotiated with the kernel at the start of a session.

use crate::state::State;
use fuser::{InitFlags, KernelConfig};
use std::time::Duration;

/// Largest number of bytes in one write request.
const MAX_WRITE: u32 = 1 << 20;
/// Largest number of concurrent background requests of the kernel (page I/O, asynchronous direct
/// I/O, releases). Large, because a request to an unresponsive target occupies its place for long.
const MAX_BACKGROUND: u16 = 4096;

/// Enables the features that the mount uses, except those that the kernel lacks, and sets the
/// limits. Without [`InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP`], the mount uses the page cache.
pub(crate) fn negotiate(state: &State, config: &mut KernelConfig) {
    let features = [
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
        // Without this, the kernel keeps the set-group-ID bit on a write by a user outside the
        // group.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_EXPORT_SUPPORT,
    ];
    for flag in features {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!("the kernel does not support {flag:?}");
        }
    }
    let mmap_direct_io = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    if state.direct_io() && config.add_capabilities(mmap_direct_io).is_err() {
        tracing::info!(
            "the kernel is older than 6.6 and cannot combine direct I/O with mmap, so I/O uses its page cache: \
             a program with an open file may see appends of other clients late"
        );
        state.use_page_cache();
    }
    let _ = config.set_max_write(MAX_WRITE);
    let _ = config.set_max_background(MAX_BACKGROUND);
    let granularity = if state.client.has_nanoseconds() {
        Duration::from_nanos(1)
    } else {
        Duration::from_secs(1)
    };
    let _ = config.set_time_granularity(granularity);
}
