//! ptlrpc: requests and replies, bulk, imports and exports, services per partition (guide, section 3).
//!
//! [`Ptlrpc`] is one node's RPC layer on one [`lnet::Lnet`]. A client makes an [`Import`] of each target: it connects,
//! pings, reconnects, resends and notices eviction by itself; [`Import::call`] sends one [`Request`]. A server is a
//! [`Target`]: connecting, pings, at-most-once execution, early replies and evictions are done for it, everything else
//! comes to [`Target::handle`] as a [`ServerRequest`] of an [`Export`].
//!
//! What the protocol says is in pure modules (`import::machine`, `import::replay`, `at`, `xids`, `server::once`): events,
//! messages and the time in, decisions out.

mod at;
mod bulk;
mod callbacks;
mod config;
mod error;
mod exchange;
mod faults;
mod import;
mod node;
mod opcode;
mod opname;
mod request;
mod server;
pub mod services;
mod start;
pub mod testing;
mod tuning;
mod xids;

pub use config::RpcConfig;
pub use cpt::BoxFuture;
pub use error::RpcError;
pub use faults::Faults;
pub use import::{Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, ImportState, Keep, Unanswered};
pub use node::Ptlrpc;
pub use request::{Bulk, ReplyMsg, Request};
pub use server::{
    Busy, ConnectRequest, Export, Reply, Role, ServerRequest, ServiceStats, Target, TargetExports,
};
pub use services::{ServiceConfig, Spread};
pub use start::START;
pub use tuning::{ServicesTuning, Tuning};
