//! Fuzz targets: parsers, which parse an input and rebuild it ([`parsers`]), and servers in memory,
//! which receive the input as requests ([`server`], [`selftest`]). `cargo xtask fuzz` builds and
//! runs them. [`seeds`] creates the initial inputs from captured traffic and from sequences built
//! by hand.
//!
//! No input may cause a panic, a hang or excessive memory use. After the input the servers must
//! still answer another client. The targets `mdt`, `ldlm` and `ost` also fail if a request never
//! ends, two clients hold conflicting locks, a client or a lock remains after the input, or each
//! run of an input adds memory.

pub mod client;
pub mod cluster;
mod history;
mod log;
pub mod memory;
pub mod mutator;
pub mod orderly;
pub mod parsers;
pub mod requests;
pub mod seeds;
pub mod selftest;
pub mod server;
pub mod steps;
