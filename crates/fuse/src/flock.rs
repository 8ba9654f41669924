//! File locks of programs: fcntl(2) and flock(2).

use crate::state::State;
use client::{Client, Cred, FlockRange, FlockType, ProcessStatus};
use fuser::{Errno, FileHandle, LockOwner, ReplyLock};
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use wire::Fid;

/// The owners that have requested locks through each open file, by the file's handle. The last
/// close of the file releases their locks, because the kernel sends no release of the locks that
/// belong to the open file itself (flock(2), and open file description locks). The locks of a
/// process end earlier, with its first close of the file.
///
/// The kernel does not wait for the reply to the last close, so a program's next request for a lock
/// may arrive before the release is complete. Such a request waits for it.
#[derive(Default)]
pub(crate) struct FileLockOwners {
    owners: Mutex<HashMap<u64, BTreeSet<u64>>>,
    /// The number of releases under way for each inode that has any.
    releases: Mutex<HashMap<Fid, usize>>,
    released: Notify,
}

impl FileLockOwners {
    /// Records that an owner requests a lock through an open file.
    fn add(&self, fh: u64, owner: u64) {
        self.owners.lock().entry(fh).or_default().insert(owner);
    }

    /// Begins the release of an open file's locks at its last close. `None`: it has no owners.
    pub(crate) fn begin_release(self: &Arc<Self>, fid: Fid, fh: FileHandle) -> Option<LockRelease> {
        let owners = self.owners.lock().remove(&fh.0)?;
        *self.releases.lock().entry(fid).or_default() += 1;
        Some(LockRelease {
            all: self.clone(),
            fid,
            owners,
        })
    }

    /// Waits until no release of locks of the inode is under way.
    async fn wait_for_releases(&self, fid: Fid) {
        loop {
            let released = self.released.notified();
            if !self.releases.lock().contains_key(&fid) {
                return;
            }
            released.await;
        }
    }
}

/// The release of the locks of an open file, which ends when this value is dropped.
pub(crate) struct LockRelease {
    all: Arc<FileLockOwners>,
    fid: Fid,
    owners: BTreeSet<u64>,
}

impl Drop for LockRelease {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.all.releases.lock().entry(self.fid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.all.released.notify_waiters();
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

/// Releases the locks of an open file. Ignores errors: no program waits for the result of a last
/// close.
pub(crate) async fn complete(release: Option<LockRelease>, client: &Client, cred: &Cred) {
    let Some(release) = release else { return };
    for owner in &release.owners {
        let _ = client.release_locks(cred, release.fid, *owner, cred.pid).await;
    }
}

/// A lock that conflicts with the requested one, if there is any.
pub(crate) async fn find_conflict(
    state: &State,
    cred: &Cred,
    fid: Fid,
    range: FlockRange,
) -> Result<Option<FlockRange>, wire::Errno> {
    state.lock_owners.wait_for_releases(fid).await;
    state.client.getlk(cred, fid, range).await
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
        state.lock_owners.wait_for_releases(fid).await;
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
