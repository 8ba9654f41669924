//! PtlRPC: requests and replies, bulk transfers, imports, exports, and one service per portal
//! (docs/protocol.md, "PtlRPC").
//!
//! [`Ptlrpc`] is the RPC layer of one node on one [`lnet::Lnet`]. A client creates an [`Import`]
//! per target; the import connects, pings, reconnects, resends requests and detects evictions.
//! [`Import::call`] sends one [`Request`]. A server implements [`Target`]. The layer handles
//! connects, disconnects, pings, at-most-once execution, early replies and evictions, and passes
//! every other request to [`Target::handle`] as a [`ServerRequest`] of an [`Export`].
//!
//! The protocol's rules are in pure modules (`import::machine`, `import::uncommitted`, `at`,
//! `xids`, `server::reply_cache`): events, messages and the time are arguments, decisions are
//! results.

mod at;
mod bulk;
mod callbacks;
mod config;
mod error;
mod exchange;
mod fail;
#[cfg(feature = "faults")]
mod faults;
mod granted;
mod import;
pub mod job;
mod node;
mod opcode;
mod opname;
mod request;
mod server;
pub mod services;
mod start;
mod tuning;
mod xids;

pub use config::RpcConfig;
pub use cpt::BoxFuture;
pub use error::RpcError;
pub use fail::FailPoints;
#[cfg(feature = "faults")]
pub use faults::Faults;
pub use import::{
    Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, ImportState, PendingRequests,
    UncommittedGuard,
};
pub use node::Ptlrpc;
pub use request::{Bulk, EditReplay, Executed, Replay, ReplyMsg, Request};
pub use server::{
    Access, ActiveGuard, ConnectRequest, EndReason, Export, Holdings, KeptReply, KnownClient, Mark, Part,
    Reply, Role, ServerRequest, ServiceStats, Target, TargetExports, brw,
};
pub use services::{ServiceConfig, Spread};
pub use start::START;
pub use tuning::{ServicesTuning, Tuning};
