//! LNet selftest: what Lustre's `lnet_selftest` module and its console do, over `lnet`.
//!
//! A [`Node`] answers as a node with that module loaded does: it takes a console's session, batches and tests, runs their
//! client's side, and serves their server's side. What it is told is judged by pure parts: `framework` (sessions, batches),
//! `spec` (what a test is), `pattern` (what bulk holds).
//!
//! A [`console::Console`] has a session with many such nodes, and says what comes of its commands as Lustre's `lst` does.

mod client;
pub mod console;
mod framework;
mod inbox;
mod node;
mod pattern;
mod run;
mod server;
mod settings;
mod spec;
mod srpc;

pub use node::Node;
pub use settings::{START, Settings};
