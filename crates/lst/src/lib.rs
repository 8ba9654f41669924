//! LNet selftest over `lnet`: the services of Lustre's `lnet_selftest` module. The console is the
//! crate `lst-console`.
//!
//! A [`Node`] is a node under test, as a Lustre node is while `lnet_selftest` is loaded. It accepts
//! a console's session, batches and tests, runs the client side of tests, and serves the server
//! side. The modules `framework` (sessions, batches), `spec` (test parameters) and `pattern` (bulk
//! data) do no I/O.

mod client;
mod framework;
mod inbox;
mod node;
mod pattern;
mod run;
mod server;
mod settings;
mod spec;
mod srpc;

pub use framework::NO_SID;
pub use node::Node;
pub use pattern::PAGE;
pub use server::JoinHandler;
pub use settings::{START, Settings};
pub use spec::write_destinations;
pub use srpc::{Bulk, Reply, Requester};
