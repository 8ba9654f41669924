//! Tests of the MDT over the RPC layer: raw requests of clients, with OSTs that store nothing.

#![allow(clippy::unwrap_used)]

mod batch;
mod by_fid;
mod capabilities;
mod components;
mod data;
mod data_with_open;
mod dir_defaults;
mod fixture;
mod journal;
mod leases;
mod names;
mod open;
mod recovery;
mod remote_dirs;
mod remote_names;
mod restart;
mod self_deadlock;
mod server_side_checks;
mod several_mdts;
mod slow_store;
mod statfs;
mod swap;
mod two_clients;
mod unsupported;
mod unwritten;
