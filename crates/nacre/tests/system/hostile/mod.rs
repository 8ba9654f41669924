//! A misbehaving peer attacks a complete file system over TCP while another client works with it.
//! The attacks must fail without a panic. Log and memory use must stay bounded, and the other
//! client's work must continue.
//!
//! Tests of single crates: `lnet/tests/it/faulty_peers.rs`, `rpc/tests/it/by_hand.rs`,
//! `mdt/tests/service/server_side_checks.rs`. `fuzz` covers other input.

#![allow(clippy::unwrap_used)]

mod attacked_fs;
#[path = "../../../../rpc/tests/it/common/mod.rs"]
mod by_hand;
#[path = "../../../../wire/tests/it/captured/mod.rs"]
mod captured;
#[allow(dead_code, reason = "this test binary uses a part of it")]
#[path = "../../../../mdt/tests/service/client.rs"]
mod client;
mod requests;
mod rpcs;
#[path = "../../../../lnet/tests/it/common.rs"]
mod sockets;
mod storm;
mod streams;
