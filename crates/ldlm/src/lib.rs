//! The distributed lock manager (LDLM): a pure state machine, and adapters to rpc for servers and
//! clients (docs/protocol.md, "Locks (LDLM)").
//!
//! [`Namespace`] is the state machine, one shard of a target's locks. It takes requests, cancels
//! and the time, and returns actions: callbacks to send, waiters to wake, clients to evict. All
//! rules of modes ([`LockMode`]), covered ranges ([`Policy`]) and queues are there, without I/O.
//!
//! [`LockServer`] connects a target's namespaces to the RPC layer: it handles enqueues, cancels and
//! conversions, sends callbacks, evicts clients that do not reply or do not cancel in time, and
//! takes locks for the server itself. [`LockClient`] requests locks, caches them, and cancels them
//! when the server revokes them, when there are too many, or when they expire.
//!
//! Timeouts: a client has `ldlm_enqueue_min` (100 s by default) to answer a blocking callback and
//! cancel the lock. If one and a half times the longest recent cancel time is longer, the client
//! has that long. Each read or write under the lock restarts the time. A client waits for a queued
//! lock without a timeout, because the server evicts holders that do not cancel in time.

mod action;
mod client;
mod conflict;
mod deadlock;
mod extent;
mod flock;
mod limits;
mod lock;
mod mode;
mod mode_counts;
mod namespace;
mod params;
mod policy;
mod queue;
mod reclaim;
mod replay;
mod request;
mod resource;
mod server;
mod spawn;
mod timers;
mod waits;

pub use action::{Action, LockRequest, Placement, Refusal};
pub use client::{
    Enqueue, EnqueueReply, Intent, LockClient, LockClientConfig, LockCookie, LockInfo, LockOwner, LockRef,
    UnusedLockBudget,
};
pub use limits::LockLimits;
pub use lock::{Holder, Lock, LockId, Waiter};
pub use mode::LockMode;
pub use namespace::Namespace;
pub use policy::{Extent, Flock, Ibits, LockType, Policy};
pub use reclaim::ReclaimResult;
pub use request::{HANDLES_MAX, cancel_req, handles_to_cancel};
pub use server::{GrantedLock, LdlmConfig, LocalLock, LockServer, LockStats, LvbOps, NoLvb};
