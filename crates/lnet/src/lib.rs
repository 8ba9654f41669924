//! LNet: NIDs, peers, portals, credits, and the drivers `lo` and `tcp`.
//!
//! [`Lnet`] is one node's stack. What the protocol says (what is attached to portals, which answers are waited for, how
//! messages, hellos and cookies look) is plain state and pure functions: `core`, `ping`, `tcp::hello`, `tcp::zc`, `wire::frame`. Drivers move messages: `lo` hands them over by reference, `tcp` speaks socklnd version 3.
//!
//! A node may be on several networks, by several interfaces ([`NiSpec`]), each bound to some CPU partitions; to others it
//! gets by routers ([`RouteSpec`]), and it may be one itself. What partitions share is looked at without a lock (`nets`).
//!
//! Nothing here grows without a bound: messages leave within credits of the peer and of the partition, answers within
//! a number of their own, and what a full [`PutSink`] gives back waits within `tcp`'s limits, after which the
//! connection is not read any further.

mod claim;
mod config;
mod configure;
mod core;
mod counters;
mod credits;
mod error;
mod interfaces;
mod lo;
mod message;
mod nets;
mod networks;
mod ni;
mod node;
mod params;
mod payload;
mod ping;
pub mod place;
mod portals;
mod rotor;
mod router;
mod seldom;
mod show;
mod start;
mod tasks;
mod tcp;

pub use claim::{AddressUser, user_of};
pub use config::{Accept, LnetConfig};
pub use counters::Counts;
pub use cpt::BoxFuture;
pub use error::LnetError;
pub use interfaces::{is_of_this_host, resolve};
pub use networks::{
    IfSpec, NetSpec, RouteSpec, check_gateway, net_name, parse_cpt_list, parse_hops, parse_net_name,
    parse_networks, parse_routes,
};
pub use ni::{NiSpec, Tunables};
pub use node::{Lnet, PeerEvent, PutDone};
pub use payload::Payload;
pub use portals::{Attached, Full, Incoming, Match, Md, MdEvent, PortalGuard, PutSink};
pub use rotor::PortalRotor;
pub use router::buffers::BuffersShown;
pub use seldom::Seldom;
pub use show::{NiShown, PeerShown, RouteShown};
pub use start::START;
pub use tcp::Link;
pub use wire::frame::PingReply as PingInfo;
