//! System tests through real mounts. Workloads (git, tar, SQLite, ...) work in a directory of a
//! mount, with all servers in one process and in four processes over TCP, through a restart and a
//! kill of all processes.
//!
//! Most tests need root and `/dev/fuse`, and fail without them.

#![allow(clippy::unwrap_used)]

mod capabilities;
mod cargo_build;
mod clients;
mod components;
mod crash;
mod crash_matrix;
mod failover;
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
mod recovery;
mod registration;
mod replay_barrier;
mod rsync;
mod semantics;
mod several_mdts;
mod sqlite;
mod suites;
mod tar;
mod times;
mod tree;
mod unresponsive_clients;
mod unresponsive_targets;
mod workload;
