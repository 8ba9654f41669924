//! POSIX and BSD locks, as the kernel asks for them.

use crate::state::State;
use client::{Cred, FlockRange, FlockType, ProcessStatus};
use fuser::{Errno, FileHandle, LockOwner, ReplyLock};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use wire::Fid;

/// Who has asked for locks through which open file. A process's locks go with its first close; those of an open file itself
/// (flock(2), and fcntl(2)'s open file description locks, of whose end the kernel says nothing) with its last.
#[derive(Default)]
pub(crate) struct Lockers(Mutex<HashMap<u64, BTreeSet<u64>>>);

impl Lockers {
    /// An owner asks for a lock through an open file.
    pub(crate) fn note(&self, fh: u64, owner: u64) {
        self.0.lock().entry(fh).or_default().insert(owner);
    }

    /// All owners that asked through an open file, which is closed.
    pub(crate) fn take(&self, fh: u64) -> BTreeSet<u64> {
        self.0.lock().remove(&fh).unwrap_or_default()
    }
}

/// How often a process that waits for a lock is looked at for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(250);

/// A lock that the kernel asks for; `typ` is fcntl(2)'s.
pub(crate) fn of_kernel(
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

/// Answers with the lock that stands in the way of one on a range, or that none does.
pub(crate) fn answer(held: Option<FlockRange>, (start, end): (u64, u64), reply: ReplyLock) {
    let Some(held) = held else {
        return reply.locked(start, end, i32::from(libc::F_UNLCK as i16), 0);
    };
    let typ = if held.ty == FlockType::Read {
        libc::F_RDLCK
    } else {
        libc::F_WRLCK
    };
    reply.locked(held.start, held.end, i32::from(typ as i16), held.pid);
}

/// Takes or gives up a lock, through an open file. `waits`: the process that waits until it is free, unless a signal ends the wait.
pub(crate) async fn set(
    state: &State,
    cred: &Cred,
    (fid, fh): (Fid, FileHandle),
    want: FlockRange,
    waits: Option<u32>,
) -> Result<(), wire::Errno> {
    if want.ty != FlockType::Unlock {
        state.lockers.note(fh.0, want.owner);
    }
    // A directory's handle may have the number of another file's.
    let file = state.files.get(fh.0).filter(|file| file.fid == fid);
    let set = async {
        match &file {
            Some(file) => state.client.setlk_through(file, want, waits.is_some()).await,
            None => state.client.setlk(cred, fid, want, waits.is_some()).await,
        }
    };
    let Some(caller) = waits else {
        return set.await;
    };
    tokio::select! {
        done = set => done,
        () = signalled(caller) => Err(wire::Errno::EINTR),
    }
}

/// Returns when the waiting process has a signal, whichever: fcntl(2) says that it ends the wait for a lock.
async fn signalled(pid: u32) {
    loop {
        tokio::time::sleep(SIGNAL_POLL).await;
        if ProcessStatus::of(pid).is_signalled() {
            return;
        }
    }
}
