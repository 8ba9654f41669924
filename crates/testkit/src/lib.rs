//! Whole file systems in one process, for tests. Support for tests of single layers is in the crate
//! `testbase`.

#![allow(clippy::unwrap_used)] // for tests, which fail by a panic

mod clock;
mod cluster;
mod slow_stores;
mod stores;

/// The crate, for tests of the crates on which it depends.
pub use node;

pub use clock::SettableClock;
pub use cluster::{Cluster, FSNAME, OstNode, label, start_node};
pub use slow_stores::SlowStores;
pub use stores::{RestartableMemoryStores, StoresWithIndex};
