//! What goes into a namespace and what comes out of it.

use crate::lock::{Holder, Lock, LockId, Waiter};
use crate::mode::LockMode;
use crate::policy::Policy;
use std::time::Duration;
use wire::{LdlmLockDesc, LdlmResId, Nid};

/// A lock that somebody asks for.
#[derive(Clone, Copy, Debug)]
pub struct NewLock {
    /// Who.
    pub holder: Holder,
    /// The holder's own cookie for it.
    pub cookie: u64,
    /// Of what.
    pub res: LdlmResId,
    /// How. A flock of [`LockMode::Nl`] unlocks its range.
    pub mode: LockMode,
    /// What it covers.
    pub policy: Policy,
    /// Who learns of the grant when it had to wait.
    pub waiter: Waiter,
    /// Refuse rather than wait (`LDLM_FL_BLOCK_NOWAIT`, `LDLM_FL_SPECULATIVE`).
    pub no_wait: bool,
    /// Only say what is in the way of this flock (`LDLM_FL_TEST_LOCK`).
    pub test: bool,
    /// Give the extent exactly as asked (`LDLM_FL_NO_EXPANSION`).
    pub no_expansion: bool,
    /// Let the lock go as soon as it is in the way (`LDLM_FL_CANCEL_ON_BLOCK`).
    pub cancel_on_block: bool,
    /// What the holders in the way have not written back is not wanted any more (`LDLM_FL_AST_DISCARD_DATA`).
    pub discard: bool,
    /// The client understands that it is told of a deadlock later (`OBD_CONNECT_FLOCK_DEAD`).
    pub tell_deadlock: bool,
    /// For whom the server takes it: that one's own locks it does not exclude. [`Holder::SERVER`]: for nobody.
    pub on_behalf: Holder,
    /// Where the holder is: a process of that node may ask for flocks through several mounts.
    pub node: Option<Nid>,
}

impl NewLock {
    /// A lock without any special wish, granted by a completion callback when it must wait.
    pub fn new(holder: Holder, cookie: u64, res: LdlmResId, mode: LockMode, policy: Policy) -> NewLock {
        NewLock {
            holder,
            cookie,
            res,
            mode,
            policy,
            waiter: Waiter::Client,
            no_wait: false,
            test: false,
            no_expansion: false,
            cancel_on_block: false,
            discard: false,
            tell_deadlock: false,
            on_behalf: Holder::SERVER,
            node: None,
        }
    }

    /// The same for code of the server: whoever waits is in this process.
    pub fn local(holder: Holder, cookie: u64, res: LdlmResId, mode: LockMode, policy: Policy) -> NewLock {
        NewLock {
            waiter: Waiter::Local,
            ..NewLock::new(holder, cookie, res, mode, policy)
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Placed {
    /// It is held.
    Granted(LockId),
    /// It waits in the queue.
    Queued {
        /// The waiting lock.
        id: LockId,
        /// A granted lock is in the way, not only one that waits longer.
        by_granted: bool,
    },
    /// A flock of mode NL: its range is free of the owner's locks.
    Unlocked(LockId),
    /// A flock test.
    Tested {
        /// An id for the answer.
        id: LockId,
        /// The lock in the way, if any.
        conflict: Option<Lock>,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It would have to wait and must not.
    #[error("the lock would have to wait")]
    WouldBlock,
    /// It would wait for an owner that waits for this one.
    #[error("waiting for this lock would be a deadlock")]
    Deadlock,
    /// The resource holds locks of another type.
    #[error("the resource has locks of another type")]
    WrongType,
    /// A flock of a mode that is none, or an extent lock of a mode for servers.
    #[error("the mode makes no sense for this type of lock")]
    WrongMode,
    /// No room for more locks.
    #[error("the lock table is full")]
    Full,
}

/// What the caller of a namespace has to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Tell the holder that the lock is in the way.
    Blocking {
        /// The lock in the way.
        lock: Lock,
        /// What is blocked by it.
        blocked: LdlmLockDesc,
        /// What the holder has not written back is to be thrown away.
        discard: bool,
    },
    /// Tell the holder that the lock, which waited, is granted.
    Completion {
        /// The lock, as granted.
        lock: Lock,
        /// It is in the way of another one already.
        ast_sent: bool,
        /// It is not granted but gone: waiting on would be a deadlock.
        deadlock: bool,
    },
    /// Tell the code that waits for it in this process.
    Wake {
        /// The lock that waited.
        id: LockId,
        /// Granted, or gone.
        granted: bool,
    },
    /// A lock that allowed writing is gone: what is known of the object's size is old.
    Stale(LdlmResId),
    /// The holder did not give back a lock in time.
    Evict {
        /// Who.
        holder: Holder,
        /// The lock.
        id: LockId,
        /// How long ago it was told.
        after: Duration,
    },
}
