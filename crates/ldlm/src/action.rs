//! The inputs and outputs of a namespace: lock requests, their results, and actions for the caller.

use crate::lock::{Holder, Lock, LockId, Waiter};
use crate::mode::LockMode;
use crate::policy::Policy;
use std::time::Duration;
use wire::{LdlmLockDesc, LdlmResId, Nid};

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// The client that requests the lock, or the server itself.
    pub holder: Holder,
    /// The client's cookie for the lock; 0 for the server's own locks.
    pub cookie: u64,
    /// The resource.
    pub res: LdlmResId,
    /// The mode. A flock of [`LockMode::Nl`] unlocks its range.
    pub mode: LockMode,
    /// The part of the resource to lock.
    pub policy: Policy,
    /// How a grant is reported if the lock has to wait.
    pub waiter: Waiter,
    /// Refuse the lock if it would have to wait (`LDLM_FL_SPECULATIVE`; for all types of locks
    /// except extents also `LDLM_FL_BLOCK_NOWAIT`).
    pub no_wait: bool,
    /// Refuse the lock if it would have to wait for a group lock: a program may hold that lock for
    /// any time (`LDLM_FL_BLOCK_NOWAIT` for extents: the file is open with `O_NONBLOCK`).
    pub no_group_wait: bool,
    /// Only report a conflicting flock; grant no lock (`LDLM_FL_TEST_LOCK`).
    pub test: bool,
    /// Grant exactly the requested extent (`LDLM_FL_NO_EXPANSION`).
    pub no_expansion: bool,
    /// Drop the lock as soon as it blocks another (`LDLM_FL_CANCEL_ON_BLOCK`).
    pub cancel_on_block: bool,
    /// Blocking ASTs for this request tell the holders to discard dirty data
    /// (`LDLM_FL_DISCARD_DATA`).
    pub discard: bool,
    /// The client accepts a deadlock report after the lock was queued (`OBD_CONNECT_FLOCK_DEAD`).
    pub report_deadlock: bool,
    /// The client for which the server takes the lock: that client's locks do not conflict with
    /// this one. [`Holder::SERVER`] if there is no such client.
    pub on_behalf: Holder,
    /// The holder's node, if known, for deadlock detection among flocks: a process of the node may
    /// request flocks through several mounts.
    pub node: Option<Nid>,
}

impl LockRequest {
    /// A request of a client without flags; a grant after waiting is reported by a completion AST.
    pub fn new(holder: Holder, cookie: u64, res: LdlmResId, mode: LockMode, policy: Policy) -> LockRequest {
        LockRequest {
            holder,
            cookie,
            res,
            mode,
            policy,
            waiter: Waiter::Client,
            no_wait: false,
            no_group_wait: false,
            test: false,
            no_expansion: false,
            cancel_on_block: false,
            discard: false,
            report_deadlock: false,
            on_behalf: Holder::SERVER,
            node: None,
        }
    }

    /// Like [`LockRequest::new`], but a grant after waiting wakes a waiter in this process.
    pub fn local(holder: Holder, cookie: u64, res: LdlmResId, mode: LockMode, policy: Policy) -> LockRequest {
        LockRequest {
            waiter: Waiter::Local,
            ..LockRequest::new(holder, cookie, res, mode, policy)
        }
    }
}

/// The result of a request.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The lock is granted.
    Granted(LockId),
    /// The lock waits in the queue.
    Queued {
        /// The waiting lock.
        id: LockId,
        /// Whether a granted lock conflicts; otherwise only waiting locks do.
        granted_conflict: bool,
    },
    /// The range of a flock of mode NL is unlocked. The id is only a handle for the reply.
    Unlocked(LockId),
    /// The result of a flock test.
    Tested {
        /// A handle for the reply.
        id: LockId,
        /// A conflicting lock, if there is one.
        conflict: Option<Lock>,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The lock would have to wait, and the request forbids waiting. Or the request has only
    /// optional bits, and none is free.
    #[error("the lock would have to wait")]
    WouldBlock,
    /// The flock would wait for an owner that waits, directly or indirectly, for the requesting
    /// owner or its process.
    #[error("waiting for this lock would be a deadlock")]
    Deadlock,
    /// The resource has locks of another type.
    #[error("the resource has locks of another type")]
    WrongType,
    /// A flock of another mode than PR, PW and NL.
    #[error("invalid mode for this type of lock")]
    WrongMode,
    /// The shard's lock table is full.
    #[error("the lock table is full")]
    Full,
}

/// An action for the caller of a namespace.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a blocking AST to the holder.
    Blocking {
        /// The revoked lock.
        lock: Lock,
        /// The waiting lock that `lock` blocks; if the server reclaims `lock`, the description of
        /// `lock` with mode EX.
        blocked: LdlmLockDesc,
        /// Tell the holder to discard its dirty data.
        discard: bool,
    },
    /// Send a completion AST to the client: its waiting lock is granted or, with `deadlock`,
    /// dropped.
    Completion {
        /// The lock that waited.
        lock: Lock,
        /// The lock already blocks another: the AST also revokes it.
        ast_sent: bool,
        /// The lock was dropped instead of granted: waiting would be a deadlock.
        deadlock: bool,
    },
    /// Wake the waiter in this process.
    Wake {
        /// The lock that waited.
        id: LockId,
        /// Whether the lock is granted; otherwise it was dropped.
        granted: bool,
    },
    /// A granted extent lock that allowed writing is gone: the resource's cached value block is
    /// stale.
    StaleLvb(LdlmResId),
    /// Evict the holder: it did not cancel a revoked lock in time.
    Evict {
        /// The holder.
        holder: Holder,
        /// The lock.
        id: LockId,
        /// Time since the lock was revoked.
        after: Duration,
    },
}
