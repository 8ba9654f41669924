//! System tests through real mounts. A workload is a function on a directory in a mount; it runs in
//! one process and in four over TCP, with restarts and kills.
//!
//! The tests need root and `/dev/fuse`, and fail without them.

#![allow(clippy::unwrap_used)]

mod capabilities;
mod cargo_build;
mod clients;
mod crash;
mod crash_matrix;
mod file_system;
#[path = "../fixture/mod.rs"]
mod fixture;
mod four_processes;
mod fsx;
mod git;
mod hostile;
mod inventory;
mod limits;
mod namespaces;
mod one_process;
mod posix;
mod power;
mod registration;
mod rsync;
mod semantics;
mod sqlite;
mod suites;
mod tar;
mod times;
mod tree;
mod unresponsive_clients;
mod unresponsive_targets;
mod workload;
