//! The driver of a simulated network. Every node of a simulation has a [`SimLnd`], and all share
//! one [`Fabric`], which delivers frames in virtual time. A [`Weather`] decides the fate of each
//! frame.
//!
//! The driver behaves like `tcp`: connections with hellos, a boot's incarnation, resets of unknown
//! connections, and the loss of all that waits when a connection breaks. A frame to an unreachable
//! host waits, as in TCP's retransmission, until the host answers again or its sender gives up.

mod driver;
mod fabric;

pub(crate) use driver::SimLnd;
pub use fabric::{Fabric, Fate, FrameInfo, FrameKind, Weather};
