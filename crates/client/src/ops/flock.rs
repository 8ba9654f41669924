//! Locks that programs ask for: `fcntl` and `flock`, one space of ranges per file, kept by the metadata target.
//!
//! An owner is an opaque number of the front end's, made the mount's own by nothing more than the connection: the server
//! tells owners of different clients apart. Unlocking is a request for a lock of mode NL. Which owners ever locked a file
//! is remembered, so that a close, which must release them, asks the server only when there may be something to release; and
//! what they hold, so that the open files through which they locked fail when the metadata target evicts this client: others
//! may have the locks then.

use crate::client::Client;
use crate::cred::Cred;
use crate::data::RangeSet;
use crate::ops::open::OpenFile;
use ldlm::{Enqueue, Flock, LockMode, Policy};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
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

/// Which owners may have locks on which files of one metadata target.
#[derive(Default)]
pub(crate) struct Flocks {
    held: Mutex<HashMap<(Fid, u64), Arc<Owner>>>,
    /// How often all locks were lost.
    lost: AtomicU64,
}

/// Somebody who may have locks. The kernel gives the name of one who is gone to the next, and asks for locks in that name
/// while the last ones are still being given up.
#[derive(Default)]
struct Owner {
    /// How many locks were asked for.
    asked: AtomicU64,
    /// Held while locks are given up: who asks for one waits, or would lose it again.
    giving_up: tokio::sync::Mutex<()>,
    locks: Mutex<Locks>,
}

/// The ranges of a file that a lock owner holds, and the open files that it locked them through.
#[derive(Default)]
struct Locks {
    ranges: RangeSet,
    through: Vec<Weak<OpenFile>>,
}

impl Owner {
    /// A request for a lock on a range, or to give it up, was granted. Whether the lock is still held: not if all locks were
    /// lost since the request was made.
    fn granted(
        &self,
        want: &FlockRange,
        file: Option<&Arc<OpenFile>>,
        is_held: impl FnOnce() -> bool,
    ) -> bool {
        let range = want.start..want.end.saturating_add(1);
        let mut locks = self.locks.lock();
        if !is_held() {
            return false;
        }
        if want.ty == FlockType::Unlock {
            locks.ranges.remove(range);
        } else {
            locks.ranges.insert(range);
            let known = |file: &&Arc<OpenFile>| {
                let same = |one: &Weak<OpenFile>| std::ptr::eq(one.as_ptr(), Arc::as_ptr(file));
                !locks.through.iter().any(same)
            };
            if let Some(file) = file.filter(known) {
                let weak = Arc::downgrade(file);
                locks.through.retain(|one| one.strong_count() > 0);
                locks.through.push(weak);
            }
        }
        if locks.ranges.len() == 0 {
            locks.through.clear();
        }
        true
    }
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

    /// The metadata target has evicted this client, and may have given all locks to others.
    pub(crate) fn lose_all(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
        let held: Vec<_> = self.held.lock().drain().collect();
        for ((file, _), owner) in held {
            let through = std::mem::take(&mut *owner.locks.lock()).through;
            let open: Vec<_> = through.iter().filter_map(Weak::upgrade).collect();
            open.iter().for_each(|open| open.descriptor.lock_lost());
            if !open.is_empty() {
                tracing::error!(%file, descriptors = open.len(),
                    "locks of programs (flock, fcntl) are lost; the descriptors through which they were taken fail with EIO");
            }
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
        self.set_lock(fid, None, want, wait).await
    }

    /// The same through an open file, which fails from the time on when the lock is lost.
    pub async fn setlk_through(
        &self,
        file: &Arc<OpenFile>,
        want: FlockRange,
        wait: bool,
    ) -> Result<(), Errno> {
        file.descriptor.check()?;
        self.set_lock(file.fid, Some(file), want, wait).await
    }

    async fn set_lock(
        &self,
        fid: Fid,
        file: Option<&Arc<OpenFile>>,
        want: FlockRange,
        wait: bool,
    ) -> Result<(), Errno> {
        let mdc = self.lmv.of(fid).await?;
        let flocks = &mdc.flocks;
        let enqueue = Enqueue::new(fid.flock_res_id(), want.ty.mode(), flock(&want));
        if want.ty == FlockType::Unlock {
            let Some(owner) = flocks.find(fid, want.owner) else {
                return Ok(());
            };
            let _giving_up = owner.giving_up.lock().await;
            let asked = owner.asked.load(Ordering::Relaxed);
            mdc.locks.enqueue(enqueue).await.map_err(Errno::from)?;
            owner.granted(&want, file, || true);
            if want.start == 0 && want.end >= FlockRange::END {
                flocks.released(fid, want.owner, asked);
            }
            return Ok(());
        }
        let owner = flocks.note(fid, want.owner);
        drop(owner.giving_up.lock().await);
        let flags = if wait { 0 } else { LDLM_FL_BLOCK_NOWAIT };
        let lost = flocks.lost.load(Ordering::Acquire);
        mdc.locks
            .enqueue(Enqueue { flags, ..enqueue })
            .await
            .map_err(Errno::from)?;
        if !owner.granted(&want, file, || flocks.lost.load(Ordering::Acquire) == lost) {
            // If the target gave it after the eviction, nobody knows of it here.
            let unlock = Enqueue::new(fid.flock_res_id(), LockMode::Nl, flock(&want));
            mdc.locks.enqueue(unlock).await.map_err(Errno::from)?;
            return Err(Errno::EIO);
        }
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
