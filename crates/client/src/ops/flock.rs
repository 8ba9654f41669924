//! Programs' file locks: `fcntl` and `flock`. The metadata target keeps one set of ranges per file
//! for both.
//!
//! A lock owner is an opaque number that the front end chooses. The server distinguishes owners of
//! different clients by their connections. An unlock is a request for a lock of mode NL. The client
//! remembers the owners that locked a file, so a close sends an unlock only if necessary. The
//! client also remembers the locked ranges and the descriptors used. If the metadata target
//! restarts, the client claims the ranges again. If the target evicts this client, other clients
//! may get the locks, and these descriptors fail.

use crate::client::Client;
use crate::cred::Cred;
use crate::ops::open::OpenFile;
use crate::stats::Operation;
use cpt::JoinSet;
use ldlm::{Enqueue, Flock, LockClient, LockMode, Policy};
use parking_lot::Mutex;
use rangemap::RangeMap;
use rpc::RpcError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use wire::{Errno, Fid, LDLM_FL_BLOCK_NOWAIT, LDLM_FL_TEST_LOCK};

/// The type of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlockType {
    /// Shared: other owners may hold read locks.
    Read,
    /// Exclusive.
    Write,
    /// Unlock.
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

/// A byte range of a file with its lock owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlockRange {
    /// The type of the lock.
    pub ty: FlockType,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset of the last byte; [`FlockRange::END`] for a range without end.
    pub end: u64,
    /// The lock owner, unique on this mount.
    pub owner: u64,
    /// The process ID of the owner, as `F_GETLK` reports it.
    pub pid: u32,
}

impl FlockRange {
    /// The largest file offset.
    pub const END: u64 = i64::MAX as u64;
}

/// The lock owners of the files of one metadata target.
#[derive(Default)]
pub(crate) struct Flocks {
    /// By file and owner number.
    owners: Mutex<HashMap<(Fid, u64), Arc<FlockOwner>>>,
    /// Number of evictions by the target. An eviction loses all locks.
    evictions: AtomicU64,
    /// Number of replays at a restarted target.
    replays: AtomicU64,
}

/// Maximum number of owners in replay at once.
const REPLAYS_MAX: usize = 32;

/// A lock owner. The kernel may reuse the number of a released owner. The new owner may then
/// request locks while the client still releases the former owner's locks.
#[derive(Default)]
struct FlockOwner {
    /// Number of lock requests so far.
    requests: AtomicU64,
    /// Locked during an unlock: a lock request waits, because the unlock would also release the
    /// lock granted to that request.
    unlock_in_progress: tokio::sync::Mutex<()>,
    locks: Mutex<OwnerLocks>,
}

/// The ranges of a file that an owner holds, and the descriptors through which it locked them.
#[derive(Default)]
struct OwnerLocks {
    ranges: RangeMap<u64, HeldRange>,
    descriptors: Vec<Weak<OpenFile>>,
}

/// A locked range.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HeldRange {
    ty: FlockType,
    pid: u32,
}

impl FlockOwner {
    /// Records a granted lock or unlock. Returns false, and records nothing, if `is_current`
    /// returns false: the target has evicted this client since the request, or has restarted.
    fn record_grant(
        &self,
        requested: &FlockRange,
        file: Option<&Arc<OpenFile>>,
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        let range = requested.start..requested.end.saturating_add(1);
        let mut locks = self.locks.lock();
        if !is_current() {
            return false;
        }
        if range.is_empty() {
            return true;
        }
        if requested.ty == FlockType::Unlock {
            locks.ranges.remove(range);
        } else {
            let (ty, pid) = (requested.ty, requested.pid);
            locks.ranges.insert(range, HeldRange { ty, pid });
            let is_new = |file: &&Arc<OpenFile>| {
                let is_same = |known: &Weak<OpenFile>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(file));
                !locks.descriptors.iter().any(is_same)
            };
            if let Some(file) = file.filter(is_new) {
                let weak = Arc::downgrade(file);
                locks.descriptors.retain(|known| known.strong_count() > 0);
                locks.descriptors.push(weak);
            }
        }
        if locks.ranges.is_empty() {
            locks.descriptors.clear();
        }
        true
    }

    /// The locked ranges. `owner`: the owner's number.
    fn held(&self, owner: u64) -> Vec<FlockRange> {
        let locks = self.locks.lock();
        let held = locks.ranges.iter().map(|(range, held)| FlockRange {
            ty: held.ty,
            start: range.start,
            end: range.end - 1,
            owner,
            pid: held.pid,
        });
        held.collect()
    }

    /// Claims the owner's locks on a file again at a restarted target. If the target refuses one,
    /// the descriptors fail.
    async fn replay(&self, file: Fid, owner: u64, locks: &LockClient) -> Result<(), RpcError> {
        for range in self.held(owner) {
            let (mode, policy) = (range.ty.mode(), flock_policy(&range));
            if !locks.replay_flock(file.flock_res_id(), mode, policy).await? {
                self.fail(file, "refused by the restarted MDT");
                break;
            }
        }
        Ok(())
    }

    /// Forgets the owner's locks, and fails the descriptors that took them.
    fn fail(&self, file: Fid, why: &str) {
        let descriptors = std::mem::take(&mut *self.locks.lock()).descriptors;
        let open: Vec<_> = descriptors.iter().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|open| open.descriptor.mark_lock_lost());
        if !open.is_empty() {
            tracing::error!(%file, descriptors = open.len(),
                "{why}: file locks (flock, fcntl) are lost; the descriptors that took them fail with EIO");
        }
    }
}

