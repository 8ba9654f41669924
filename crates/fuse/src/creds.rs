//! Who asks: a FUSE request does not say its supplementary groups; they are in /proc.

use client::{Cred, Groups, ProcessStatus};
use std::sync::Arc;

/// The caller of a request. Its supplementary groups are looked up only when something depends on them.
pub(crate) fn cred(req: &fuser::Request, umask: u32) -> Cred {
    let pid = req.pid();
    Cred {
        uid: req.uid(),
        gid: req.gid(),
        groups: Groups::Lazy(Arc::new(move || ProcessStatus::of(pid).groups())),
        pid,
        umask,
    }
}
