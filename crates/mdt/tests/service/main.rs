//! Tests of the MDT over the RPC layer: raw requests of clients, with OSTs that only count.

#![allow(clippy::unwrap_used)]

mod batch;
mod by_fid;
mod capabilities;
mod client;
mod fixture;
mod leases;
#[path = "../../../lnet/tests/it/log.rs"]
mod log;
mod names;
mod open;
mod refused;
mod rude;
mod self_locks;
mod shared;
mod survive;
mod unwritten;
#[path = "../../src/store/watched.rs"]
mod watched;