impl Flocks {
    /// Counts a lock request of an owner; adds the owner if it is unknown.
    fn add_request(&self, fid: Fid, owner: u64) -> Arc<FlockOwner> {
        let mut owners = self.owners.lock();
        let owner = owners.entry((fid, owner)).or_default();
        owner.requests.fetch_add(1, Ordering::Relaxed);
        owner.clone()
    }

    fn find(&self, fid: Fid, owner: u64) -> Option<Arc<FlockOwner>> {
        self.owners.lock().get(&(fid, owner)).cloned()
    }

    /// Forgets an owner after a full unlock, unless the owner has sent further lock requests.
    /// `requests`: the owner's number of requests at the unlock.
    fn forget_if_released(&self, fid: Fid, owner: u64, requests: u64) {
        let mut owners = self.owners.lock();
        if owners
            .get(&(fid, owner))
            .is_some_and(|o| o.requests.load(Ordering::Relaxed) == requests)
        {
            owners.remove(&(fid, owner));
        }
    }

    /// Forgets all owners, and fails the descriptors of held locks: the metadata target evicted
    /// this client and may have granted the locks to others.
    pub(crate) fn fail_all(&self) {
        self.evictions.fetch_add(1, Ordering::AcqRel);
        let owners: Vec<_> = self.owners.lock().drain().collect();
        for ((file, _), owner) in owners {
            owner.fail(file, "evicted by the MDT");
        }
    }

    /// Claims all locks again at a restarted target. Requests that wait for a lock are replayed by
    /// the lock client.
    ///
    /// # Errors
    ///
    /// As [`LockClient::replay`].
    pub(crate) async fn replay(&self, locks: &Arc<LockClient>) -> Result<(), RpcError> {
        // From now on, no reply of the former target is recorded.
        self.replays.fetch_add(1, Ordering::AcqRel);
        let owners = self.owners.lock().clone();
        let mut running = JoinSet::new();
        for ((file, number), owner) in owners {
            if running.len() >= REPLAYS_MAX {
                joined(running.join_next().await)?;
            }
            let locks = locks.clone();
            running.spawn(async move { owner.replay(file, number, &locks).await });
        }
        while !running.is_empty() {
            joined(running.join_next().await)?;
        }
        Ok(())
    }

    /// Sends a request for a lock or an unlock, and records the result. If the target has restarted
    /// meanwhile, sends the request again: the reply may be older than the restart, and the replay
    /// did not know of it. Repeating it changes nothing at the target. Returns false if an eviction
    /// has lost all locks meanwhile.
    async fn request(
        &self,
        locks: &LockClient,
        enqueue: Enqueue,
        owner: &FlockOwner,
        requested: &FlockRange,
        file: Option<&Arc<OpenFile>>,
    ) -> Result<bool, Errno> {
        let evictions = self.evictions.load(Ordering::Acquire);
        let is_evicted = || self.evictions.load(Ordering::Acquire) != evictions;
        loop {
            let replays = self.replays.load(Ordering::Acquire);
            let is_restarted = || self.replays.load(Ordering::Acquire) != replays;
            locks.enqueue(enqueue.clone()).await?;
            if owner.record_grant(requested, file, || !is_evicted() && !is_restarted()) {
                return Ok(true);
            }
            if is_evicted() {
                return Ok(false);
            }
        }
    }
}

