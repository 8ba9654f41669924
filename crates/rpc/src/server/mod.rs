//! The server's side: services queue requests, exports represent clients, targets execute requests.
//!
//! [`service`] queues a request on its partition; [`dispatch`] finds its export and asks
//! [`reply_cache`] whether to execute it; the [`Target`] handles it; [`reply`] sends the reply.

mod active;
pub mod brw;
mod claims;
mod connect;
mod dispatch;
pub(crate) mod evictor;
mod export;
mod flavor;
mod holdings;
mod inject;
mod inline_dispatch;
mod known;
mod nrs;
mod partition;
mod queue;
mod recovery;
pub(crate) mod reply;
mod reply_cache;
mod request;
mod service;
mod service_params;
mod stats;
mod target;
mod target_stats;
mod targets;
mod unreachable;

pub use active::ActiveGuard;
pub use export::Export;
pub use holdings::{Access, Holdings, Mark, Part};
pub use known::{KeptReply, KnownClient};
pub use partition::ServiceStats;
pub use reply::Reply;
pub use request::ServerRequest;
pub use target::{ConnectRequest, EndReason, Role, Target};
pub use targets::TargetExports;

pub(crate) use dispatch::handle;
pub(crate) use request::{Arrival, Route};
pub(crate) use service::{Handler, Service};
pub(crate) use targets::{ExportTable, TargetTable};
pub(crate) use unreachable::Blockers;
