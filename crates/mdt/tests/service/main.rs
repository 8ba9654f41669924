//! The metadata target as clients see it: raw requests over the RPC layer, with an OST that only keeps count.

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
