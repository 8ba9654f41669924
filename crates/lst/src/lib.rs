//! LNet selftest over `lnet`: the services of Lustre's `lnet_selftest` module, and its console.
//!
//! A [`Node`] is a node under test, like one with that module loaded. It accepts a console's
//! session, batches and tests, runs the client side of tests, and serves the server side. Modules
//! without I/O decide: `framework` (sessions, batches), `spec` (test parameters), `pattern` (bulk
//! data).
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
