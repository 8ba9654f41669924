//! A whole cluster in one thread: servers and clients on a simulated network, in virtual time, from
//! one seed. Nodes die at any await point and start again, disks lose unsynced data, and the
//! network between hosts is cut. The checks compare the results of all calls with the promises of
//! the file system.
//!
//! The crate is empty without its feature `sim`, so that ordinary builds have no hooks.

#![cfg(feature = "sim")]

pub mod attrs;
pub mod checks;
pub mod cluster;
pub mod data;
pub mod faults;
pub mod flocks;
pub mod history;
pub mod kernel;
pub mod linear;
pub mod memory;
pub mod names;
pub mod newcomer;
pub mod register;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod store;
pub mod system;
pub mod verify;
pub mod watchdog;
pub mod weather;
pub mod workload;
