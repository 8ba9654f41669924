//! A misbehaving peer attacks a complete file system over TCP while another client works with it.
//! The attacks must fail without a panic. Log and memory use must stay bounded, and the other
//! client's work must continue.
//!
//! Tests of single crates: `lnet/tests/it/faulty_peers.rs`, `rpc/tests/it/by_hand.rs`,
//! `mdt/tests/service/server_side_checks.rs`. `fuzz` covers other input.

#![allow(clippy::unwrap_used)]

mod attacked_fs;
mod requests;
mod rpcs;
mod storm;
mod streams;
