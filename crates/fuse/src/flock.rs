//! File locks of programs: fcntl(2) and flock(2).

use crate::state::State;
use client::{Cred, FlockRange, FlockType, ProcessStatus};
use fuser::{Errno, FileHandle, LockOwner, ReplyLock};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use wire::Fid;

/// The owners that have requested locks through each open file, by the file's handle. The last
/// close of the file releases their locks, because the kernel sends no release of the locks that
/// belong to the open file itself (flock(2), and open file description locks). The locks of a
/// process end earlier, with its first close of the file.
#[derive(Default)]
pub(crate) struct FileLockOwners(Mutex<HashMap<u64, BTreeSet<u64>>>);

impl FileLockOwners {
    /// Records that an owner requests a lock through an open file.
    pub(crate) fn add(&self, fh: u64, owner: u64) {
        self.0.lock().entry(fh).or_default().insert(owner);
    }

    /// Removes and returns the owners of an open file at its last close.
    pub(crate) fn take(&self, fh: u64) -> BTreeSet<u64> {
        self.0.lock().remove(&fh).unwrap_or_default()
    }
}

/// The interval of checking a waiting process for signals.
const LOCK_SIGNAL_POLL: Duration = Duration::from_millis(250);

/// The client's form of a lock request. `typ`: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`, else `EINVAL`.
/// `start` and `end`: the first and the last byte.
pub(crate) fn lock_range(
    typ: i32,
    (start, end): (u64, u64),
    owner: LockOwner,
    pid: u32,
) -> Result<FlockRange, Errno> {
    let ty = match typ as libc::c_int {
        libc::F_RDLCK => FlockType::Read,
        libc::F_WRLCK => FlockType::Write,
        libc::F_UNLCK => FlockType::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    Ok(FlockRange {
        ty,
        start,
        end,
        owner: owner.0,
        pid,
    })
}

/// Replies with the conflicting lock, or with `F_UNLCK` and the requested range if there is none.
pub(crate) fn reply_conflict(conflict: Option<FlockRange>, (start, end): (u64, u64), reply: ReplyLock) {
    let Some(conflict) = conflict else {
        return reply.locked(start, end, i32::from(libc::F_UNLCK as i16), 0);
    };
    let typ = if conflict.ty == FlockType::Read {
        libc::F_RDLCK
    } else {
        libc::F_WRLCK
    };
    reply.locked(conflict.start, conflict.end, i32::from(typ as i16), conflict.pid);
}

/// Takes or releases a lock through an open file or directory. `waiter`: the thread that waits
/// until no lock conflicts, or until it gets a signal (`EINTR`). `None`: a conflict is an error
/// (`EAGAIN`).
pub(crate) async fn set_lock(
    state: &State,
    cred: &Cred,
    (fid, fh): (Fid, FileHandle),
    range: FlockRange,
    waiter: Option<u32>,
) -> Result<(), wire::Errno> {
    if range.ty != FlockType::Unlock {
        state.lock_owners.add(fh.0, range.owner);
    }
    // Files and directories are numbered separately: a file may have the same handle as a
    // directory.
    let file = state.files.get(fh.0).filter(|file| file.fid == fid);
    let set = async {
        match &file {
            Some(file) => state.client.setlk_through(file, range, waiter.is_some()).await,
            None => state.client.setlk(cred, fid, range, waiter.is_some()).await,
        }
    };
    let Some(pid) = waiter else {
        return set.await;
    };
    tokio::select! {
        result = set => result,
        () = wait_for_signal(pid) => Err(wire::Errno::EINTR),
    }
}

/// Returns when the process has a pending signal that it neither blocks nor ignores. Any such
/// signal ends the wait, as fcntl(2) requires.
async fn wait_for_signal(pid: u32) {
    loop {
        tokio::time::sleep(LOCK_SIGNAL_POLL).await;
        if ProcessStatus::of(pid).has_unblocked_signal() {
            return;
        }
    }
}
