//! Credentials of a request's caller. A FUSE request carries no supplementary groups; `/proc` has
//! them.

use client::{Caller, Cred, Groups, ProcessStatus};
use std::sync::Arc;

/// The caller of a request.
pub(crate) fn caller(req: &fuser::Request) -> Caller {
    Caller {
        pid: req.pid(),
        uid: req.uid(),
        gid: req.gid(),
    }
}

/// The credentials of a request's caller. The supplementary groups are read only when an access
/// check needs them.
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
