//! The lock manager: a pure state machine, and thin glue to rpc for servers and clients.
//!
//! [`Namespace`] is the state machine: one shard of a target's locks. It takes requests, cancels, and the time, and
//! gives back what is to be done: callbacks to send, waiters to wake, clients to evict. Everything about modes
//! ([`LockMode`]), what locks cover ([`Policy`]) and who waits for whom is decided there, without I/O.
//!
//! [`LockServer`] puts a target's namespaces on the RPC layer: it answers `LDLM_*` requests, sends callbacks, evicts
//! clients that do not let go, and takes locks for the server itself. [`LockClient`] is the other side: it asks for
//! locks, caches them, and gives them back when the server asks, when there are too many, or when they grow old.
//!
//! The times: a client that is asked for a lock has `ldlm_enqueue_min` (100 s), or one and a half times what giving
//! back took lately, to answer the callback and to give the lock back; each read or write under the lock begins that
//! time again. A client waits for a queued lock without a limit, since the server is bound to answer by that rule.

mod action;
mod client;
mod conflict;
mod deadlock;
mod extent;
mod flock;
mod limits;
mod lock;
mod mode;
mod namespace;
mod params;
mod policy;
mod queue;
mod reclaim;
mod request;
mod resource;
mod server;
mod spawn;
mod tally;
mod timers;

pub use action::{Action, NewLock, Placed, Refusal};
pub use client::{
    Enqueue, Enqueued, Intent, LockClient, LockClientConfig, LockHandle, LockInfo, LockOwner, LockRef,
    LockRoom,
};
pub use limits::LockLimits;
pub use lock::{Holder, Lock, LockId, Waiter};
pub use mode::LockMode;
pub use namespace::Namespace;
pub use policy::{Extent, Flock, Ibits, LockType, Policy};
pub use reclaim::Reclaimed;
pub use request::{HANDLES_MAX, cancel_req, handles};
pub use server::{GrantedLock, LdlmConfig, LocalLock, LockServer, LockStats, LvbOps, NoLvb};
