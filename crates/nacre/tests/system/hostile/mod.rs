//! A peer that misbehaves in every way it can, over TCP, against a whole file system that somebody else works with: what it
//! does fails, with few lines in the log; nobody panics, memory stays in proportion, and the other goes on.
//!
//! What one crate alone decides is tested there: `lnet/tests/it/strangers.rs`, `rpc/tests/it/by_hand.rs`,
//! `mdt/tests/service/rude.rs`; and what nobody thought of is for `fuzz`.

#![allow(clippy::unwrap_used)]

#[path = "../../../../rpc/tests/it/common/mod.rs"]
mod by_hand;
#[path = "../../../../wire/tests/it/captured/mod.rs"]
mod captured;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../../../../mdt/tests/service/client.rs"]
mod client;
mod prey;
mod requests;
mod rpcs;
#[path = "../../../../lnet/tests/it/common.rs"]
mod sockets;
mod storm;
mod streams;
