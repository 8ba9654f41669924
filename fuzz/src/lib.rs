//! What the fuzz targets do with their input: read it as what it may be and build it again ([`parsers`]), or send it as
//! requests to servers in memory ([`server`], [`selftest`]). `cargo xtask fuzz` builds and runs them; [`seeds`] makes what they begin
//! with, from the captures of real traffic and from requests built here.
//!
//! Whatever the input: no panic, no hang, no memory out of proportion, and the next in line is served.

pub mod parsers;
pub mod seeds;
pub mod selftest;
pub mod server;
