//! The lock manager: a pure state machine, and thin glue to rpc for servers and clients.
