//! The server's side: services that take requests in, exports that know the clients, targets that do the work.
//!
//! A request's way: [`service`] queues it on its partition; [`dispatch`] finds its export and asks [`once`] whether it is
//! to be executed; the [`Target`] handles it; [`reply`] sends what it said.

mod active;
mod connect;
mod dispatch;
pub(crate) mod evictor;
mod export;
mod flavor;
mod in_place;
mod nrs;
mod once;
mod params_of;
mod part;
mod queue;
pub(crate) mod reply;
mod request;
mod service;
mod stats;
mod target;
mod targets;
mod unreachable;

pub use active::Busy;
pub use export::Export;
pub use part::ServiceStats;
pub use reply::Reply;
pub use request::ServerRequest;
pub use target::{ConnectRequest, Role, Target};
pub use targets::TargetExports;

pub(crate) use dispatch::handle;
pub(crate) use request::{Arrival, Route};
pub(crate) use service::{Handler, Service};
pub(crate) use targets::{ExportTable, TargetTable};
pub(crate) use unreachable::Blockers;
