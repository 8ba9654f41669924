//! The driver of a simulated network. Every node of a simulation has a [`SimLnd`], and all share
//! one [`Fabric`], which delivers frames in virtual time. A [`Weather`] decides the fate of each
//! frame.
//!
//! The driver behaves like `tcp`: it opens connections with hellos, which carry the incarnation of
//! the boot, and resets unknown connections. When a connection breaks, the driver drops the PUTs
//! that wait for a sink, and fails the operations that wait for the peer. A frame to an unreachable
//! host waits, as if TCP retransmitted it, until the host is reachable again or the sender gives
//! up.

mod driver;
mod fabric;

pub(crate) use driver::SimLnd;
pub use fabric::{Fabric, Fate, FrameInfo, FrameKind, Weather};
