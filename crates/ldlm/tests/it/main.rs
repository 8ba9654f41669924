//! The lock manager: as a state machine against a model, and as servers and clients with messages between them.

mod cluster;
mod model;
