//! Bugs that a simulation plants, to prove that its checks find them (`cargo xtask simulate
//! --planted`). Without the feature `sim` no bug is ever planted, and the compiler removes the
//! branches.

use std::fmt;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The store never reports a commit.
    LostCommitCallback,
    /// The lock server grants a waiting lock before the conflicting one is cancelled.
    LockGrantedTooEarly,
    /// The server keeps no reply of a modifying request.
    ReplyNotKept,
    /// The store reports transactions as durable before they are.
    LastCommittedTooHigh,
    /// The unlink of an open file writes no orphan record.
    LostOrphanRecord,
    /// The lock server sends no blocking callback.
    BlockingCallbackNotSent,
    /// A client drops dirty pages when it cancels a lock.
    DirtyPageDropped,
    /// The OST forgets that it has granted space.
    GrantGivenTwice,
    /// A link locks its two inodes one after the other, even if they are the same.
    LinkDeadlock,
    /// The MDT gives the object of a new file to the next file too.
    ObjectIdReused,
    /// An eviction leaves the client's locks.
    EvictionLeavesLock,
    /// A resent request is executed beside the original.
    ResendExecutedTwice,
    /// During a recovery, the server serves new clients where clients that recover may hold locks
    /// or uncommitted changes.
    NewClientNotChecked,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 13] = [
        Bug::LostCommitCallback,
        Bug::LockGrantedTooEarly,
        Bug::ReplyNotKept,
        Bug::LastCommittedTooHigh,
        Bug::LostOrphanRecord,
        Bug::BlockingCallbackNotSent,
        Bug::DirtyPageDropped,
        Bug::GrantGivenTwice,
        Bug::LinkDeadlock,
        Bug::ObjectIdReused,
        Bug::EvictionLeavesLock,
        Bug::ResendExecutedTwice,
        Bug::NewClientNotChecked,
    ];

    /// Whether the bug is planted on this thread.
    #[cfg(feature = "sim")]
    pub fn is_planted(self) -> bool {
        PLANTED.get() == Some(self)
    }

    /// Whether the bug is planted on this thread: never.
    #[cfg(not(feature = "sim"))]
    #[inline(always)]
    pub const fn is_planted(self) -> bool {
        false
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(feature = "sim")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread; `None` removes it.
#[cfg(feature = "sim")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
