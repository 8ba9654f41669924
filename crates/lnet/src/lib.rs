//! LNet: NIDs, peers, portals, credits, routing, and the drivers `lo` and `tcp`. Follows
//! docs/protocol.md, "LNet".
//!
//! [`Lnet`] is one node's stack. The protocol itself is pure code: `pending` (operations and their
//! answers), `ping`, `net_syntax`, `rotor`, `tcp::hello`, `tcp::zc`, `wire::frame`. `core` holds
//! their state, which all partitions share. Drivers move messages: `lo` passes them by reference,
//! `tcp` speaks socklnd version 3.
//!
//! A node may be on several networks through several interfaces ([`NiSpec`]), each bound to some
//! CPU partitions. Routers ([`RouteSpec`]) lead to other networks, and the node may be a router
//! itself. Partitions read their shared configuration without a lock (`nets`).
//!
//! All memory is bounded. Messages need credits of the peer and of the partition; answers have a
//! limit per peer. PUTs that a full [`PutSink`] refuses wait in the bounded queues of their
//! connection. When a queue is full, `tcp` stops reading its connection. When the queues of all
//! connections reach their common limit, `tcp` drops further PUTs.

mod claim;
mod config;
mod configure;
mod core;
mod counters;
mod credits;
pub mod endpoint;
mod error;
mod interfaces;
mod link;
mod lnd;
mod lo;
mod message;
mod net_syntax;
mod nets;
mod ni;
mod node;
mod params;
mod payload;
mod pending;
mod ping;
mod portals;
mod rate_limit;
mod rotor;
mod router;
mod servers_user;
mod show;
#[cfg(feature = "sim")]
pub mod sim;
mod start;
mod tasks;
mod tcp;

pub use claim::{AddressUser, user_of};
pub use config::{Accept, LnetConfig};
pub use counters::Counts;
pub use cpt::BoxFuture;
pub use error::LnetError;
pub use interfaces::{is_of_this_host, resolve};
pub use link::Link;
pub use net_syntax::{
    IfSpec, NetSpec, RouteSpec, check_gateway, net_name, parse_cpt_list, parse_hops, parse_net_name,
    parse_networks, parse_routes,
};
pub use ni::{NiSpec, Tunables};
pub use node::{Lnet, PeerEvent, PutOutcome};
pub use payload::Payload;
pub use portals::{IncomingPut, MatchEntry, Md, MdEvent, MdHandle, PortalGuard, PutSink, SinkFull};
pub use rate_limit::LogRateLimit;
pub use rotor::PortalRotor;
pub use router::buffers::RouterBufferInfo;
pub use servers_user::{SERVERS_RUN_DIR, servers_user};
pub use show::{CreditInfo, NiInfo, PeerInfo, RouteInfo};
pub use start::START;
pub use wire::frame::PingReply as PingInfo;
