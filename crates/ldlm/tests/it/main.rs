//! The lock manager: the state machine against a model, and servers and clients over RPC.

mod cluster;
mod model;
