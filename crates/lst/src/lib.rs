//! LNet selftest over `lnet`: the services of Lustre's `lnet_selftest` module, and its console.
//!
//! A [`Node`] is a node under test, as a Lustre node is while `lnet_selftest` is loaded. It accepts
//! a console's session, batches and tests, runs the client side of tests, and serves the server
//! side. The modules `framework` (sessions, batches), `spec` (test parameters) and `pattern` (bulk
//! data) do no I/O.
//!
//! A [`console::Console`] has a session with many nodes and prints results in the format of
//! Lustre's `lst`.

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
