//! Support for tests of single layers: captured traffic, peers that build their messages by hand,
//! nodes over loopback, an index that fails, the log of a test. Whole file systems for tests are in
//! the crate `testkit`.

#![allow(clippy::unwrap_used, missing_docs)] // for tests, which fail by a panic

pub mod by_hand;
pub mod captured;
mod instrumented_index;
mod log;
pub mod mds_client;
pub mod over_tcp;
pub mod rpc_node;
pub mod sockets;

pub use instrumented_index::InstrumentedIndex;
pub use log::Log;
