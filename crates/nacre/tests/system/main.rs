//! The whole system seen through real mounts: each workload is a function over a directory in a mount, and lives through
//! everything that happens to a file system: in one process and as four over TCP, stopped and started, killed and started.
//!
//! They need root and `/dev/fuse`, and fail where those are missing.

#![allow(clippy::unwrap_used)]

mod away;
mod capabilities;
mod cargo_build;
mod clients;
mod crash;
mod crash_matrix;
mod dead;
mod file_system;
#[path = "../fixture/mod.rs"]
mod fixture;
mod four_processes;
mod git;
mod hostile;
mod inventory;
mod joining;
mod life;
mod limits;
mod namespaces;
mod one_process;
mod posix;
mod power;
mod rsync;
mod semantics;
mod sqlite;
mod suites;
mod tar;
mod times;
mod tree;
mod turns;
