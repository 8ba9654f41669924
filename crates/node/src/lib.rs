//! A node of a file system: one LNet node with its RPC layer, parameters, targets and mounts.
//!
//! [`Node::start`] takes a network and a [`NodeConfig`]; [`Node::serve`] starts targets on any
//! stores; [`Node::mount`] mounts file systems for programs in the same process. Everything from
//! outside, such as clocks and random numbers, is an argument, so that a program can run a node
//! with real disks, and a test can run many nodes in one thread with virtual time.
//!
//! Start order: network, MGS, OSTs, MDTs, mounts. They stop in reverse order. Each stop step has a
//! time limit. If a step exceeds the limit, the node logs a warning and goes on, so a dead peer
//! cannot keep the process from exiting.

mod config;
mod error;
mod mgs_connections;
mod mount;
mod params;
mod random;
mod registration;
mod saved_config;
mod serve;
mod start;
mod steps;
mod target;

pub use config::NodeConfig;
pub use error::NodeError;
pub use random::RandomSource;
pub use registration::{MGS_WAIT, REPLACE_MARK};
pub use saved_config::SAVED_CONFIG_FILE;
pub use start::Node;
pub use steps::{STEP_MAX, await_all, limit_step};
pub use target::{SERVER_NIDS_PARAM, TargetSpec};