/// The result of a replay in a task of its own.
fn joined<E>(result: Option<Result<Result<(), RpcError>, E>>) -> Result<(), RpcError> {
    match result {
        Some(Ok(replayed)) => replayed,
        Some(Err(_)) => Err(RpcError::Closed("file locks".to_owned())),
        None => Ok(()),
    }
}

impl Client {
    /// A lock that conflicts with `requested`. `None`: `requested` could be granted.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn getlk(
        &self,
        _cred: &Cred,
        fid: Fid,
        requested: FlockRange,
    ) -> Result<Option<FlockRange>, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let enqueue = Enqueue {
            flags: LDLM_FL_TEST_LOCK,
            ..Enqueue::new(fid.flock_res_id(), requested.ty.mode(), flock_policy(&requested))
        };
        let reply = mdc.locks.enqueue(enqueue).await?;
        let desc = reply.rep.lock_desc;
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

    /// Locks or unlocks a range. `wait`: waits until no lock conflicts. Dropping the future cancels
    /// the wait.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: a conflict without `wait`; `EDEADLK`; `EIO`: locks were lost meanwhile; or an
    /// error of the MDT.
    pub async fn setlk(
        &self,
        _cred: &Cred,
        fid: Fid,
        requested: FlockRange,
        wait: bool,
    ) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Flock);
        self.set_lock(fid, None, requested, wait).await
    }

    /// As [`Client::setlk`], through a descriptor, which fails once the lock is lost.
    ///
    /// # Errors
    ///
    /// As [`Client::setlk`].
    pub async fn setlk_through(
        &self,
        file: &Arc<OpenFile>,
        requested: FlockRange,
        wait: bool,
    ) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Flock);
        file.descriptor.check()?;
        self.set_lock(file.fid, Some(file), requested, wait).await
    }

    async fn set_lock(
        &self,
        fid: Fid,
        file: Option<&Arc<OpenFile>>,
        requested: FlockRange,
        wait: bool,
    ) -> Result<(), Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let flocks = &mdc.flocks;
        let enqueue = Enqueue::new(fid.flock_res_id(), requested.ty.mode(), flock_policy(&requested));
        if requested.ty == FlockType::Unlock {
            let Some(owner) = flocks.find(fid, requested.owner) else {
                return Ok(());
            };
            let _unlock_in_progress = owner.unlock_in_progress.lock().await;
            let requests = owner.requests.load(Ordering::Relaxed);
            flocks
                .request(&mdc.locks, enqueue, &owner, &requested, file)
                .await?;
            if requested.start == 0 && requested.end >= FlockRange::END {
                flocks.forget_if_released(fid, requested.owner, requests);
            }
            return Ok(());
        }
        let owner = flocks.add_request(fid, requested.owner);
        drop(owner.unlock_in_progress.lock().await);
        let flags = if wait { 0 } else { LDLM_FL_BLOCK_NOWAIT };
        let enqueue = Enqueue { flags, ..enqueue };
        let is_held = flocks.request(&mdc.locks, enqueue, &owner, &requested, file);
        if !is_held.await? {
            // The target may have granted the lock after the eviction; release it again.
            let unlock = Enqueue::new(fid.flock_res_id(), LockMode::Nl, flock_policy(&requested));
            mdc.locks.enqueue(unlock).await.map_err(Errno::from)?;
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Releases all locks of an owner on a file, for a close.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn release_locks(&self, _cred: &Cred, fid: Fid, owner: u64, pid: u32) -> Result<(), Errno> {
        let all = FlockRange {
            ty: FlockType::Unlock,
            start: 0,
            end: FlockRange::END,
            owner,
            pid,
        };
        self.set_lock(fid, None, all, false).await
    }
}

fn flock_policy(range: &FlockRange) -> Policy {
    Policy::Flock(Flock {
        start: range.start,
        end: range.end,
        owner: range.owner,
        pid: range.pid,
    })
}

#[cfg(test)]
#[path = "flock_tests.rs"]
mod tests;
