//! Support for tests of single layers: captured traffic, peers that build their messages by hand,
//! nodes over loopback, indexes that fail or are slow, the log of a test. Whole file systems for
//! tests are in the crate `testkit`.

#![allow(clippy::unwrap_used, missing_docs)] // for tests, which fail by a panic

pub mod by_hand;
pub mod captured;
mod instrumented_index;
mod log;
pub mod mds_client;
pub mod over_tcp;
pub mod rpc_node;
pub mod slow_index;
pub mod sockets;
mod wait;

pub use instrumented_index::InstrumentedIndex;
pub use log::Log;
pub use wait::Wait;
