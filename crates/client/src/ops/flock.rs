//! Locks that programs ask for: `fcntl` and `flock`, one space of ranges per file, kept by the metadata target.
//!
//! An owner is an opaque number of the front end's, made the mount's own by nothing more than the connection: the server
//! tells owners of different clients apart. Unlocking is a request for a lock of mode NL. Which owners ever locked a file
//! is remembered, so that a close, which must release them, asks the server only when there may be something to release.

use crate::client::Client;
use crate::cred::Cred;
use ldlm::{Enqueue, Flock, LockMode, Policy};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{Errno, Fid, LDLM_FL_BLOCK_NOWAIT, LDLM_FL_TEST_LOCK};

/// What kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlockType {
    /// Others may read too.
    Read,
    /// Nobody else.
    Write,
    /// None.
    Unlock,
}

impl FlockType {
    fn mode(self) -> LockMode {
        match self {
            FlockType::Read => LockMode::Pr,
            FlockType::Write => LockMode::Pw,
            FlockType::Unlock => LockMode::Nl,
        }
    }
}

/// A range of a file and whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlockRange {
    /// What kind.
    pub ty: FlockType,
    /// First byte.
    pub start: u64,
    /// Last byte; [`FlockRange::END`]: to the end, however long the file becomes.
    pub end: u64,
    /// Whose, of those who lock through this mount.
    pub owner: u64,
    /// The process.
    pub pid: u32,
}

impl FlockRange {
    /// The last byte that a file can have.
    pub const END: u64 = i64::MAX as u64;
}

/// Which owners may have locks on which files.
#[derive(Default)]
pub(crate) struct Flocks {
    held: Mutex<HashMap<(Fid, u64), Arc<Owner>>>,
}

/// Somebody who may have locks. The kernel gives the name of one who is gone to the next, and asks for locks in that name
/// while the last ones are still being given up.
#[derive(Default)]
struct Owner {
    /// How many locks were asked for.
    asked: AtomicU64,
    /// Held while locks are given up: who asks for one waits, or would lose it again.
    giving_up: tokio::sync::Mutex<()>,
}

impl Flocks {
    fn note(&self, fid: Fid, owner: u64) -> Arc<Owner> {
        let mut held = self.held.lock();
        let owner = held.entry((fid, owner)).or_default();
        owner.asked.fetch_add(1, Ordering::Relaxed);
        owner.clone()
    }

    fn find(&self, fid: Fid, owner: u64) -> Option<Arc<Owner>> {
        self.held.lock().get(&(fid, owner)).cloned()
    }

    /// All was given up that had been asked for when `asked` locks had been.
    fn released(&self, fid: Fid, owner: u64, asked: u64) {
        let mut held = self.held.lock();
        if held
            .get(&(fid, owner))
            .is_some_and(|o| o.asked.load(Ordering::Relaxed) == asked)
        {
            held.remove(&(fid, owner));
        }
    }
}

impl Client {
    /// Who stands in the way of this lock: `None` when it could be had.
    pub async fn getlk(&self, _cred: &Cred, fid: Fid, want: FlockRange) -> Result<Option<FlockRange>, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let enqueue = Enqueue {
            flags: LDLM_FL_TEST_LOCK,
            ..Enqueue::new(fid.flock_res_id(), want.ty.mode(), flock(&want))
        };
        let done = mdc.locks.enqueue(enqueue).await?;
        let desc = done.rep.lock_desc;
        let ty = match LockMode::requested(&desc) {
            Some(LockMode::Pr) => FlockType::Read,
            Some(LockMode::Pw) => FlockType::Write,
            _ => return Ok(None),
        };
        let data = &desc.l_policy_data;
        Ok(Some(FlockRange {
            ty,
            start: data.start(),
            end: data.end(),
            owner: data.owner(),
            pid: data.pid(),
        }))
    }

    /// Locks or unlocks a range; `wait`: until it can be had, else `EAGAIN`. Dropping the future gives the wait up.
    pub async fn setlk(&self, _cred: &Cred, fid: Fid, want: FlockRange, wait: bool) -> Result<(), Errno> {
        let mdc = self.lmv.of(fid).await?;
        let enqueue = Enqueue::new(fid.flock_res_id(), want.ty.mode(), flock(&want));
        if want.ty == FlockType::Unlock {
            let Some(owner) = self.flocks.find(fid, want.owner) else {
                return Ok(());
            };
            let _giving_up = owner.giving_up.lock().await;
            let asked = owner.asked.load(Ordering::Relaxed);
            mdc.locks.enqueue(enqueue).await.map_err(Errno::from)?;
            if want.start == 0 && want.end >= FlockRange::END {
                self.flocks.released(fid, want.owner, asked);
            }
            return Ok(());
        }
        let owner = self.flocks.note(fid, want.owner);
        drop(owner.giving_up.lock().await);
        let flags = if wait { 0 } else { LDLM_FL_BLOCK_NOWAIT };
        let enqueue = Enqueue { flags, ..enqueue };
        mdc.locks.enqueue(enqueue).await.map_err(Errno::from)?;
        Ok(())
    }

    /// Releases whatever an owner has locked of a file: a close.
    pub async fn release_locks(&self, cred: &Cred, fid: Fid, owner: u64, pid: u32) -> Result<(), Errno> {
        let all = FlockRange {
            ty: FlockType::Unlock,
            start: 0,
            end: FlockRange::END,
            owner,
            pid,
        };
        self.setlk(cred, fid, all, false).await
    }
}

fn flock(r: &FlockRange) -> Policy {
    Policy::Flock(Flock {
        start: r.start,
        end: r.end,
        owner: r.owner,
        pid: r.pid,
    })
}
