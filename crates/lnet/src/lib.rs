//! LNet: NIDs, peers, portals, credits, and the drivers `lo` and `tcp`.
//!
//! [`Lnet`] is one node's stack. What the protocol says (what is attached to portals, which answers are waited for, how
//! messages, hellos and cookies look) is plain state and pure functions: `core`, `ping`, `tcp::hello`, `tcp::zc`, `wire::frame`. Drivers move messages: `lo` hands them over by reference, `tcp` speaks socklnd version 3.
//!
//! Nothing here grows without a bound: messages leave within credits of the peer and of the partition, answers within
//! a number of their own, and what a full [`PutSink`] gives back waits within `tcp`'s limits, after which the
//! connection is not read any further.

mod config;
mod core;
mod counters;
mod error;
mod lo;
mod message;
mod node;
mod payload;
mod ping;
mod portals;
mod seldom;
mod start;
mod tasks;
mod tcp;

pub use config::LnetConfig;
pub use cpt::BoxFuture;
pub use error::LnetError;
pub use node::{Lnet, PeerEvent, PutDone};
pub use payload::Payload;
pub use portals::{Attached, Full, Incoming, Match, Md, MdEvent, PortalGuard, PutSink};
pub use seldom::Seldom;
pub use start::START;
pub use wire::frame::PingReply as PingInfo;
